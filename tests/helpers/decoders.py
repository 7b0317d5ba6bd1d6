"""Small decoders of every kind of positions and attention, and texts for them."""

from typing import Any

import torch

from regard.models import MODELS

SIZES: dict[str, Any] = {"vocab": 61, "context": 23, "dim": 64, "depth": 2, "heads": 4}
GPT2 = {"positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True}
MODEL_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("gpt", {"kv_heads": 2}),
    "gpt2": ("gpt", GPT2),
    "alibi": ("gpt", {"positions": "alibi"}),
    "relative": ("gpt", {"positions": "relative"}),
    "transformer": ("transformer", {"dropout": 0.0}),
    "pre-norm": ("transformer", {"dropout": 0.0, "pre": True, "ffn": "swiglu", "kv_heads": 2}),
    "t5": ("t5", {"dropout": 0.0}),
    "qwen3": ("gpt", {"kv_heads": 2, "qk_norm": True}),
    "mistral": ("gpt", {"kv_heads": 2, "sliding_window": 5}),
    "windowed-alibi": ("gpt", {"positions": "alibi", "sliding_window": 3}),
}
PROMPTS, SOURCES = [[3, 1, 4], [1, 5], [9, 2, 6, 5]], [[2, 7, 1], [8, 2, 8, 1, 8], [4, 5]]


def build(kind: str) -> Any:
    torch.manual_seed(0)
    family, changes = MODEL_KINDS[kind]
    cls, config, _ = MODELS[family]
    model = cls(config(**SIZES | changes)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05 * torch.randn_like(p)
    return model
