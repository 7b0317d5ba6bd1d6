"""Products with one input as one product, while a model is trained: larger products use a GPU better.

Shapes: B batch, T tokens, S source tokens, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.attention import Attention, Globals, split
from regard.core.cache import KVCache, Mask
from regard.core.layers import SwiGLU
from regard.core.positions import Rotation, rotate


def join_products(model: nn.Module) -> None:
    """Queries, keys and values of every attention by one product, and both of a SwiGLU.

    Weights stay what they are, each with its own name. The results are the same up to rounding.
    """
    for m in model.modules():
        if type(m) is Attention and all(type(f) is nn.Linear for f in (m.q, m.k, m.v)) and not m.global_qkv:
            m.__class__ = JointAttention
        elif type(m) is SwiGLU and all(type(f) is nn.Linear for f in (m.gate, m.up)):
            m.__class__ = JointSwiGLU


def joint(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """[f(x) for f in layers], all by one product."""
    weights: list[Tensor] = [f.weight for f in layers]
    biases: list[Tensor] = [f.bias for f in layers if f.bias is not None]
    return F.linear(x, torch.cat(weights), torch.cat(biases) if biases else None).split(
        [f.out_features for f in layers], dim=-1
    )


class JointAttention(Attention):
    def forward(
        self, x: Tensor, source: Tensor | None = None, *, mask: Mask = None, bias: Tensor | None = None,
        rotary: Rotation | None = None, cache: KVCache | None = None, globals: Globals | None = None
    ) -> Tensor:  # fmt: skip
        if not self.training or self.records is not None:
            how: dict[str, Any] = {"mask": mask, "bias": bias, "rotary": rotary, "cache": cache}
            return super().forward(x, source, **how, globals=globals)
        if source is None:
            q, k, v = joint(x, self.q, self.k, self.v)  # (B, T, D)
        else:
            q, (k, v) = self.q(x), joint(source, self.k, self.v)  # (B, T, D), (B, S, D)
        q = rotate(self.q_norm(split(q, self.heads)), rotary)
        kv = rotate(self.k_norm(split(k, self.kv_heads)), rotary), split(v, self.kv_heads)
        k, v = kv if cache is None else cache.extend(lambda: kv)
        heads = self.attend(q, k, v, mask, bias, self.globals if globals is None else globals, None)
        return self.out(heads.transpose(1, 2).flatten(2))  # (B, T, D)


class JointSwiGLU(SwiGLU):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        gate, up = joint(x, self.gate, self.up)
        return self.down(self.f(gate) * up)
