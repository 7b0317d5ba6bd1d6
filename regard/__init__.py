"""Regard: every transformer in one small, fast, see-through codebase."""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each name lives. Imported when first asked for: `import regard` and `regard --help` need no torch.
_HOMES = {
    "train": "train",
    "load": "run",
    "at_step": "run",
    "Model": "run",
    "look": "look",
    "page": "look.page",
    "trace": "trace",
    "Trace": "trace",
    "watch": "watch",
    "change": "change",
    "effects": "change",
    "Attention": "attention",
    "Block": "layers",
    "FeedForward": "layers",
    "SwiGLU": "layers",
    "Bert": "models",
    "BertConfig": "models",
    "Captioner": "models",
    "CaptionerConfig": "models",
    "GPT": "models",
    "GPTConfig": "models",
    "Seq2Seq": "models",
    "RNNConfig": "models",
    "GRUConfig": "models",
    "LSTMConfig": "models",
    "Transformer": "models",
    "TransformerConfig": "models",
    "ViT": "models",
    "ViTConfig": "models",
    "Sampling": "generate",
    "generate": "generate",
    "Tokenizer": "text",
    "vectors": "vectors",
    "Mistake": "errors",
}

if TYPE_CHECKING:
    from .attention import Attention
    from .change import change, effects
    from .errors import Mistake
    from .generate import Sampling, generate
    from .layers import Block, FeedForward, SwiGLU
    from .look import look
    from .look.page import page
    from .models import (
        GPT,
        Bert,
        BertConfig,
        Captioner,
        CaptionerConfig,
        GPTConfig,
        GRUConfig,
        LSTMConfig,
        RNNConfig,
        Seq2Seq,
        Transformer,
        TransformerConfig,
        ViT,
        ViTConfig,
    )
    from .run import Model, at_step, load
    from .text import Tokenizer
    from .trace import Trace, trace
    from .train import train
    from .vectors import vectors
    from .watch import watch

__all__ = [
    "GPT",
    "Attention",
    "Bert",
    "BertConfig",
    "Block",
    "Captioner",
    "CaptionerConfig",
    "FeedForward",
    "GPTConfig",
    "GRUConfig",
    "LSTMConfig",
    "Mistake",
    "Model",
    "RNNConfig",
    "Sampling",
    "Seq2Seq",
    "SwiGLU",
    "Tokenizer",
    "Trace",
    "Transformer",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "at_step",
    "change",
    "effects",
    "generate",
    "load",
    "look",
    "page",
    "trace",
    "train",
    "vectors",
    "watch",
]


class _Package(ModuleType):
    """`regard.train` is the function, also after Python has loaded the file train.py."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'regard' has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


sys.modules[__name__].__class__ = _Package
