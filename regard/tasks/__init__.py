"""Tasks: what a model is trained for, and how it is asked. A recipe names one.

A task is imported at its first use: asking a model imports only its own task.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.tasks.answers import Answer
    from regard.tasks.batches import Batch, idle, targets
    from regard.tasks.caption import Caption, CaptionConfig
    from regard.tasks.classify import Classify, ClassifyConfig
    from regard.tasks.converse import Converse, ConverseConfig
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

_TASKS = {  # by the name in a recipe: the file, the class and its configuration
    "caption": ("caption", "Caption", "CaptionConfig"),
    "chat": ("pairs", "Chat", "ChatConfig"),
    "classify": ("classify", "Classify", "ClassifyConfig"),
    "converse": ("converse", "Converse", "ConverseConfig"),
    "embed": ("embed", "Embed", "EmbedConfig"),
    "fill": ("fill", "Fill", "FillConfig"),
    "hear": ("hear", "Hear", "HearConfig"),
    "restore": ("restore", "Restore", "RestoreConfig"),
    "see": ("see", "See", "SeeConfig"),
    "span": ("span", "SpanTask", "SpanTaskConfig"),
    "tag": ("tag", "Tag", "TagConfig"),
    "translate": ("pairs", "Translate", "TranslateConfig"),
    "words": ("words", "WordsTask", "WordsTaskConfig"),
    "write": ("write", "Write", "WriteConfig"),
}
_HOMES = {name: home for home, *names in _TASKS.values() for name in names}
_HOMES |= {
    "Answer": "answers",
    "Batch": "batches",
    "idle": "batches",
    "targets": "batches",
    "Guess": "guessing",
    "DataRequest": "request",
    "Prompt": "request",
    "Request": "request",
    "Task": "task",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


class _Tasks(Mapping[str, "tuple[type[Task], type[Any]]"]):
    """The class and the configuration of each task, by its name."""

    def __getitem__(self, name: str) -> "tuple[type[Task], type[Any]]":
        home, *names = _TASKS[name]
        task, config = (getattr(import_module(f".{home}", __name__), each) for each in names)
        return task, config

    def __iter__(self) -> Iterator[str]:
        return iter(_TASKS)

    def __len__(self) -> int:
        return len(_TASKS)


TASKS = _Tasks()

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
    "Converse",
    "ConverseConfig",
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
