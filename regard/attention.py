"""Attention: compare queries with keys, soften the scores into weights, average the values.

Shapes: B batch, H heads, G key/value heads, T queries, S keys, D width, d = D / H.
A window has N blocks of w queries, and g tokens that look everywhere.
A score is a callable (q (..., T, d), k (..., S, d)) -> (..., T, S).
A mask is boolean and broadcasts to (B, H, T, S); True means "may look". A bias is added to the scores.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cache import Cache, KeysValues
from .positions import Turn, rotate

Score = Callable[[Tensor, Tensor], Tensor]


# Scores


def dot(q: Tensor, k: Tensor) -> Tensor:
    """q·k, Luong et al. 2015, eq. 8."""
    return q @ k.mT


def scaled_dot(q: Tensor, k: Tensor) -> Tensor:
    """q·k / √d, Vaswani et al. 2017, eq. 1."""
    return q @ k.mT / math.sqrt(q.shape[-1])


class Additive(nn.Module):
    """wᵀ tanh(W q + U k), Bahdanau et al. 2015, A.1.2. A score with weights."""

    def __init__(self, q_dim: int, k_dim: int, hidden: int):
        super().__init__()
        self.W, self.U = nn.Linear(q_dim, hidden, bias=False), nn.Linear(k_dim, hidden, bias=False)
        self.w = nn.Linear(hidden, 1, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.compare(q, self.U(k))

    def compare(self, q: Tensor, Uk: Tensor) -> Tensor:
        """The score with U k at hand, which many queries share."""
        return self.w(torch.tanh(self.W(q)[..., :, None, :] + Uk[..., None, :, :]))[..., 0]


class Bilinear(nn.Module):
    """qᵀ W k, "general" in Luong et al. 2015, eq. 8."""

    def __init__(self, q_dim: int, k_dim: int):
        super().__init__()
        self.W = nn.Linear(k_dim, q_dim, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ self.W(k).mT


# Kernels of Nadaraya-Watson regression. A score is the kernel's logarithm, since softmax(log K) = K / Σ K.


def squared_distance(q: Tensor, k: Tensor) -> Tensor:
    return (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)


def gaussian(q: Tensor, k: Tensor, width: float = 1.0) -> Tensor:
    """K(u) = exp(-u²/2), u = |q - k| / width."""
    return -squared_distance(q, k) / (2 * width**2)


def boxcar(q: Tensor, k: Tensor, width: float = 1.0) -> Tensor:
    """K(u) = 1 where u <= 1, else 0: the plain average of the neighbours."""
    near = squared_distance(q, k) <= width**2
    return torch.zeros_like(near, dtype=q.dtype).masked_fill(~near, -math.inf)


def epanechnikov(q: Tensor, k: Tensor, width: float = 1.0) -> Tensor:
    """K(u) = 1 - u² where u < 1, else 0."""
    u2 = squared_distance(q, k) / width**2
    far = u2 >= 1
    return torch.log1p(-u2.masked_fill(far, 0.0)).masked_fill(far, -math.inf)


KERNELS = {"gaussian": gaussian, "boxcar": boxcar, "epanechnikov": epanechnikov}


# Masks


def padding_mask(lengths: Tensor, S: int) -> Tensor:
    """Real tokens of rows padded on the right, as a mask (B, 1, 1, S) over keys."""
    return (torch.arange(S, device=lengths.device) < lengths[:, None])[:, None, None, :]


def look_ahead_mask(T: int, S: int, device: torch.device | None = None) -> Tensor:
    """No query looks at a later key (T, S); the T queries are the last T of S positions."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def window_mask(T: int, window: int, globals: int, device: torch.device | None = None) -> Tensor:
    """Neighbours up to `window` away see each other (T, T); the first `globals` see all, and all see them."""
    i = torch.arange(T, device=device)
    t = i[:, None]
    return ((t - i).abs() <= window) | (t < globals) | (i < globals)


def joined(mask: Tensor | None, other: Tensor) -> Tensor:
    return other if mask is None else mask & other


def allowed(T: int, S: int, mask: Tensor | None, causal: bool, device: torch.device) -> Tensor | None:
    """The padding mask and the look-ahead mask as one."""
    if not causal or T == 1:  # a lone last query may look at every key
        return mask
    return joined(mask, look_ahead_mask(T, S, device))


# Attention


def soften(scores: Tensor) -> Tensor:
    """softmax: exp(s) / Σ exp(s); where every score is -inf, nothing is looked at: zeros, never NaN."""
    nowhere = scores.detach().amax(-1, keepdim=True) == -math.inf
    return scores.masked_fill(nowhere, 0.0).softmax(-1).masked_fill(nowhere, 0.0)


def pool(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    score: Score = scaled_dot,
    seen: list[dict[str, Tensor]] | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition: values averaged by weights (..., T, d), and the weights (..., T, S).

    What they came from is added to `seen`, if there is one.
    """
    scores = compared = score(q, k)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    mask = allowed(q.shape[-2], k.shape[-2], mask, causal, q.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = soften(scores)
    heads = F.dropout(weights, dropout) @ v
    if seen is not None:
        seen.append({"q": q, "k": k, "v": v, "scores": compared, "weights": weights, "heads": heads})
        seen[-1] |= {name: t for name, t in (("bias", bias), ("mask", mask)) if t is not None}
    return heads, weights


def self_attention(x: Tensor) -> Tensor:
    """Self-attention from nothing: every word becomes the average of all, by likeness; no weights learned."""
    return pool(x, x, x, score=dot)[0]


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """pool(score=scaled_dot) in one kernel that never stores the weights; k and v may have fewer heads."""
    T, S = q.shape[-2], k.shape[-2]
    # The kernel's own triangle is aligned to the upper left: right only when T == S.
    plain = causal and T == S and mask is None and bias is None
    if not plain:
        mask = allowed(T, S, mask, causal, q.device)
    both = mask
    if bias is not None:
        bias = bias.to(q.dtype)
        both = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    grouped = q.shape[-3] != k.shape[-3]
    if q.dtype == torch.bfloat16 and not q.is_cuda and S <= 512:  # there the kernel's backward is slow
        if grouped:
            k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], dim=-3) for t in (k, v))
        return pool(q, k, v, mask, bias, causal, dropout)[0]
    y = F.scaled_dot_product_attention(q, k, v, both, dropout_p=dropout, is_causal=plain, enable_gqa=grouped)
    if mask is not None and q.is_cuda:  # where a query may look nowhere, some of its kernels give no zeros
        y = y.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    return y


def windowed(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, window: int, globals: int, dropout: float = 0.0
) -> Tensor:
    """fused with a window_mask, in time and memory linear in the length, Beltagy et al. 2020, section 3.1.

    Queries in blocks as long as the window see the keys of their own block, of the one before and the one
    after, and the global ones. The mask is over keys only, (B, 1, 1, T).
    """
    assert mask is None or mask.shape[-2] == 1
    B, T, g, w = len(q), q.shape[-2], globals, window
    S = g + 3 * w
    if T <= S:  # a block would see everything
        everything = T - g <= w + 1
        mask = mask if everything else joined(mask, window_mask(T, w, g, q.device))
        return fused(q, k, v, mask, dropout=dropout)
    N = math.ceil((T - g) / w)
    fill = N * w - (T - g)

    def around(x: Tensor) -> Tensor:
        """What each block sees of x, which has something for each key: (B, G, T, d) -> (B * N, G, S, d)."""
        first = x[:, None, :, :g].expand(-1, N, -1, -1, -1)
        blocks = F.pad(x[:, :, g:], (0, 0, w, w + fill)).unflatten(2, (N + 2, w)).transpose(1, 2)
        return torch.cat([first, blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], dim=3).flatten(0, 1)

    row, column = torch.arange(w, device=q.device)[:, None], torch.arange(S, device=q.device) - g
    near = (column < 0) | ((row <= column) & (column <= row + 2 * w))  # (w, S)
    real = torch.ones(1, 1, 1, T, dtype=torch.bool, device=q.device) if mask is None else mask
    may = around(real.expand(B, -1, 1, T).mT).mT & near  # (B * N, 1, w, S)
    rest = F.pad(q[:, :, g:], (0, 0, 0, fill))  # (B, H, N * w, d)
    rest = rest.unflatten(2, (N, w)).transpose(1, 2).flatten(0, 1)  # (B * N, H, w, d)
    y = fused(rest, around(k), around(v), may, dropout=dropout)  # (B * N, H, w, d)
    y = y.unflatten(0, (B, N)).transpose(1, 2).flatten(2, 3)[:, :, : T - g]  # (B, H, T - g, d)
    if g:
        y = torch.cat([fused(q[:, :, :g], k, v, mask, dropout=dropout), y], dim=2)  # (B, H, T, d)
    return y


class HeadNorm(nn.RMSNorm):
    """Of each head's queries or keys, in the precision of its weights, which autocast leaves alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class Attention(nn.Module):
    """Multi-head attention of x over itself, or over `source` when given (cross-attention).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W_out, Vaswani et al. 2017, section 3.2.2. With fewer
    key/value heads than heads, neighbouring heads share them, Ainslie et al. 2023. With a `window`, tokens
    see no farther than that, but for the first `globals`, Beltagy et al. 2020; there, these have projections
    of their own besides, here only the common ones. With a `qk_norm`, which is its ε, each head's queries and
    keys are normed, Henry et al. 2020.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        causal: bool = False,
        head_dim: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        qk_norm: float | None = None,
        dropout: float = 0.0,
        window: int | None = None,
        globals: int = 1,
    ):
        super().__init__()
        self.window, self.globals = window, globals
        if window is not None and (causal or window < 1 or globals < 0):
            raise ValueError(f"{window=} must be more than 0, {globals=} 0 or more, and causal=False")
        self.heads, self.kv_heads, self.causal, self.dropout = heads, kv_heads or heads, causal, dropout
        if (dim % heads and head_dim is None) or heads % self.kv_heads:
            raise ValueError(f"{dim=} must divide by {heads=}, and heads by kv_heads={self.kv_heads}")
        d, biased = head_dim or dim // heads, bias if qkv_bias is None else qkv_bias
        self.q, self.out = nn.Linear(dim, heads * d, biased), nn.Linear(heads * d, dim, bias)
        self.k, self.v = (nn.Linear(dim, self.kv_heads * d, biased) for _ in "kv")
        self.q_norm, self.k_norm = (HeadNorm(d, qk_norm) if qk_norm else nn.Identity() for _ in "qk")
        self.seen: list[dict[str, Tensor]] | None = None  # watch.py puts a list here; None costs nothing

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        turn: Turn | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        def keys_values() -> KeysValues:
            s = x if source is None else source
            k = self.k_norm(split(self.k(s), self.kv_heads))
            return rotate(k, turn), split(self.v(s), self.kv_heads)

        if self.window is not None and any(t is not None for t in (source, bias, cache)):
            raise ValueError(f"attention with window={self.window} takes no source, bias or cache")
        q = rotate(self.q_norm(split(self.q(x), self.heads)), turn)  # (B, H, T, d)
        k, v = keys_values() if cache is None else cache.extend(keys_values)  # (B, G, S, d)
        if self.seen is None:
            heads = self.fast(q, k, v, mask, bias)  # (B, H, T, d)
        else:
            if self.window is not None:
                mask = joined(mask, window_mask(x.shape[1], self.window, self.globals, x.device))
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))  # (B, H, S, d)
            heads, _ = pool(q, k, v, mask, bias, self.causal, self.dropped, seen=self.seen)
        y = self.out(heads.transpose(1, 2).flatten(2))  # (B, T, D)
        return y

    @property
    def dropped(self) -> float:
        return self.dropout if self.training else 0.0

    def fast(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        """What the heads give (B, H, T, d), without weights that anybody could see."""
        if self.window is not None:
            return windowed(q, k, v, mask, self.window, self.globals, self.dropped)
        return fused(q, k, v, mask, bias, self.causal, self.dropped)


def split(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads * d) -> (B, heads, T, d)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
