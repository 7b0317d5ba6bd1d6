"""Which words translate which: IBM model 1 on pairs of token ids, Brown et al. 1993, section 4.

Each target token is the translation of one source token of its pair, or of none: p(t | s) by expectation
maximization. A link is a source token next to a target token of the same pair.
"""

import numpy as np

from regard.data.ragged import Ragged

ITERATIONS = 5
MOST_LINKS = 2**23  # more pairs hardly change the lists; they would take minutes and gigabytes


def likely_targets(sources: Ragged, targets: Ragged, vocab: int, count: int, filler: int) -> np.ndarray:
    """The most likely targets of each source token of a vocabulary, most likely first: (vocab, count). A
    token with fewer targets has the `filler` instead."""
    rows = choose_pairs(sources, targets)
    source, target, place = find_links(sources, targets, rows, vocab)
    size = int(target.max(initial=0)) + 1
    keys, link = np.unique(source * size + target, return_inverse=True)
    word = keys // size  # the source token of each key
    p = np.ones(len(keys))
    for _ in range(ITERATIONS):
        share = p[link]
        share /= np.bincount(place, share)[place]  # of the source tokens of a target token
        expected = np.bincount(link, share, minlength=len(keys))
        p = expected / np.bincount(word, expected)[word]
    order = np.lexsort((-p, word))
    word, best = word[order], keys[order] % size
    rank = np.arange(len(word)) - np.searchsorted(word, word)
    lists = np.full((vocab, count), filler, np.int32)
    used = (rank < count) & (word < vocab)  # the last one stands for nothing
    lists[word[used], rank[used]] = best[used]
    return lists


def find_links(
    sources: Ragged, targets: Ragged, rows: np.ndarray, nothing: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The source and target tokens of all links of these rows, and the number of each one's target token.
    Each source also has the token `nothing`."""
    read, written = sources.lengths[rows], targets.lengths[rows]
    widths = np.repeat(read + 1, written)  # links of each target token
    place = np.repeat(np.arange(len(widths)), widths)
    at = np.arange(len(place)) - np.repeat(np.cumsum(widths) - widths, widths)
    first = np.repeat(np.repeat(sources.offsets[:-1][rows], written), widths)
    source = np.append(sources.ids, nothing).astype(np.int64)
    source = source[np.where(at < widths[place] - 1, first + at, len(source) - 1)]
    within = np.arange(len(widths)) - np.repeat(np.cumsum(written) - written, written)
    target = targets.ids[np.repeat(targets.offsets[:-1][rows], written) + within].astype(np.int64)
    return source, target[place], place


def choose_pairs(sources: Ragged, targets: Ragged) -> np.ndarray:
    """The rows to learn from: all, or those with the first occurrences of each token, as many as fit."""
    links = (sources.lengths + 1) * targets.lengths
    if links.sum() <= MOST_LINKS:
        return np.arange(len(links))
    first = np.minimum(first_occurrences(sources), first_occurrences(targets))
    order = np.argsort(first, kind="stable")
    return np.sort(order[: np.searchsorted(np.cumsum(links[order]), MOST_LINKS, side="right")])


def first_occurrences(side: Ragged) -> np.ndarray:
    """For each row, the number of earlier occurrences of the token that has the fewest."""
    order = np.argsort(side.ids, kind="stable")
    ids = side.ids[order]
    earlier = np.empty(len(ids) + 1, np.int64)
    earlier[order] = np.arange(len(ids)) - np.searchsorted(ids, ids)
    earlier[-1] = len(ids)  # an empty last row ends here
    fewest = np.minimum.reduceat(earlier, side.offsets[:-1])
    return np.where(side.lengths > 0, fewest, len(ids))
