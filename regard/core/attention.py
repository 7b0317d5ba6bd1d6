"""Attention: compare queries with keys, turn the scores into weights by softmax, average the values.

Shapes: B batch, H heads, G key/value heads, T queries, S keys, D width, d = D / H.
Attention in a window has N blocks of w queries, and g global tokens.
A score is a callable (q (..., T, d), k (..., S, d)) -> (..., T, S).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.cache import KeysValues, KVCache, Mask
from regard.core.positions import Rotation, rotate
from regard.describe import parts
from regard.describe.settings import check_attention

Score = Callable[[Tensor, Tensor], Tensor]
Bias = Tensor | None  # added to the scores
Globals = int | Tensor  # how many first tokens are global: a number, or (B, 1, 1, 1) if rows differ
Records = list[dict[str, Tensor]] | None  # a list while `watch` records, else None, which costs nothing
GLOBAL_QKV, BY_QUERY = ("q_global", "k_global", "v_global"), ("scores", "weights", "heads")


# Scores


def dot(q: Tensor, k: Tensor) -> Tensor:
    """q·k, Luong et al. 2015, section 3.1."""
    return q @ k.mT


def scaled_dot(q: Tensor, k: Tensor) -> Tensor:
    """q·k / √d, Vaswani et al. 2017, eq. 1."""
    return q @ k.mT / math.sqrt(q.shape[-1])


class Additive(nn.Module):
    """wᵀ tanh(W q + U k), Bahdanau et al. 2015, A.1.2."""

    def __init__(self, q_dim: int, k_dim: int, hidden: int):
        super().__init__()
        self.W, self.U = nn.Linear(q_dim, hidden, bias=False), nn.Linear(k_dim, hidden, bias=False)
        self.w = nn.Linear(hidden, 1, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.compare(q, self.U(k))

    def compare(self, q: Tensor, Uk: Tensor) -> Tensor:
        """The score, given U k, which is the same for all queries."""
        return self.w(torch.tanh(self.W(q)[..., :, None, :] + Uk[..., None, :, :]))[..., 0]


class Bilinear(nn.Module):
    """qᵀ W k, "general" in Luong et al. 2015, section 3.1."""

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
    """K(u) = 1 where u <= 1, else 0: the mean of the neighbours."""
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
    """The real tokens of rows padded on the right, as a mask (B, 1, 1, S) over keys."""
    return (torch.arange(S, device=lengths.device) < lengths[:, None])[:, None, None, :]


def causal_mask(T: int, S: int, device: torch.device | None = None) -> Tensor:
    """No query attends to a later key (T, S); the T queries are the last T of S positions."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def window_mask(T: int, S: int, window: int, globals: Globals, device: torch.device | None = None) -> Tensor:
    """|i - j| <= window (T, S), for the last T of S positions; the first `globals` attend to all, and all to
    them. With a number of them for each row (B, 1, 1, 1), the mask is (B, 1, T, S)."""
    i, j = torch.arange(S - T, S, device=device)[:, None], torch.arange(S, device=device)
    return ((i - j).abs() <= window) | (i < globals) | (j < globals)


def combine_masks(mask: Mask, other: Tensor) -> Tensor:
    return other if mask is None else mask & other


def add_causal_mask(mask: Mask, T: int, S: int, causal: bool, device: torch.device) -> Mask:
    """Add the causal mask if there is more than one query; the last query may attend to every key."""
    return combine_masks(mask, causal_mask(T, S, device)) if causal and T > 1 else mask


# Attention


def masked_softmax(scores: Tensor) -> Tensor:
    """softmax: exp(s) / Σ exp(s); where every score is -inf, the weights are 0, not NaN."""
    blind = scores.detach().amax(-1, keepdim=True) == -math.inf
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask = None, bias: Bias = None, causal: bool = False,
    dropout: float = 0.0, score: Score = scaled_dot, records: Records = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The definition: the average of the values by weights (..., T, d), and the weights (..., T, S).

    All intermediate results are appended to `records`, if given.
    """
    scores = raw_scores = score(q, k)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    mask = add_causal_mask(mask, q.shape[-2], k.shape[-2], causal, q.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = masked_softmax(scores)
    heads = F.dropout(weights, dropout) @ v
    if records is not None:
        records.append({"q": q, "k": k, "v": v, "scores": raw_scores, "weights": weights, "heads": heads})
        records[-1] |= {name: t for name, t in (("bias", bias), ("mask", mask)) if t is not None}
    return heads, weights


def self_attention(x: Tensor) -> Tensor:
    """Self-attention without weights: each token becomes an average of all, weighted by dot products."""
    return attend(x, x, x, score=dot)[0]


def repeat_heads(kv: Tensor, heads: int) -> Tensor:
    """Repeat key/value heads, one for each query head: (B, G, S, d) -> (B, H, S, d)."""
    return kv.repeat_interleave(heads // kv.shape[-3], dim=-3)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask = None, bias: Bias = None, causal: bool = False,
    dropout: float = 0.0
) -> Tensor:  # fmt: skip
    """`attend` with scaled_dot in one kernel, without storing the weights; k and v may have fewer heads."""
    (H, T), (G, S) = q.shape[-3:-1], k.shape[-3:-1]
    # The kernel aligns its causal mask to the upper left, which is right only when T == S.
    is_causal = causal and T == S and mask is None and bias is None
    mask = mask if is_causal else add_causal_mask(mask, T, S, causal, q.device)
    bias = None if bias is None else bias.to(q.dtype)
    attn_mask = mask if bias is None else bias if mask is None else bias.masked_fill(~mask, -math.inf)
    if q.dtype == torch.bfloat16 and not q.is_cuda and S <= 512:  # here the kernel's backward pass is slow
        k, v = repeat_heads(k, H), repeat_heads(v, H)
        if not is_causal:
            return attend(q, k, v, mask, bias, causal, dropout)[0]
        scores = scaled_dot(q, k).masked_fill(~causal_mask(T, S, q.device), -math.inf)
        return F.dropout(scores.softmax(-1), dropout) @ v  # every query may attend to itself
    y = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, is_causal, enable_gqa=H != G)
    if mask is not None and q.is_cuda:  # some kernels don't give 0 where a query may attend to nothing
        y = y.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    return y


def windowed_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, window: int, globals: Globals, dropout: float = 0.0
) -> Tensor:
    """fused_attention with a window_mask, in time and memory linear in the length, Beltagy et al. 2020, 3.1.

    Queries are in blocks as long as the window. They attend to the keys of their own block, of the one before
    and the one after, and to the global ones. The mask is over keys only, (B, 1, 1, T).
    """
    assert mask is None or mask.shape[-2] == 1
    B, T, w, g = len(q), q.shape[-2], window, count_globals(globals)
    start = globals if isinstance(globals, int) else 0  # blocks begin after what is global in every row
    S = g + 3 * w
    if T <= S:  # a block would cover everything
        near = mask if T - start <= w + 1 else combine_masks(mask, window_mask(T, T, w, globals, q.device))
        return fused_attention(q, k, v, near, dropout=dropout)
    N, fill = math.ceil((T - start) / w), (start - T) % w
    is_global = torch.arange(T, device=q.device)[:, None] < globals  # (T, 1), or (B, 1, T, 1)

    def around(first: Tensor, x: Tensor) -> Tensor:
        """Gather the keys (or values) that each block attends to: (B, G, T, d) -> (B * N, G, S, d)."""
        blocks = F.pad(x[:, :, start:], (0, 0, w, w + fill)).unflatten(2, (N + 2, w)).transpose(1, 2)
        first = first[:, None, :, :g].expand(-1, N, -1, -1, -1)
        return torch.cat([first, blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], dim=3).flatten(0, 1)

    row, column = torch.arange(w, device=q.device)[:, None], torch.arange(S, device=q.device) - g
    near = (column < 0) | ((row <= column) & (column <= row + 2 * w))
    keys = combine_masks(mask, q.new_ones(B, 1, 1, T, dtype=torch.bool)).mT  # (B, 1, T, 1)
    near = around(keys & is_global, keys & ~is_global).mT & near  # (B * N, 1, w, S)
    blocks = F.pad(q[:, :, start:], (0, 0, 0, fill)).unflatten(2, (N, w)).transpose(1, 2).flatten(0, 1)
    y = fused_attention(blocks, around(k, k), around(v, v), near, dropout=dropout)  # (B * N, H, w, d)
    y = y.unflatten(0, (B, N)).transpose(1, 2).flatten(2, 3)[:, :, : T - start]
    if not g:
        return y
    first = fused_attention(q[:, :, :g], k, v, mask, dropout=dropout)
    return torch.cat([first, y], dim=2) if start else replace_rows(y, first, globals)


def count_globals(globals: Globals) -> int:
    """The largest number of global tokens in a row."""
    return globals if isinstance(globals, int) else int(globals.max())


def replace_rows(y: Tensor, first: Tensor, globals: Globals) -> Tensor:
    """Replace the rows of y (B, H, T, d) that are global by those of `first` (B, H, g, d)."""
    g = first.shape[2]
    is_global = torch.arange(g, device=y.device)[:, None] < globals
    return torch.cat([first.where(is_global, y[:, :, :g]), y[:, :, g:]], dim=2)


class HeadNorm(nn.RMSNorm):
    """Normalize each head's queries or keys, in the precision of the norm's weights, also under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class Attention(nn.Module):
    """Multi-head attention of x over itself, or over `source` when given (cross-attention).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W_out, Vaswani et al. 2017, section 3.2.2. With fewer
    key/value heads than heads, neighbouring heads share them, Ainslie et al. 2023. With a `window`, tokens
    attend no farther away than that, except the first `globals`, Beltagy et al. 2020; with `global_qkv`,
    these have their own projections. `qk_norm` is the ε of a norm of queries and keys, Henry et al. 2020.
    """

    def __init__(
        self, dim: int, heads: int, kv_heads: int | None = None, *, causal: bool = False,
        head_dim: int | None = None, bias: bool = True, qkv_bias: bool | None = None,
        qk_norm: float | None = None, dropout: float = 0.0, window: int | None = None, globals: int = 1,
        global_qkv: bool = False
    ):  # fmt: skip
        super().__init__()
        self.window, self.globals, self.global_qkv = window, globals, global_qkv
        self.heads, self.kv_heads, self.causal, self.dropout = heads, kv_heads or heads, causal, dropout
        check_attention(dim, heads, self.kv_heads, head_dim, window, globals, causal)
        d, biased = head_dim or dim // heads, bias if qkv_bias is None else qkv_bias
        self.q, self.out = nn.Linear(dim, heads * d, biased), nn.Linear(heads * d, dim, bias)
        self.k, self.v = (nn.Linear(dim, self.kv_heads * d, biased) for _ in "kv")
        self.q_norm, self.k_norm = (HeadNorm(d, qk_norm) if qk_norm else nn.Identity() for _ in "qk")
        for name in GLOBAL_QKV if global_qkv else ():
            setattr(self, name, nn.Linear(dim, dim, biased))
        self.records: Records = None

    def forward(
        self, x: Tensor, source: Tensor | None = None, *, mask: Mask = None, bias: Bias = None,
        rotary: Rotation | None = None, cache: KVCache | None = None, globals: Globals | None = None
    ) -> Tensor:  # fmt: skip
        def keys_values() -> KeysValues:
            s = x if source is None else source
            k, v = split(self.k(s), self.kv_heads), split(self.v(s), self.kv_heads)
            return rotate(self.k_norm(k), rotary), v

        if self.window is not None and not self.causal and any(t is not None for t in (source, bias, cache)):
            raise ValueError(f"attention with window={self.window} takes no source, bias or cache")
        q = rotate(self.q_norm(split(self.q(x), self.heads)), rotary)  # (B, H, T, d)
        k, v = keys_values() if cache is None else cache.extend(keys_values)  # (B, G, S, d)
        globals = self.globals if globals is None else globals
        heads = self.attend(q, k, v, mask, bias, globals, self.records)  # (B, H, T, d)
        if self.global_qkv and count_globals(globals):
            heads = self.attend_globally(heads, x, mask, globals)
        return self.out(heads.transpose(1, 2).flatten(2))  # (B, T, D)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, globals: Globals, records: Records
    ) -> Tensor:
        """The heads' outputs (B, H, T, d), by kernels that store no weights if there are no records."""
        p = self.dropout * self.training
        if self.window is not None:
            if records is None and not self.causal:
                return windowed_attention(q, k, v, mask, self.window, globals, p)
            mask = combine_masks(mask, window_mask(q.shape[-2], k.shape[-2], self.window, globals, q.device))
        if records is None:
            return fused_attention(q, k, v, mask, bias, self.causal, p)
        k, v = repeat_heads(k, self.heads), repeat_heads(v, self.heads)  # (B, H, S, d)
        return attend(q, k, v, mask, bias, self.causal, p, records=records)[0]

    def attend_globally(self, heads: Tensor, x: Tensor, mask: Mask, globals: Globals) -> Tensor:
        """Recompute the heads of global queries with their own projections, also in the last record."""
        inputs = zip(GLOBAL_QKV, (x[:, : count_globals(globals)], x, x), strict=True)
        q, k, v = own = [split(getattr(self, f)(y), self.heads) for f, y in inputs]
        records: list[dict[str, Tensor]] = []
        first, _ = attend(q, k, v, mask, dropout=self.dropout * self.training, records=records)
        if self.records:
            record, more = self.records[-1], records[0]
            record |= {name: replace_rows(record[name], more[name], globals) for name in BY_QUERY}
            record |= zip(GLOBAL_QKV, own, strict=True)
        return replace_rows(heads, first, globals)

    describe = parts.attention


def split(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads * d) -> (B, heads, T, d)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
