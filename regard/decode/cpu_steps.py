"""One more token of each row through a decoder's blocks, on a CPU: the same numbers in fewer operations.

A step takes a few milliseconds, of which calls of modules would be a large part. The blocks themselves are
the readable reference of this code.

Shapes: B texts, K beams of each (1 without beam search), H heads, G key/value heads, S positions,
D width, d width of a head.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.cancel import check_cancelled
from regard.core.attention import Attention
from regard.core.cache import KeysValues, KVCache, Mask, State, over_keys
from regard.core.layers import Stack, SwiGLU
from regard.core.positions import Positions, Rotation, rotate
from regard.decode.blocks import find_decoder, is_observed
from regard.models.base import LanguageModel
from regard.quantize.weights import SmallWeight, has_op

LEAST_ROOM = 32  # positions
LARGE = 2**18  # numbers of a weight: for smaller ones, plain products are as fast
FEW_ROWS = 4  # that W xᵀ is faster for
HAS_ONEDNN = has_op("mkldnn._linear_pointwise")


def speed_up(model: object, state: object) -> None:
    """Compute the next steps from this state in fewer operations, if the model allows it."""
    if not isinstance(model, nn.Module) or not isinstance(state, State) or state.run is not None:
        return
    if torch.is_grad_enabled() or next(model.parameters()).device.type != "cpu" or is_observed(model):
        return
    if (decoder := find_decoder(model)) is not None and all(map(attends_backwards, decoder)):
        state.layers = [RoomyKVCache(layer.kv) for layer in state.layers]
        state.run = CPUStack(decoder, state)


class RoomyKVCache(KVCache):
    """Keys and values with room for more of them: a step writes its own there without copying the
    earlier ones, except when the room grows, by half."""

    def __init__(self, kv: KeysValues | None) -> None:
        self.kv = kv

    @property
    def kv(self) -> KeysValues | None:
        return self._kv

    @kv.setter
    def kv(self, kv: KeysValues | None) -> None:
        self._kv, self._room = kv, None

    _room: KeysValues | None  # of which the keys and values are the first positions

    def extend(self, new: Callable[[], KeysValues]) -> KeysValues:
        return self.append(*new())

    def append(self, k: Tensor, v: Tensor) -> KeysValues:
        """All keys and values (B, G, S, d), with those of the next positions."""
        past = self.length
        S = past + k.shape[2]
        if self._kv is None:
            self._kv = k, v
            return self._kv
        if self._room is None or S > self._room[0].shape[2]:
            self._room = make_room(self._kv[0], S), make_room(self._kv[1], S)
        keys, values = self._room
        keys.narrow(2, past, S - past).copy_(k)
        values.narrow(2, past, S - past).copy_(v)
        self._kv = keys.narrow(2, 0, S), values.narrow(2, 0, S)
        return self._kv

    def reorder(self, rows: Tensor) -> None:
        if self._room is None:
            super().reorder(rows)
        else:
            self.keep([room.index_select(0, rows) for room in self._room], self.length)

    def choose(self, index: Tensor) -> None:
        """Keep the positions index (B, n) of each row."""
        assert self._kv is not None
        (B, n), (G, d) = index.shape, self._kv[0].shape[1::2]
        rooms = []
        for x in self._room or self._kv:
            rows = torch.arange(B * G).view(B, G, 1) * x.shape[2] + index[:, None]  # (B, G, n)
            chosen = x.reshape(-1, d).index_select(0, rows.flatten()).view(B, G, n, d)
            rooms.append(make_room(chosen, n))
        self.keep(rooms, n)

    def keep(self, rooms: list[Tensor], S: int) -> None:
        """Use these rooms, of which S positions are filled."""
        k, v = rooms
        self._room, self._kv = (k, v), (k.narrow(2, 0, S), v.narrow(2, 0, S))

    def remove(self, count: int) -> None:
        """Forget the last positions; their room stays."""
        if self._kv is not None and count:
            S = self.length - count
            self._kv = self._kv[0].narrow(2, 0, S), self._kv[1].narrow(2, 0, S)


def make_room(x: Tensor, S: int) -> Tensor:
    """A copy of x (B, G, past, d) with room for S positions and for more."""
    B, G, past, d = x.shape
    room = x.new_empty(B, G, S + max(LEAST_ROOM, S // 2), d)
    room[:, :, :past] = x
    return room


def attends_backwards(block: nn.Module) -> bool:
    """Return whether a block attends to all earlier tokens, or to the last ones of them."""
    attentions = [m for m in block.modules() if isinstance(m, Attention)]
    return all(a.window is None or not a.globals for a in attentions)


class CPUStack:
    """The blocks of a decoder, for one token of each row, in the place of `Stack.forward`."""

    beams = 1

    def __init__(self, stack: Stack, state: State):
        self.state, self.stack = state, stack
        self.layers = [
            (
                SelfAttention(block.attn),
                None if block.cross is None else CrossAttention(block.cross),
                FeedForward(block.ffn),
            )
            for block in stack
        ]

    def __call__(self, stack: Stack, x: Tensor, pos: Tensor, positions: Positions, mask: Mask) -> Tensor:
        """The last block's output (B K, 1, D), of several tokens by the blocks themselves."""
        state = self.state
        if x.shape[1] > 1:
            output: Tensor = stack(x, pos, positions, mask, replace(state, run=None))
            return output
        check_cancelled()
        rotary, mask = positions.rotary(pos), self.mask(positions, mask)
        source_mask = over_keys(state.source_attention_mask)
        stream = x[:, 0]  # (B K, D)
        for i, (attn, cross, ffn) in enumerate(self.layers):
            stream = attn(stream, state.layers[i], rotary, mask, self.beams)  # type: ignore[arg-type]
            if cross is not None:
                stream = cross(stream, state.source[i], source_mask, self.beams)
            stream = ffn(stream)
        return stream[:, None]

    def mask(self, positions: Positions, mask: Mask) -> Mask:
        """What is added to the scores, or the keys that a row may attend to."""
        bias = positions.bias(1, self.state.length + 1)
        if bias is None or mask is None:
            return mask if bias is None else bias
        return bias.masked_fill(~mask, -torch.inf)


class Branch:
    """x + f(norm(x)), or norm(x + f(x))."""

    def __init__(self, residual: Any):
        self.before = residual.norm.forward if residual.pre else None
        self.after = None if residual.pre else residual.norm.forward

    def norm(self, x: Tensor) -> Tensor:
        y: Tensor = x if self.before is None else self.before(x)
        return y

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        y = y.add_(x)
        return y if self.after is None else self.after(y)


class SelfAttention(Branch):
    def __init__(self, residual: Any):
        super().__init__(residual)
        attn: Attention = residual.f
        self.heads, self.kv_heads = attn.heads, attn.kv_heads
        self.qkv, self.out = products(attn.q, attn.k, attn.v), products(attn.out)
        self.q_norm, self.k_norm = attn.q_norm.forward, attn.k_norm.forward
        self.last = None if attn.window is None else attn.window + 1  # positions that it attends to

    def __call__(
        self, x: Tensor, cache: RoomyKVCache, rotary: Rotation | None, mask: Mask, beams: int
    ) -> Tensor:
        B = len(x)
        q, k, v = self.qkv(self.norm(x))
        q, k = self.q_norm(q.view(B, self.heads, 1, -1)), self.k_norm(k.view(B, self.kv_heads, 1, -1))
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        v = v.view(B, self.kv_heads, 1, -1)
        if beams > 1:
            q, k, v = together(q, beams), together(k, beams), together(v, beams)
        keys, values = cache.append(k, v)
        if self.last is not None:
            keys, values = keys[:, :, -self.last :], values[:, :, -self.last :]
            mask = None if mask is None else mask[..., -self.last :]
        y = F.scaled_dot_product_attention(
            q, keys, values, mask, enable_gqa=self.heads != self.kv_heads
        )  # (B, H, K, d)
        return self.add(x, self.out(y.transpose(1, 2).reshape(B, -1))[0])


class CrossAttention(Branch):
    def __init__(self, residual: Any):
        super().__init__(residual)
        attn: Attention = residual.f
        self.heads, self.kv_heads = attn.heads, attn.kv_heads
        self.q, self.out = products(attn.q), products(attn.out)

    def __call__(self, x: Tensor, cache: KVCache, mask: Mask, beams: int) -> Tensor:
        assert cache.kv is not None
        B, (keys, values) = len(x), cache.kv
        q = self.q(self.norm(x))[0].view(B, self.heads, 1, -1)
        y = F.scaled_dot_product_attention(
            q if beams == 1 else together(q, beams),
            keys,
            values,
            mask,
            enable_gqa=self.heads != self.kv_heads,
        )  # (B, H, K, d)
        return self.add(x, self.out(y.transpose(1, 2).reshape(B, -1))[0])


def together(x: Tensor, beams: int) -> Tensor:
    """The beams of a sequence as its queries or keys: (B K, H, 1, d) -> (B, H, K, d)."""
    return x.unflatten(0, (-1, beams)).squeeze(3).transpose(1, 2)


class FeedForward(Branch):
    def __init__(self, residual: Any):
        super().__init__(residual)
        ffn = residual.f
        self.gated, self.f = isinstance(ffn, SwiGLU), ffn.f
        self.up = products(ffn.gate, ffn.up) if self.gated else products(ffn.up)
        self.down = products(ffn.down)

    def __call__(self, x: Tensor) -> Tensor:
        first, *rest = self.up(self.norm(x))
        y = self.f(first)
        return self.add(x, self.down(y.mul_(rest[0]) if self.gated else y)[0])


def products(*layers: nn.Linear) -> Callable[[Tensor], list[Tensor]]:
    """The outputs of layers that have one input (B, D); small weights are joined."""
    pairs: list[tuple[Any, Tensor | None]] = [(layer.weight, layer.bias) for layer in layers]
    first = layers[0].weight
    if not isinstance(first, SmallWeight):
        return lambda x: [multiply(x, W, bias) for W, bias in pairs]
    if any(type(W) is not type(first) for W, _ in pairs):
        return lambda x: [F.linear(x, W, bias) for W, bias in pairs]
    prepare = first.prepare

    def small(x: Tensor) -> list[Tensor]:
        prepared = prepare(x)
        return [W.product(prepared, bias) for W, bias in pairs]

    return small


def multiply(x: Tensor, W: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear of a few rows x (M, K) and a weight (N, K), by the fastest of torch's products.

    BLAS reads a weight at half of the memory's speed for one row, in one thread, and twice for two. Of the
    transposed product W xᵀ it computes two columns at once, in all threads; oneDNN is best for more.
    """
    M, (N, K) = len(x), W.shape
    if isinstance(W, SmallWeight) or not HAS_ONEDNN or N * K < LARGE or W.dtype != torch.float32:
        return F.linear(x, W, bias)
    if M > FEW_ROWS or K > N:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, W, bias, "none", [], "")
        return y
    y = torch.mm(W, (x if M > 1 else torch.cat([x, x])).t())[:, :M].t().contiguous()  # (M, N)
    return y if bias is None else y.add_(bias)


class Stepping(Protocol):
    """A model, or what takes its place, that reads one more token of each row."""

    def step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]: ...


def next_logits(model: Stepping, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
    """`model.step`, where the output layer's product is a fast one, too, if those of the blocks are."""
    is_fast = isinstance(state, State) and isinstance(state.run, CPUStack)
    if not is_fast or not isinstance(model, LanguageModel) or not is_plain(type(model)):
        return model.step(ids, state)
    return multiply(model.decode(ids, state)[:, -1], model.output, model.output_bias), state


def is_plain(kind: type[LanguageModel]) -> bool:
    """Whether a class has no step or logits of its own."""
    return kind.step is LanguageModel.step and kind.logits is LanguageModel.logits
