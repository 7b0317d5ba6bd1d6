"""One word in two texts: the similarity of its vectors, layer by layer.

Shapes: T tokens, D width.
"""

import re

from torch import Tensor
from torch.nn import functional as F

from regard.errors import UserError
from regard.runs.model import Model
from regard.tracing import trace
from regard.viewer.space import Space


def compare_word(model: Model, word: str, first: str, second: str) -> dict[str, float]:
    """The cosine similarity of a word's vectors in two texts, for each tensor of the trace that has a vector
    for every token. An embedding has the same vector for a word in any text: 1."""
    one, other = (vectors_of(model, word, text) for text in (first, second))
    return {
        name: F.cosine_similarity(x, other[name], dim=0).item() for name, x in one.items() if name in other
    }


def vectors_of(model: Model, word: str, text: str) -> dict[str, Tensor]:
    """The vectors (D,) of the first such word in a text, by tensor; the mean if it has several tokens."""
    run = trace(model, text)
    space = Space(model, run)
    read = run.ids.get("text", run.ids.get("source", []))
    rows = find_tokens(model, word, text, read)
    names = [name for name, side in space.hidden.items() if side in ("text", "source")]
    if not names:
        raise UserError("this model has no vector for each token; use one that reads texts of several words")
    return {name: run[name][rows].double().mean(0) for name in names}


def find_tokens(model: Model, word: str, text: str, read: list[int]) -> list[int]:
    """The places, among the tokens that a model reads of a text, of the first such word in it."""
    match = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)
    if match is None:
        raise UserError(f"{word}: not a word of {text[:80]!r}; give texts that have it")
    ((ids, places),) = model.tokenizer.encode_offsets([text])
    start = next((n for n in range(len(read)) if read[n : n + len(ids)] == ids), None)
    start = 0 if start is None else start  # cut at the end of the context, or nothing before it
    rows = [start + n for n, (a, b) in enumerate(places) if a < match.end() and b > match.start()]
    if not rows or rows[-1] >= len(read):
        raise UserError(f"{word}: beyond what the model reads of {text[:80]!r}; shorten the text")
    return rows
