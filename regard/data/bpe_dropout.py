"""Byte-pair encoding with merges left out at random, so that a model sees a word in different pieces.

Provilkov et al. 2020, "BPE-Dropout". Here it is applied to encoded tokens: each is split again by BPE
on its own symbols, in which each possible merge is left out with some probability at each step. So no texts
are needed, and pieces never extend beyond the token that they replace.

Shapes: N spellings, L symbols of each.
"""

import json

import numpy as np

from regard.data.ragged import Ragged
from regard.data.shuffling import GOLDEN, mix64, random_keys
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer

DRAWN = 2**17  # about this many spellings of all tokens together
LONGEST = 32  # symbols; longer tokens stay whole
SALT = 0x627065  # other random numbers than the order of rows


class TokenDropout:
    """Draws spellings of tokens. What is drawn depends on the seed and the key of a row alone."""

    def __init__(self, tokenizer: Tokenizer, probability: float, seed: int):
        self.count = int(np.clip(DRAWN // tokenizer.vocab, 8, 64))  # spellings of a token, to draw from
        symbols, merges = read_merges(tokenizer)
        self.seed = seed ^ SALT
        spellings: list[list[np.ndarray]] = [[] for _ in range(tokenizer.vocab)]
        for length in sorted(set(map(len, symbols))):
            tokens = [id for id, several in enumerate(symbols) if len(several) == length]
            ids = np.repeat(np.array([symbols[id] for id in tokens]), self.count, axis=0)
            keys = random_keys(self.seed, np.repeat(tokens, self.count) * self.count + np.arange(len(ids)))
            rows = merge(ids, merges, probability, keys)
            for n, id in enumerate(tokens):
                spellings[id] = rows[n * self.count : (n + 1) * self.count]
        flat = [row for id, several in enumerate(spellings) for row in (*several, np.array([id]))]
        self.spellings = Ragged(np.concatenate(flat), np.array([len(row) for row in flat]))

    def keys(self, numbers: np.ndarray) -> np.ndarray:
        """The keys of rows with these indices."""
        return random_keys(self.seed + 1, numbers)

    def __call__(self, side: Ragged, rows: np.ndarray, keys: np.ndarray, longest: int) -> Ragged:
        """Split these rows again, each by its key; a row that would be longer than `longest` stays."""
        row = np.repeat(np.arange(len(rows)), side.lengths[rows])
        place = within(side.lengths[rows])
        tokens = side.ids[side.offsets[rows][row] + place].astype(np.int64) * (self.count + 1)
        noise = mix64(keys[row] + (place + 1).astype(np.uint64) * np.uint64(GOLDEN))
        which = tokens + (noise % np.uint64(self.count)).astype(np.int64)
        lengths = np.bincount(row, self.spellings.lengths[which], len(rows)).astype(np.int64)
        which = np.where((lengths > longest)[row], tokens + self.count, which)  # the token itself
        pieces = self.spellings.lengths[which]
        ids = self.spellings.ids[np.repeat(self.spellings.offsets[which], pieces) + within(pieces)]
        lengths = np.bincount(row, pieces, len(rows)).astype(np.int64)
        return Ragged(ids.astype(side.ids.dtype), lengths)


def within(lengths: np.ndarray) -> np.ndarray:
    """Count from 0 within each of several rows."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


class Merges:
    """The merges of a tokenizer: pairs of ids, and the ids of their products."""

    def __init__(self, vocab: int, pairs: np.ndarray, products: np.ndarray):
        self.vocab = vocab
        self.ranks = np.argsort(pairs[:, 0] * vocab + pairs[:, 1])  # in the order of the pairs
        self.keys = (pairs[:, 0] * vocab + pairs[:, 1])[self.ranks]
        self.products = products
        self.none = len(products)  # the rank of a pair that is not merged

    def find(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """The ranks of pairs."""
        pairs = left * self.vocab + right
        place = np.minimum(np.searchsorted(self.keys, pairs), len(self.keys) - 1)
        return np.where(self.keys[place] == pairs, self.ranks[place], self.none)


def read_merges(tokenizer: Tokenizer) -> tuple[list[list[int]], Merges]:
    """The symbols that each token is merged from, or the token itself, and the merges."""
    model = json.loads(tokenizer.inner.to_str())["model"]
    if model["type"] != "BPE" or not model["merges"]:
        kind = "one of characters or bytes" if model["type"] == "BPE" else model["type"]
        raise UserError(
            f"data.bpe_dropout needs a tokenizer that merges pairs, not {kind}; set data.tokenizer=bpe"
        )
    ids, prefix = model["vocab"], len(model.get("continuing_subword_prefix") or "")
    symbols = [[id] for id in range(tokenizer.vocab)]
    pairs, products = [], []
    for pair in model["merges"]:
        a, b = pair.split(" ") if isinstance(pair, str) else pair
        left, right, product = ids[a], ids[b], ids[a + b[prefix:]]
        pairs.append((left, right))
        products.append(product)
        several = symbols[left] + symbols[right]
        if len(symbols[product]) == 1 and len(several) <= LONGEST:
            symbols[product] = several
    return symbols, Merges(tokenizer.vocab, np.array(pairs), np.array(products))


def merge(ids: np.ndarray, merges: Merges, probability: float, keys: np.ndarray) -> list[np.ndarray]:
    """Merge rows of symbols (N, L): repeatedly the pair of lowest rank, until there is none.

    At each step each pair is left out with this probability; if all are, a row is done.
    """
    results: list[np.ndarray] = [np.array([])] * len(ids)
    active, step = np.arange(len(ids)), 0
    while len(active) and ids.shape[1] > 1:
        step += 1
        L = ids.shape[1]
        counter = (step * LONGEST + np.arange(L - 1)).astype(np.uint64) * np.uint64(GOLDEN)
        chance = mix64(keys[active, None] + counter) >> np.uint64(11)  # (N, L-1), of 2**53
        ranks = np.where(chance < probability * 2**53, merges.none, merges.find(ids[:, :-1], ids[:, 1:]))
        best = ranks.argmin(1)[:, None]
        rank = np.take_along_axis(ranks, best, 1)[:, 0]
        can = rank < merges.none
        for row, number in zip(ids[~can], active[~can].tolist(), strict=True):
            results[number] = row
        ids, active, best, rank = ids[can], active[can], best[can], rank[can]
        np.put_along_axis(ids, best, merges.products[rank][:, None], 1)
        columns = np.arange(L - 1)
        ids = np.take_along_axis(ids, columns + (columns > best), 1)  # (N, L-1)
    for row, number in zip(ids, active.tolist(), strict=True):
        results[number] = row
    return results
