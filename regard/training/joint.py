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

SHORT_ROWS = SPLIT_HEADS = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
LONGEST, HEAD_DIMS = 128, (32, 64)  # limits of the kernel for short rows, which must fit into registers
SPLIT_DIMS = 32, 64, 128  # widths of heads that the kernels which split them are used for


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
    return multiply(x, joint_bias(*layers), *layers)


def joint_bias(*layers: nn.Linear) -> Tensor | None:
    biases: list[Tensor] = [f.bias for f in layers if f.bias is not None]
    return torch.cat(biases) if biases else None


def multiply(x: Tensor, bias: Tensor | None, *layers: nn.Linear) -> Tensor:
    weights: list[Tensor] = [f.weight for f in layers]
    return (fp8_linear if type(layers[0]) is Fp8Linear else F.linear)(x, torch.cat(weights), bias)


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
        if source is None and cache is None and self.splits_heads(x, rotary):
            q, k, v = self.split_heads(x, rotary)  # (B, H, T, d), (B, G, T, d) each
        else:
            if source is None:
                q, k, v = joint(x, self.q, self.k, self.v)  # (B, T, D)
            else:
                q, (k, v) = self.q(x), joint(source, self.k, self.v)  # (B, T, D), (B, S, D)
            q = rotate(self.q_norm(split(q, self.heads)), rotary)
            kv = rotate(self.k_norm(split(k, self.kv_heads)), rotary), split(v, self.kv_heads)
            k, v = kv if cache is None else cache.extend(lambda: kv)
        heads = self.attend(q, k, v, mask, bias, self.globals if globals is None else globals, None)
        return self.out(heads.transpose(1, 2).flatten(2))  # (B, T, D)

    def splits_heads(self, x: Tensor, rotary: Rotation | None) -> bool:
        """Return whether the kernels that rotate and split the heads of a joint product can be used."""
        T, d = x.shape[1], self.q.out_features // self.heads
        return (
            SPLIT_HEADS
            and x.is_cuda
            and torch.is_autocast_enabled("cuda")
            and d in SPLIT_DIMS
            and isinstance(self.q_norm, nn.Identity)
            and (rotary is None or rotary[0].numel() == T * d // 2)
        )

    def split_heads(self, x: Tensor, rotary: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the heads; queries and keys rotated."""
        from regard.training.split_heads import SplitHeads

        bias = joint_bias(self.q, self.k, self.v)
        x = multiply(x, None if bias is None else bias.detach(), self.q, self.k, self.v)  # (B, T, D + 2 G d)
        cos, sin = flat_angles(rotary, x.shape[1])
        parts: tuple[Tensor, Tensor, Tensor] = SplitHeads.apply(x, bias, cos, sin, self.heads, self.kv_heads)
        return parts

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
        cos, sin = flat_angles(rotary, x.shape[1])
        keys = None if mask is None else mask.expand(len(x), -1, -1, -1).flatten(1)
        return attend_short(x, source, cos, sin, keys, seed, self.heads, self.causal, self.dropout)


def flat_angles(rotary: Rotation | None, T: int) -> tuple[Tensor | None, Tensor | None]:
    """Cosines and sines (T, d/2) each, if there are any."""
    return (None, None) if rotary is None else (rotary[0].reshape(T, -1), rotary[1].reshape(T, -1))


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


def split_heads_agree(device: torch.device) -> bool:
    """Check the kernels that split heads against plain attention, with gradients: with and without angles."""
    return agrees(device, LONGEST + 67, SPLIT_DIMS[0]) and agrees(device, LONGEST + 5, SPLIT_DIMS[1], False)


def agrees(device: torch.device, T: int, d: int, rotated: bool = True) -> bool:
    generator = torch.Generator().manual_seed(0)
    plain = Attention(2 * d, 2, causal=True)
    for p in plain.parameters():
        p.data = torch.randn(p.shape, generator=generator) / math.sqrt(2 * d)
    x = torch.randn(5, T, 2 * d, generator=generator).to(device)
    angles = torch.rand(1, T, d // 2, generator=generator).to(device)
    rotary = (angles.cos(), angles.sin()) if rotated else None
    mask = (torch.arange(T) < torch.tensor([T, 1, 7, T - 1, 5])[:, None])[:, None, None].to(device)
    results = []
    for kind in (Attention, JointAttention):
        module, inputs = copy.deepcopy(plain).to(device).train(), x.clone().requires_grad_()
        module.__class__ = kind
        with torch.autocast(device.type, torch.bfloat16):
            y = module(inputs, mask=mask, rotary=rotary)
        layers = module.q, module.k, module.v
        of = [inputs, *(f.weight for f in layers), *(f.bias for f in layers)]
        dx, *weights, q, k, v = torch.autograd.grad(y.float().square().sum(), of)
        results.append([y, dx, *weights, torch.cat([q, k, v])])  # that of k alone may be 0, but for rounding
    return all((a - b).abs().max() <= 0.03 * b.abs().max() for a, b in zip(*results, strict=True))
