"""Tasks: what a model is trained for, and how it is asked. A recipe names one."""

from typing import Any

from regard.tasks.answers import Answer
from regard.tasks.batches import Batch, idle, targets
from regard.tasks.caption import Caption, CaptionConfig
from regard.tasks.classify import Classify, ClassifyConfig
from regard.tasks.embed import Embed, EmbedConfig
from regard.tasks.fill import Fill, FillConfig
from regard.tasks.guessing import Guess
from regard.tasks.hear import Hear, HearConfig
from regard.tasks.pairs import Chat, ChatConfig, Translate, TranslateConfig
from regard.tasks.request import DataRequest, Prompt, Request
from regard.tasks.restore import Restore, RestoreConfig
from regard.tasks.see import See, SeeConfig
from regard.tasks.span import SpanTask, SpanTaskConfig
from regard.tasks.tag import Tag, TagConfig
from regard.tasks.task import Task
from regard.tasks.words import WordsTask, WordsTaskConfig
from regard.tasks.write import Write, WriteConfig

TASKS: dict[str, tuple[type[Task], type[Any]]] = {
    "caption": (Caption, CaptionConfig),
    "chat": (Chat, ChatConfig),
    "classify": (Classify, ClassifyConfig),
    "embed": (Embed, EmbedConfig),
    "fill": (Fill, FillConfig),
    "hear": (Hear, HearConfig),
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
    "DataRequest",
    "Embed",
    "EmbedConfig",
    "Fill",
    "FillConfig",
    "Guess",
    "Hear",
    "HearConfig",
    "Prompt",
    "Request",
    "Restore",
    "RestoreConfig",
    "See",
    "SeeConfig",
    "SpanTask",
    "SpanTaskConfig",
    "Tag",
    "TagConfig",
    "Task",
    "Translate",
    "TranslateConfig",
    "WordsTask",
    "WordsTaskConfig",
    "Write",
    "WriteConfig",
    "idle",
    "targets",
]
