"""ELECTRA: a small generator replaces words, and a BERT detects which. Clark et al. 2020.

Shapes: B batch, T tokens, D width.
"""

from torch import Tensor, nn

from regard.core.cache import Mask
from regard.core.layers import Stack, init_bert, make_block
from regard.describe import export, parts
from regard.models.bert import Bert


class Electra(nn.Module):
    """A BERT and a generator with the same embeddings and masked-language-model head, but its own blocks.

    The generator is a quarter as deep: a generator as good as the BERT would write words that are too hard to
    detect. A model that only detects replaced words needs none.
    """

    def __init__(self, model: Bert, generates: bool = True):
        super().__init__()
        self.model, self.config, D = model, model.config, model.config.dim
        depth = max(1, model.config.depth // 4) if generates else 0
        self.generator = Stack(make_block(model.config) for _ in range(depth))
        self.blocks = [*self.generator, *model.blocks]  # every layer, in the order of computation
        self.transform, self.found = nn.Linear(D, D), nn.Linear(D, 1)
        for part in (self.generator, self.transform, self.found):
            init_bert(part)

    def generator_states(self, ids: Tensor, attention_mask: Mask, segments: Tensor | None) -> Tensor:
        """The generator's hidden states (B, T, D) of texts with masked words, for the BERT's `lm_head`."""
        return self.model.encode(ids, attention_mask, segments, self.generator)

    def detect(self, x: Tensor) -> Tensor:
        """Logits (B, T) of each token being replaced, from the BERT's hidden states (B, T, D)."""
        y = self.model.activation(self.transform(x))  # (B, T, D)
        return self.found(y)[..., 0]  # (B, T)

    def forward(self, ids: Tensor, attention_mask: Mask = None, segments: Tensor | None = None) -> Tensor:
        """The generator's logits: (B, T) -> (B, T, vocab)"""
        return self.model.logits(self.model.lm_head(self.generator_states(ids, attention_mask, segments)))

    describe, graphs = parts.electra, export.electra_graphs
