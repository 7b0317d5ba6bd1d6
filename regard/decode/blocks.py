"""A decoder's blocks for rows over pages of keys and values: the same weights, with a few operations for each
layer.

Shapes: R rows, D width, H heads, G key/value heads, d width of a head.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from regard.cancel import check_cancelled
from regard.core.attention import Attention
from regard.core.layers import ACTIVATIONS, Activation, Block, FeedForward, Residual, Stack, SwiGLU
from regard.core.positions import Positions, Rotary
from regard.decode.kernels.plain import Norm, apply_norm

LINEAR_LAYERS: dict[type, tuple[str, ...]] = {
    Attention: ("q", "k", "v", "out"),
    FeedForward: ("up", "down"),
    SwiGLU: ("gate", "up", "down"),
}


@dataclass
class Rows:
    """The inputs of a step: each row's position, and the cache pages of its text and its source."""

    positions: Tensor  # (R,) int32; -1: the row is not used
    lengths: Tensor  # (R,) int32: positions + 1, the tokens that it attends to
    tables: Tensor  # (R, N) int32: the pages of its text
    source_tables: Tensor  # (R, M) int32: the pages of its source
    source_lengths: Tensor  # (R,) int32
    distinct: bool  # every row belongs to another text


def find_decoder(model: nn.Module) -> Stack | None:
    """Return the only stack of blocks that writes, if the operations over pages support all of it."""
    stacks = [m for m in model.modules() if isinstance(m, Stack) and len(m) and is_causal(m[0])]
    return stacks[0] if len(stacks) == 1 and can_fuse(stacks[0]) else None


def is_observed(model: nn.Module) -> bool:
    """Return whether a model is being trained, or hooks or records observe or change its computation."""
    for m in model.modules():
        hooks = [*m._forward_hooks.values(), *m._forward_pre_hooks.values()]
        if m.training or any(hook is not check_cancelled for hook in hooks):
            return True
        if getattr(m, "records", None) is not None:
            return True
    return False


def is_causal(block: nn.Module) -> bool:
    return isinstance(block, Block) and getattr(block.attn.f, "causal", False)


def can_fuse(stack: Stack) -> bool:
    """Return whether all parts are of known kinds, and all keys fit into pages of one shape."""
    for block in stack:
        if type(block) is not Block:
            return False
        residuals = [r for r in (block.attn, block.cross, block.ffn) if r is not None]
        if not all(is_known(residual) for residual in residuals):
            return False
    return len({(a.kv_heads, a.k.out_features) for a in attentions(stack)}) == 1


def is_known(residual: Any) -> bool:
    """Return whether the operations over pages support this residual branch."""
    f = residual.f
    names = LINEAR_LAYERS.get(type(f), ())
    if type(residual) is not Residual or not isinstance(residual.norm, nn.LayerNorm | nn.RMSNorm):
        return False
    if not names or not all(type(getattr(f, name)) is nn.Linear for name in names):
        return False
    if isinstance(f, Attention):
        return not f.global_qkv and (f.window is None or f.causal)
    return name_of(f.f) is not None


def name_of(f: Activation) -> str | None:
    """The name of an activation, also of a copied partial function."""
    for name, known in ACTIVATIONS.items():
        if f is known or (
            isinstance(f, partial) and isinstance(known, partial) and f.keywords == known.keywords
        ):
            return name
    return None


def attentions(stack: Stack) -> Iterator[Attention]:
    return (m for m in stack.modules() if isinstance(m, Attention))


def pack(*layers: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Join the weights of layers with the same input to one matrix; they become views of it."""
    weight = torch.cat([layer.weight.data for layer in layers])
    for layer, part in zip(layers, weight.split([layer.out_features for layer in layers]), strict=True):
        layer.weight.data = part
    biases = [layer.bias.data for layer in layers if layer.bias is not None]
    return weight, torch.cat(biases) if biases else None


def norm_of(module: nn.Module) -> Norm | None:
    if isinstance(module, nn.LayerNorm):
        return Norm(module.weight, module.bias, module.eps, True)
    if isinstance(module, nn.RMSNorm):
        return Norm(module.weight, None, module.eps or torch.finfo(module.weight.dtype).eps, False)
    return None


class Branch:
    """A residual branch between two norms: x + f(norm(x)), or norm(x + f(x)).

    A norm at the end is not applied but passed on with the stream, to be applied by the next reader.
    """

    def __init__(self, residual: Any, kernels: ModuleType):
        norm = norm_of(residual.norm)
        self.before: Norm | None = norm if residual.pre else None
        self.after: Norm | None = None if residual.pre else norm
        self.kernels = kernels

    def norm_once(self, x: Tensor, pending: Norm | None) -> tuple[Tensor, Norm | None]:
        """Norm several rows once for all readers; a single row is normed at each reader."""
        if pending is None or len(x) == 1:
            return x, pending
        return self.kernels.normalize(x, pending), None

    def project(self, x: Tensor, pending: Norm | None, *args: Any, **options: Any) -> Tensor:
        """A linear layer of the normed stream."""
        assert pending is None or self.before is None
        y: Tensor = self.kernels.norm_linear(x, pending or self.before, *args, **options)
        return y

    def add(self, x: Tensor, pending: Norm | None, y: Tensor, out: nn.Linear) -> tuple[Tensor, Norm | None]:
        """The stream after this branch, whose last layer is `out`."""
        return self.kernels.linear_residual(y, out.weight, out.bias, x, pending), self.after


class SelfAttention(Branch):
    def __init__(self, residual: Any, kernels: ModuleType, positions: Positions | None, context: int):
        super().__init__(residual, kernels)
        attn: Attention = residual.f
        self.weight, self.bias = pack(attn.q, attn.k, attn.v)
        self.out, self.window = attn.out, attn.window
        self.q_norm, self.k_norm = norm_of(attn.q_norm), norm_of(attn.k_norm)
        self.rotary: tuple[Tensor, Tensor] | None = None
        self.score_bias: Tensor | None = None
        if positions is not None and positions.effect == "rotate":
            assert isinstance(positions, Rotary)
            angle = torch.outer(torch.arange(context), positions.frequency.float().cpu()).to(
                attn.q.weight.device
            )
            self.rotary = angle.cos(), angle.sin()  # not from its tables, which may have a lower precision
        if positions is not None and positions.effect == "bias":
            self.score_bias = distance_bias(positions, context)

    def __call__(
        self, x: Tensor, pending: Norm | None, keys: Tensor, values: Tensor, rows: Rows
    ) -> tuple[Tensor, Norm | None]:
        x, pending = self.norm_once(x, pending)
        qkv = self.project(x, pending, self.weight, self.bias)
        read = keys, values, rows.tables
        rotated, limits = (self.rotary, self.q_norm, self.k_norm), (self.score_bias, self.window)
        if rows.distinct:
            y = self.kernels.write_and_attend(qkv, *read, rows.positions, *rotated, *limits)
        else:
            q = self.kernels.write_pages(qkv, *read, rows.positions, *rotated)
            y = self.kernels.paged_attention(q, *read, rows.lengths, *limits)
        return self.add(x, pending, y.flatten(1), self.out)


class CrossAttention(Branch):
    def __init__(self, residual: Any, kernels: ModuleType):
        super().__init__(residual, kernels)
        attn: Attention = residual.f
        self.attn, self.q, self.out, self.heads = attn, attn.q, attn.out, attn.heads
        self.q_norm = attn.q_norm

    def __call__(
        self, x: Tensor, pending: Norm | None, keys: Tensor, values: Tensor, rows: Rows
    ) -> tuple[Tensor, Norm | None]:
        x, pending = self.norm_once(x, pending)
        q = self.project(x, pending, self.q.weight, self.q.bias).unflatten(-1, (self.heads, -1))
        q = self.q_norm(q)
        y = self.kernels.paged_attention(q, keys, values, rows.source_tables, rows.source_lengths)
        return self.add(x, pending, y.flatten(1), self.out)


class Feed(Branch):
    def __init__(self, residual: Any, kernels: ModuleType):
        super().__init__(residual, kernels)
        ffn = residual.f
        self.gated, self.activation, self.down = isinstance(ffn, SwiGLU), name_of(ffn.f), ffn.down
        self.weight: Tensor = ffn.up.weight
        self.bias: Tensor | None = ffn.up.bias
        if self.gated:
            self.weight, self.bias = pack(ffn.gate, ffn.up)

    def __call__(self, x: Tensor, pending: Norm | None) -> tuple[Tensor, Norm | None]:
        x, pending = self.norm_once(x, pending)
        y = self.project(x, pending, self.weight, self.bias, activation=self.activation, gated=self.gated)
        return self.add(x, pending, y, self.down)


def distance_bias(positions: Positions, context: int) -> Tensor:
    """The bias of a score by the distance of the key behind the query, (H, context)."""
    bias = positions.bias(1, context)
    assert bias is not None
    return bias[:, 0].flip(-1).float().contiguous()


class FusedStack:
    """The blocks of a decoder over pages of keys and values (layers, P, G, L, d)."""

    def __init__(self, stack: Stack, positions: Positions | None, context: int, kernels: ModuleType):
        self.layers = [
            (
                SelfAttention(block.attn, kernels, positions, context),
                None if block.cross is None else CrossAttention(block.cross, kernels),
                Feed(block.ffn, kernels),
            )
            for block in stack
        ]

    def use(self, kernels: ModuleType) -> None:
        """Compute with these operations from now on."""
        for branch in (branch for layer in self.layers for branch in layer if branch is not None):
            branch.kernels = kernels

    def __call__(self, x: Tensor, keys: Tensor, values: Tensor, rows: Rows) -> Tensor:
        """The last block's output for rows x (R, D)."""
        stream, pending = x.float(), None
        for (attn, cross, ffn), k, v in zip(self.layers, keys, values, strict=True):
            stream, pending = attn(stream, pending, k, v, rows)
            if cross is not None:
                stream, pending = cross(stream, pending, k, v, rows)
            stream, pending = ffn(stream, pending)
        return apply_norm(stream, pending).to(x.dtype)
