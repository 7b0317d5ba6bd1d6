"""Tasks: what to do with data and a model. A recipe names one."""

from typing import Any

from .answers import Answer
from .batches import Batch, idle, targets
from .caption import Caption, CaptionConfig
from .embed import Embed, EmbedConfig
from .fill import Fill, FillConfig
from .labels import Classify, ClassifyConfig
from .pairs import Chat, ChatConfig, Translate, TranslateConfig
from .restore import Restore, RestoreConfig
from .see import See, SeeConfig
from .span import SpanTask, SpanTaskConfig
from .tag import Tag, TagConfig
from .words import WordsTask, WordsTaskConfig
from .write import Write, WriteConfig

TASKS: dict[str, tuple[type[Any], type[Any]]] = {
    "caption": (Caption, CaptionConfig),
    "chat": (Chat, ChatConfig),
    "classify": (Classify, ClassifyConfig),
    "embed": (Embed, EmbedConfig),
    "fill": (Fill, FillConfig),
    "restore": (Restore, RestoreConfig),
    "see": (See, SeeConfig),
    "span": (SpanTask, SpanTaskConfig),
    "tag": (Tag, TagConfig),
    "translate": (Translate, TranslateConfig),
    "words": (WordsTask, WordsTaskConfig),
    "write": (Write, WriteConfig),
}

__all__ = [
    "TASKS",
    "Answer",
    "Batch",
    "Caption",
    "CaptionConfig",
    "Chat",
    "ChatConfig",
    "Classify",
    "ClassifyConfig",
    "Embed",
    "EmbedConfig",
    "Fill",
    "FillConfig",
    "Restore",
    "RestoreConfig",
    "See",
    "SeeConfig",
    "SpanTask",
    "SpanTaskConfig",
    "Tag",
    "TagConfig",
    "Translate",
    "TranslateConfig",
    "WordsTask",
    "WordsTaskConfig",
    "Write",
    "WriteConfig",
    "idle",
    "targets",
]
