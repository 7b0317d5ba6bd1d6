"""A plain GPT-2 in float32 and its training loop, written from nanoGPT's description, as a peer where no
checkout of it is at hand: norms before the layers, learned positions, no biases, tied embeddings, AdamW.

Shapes: B rows, T tokens, D width.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim, bias=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return x


class PlainGPT(nn.Module):
    def __init__(self, vocab: int, context: int, dim: int, depth: int, heads: int):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor, following: Tensor) -> Tensor:
        x = self.embed(ids) + self.positions.weight[: ids.shape[1]]  # (B, T, D)
        logits = F.linear(self.norm(self.blocks(x)), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def plain_training(shape: dict[str, Any], vocab: int, tokens: np.ndarray, rows: int) -> Callable[[], None]:
    """A step: random windows, AdamW with weight decay on matrices, gradients clipped to 1."""
    sizes = {name: shape[name] for name in ("context", "dim", "depth", "heads")}
    model, T = PlainGPT(vocab, **sizes), shape["context"]
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) is large] for large in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))

    def step() -> None:
        starts = torch.randint(len(tokens) - T, (rows,))
        x, y = (
            torch.stack([torch.from_numpy(tokens[i + n : i + n + T].astype(np.int64)) for i in starts])
            for n in (0, 1)
        )
        model(x, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
