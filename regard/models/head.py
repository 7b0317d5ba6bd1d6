"""An encoder with a head: a class or score of a text or image, or a label for each token. Devlin et al. 2019.

Shapes: B batch, T tokens, D width.
"""

from typing import Any

from torch import Tensor, nn

from regard.core.attention import Globals
from regard.core.cache import Mask, masked_mean
from regard.core.layers import init_bert
from regard.describe import export, parts
from regard.models.base import Parts
from regard.models.bert import Bert
from regard.models.gpt import GPT
from regard.models.rnn import RecurrentLM
from regard.models.vit import ViT


class ModelWithHead(nn.Module):
    """W v + b of the model's pooled vector or the mean of all tokens' (B, outputs), or `each` token's own
    (B, T, outputs). A score is one output; a span is two for each token, where it begins and ends."""

    has_task_head = True  # `head`, on top of `model`

    def __init__(
        self, model: Bert | GPT | RecurrentLM | ViT, outputs: int, each: bool = False, mean: bool = False,
        dropout: float = 0.1
    ):  # fmt: skip
        super().__init__()
        if outputs < 1:
            raise ValueError(f"{outputs=} must be more than 0")
        self.model, self.config, self.each, self.mean = model, model.config, each, mean
        self.blocks = list(model.blocks)  # every layer, in the order of computation
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(model.config.dim, outputs)
        init_bert(self.head)

    @property
    def unused(self) -> Parts:
        """The model's own heads, which are not used here."""
        return self.model.unused_by_head(pooled=not (self.each or self.mean))

    def forward(
        self, ids: Tensor, attention_mask: Mask = None, segments: Tensor | None = None,
        globals: Globals | None = None
    ) -> Tensor:  # fmt: skip
        """Texts (B, T), padded on the right where not `attention_mask`; or images, for a ViT.

        Of a Longformer, the first token is global if its vector is that of the text, unless `globals` are
        given.
        """
        more: dict[str, Any] = {} if segments is None else {"segments": segments}
        if getattr(self.config, "global_qkv", False):
            more["globals"] = int(not (self.each or self.mean)) if globals is None else globals
        x = self.model.encode(ids, attention_mask, **more)  # (B, T, D)
        return self.head(self.drop(x if self.each else self.pool(x, attention_mask)))

    def pool(self, x: Tensor, attention_mask: Mask) -> Tensor:
        """The vector (B, D) of a text or image."""
        return masked_mean(x, attention_mask) if self.mean else self.model.pooled(x, attention_mask)  # (B, D)

    describe, graphs, stacks = parts.head, export.head_graphs, export.head_stacks
