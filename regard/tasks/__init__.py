"""Tasks: what to do with data and a model. A recipe names one."""

from typing import Any

from .answers import Answer
from .batches import Batch, idle, targets
from .pairs import Chat, ChatConfig, Translate, TranslateConfig
from .write import Write, WriteConfig

TASKS: dict[str, tuple[type[Any], type[Any]]] = {
    "chat": (Chat, ChatConfig),
    "translate": (Translate, TranslateConfig),
    "write": (Write, WriteConfig),
}

__all__ = [
    "TASKS",
    "Answer",
    "Batch",
    "Chat",
    "ChatConfig",
    "Translate",
    "TranslateConfig",
    "Write",
    "WriteConfig",
    "idle",
    "targets",
]
