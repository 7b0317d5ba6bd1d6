"""A model that reads or sees, with a head: a class, a score or a label for each token. Devlin et al. 2019.

Shapes: B batch, T tokens, D width.
"""

import torch
from torch import Tensor, nn

from ..layers import init_bert
from .bert import Bert
from .gpt import GPT
from .vit import ViT


class Labelled(nn.Module):
    """W v + b, with v one vector for a text, or `each` token's own: (B, outputs), or (B, T, outputs).

    A text's vector is BERT's pooled one, or a GPT's at the last token, which alone has seen them all
    (Radford et al. 2018), or a ViT's that stands for the picture. A score is one output; a span is two for
    each token, where it begins and ends.
    """

    def __init__(
        self,
        model: Bert | GPT | ViT,
        outputs: int,
        each: bool = False,
        mean: bool = False,
        dropout: float = 0.1,
    ):
        super().__init__()
        if outputs < 1:
            raise ValueError(f"{outputs=} must be more than 0")
        self.model, self.config, self.each, self.mean = model, model.config, each, mean
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(model.config.dim, outputs)
        init_bert(self.head)

    @property
    def unused(self) -> list[nn.Module | nn.Parameter]:
        """What of the model takes no part: its own heads."""
        m = self.model
        if isinstance(m, ViT):
            return []
        if not isinstance(m, Bert):
            return [] if m.head is None else [m.head]
        return [
            m.transform,
            m.transform_norm,
            m.bias,
            m.next,
            *([m.pooler] if self.each or self.mean else []),
        ]

    @property
    def blocks(self) -> nn.ModuleList:
        """Every layer, in the order of computing."""
        return self.model.blocks

    def forward(self, ids: Tensor, real: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Texts (B, T), padded on the right where not `real`; or pictures, a ViT's."""
        if isinstance(self.model, ViT):
            x = self.model.encode(ids)  # (B, T, D)
        elif isinstance(self.model, Bert):
            x = self.model.encode(ids, real, segments)  # (B, T, D)
        elif segments is not None:
            raise ValueError("segments were given, but a GPT knows none")
        else:
            x = self.model.hidden(ids)  # (B, T, D)
        return self.head(self.drop(x if self.each else self.one(x, real)))

    def one(self, x: Tensor, real: Tensor | None) -> Tensor:
        """The vector that stands for a whole text."""
        if self.mean:
            n = x.shape[1] if real is None else real.sum(1, keepdim=True)
            y = (x if real is None else x * real[..., None]).sum(1) / n  # (B, D)
            return y
        if isinstance(self.model, Bert | ViT):
            return self.model.pooled(x)
        if real is None:
            return x[:, -1]
        y = x[torch.arange(len(x), device=x.device), real.sum(1) - 1]  # (B, D)
        return y
