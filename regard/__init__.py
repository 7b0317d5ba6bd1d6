"""Regard: every transformer in one small, fast, see-through codebase."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each name lives. Imported when first asked for: `import regard` and `regard --help` need no torch.
_HOMES = {
    "train": "train",
    "load": "run",
    "Model": "run",
    "trace": "trace",
    "Attention": "attention",
    "Block": "layers",
    "FeedForward": "layers",
    "SwiGLU": "layers",
    "GPT": "models",
    "GPTConfig": "models",
    "Sampling": "generate",
    "generate": "generate",
    "Tokenizer": "text",
    "Mistake": "errors",
}

if TYPE_CHECKING:
    from .attention import Attention
    from .errors import Mistake
    from .generate import Sampling, generate
    from .layers import Block, FeedForward, SwiGLU
    from .models import GPT, GPTConfig
    from .run import Model, load
    from .text import Tokenizer
    from .trace import trace
    from .train import train

__all__ = [
    "GPT",
    "Attention",
    "Block",
    "FeedForward",
    "GPTConfig",
    "Mistake",
    "Model",
    "Sampling",
    "SwiGLU",
    "Tokenizer",
    "generate",
    "load",
    "trace",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    found = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = found  # over the submodule of the same name, where there is one
    return found
