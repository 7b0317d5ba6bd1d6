"""ELECTRA: a small model puts words in, and a BERT tells which are not the writer's. Clark et al. 2020.

Shapes: B batch, T tokens, D width.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import init_bert
from .bert import Bert


class Electra(nn.Module):
    """A BERT, and a generator that lives on its embeddings and its masked-word head, with layers of its own.

    The generator is a fourth as deep: one that is as good as the BERT would leave it too little to find.
    """

    def __init__(self, model: Bert):
        super().__init__()
        self.model, self.config = model, model.config
        self.generator = nn.ModuleList(model.block() for _ in range(max(1, model.config.depth // 4)))
        D = model.config.dim
        self.transform, self.found = nn.Linear(D, D), nn.Linear(D, 1)
        for part in (self.generator, self.transform, self.found):
            init_bert(part)

    @property
    def blocks(self) -> list[nn.Module]:
        """Every layer, in the order of computing."""
        return [*self.generator, *self.model.blocks]

    @property
    def output(self) -> Tensor:
        """The weights that turn a hidden vector of the generator's into logits."""
        return self.model.output

    def generated(self, ids: Tensor, real: Tensor | None, segments: Tensor | None) -> Tensor:
        """The generator's vectors for texts with hidden words (B, T, D); `model.transformed` goes on."""
        return self.model.encode(ids, real, segments, self.generator)

    def replaced(self, x: Tensor) -> Tensor:
        """Is a token not the writer's? Logits (B, T) of yes, from the BERT's vectors (B, T, D)."""
        y = self.model.f(self.transform(x))  # (B, T, D)
        y = self.found(y)[..., 0]  # (B, T)
        return y

    def forward(self, ids: Tensor, real: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The generator's logits: (B, T) -> (B, T, vocab)"""
        return F.linear(self.model.transformed(self.generated(ids, real, segments)), self.output)
