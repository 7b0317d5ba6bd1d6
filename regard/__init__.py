"""Regard: every transformer in one small, fast, see-through codebase."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each name is defined. Imported at first use: `import regard` and `regard --help` need no torch.
_HOMES = {
    "train": "training.build",
    "load": "runs.load",
    "at_step": "runs.load",
    "info": "runs.info",
    "Model": "runs.model",
    "look": "viewer",
    "page": "viewer.session",
    "attribute": "viewer.attribution",
    "trace": "tracing",
    "Trace": "tracing",
    "watch": "describe.watch",
    "change": "tracing.intervene",
    "effects": "tracing.intervene",
    "jacobian_norms": "tracing.jacobians",
    "Attention": "core.attention",
    "Block": "core.layers",
    "FeedForward": "core.layers",
    "SwiGLU": "core.layers",
    "Sampling": "decode.sampling",
    "generate": "decode.generate",
    "Tokenizer": "text.tokenizer",
    "vectors": "text.vectors",
    "UserError": "errors",
    "Bert": "models",
    "BertConfig": "models",
    "Captioner": "models",
    "CaptionerConfig": "models",
    "GPT": "models",
    "GPTConfig": "models",
    "RecurrentLM": "models",
    "RecurrentLMConfig": "models",
    "Seq2Seq": "models",
    "RNNConfig": "models",
    "GRUConfig": "models",
    "LSTMConfig": "models",
    "Transformer": "models",
    "TransformerConfig": "models",
    "ViT": "models",
    "ViTConfig": "models",
}

if TYPE_CHECKING:
    from regard.core.attention import Attention
    from regard.core.layers import Block, FeedForward, SwiGLU
    from regard.decode.generate import generate
    from regard.decode.sampling import Sampling
    from regard.describe.watch import watch
    from regard.errors import UserError
    from regard.models import (
        GPT,
        Bert,
        BertConfig,
        Captioner,
        CaptionerConfig,
        GPTConfig,
        GRUConfig,
        LSTMConfig,
        RecurrentLM,
        RecurrentLMConfig,
        RNNConfig,
        Seq2Seq,
        Transformer,
        TransformerConfig,
        ViT,
        ViTConfig,
    )
    from regard.runs.info import info
    from regard.runs.load import at_step, load
    from regard.runs.model import Model
    from regard.text.tokenizer import Tokenizer
    from regard.text.vectors import vectors
    from regard.tracing import Trace, trace
    from regard.tracing.intervene import change, effects
    from regard.tracing.jacobians import jacobian_norms
    from regard.training.build import train
    from regard.viewer import look
    from regard.viewer.attribution import attribute
    from regard.viewer.session import page

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
    "Model",
    "RNNConfig",
    "RecurrentLM",
    "RecurrentLMConfig",
    "Sampling",
    "Seq2Seq",
    "SwiGLU",
    "Tokenizer",
    "Trace",
    "Transformer",
    "TransformerConfig",
    "UserError",
    "ViT",
    "ViTConfig",
    "at_step",
    "attribute",
    "change",
    "effects",
    "generate",
    "info",
    "jacobian_norms",
    "load",
    "look",
    "page",
    "trace",
    "train",
    "vectors",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
