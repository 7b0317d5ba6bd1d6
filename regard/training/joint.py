"""Join products with the same input while a model is trained: larger products use a GPU better.

Shapes: B batch, T tokens, S source tokens, D width.
"""

import copy
import importlib.util
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.attention import Attention, Globals, split
from regard.core.cache import KVCache, Mask, State, over_keys
from regard.core.layers import Stack, SwiGLU
from regard.core.positions import Positions, Rotation, rotate
from regard.training.fp8 import Fp8Linear, fp8_linear

SHORT_ROWS = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
LONGEST, HEAD_DIMS = 128, (32, 64)  # limits of the kernel for short rows, which must fit into registers


def join_products(model: nn.Module) -> None:
    """Join the products of queries, keys and values of every attention, and both of a SwiGLU.

    Weights keep their names. The results are the same up to rounding. Caches, which decoders also fill when
    they read a whole target, are left out.
    """
    for m in model.modules():
        if type(m) is Attention and all(type(f) is nn.Linear for f in (m.q, m.k, m.v)) and not m.global_qkv:
            m.__class__ = JointAttention
        elif type(m) is SwiGLU and all(type(f) is nn.Linear for f in (m.gate, m.up)):
            m.__class__ = JointSwiGLU
        elif type(m) is Stack:
            m.__class__ = CachelessStack


def joint(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Compute [f(x) for f in layers] by one product."""
    return joint_product(x, *layers).split([f.out_features for f in layers], dim=-1)


def joint_product(x: Tensor, *layers: nn.Linear) -> Tensor:
    """The results of all layers, concatenated in the last dimension."""
    weights: list[Tensor] = [f.weight for f in layers]
    biases: list[Tensor] = [f.bias for f in layers if f.bias is not None]
    multiply = fp8_linear if type(layers[0]) is Fp8Linear else F.linear
    return multiply(x, torch.cat(weights), torch.cat(biases) if biases else None)


class JointAttention(Attention):
    """Attention with one product for queries, keys and values; on a GPU, with a kernel for short rows."""

    def forward(
        self, x: Tensor, source: Tensor | None = None, *, mask: Mask = None, bias: Tensor | None = None,
        rotary: Rotation | None = None, cache: KVCache | None = None, globals: Globals | None = None
    ) -> Tensor:  # fmt: skip
        if not self.training or self.records is not None:
            how: dict[str, Any] = {"mask": mask, "bias": bias, "rotary": rotary, "cache": cache}
            return super().forward(x, source, **how, globals=globals)
        if cache is None and bias is None and self.is_short(x, source, mask, rotary):
            return self.out(self.attend_short(x, source, mask, rotary))  # (B, T, D)
        if source is None:
            q, k, v = joint(x, self.q, self.k, self.v)  # (B, T, D)
        else:
            q, (k, v) = self.q(x), joint(source, self.k, self.v)  # (B, T, D), (B, S, D)
        q = rotate(self.q_norm(split(q, self.heads)), rotary)
        kv = rotate(self.k_norm(split(k, self.kv_heads)), rotary), split(v, self.kv_heads)
        k, v = kv if cache is None else cache.extend(lambda: kv)
        heads = self.attend(q, k, v, mask, bias, self.globals if globals is None else globals, None)
        return self.out(heads.transpose(1, 2).flatten(2))  # (B, T, D)

    def is_short(self, x: Tensor, source: Tensor | None, mask: Mask, rotary: Rotation | None) -> bool:
        """Return whether the kernel for short rows can be used."""
        T, S = x.shape[1], x.shape[1] if source is None else source.shape[1]
        d = self.q.out_features // self.heads
        return (
            SHORT_ROWS
            and x.is_cuda
            and torch.is_autocast_enabled("cuda")
            and max(T, S) <= LONGEST
            and d in HEAD_DIMS
            and self.heads == self.kv_heads
            and self.window is None
            and isinstance(self.q_norm, nn.Identity)
            and (mask is None or mask.shape[1:] == (1, 1, S))
            and (rotary is None or (source is None and rotary[0].numel() == T * d // 2))
        )

    def attend_short(
        self, x: Tensor, source: Tensor | None, mask: Mask, rotary: Rotation | None
    ) -> Tensor:  # fmt: skip
        from regard.training.short_attention import attend_short

        if source is None:
            x = joint_product(x, self.q, self.k, self.v)  # (B, T, 3 D)
        else:
            x, source = self.q(x), joint_product(source, self.k, self.v)  # (B, T, D), (B, S, 2 D)
        seed = torch.randint(2**31, (1,), device=x.device) if self.dropout else None
        cos, sin = (None, None) if rotary is None else (t.reshape(x.shape[1], -1) for t in rotary)
        keys = None if mask is None else mask.expand(len(x), -1, -1, -1).flatten(1)
        return attend_short(x, source, cos, sin, keys, seed, self.heads, self.causal, self.dropout)


class JointSwiGLU(SwiGLU):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        gate, up = joint(x, self.gate, self.up)
        return self.down(self.f(gate) * up)


class Uncached(State):
    """A state without caches, for blocks that read a whole target at once."""

    def of_layer(self, i: int) -> dict[str, Any]:
        source_mask = over_keys(self.source_attention_mask)
        return {"source": self.encoded, "source_mask": source_mask} if self.source else {}


class CachelessStack(Stack):
    def forward(
        self, x: Tensor, pos: Tensor | None = None, positions: Positions | None = None, mask: Mask = None,
        state: State | None = None, **more: Any
    ) -> Tensor:  # fmt: skip
        if self.training and state is not None and state.run is None and state.length == 0:
            caller, masks = state, (state.attention_mask, state.source, state.source_attention_mask)
            state = Uncached([], *masks, state.encoded, state.positions)
            caller.layers = ()  # continuing from this state raises an error
        return super().forward(x, pos, positions, mask, state, **more)


def short_rows_agree(device: torch.device) -> bool:
    """Check the kernel for short rows against plain attention, with gradients: at a small size, and at the
    largest, which does not fit every GPU."""
    return agrees(device, 13, HEAD_DIMS[0]) and agrees(device, LONGEST, HEAD_DIMS[-1])


def agrees(device: torch.device, T: int, d: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    plain = Attention(2 * d, 2, causal=True)
    for p in plain.parameters():
        p.data = torch.randn(p.shape, generator=generator) / math.sqrt(2 * d)
    x = torch.randn(5, T, 2 * d, generator=generator).to(device)
    angles = torch.rand(1, T, d // 2, generator=generator).to(device)
    mask = (torch.arange(T) < torch.tensor([T, 1, 7, T - 1, 5])[:, None])[:, None, None].to(device)
    results = []
    for kind in (Attention, JointAttention):
        module, inputs = copy.deepcopy(plain).to(device).train(), x.clone().requires_grad_()
        module.__class__ = kind
        with torch.autocast(device.type, torch.bfloat16):
            y = module(inputs, mask=mask, rotary=(angles.cos(), angles.sin()))
        weights: list[Tensor] = [f.weight for f in (module.q, module.k, module.v)]
        results.append([y, *torch.autograd.grad(y.float().square().sum(), [inputs, *weights])])
    return all((a - b).abs().max() <= 0.03 * b.abs().max() for a, b in zip(*results, strict=True))
