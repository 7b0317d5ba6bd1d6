"""The class names that an encoder-decoder writes, and their probabilities: Raffel et al. 2020.

Shapes: B batch, T tokens, D width, V vocabulary, C names, L tokens of a name, n names for each text.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import UserError
from regard.models import Transformer
from regard.tasks.constant import Constant
from regard.tasks.fill import PAD as BERT_PAD
from regard.tasks.loss import IGNORED
from regard.tasks.source import PAD
from regard.tasks.task import upcast
from regard.text.tokenizer import Tokenizer


class WrittenNames:
    """Some names as token ids (C, L), each with the end token."""

    def __init__(self, names: Sequence[str], tokenizer: Tokenizer, end: int):
        rows = [tuple(tokenizer.encode(name)) for name in names]
        for i, row in enumerate(rows):
            if row in rows[:i]:
                both = f"{names[rows.index(row)]!r} and {names[i]!r}"
                raise UserError(f"the tokenizer encodes {both} alike; use another: --set data.tokenizer=bpe")
        longest = max(map(len, rows))
        padded = [[*row, end] + [IGNORED] * (longest - len(row)) for row in rows]
        self.ids = Constant(torch.tensor(padded))
        self.start = next((id for id in map(tokenizer.id, (PAD, BERT_PAD)) if id is not None), 0)

    def likelihoods(
        self, model: Transformer, ids: Tensor, attention_mask: Tensor, which: Tensor | None = None
    ) -> Tensor:
        """log p of writing each name after a text (B, C), or only of the names `which` (B, n)."""
        names = self.ids.on(ids.device)
        which = torch.arange(len(names), device=ids.device).expand(len(ids), -1) if which is None else which
        n, written = which.shape[1], names[which.flatten()]  # (B·n, L)
        target = written.clamp(min=0).roll(1, dims=1)
        target[:, 0] = self.start
        encoded = model.encode(ids, attention_mask).repeat_interleave(n, dim=0)  # (B·n, T, D)
        state = model.decoder.new_state(None, encoded, attention_mask.repeat_interleave(n, dim=0))
        logits = upcast(model.logits(model.decode(target, state)))  # (B·n, L, V)
        losses = F.cross_entropy(logits.mT, written, ignore_index=IGNORED, reduction="none")  # (B·n, L)
        return -losses.sum(1).view(-1, n)
