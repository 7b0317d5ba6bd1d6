"""Documents, tasks and models for the tests of masked words."""

import numpy as np
import torch

from regard.data.passages import Passages
from regard.data.ragged import Ragged
from regard.models import Bert, BertConfig
from regard.tasks import Fill, FillConfig

CONTEXT = 47
DOCUMENTS = [
    " ".join(f"The {a} fox saw {n + k} {b} geese near the {c} river." for k in range(1 + n % 5))
    for n in range(31)
    for a, b, c in [("red", "grey", "wide") if n % 2 else ("old", "white", "deep")]
]
TEXT = "\n\n".join(DOCUMENTS)


def filler(tokenizer, context=CONTEXT, **settings):
    return Fill(FillConfig(name="fill", **settings), tokenizer, context)


def build(task, **settings):
    """Return a model with weights so large that all of its parts matter."""
    sizes = {"vocab": task.tokenizer.vocab, "context": task.context, "dim": 12, "depth": 2, "heads": 3}
    model = task.add_head(Bert(BertConfig(**sizes, dropout=0.0, **settings)), task.config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.15 * torch.randn_like(p))
    return model


def random_generator(*key):
    return np.random.Generator(np.random.Philox(key=list(key)))


def documents(task, *lengths):
    """Passages of documents with sentences of these lengths; each token is the number of its document."""
    sizes = np.array([n for document in lengths for n in document])
    of = np.repeat(np.arange(len(lengths)), list(map(len, lengths)))
    ids = task.masker.words[np.repeat(of, sizes)]
    return Passages(Ragged(ids, sizes), np.cumsum([0, *map(len, lengths)]), 0, task.context - 3)


def within(count, total, share):
    """Whether a count agrees with a share, within random deviations."""
    return abs(count - total * share) < 4.5 * (total * share * (1 - share)) ** 0.5
