"""Position encodings: `add` to embeddings, angles to `rotate` queries and keys, a `bias` of the scores.

Shapes: B batch, T queries, S keys, D width, H heads, d = D / H.
Positions are (T,), or (B, T) when the rows of a batch are padded on the left by different amounts.
Distances are counted along the sequence; padding on the left does not change them.
"""

import math
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.describe import parts

Rotation = tuple[Tensor, Tensor]


class Positions(nn.Module):
    """No positions: attention sees a set, not a sequence. The base class of all others."""

    effect: ClassVar[str] = "none"  # on attention: rotate, or bias

    def __init__(self, context: int, dim: int, heads: int):
        super().__init__()

    def add(self, x: Tensor, pos: Tensor) -> Tensor:
        """Return the embeddings (B, T, D) with positions added."""
        return x if (vectors := self.vectors()) is None else x + vectors[pos]

    def vectors(self) -> Tensor | None:
        """The vectors that `add` adds, one for each position: (context, D)."""
        return None

    def rotary(self, pos: Tensor) -> Rotation | None:
        """The angles by which queries and keys at `pos` are rotated, as cosine and sine."""
        return None

    def bias(self, T: int, S: int) -> Tensor | None:
        """The bias of the scores (H, T, S), for the last T of S positions."""
        return None

    describe = parts.positions


def sinusoids(pos: Tensor, dim: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(same), Vaswani et al. 2017, section 3.5."""
    i = torch.arange(0, dim, 2, device=pos.device)
    angle = pos[..., None] / 10_000 ** (i / dim)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :dim]


class Sinusoidal(Positions):
    """Waves of increasing length added to the embeddings, Vaswani et al. 2017."""

    table: Tensor

    def __init__(self, context: int, dim: int, heads: int):
        super().__init__(context, dim, heads)
        self.register_buffer("table", sinusoids(torch.arange(context), dim), persistent=False)

    def vectors(self) -> Tensor:
        return self.table


class Learned(Positions):
    """A learned vector for each position, Gehring et al. 2017."""

    def __init__(self, context: int, dim: int, heads: int):
        super().__init__(context, dim, heads)
        self.table = nn.Embedding(context, dim)

    def add(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + self.table(pos)

    def vectors(self) -> Tensor:
        return self.table.weight


def scale_frequencies(frequency: Tensor, factor: float, low: float, high: float, context: float) -> Tensor:
    """Rotary frequencies for texts longer than the first training's `context`, as in Llama 3.1: those with
    fewer than `low` turns in it are divided by `factor`, those with more than `high` turns stay."""
    turns = context * frequency / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (keep + (1 - keep) / factor)


RopeScaling = tuple[float, float, float, float]  # factor, low, high and context of `scale_frequencies`


class Rotary(Positions):
    """Queries and keys rotated by an angle that grows with the position, Su et al. 2021, eq. 34."""

    effect = "rotate"

    cos: Tensor
    sin: Tensor

    def __init__(
        self, context: int, dim: int, heads: int, base: float = 1e4, rope_scaling: RopeScaling | None = None
    ):
        super().__init__(context, dim, heads)
        d = dim // heads
        if d % 2:
            raise ValueError(f"rotary positions turn pairs of numbers: {dim=} / {heads=} must be even")
        self.frequency = base ** (-torch.arange(0, d, 2) / d)
        if rope_scaling is not None:
            self.frequency = scale_frequencies(self.frequency, *rope_scaling)
        angle = torch.outer(torch.arange(context), self.frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def rotary(self, pos: Tensor) -> Rotation:
        return self.cos[pos].unsqueeze(-3), self.sin[pos].unsqueeze(-3)  # (..., 1, T, d/2) each


def rotate(x: Tensor, rotary: Rotation | None) -> Tensor:
    """Each pair (x_i, x_{i + d/2}) of x (B, H, T, d), rotated by its angle."""
    if rotary is None:
        return x
    cos, sin = (t.to(x.dtype) for t in rotary)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def distances(T: int, S: int, device: torch.device) -> Tensor:
    """key position - query position (T, S), for the last T of S positions."""
    return torch.arange(S, device=device) - torch.arange(S - T, S, device=device)[:, None]


class ALiBi(Positions):
    """A penalty on the scores that grows with the distance, steeper in some heads, Press et al. 2022."""

    effect = "bias"

    slopes: Tensor

    def __init__(self, context: int, dim: int, heads: int):
        super().__init__(context, dim, heads)
        n = 2 ** math.floor(math.log2(heads))  # a geometric series; further heads lie in between
        slopes = [2 ** (-8 * i / n) for i in range(1, n + 1)]
        slopes += [2 ** (-4 * i / n) for i in range(1, 2 * (heads - n), 2)]
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)

    def bias(self, T: int, S: int) -> Tensor:
        return -self.slopes[:, None, None] * distances(T, S, self.slopes.device).abs()


class Relative(Positions):
    """A learned bias per head and bucket of distances, Raffel et al. 2020 (T5), section 2.1.

    Near distances have a bucket each, far ones share buckets of logarithmically growing width.
    """

    effect = "bias"

    def __init__(
        self, context: int, dim: int, heads: int, both_ways: bool = False, buckets: int = 32, far: int = 128
    ):
        super().__init__(context, dim, heads)
        self.both_ways, self.buckets, self.far = both_ways, buckets, far
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        n, first, back = self.buckets, torch.zeros_like(distance), -distance
        if self.both_ways:  # half of the buckets for later keys
            n //= 2
            first, back = n * (distance > 0), distance.abs()
        back = back.clamp(min=0)
        near = n // 2
        growth = torch.log(back.clamp(min=1).float() / near) / math.log(self.far / near)
        wide = (near + (growth * (n - near)).long()).clamp(max=n - 1)
        return first + torch.where(back < near, back, wide)

    def bias(self, T: int, S: int) -> Tensor:
        return self.table(self.bucket(distances(T, S, self.table.weight.device))).permute(2, 0, 1)


POSITIONS = {"none": Positions, "sinusoidal": Sinusoidal, "learned": Learned}
POSITIONS |= {"rotary": Rotary, "alibi": ALiBi, "relative": Relative}
DEFAULTS = {"head_dim": None, "base": 10_000.0, "rope_scaling": None}


def make_positions(config: Any, both_ways: bool = False, **changes: Any) -> Positions:
    """Make positions from a model's configuration, for attention `both_ways` or only to earlier tokens."""
    c = SimpleNamespace(**(DEFAULTS | vars(config) | changes))
    if c.positions == "rotary":
        return Rotary(c.context, c.heads * (c.head_dim or c.dim // c.heads), c.heads, c.base, c.rope_scaling)
    if c.positions == "relative":
        return Relative(c.context, c.dim, c.heads, both_ways)
    if c.positions == "alibi" and both_ways:
        raise ValueError("alibi encodes distances, not directions: a text would look like its mirror image")
    return POSITIONS[c.positions](c.context, c.dim, c.heads)
