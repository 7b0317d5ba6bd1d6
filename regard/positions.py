"""Position encodings. Each answers three questions; the default answer is "no change".

Shapes: B batch, T queries, S keys, D width, H heads, d = D / H.
Positions are (T,), or (B, T) when the rows of a batch are padded on the left by different amounts.
Distances are counted along the sequence, which padding on the left does not change.
"""

import math

import torch
from torch import Tensor, nn

Turn = tuple[Tensor, Tensor]


class Positions(nn.Module):
    """No positions at all: attention then sees a set, not a sequence."""

    def __init__(self, context: int, dim: int, heads: int):
        super().__init__()

    def add(self, x: Tensor, pos: Tensor) -> Tensor:
        """The embeddings (B, T, D) with positions in them."""
        return x

    def turn(self, pos: Tensor) -> Turn | None:
        """The angles by which queries and keys at `pos` are rotated, as cosine and sine."""
        return None

    def bias(self, T: int, S: int) -> Tensor | None:
        """What to add to the scores (H, T, S) of the last T of S positions."""
        return None


def sinusoids(pos: Tensor, dim: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(same), Vaswani et al. 2017, section 3.5."""
    i = torch.arange(0, dim, 2, device=pos.device)
    angle = pos[..., None] / 10_000 ** (i / dim)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :dim]


class Sinusoidal(Positions):
    """Waves of growing length added to the embeddings, Vaswani et al. 2017."""

    def __init__(self, context: int, dim: int, heads: int):
        super().__init__(context, dim, heads)
        self.table: Tensor
        self.register_buffer("table", sinusoids(torch.arange(context), dim), persistent=False)

    def add(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + self.table[pos]


class Learned(Positions):
    """A vector for each position, learned like a word's, Gehring et al. 2017."""

    def __init__(self, context: int, dim: int, heads: int):
        super().__init__(context, dim, heads)
        self.table = nn.Embedding(context, dim)

    def add(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + self.table(pos)


def stretched(speed: Tensor, factor: float, low: float, high: float, learnt: float) -> Tensor:
    """Rotary speeds for texts longer than the context that was `learnt` first, as Llama 3.1 has them: what
    turned less than `low` times in it turns `factor` times as slowly; more than `high` times, as before."""
    turns = learnt * speed / (2 * math.pi)
    quick = ((turns - low) / (high - low)).clamp(0, 1)
    return speed * (quick + (1 - quick) / factor)


class Rotary(Positions):
    """Queries and keys turned by an angle that grows with the position, Su et al. 2021, eq. 34."""

    def __init__(
        self,
        context: int,
        dim: int,
        heads: int,
        base: float = 10_000.0,
        stretch: tuple[float, float, float, float] | None = None,
    ):
        super().__init__(context, dim, heads)
        d = dim // heads
        if d % 2:
            raise ValueError(f"rotary positions turn pairs of numbers: {dim=} / {heads=} must be even")
        speed = base ** (-torch.arange(0, d, 2) / d)
        angle = torch.outer(torch.arange(context), stretched(speed, *stretch) if stretch else speed)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def turn(self, pos: Tensor) -> Turn:
        return self.cos[pos].unsqueeze(-3), self.sin[pos].unsqueeze(-3)  # (..., 1, T, d/2) each


def rotate(x: Tensor, turn: Turn | None) -> Tensor:
    """Each pair (x_i, x_{i + d/2}) of x (B, H, T, d) turned by its angle."""
    if turn is None:
        return x
    cos, sin = (t.to(x.dtype) for t in turn)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def distances(T: int, S: int, device: torch.device) -> Tensor:
    """key position - query position (T, S), for the last T of S positions."""
    return torch.arange(S, device=device) - torch.arange(S - T, S, device=device)[:, None]


class ALiBi(Positions):
    """A penalty on the scores that grows with the distance, steeper in some heads, Press et al. 2022."""

    def __init__(self, context: int, dim: int, heads: int):
        super().__init__(context, dim, heads)
        whole = 2 ** math.floor(math.log2(heads))  # a geometric series; more heads fall in between
        slopes = [2 ** (-8 * i / whole) for i in range(1, whole + 1)]
        slopes += [2 ** (-4 * i / whole) for i in range(1, 2 * (heads - whole), 2)]
        self.slopes: Tensor
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)

    def bias(self, T: int, S: int) -> Tensor:
        return -self.slopes[:, None, None] * distances(T, S, self.slopes.device).abs()


class Relative(Positions):
    """A learned number per head and bucket of distances, Raffel et al. 2020 (T5), section 2.1.

    Near distances have a bucket each, far ones share buckets of logarithmically growing width.
    """

    def __init__(
        self, context: int, dim: int, heads: int, both_ways: bool = False, buckets: int = 32, far: int = 128
    ):
        super().__init__(context, dim, heads)
        self.both_ways, self.buckets, self.far = both_ways, buckets, far
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        n, first, back = self.buckets, torch.zeros_like(distance), -distance
        if self.both_ways:  # half of the buckets for what comes later
            n //= 2
            first, back = n * (distance > 0), distance.abs()
        back = back.clamp(min=0)
        near = n // 2
        growth = torch.log(back.clamp(min=1).float() / near) / math.log(self.far / near)
        wide = (near + (growth * (n - near)).long()).clamp(max=n - 1)
        return first + torch.where(back < near, back, wide)

    def bias(self, T: int, S: int) -> Tensor:
        return self.table(self.bucket(distances(T, S, self.table.weight.device))).permute(2, 0, 1)


POSITIONS = {
    "none": Positions,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rotary": Rotary,
    "alibi": ALiBi,
    "relative": Relative,
}
