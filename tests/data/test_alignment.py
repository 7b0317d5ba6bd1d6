"""IBM model 1: the lists of likely translations, next to its equations in plain loops."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.data import alignment
from regard.data.alignment import likely_targets
from regard.tasks.batches import ragged

BUILTIN = Path(regard.__file__).parent / "builtin" / "translate.tsv"


def plainly(pairs: list[tuple[list[int], list[int]]], count: int) -> dict[int, list[int]]:
    """The equations of Brown et al. 1993, section 4; the source token -1 is none."""
    p: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(alignment.ITERATIONS):
        expected: dict[tuple[int, int], float] = defaultdict(float)
        for source, target in pairs:
            for t in target:
                total = sum(p[s, t] for s in (*source, -1))
                for s in (*source, -1):
                    expected[s, t] += p[s, t] / total
        sums: dict[int, float] = defaultdict(float)
        for (s, _), n in expected.items():
            sums[s] += n
        p = defaultdict(float, {(s, t): n / sums[s] for (s, t), n in expected.items()})
    best = sorted(((s, -probability, t) for (s, t), probability in p.items() if s >= 0))
    lists: dict[int, list[int]] = defaultdict(list)
    for s, _, t in best:
        lists[s] = [*lists[s], t][:count]
    return lists


def test_the_lists_are_those_of_the_equations() -> None:
    rng = np.random.default_rng(0)
    pairs = [tuple(rng.integers(0, 11, rng.integers(0, 7)).tolist() for _ in "st") for _ in range(40)]
    pairs[-1] = ([], [])
    sides = [ragged([pair[i] for pair in pairs]) for i in (0, 1)]
    lists = likely_targets(*sides, 13, 5, 12)
    expected = plainly([(s, t) for s, t in pairs], 5)
    assert lists.shape == (13, 5)
    assert lists.tolist() == [(expected[s] + [12] * 5)[:5] for s in range(13)]


def test_translations_of_words_are_in_their_lists() -> None:
    pairs = [line.split("\t") for line in BUILTIN.read_text(encoding="utf-8").splitlines()]
    words: dict[str, int] = {}
    rows = [
        [[words.setdefault(w, len(words)) for w in side.rstrip(".?!").split()] for side in pair]
        for pair in pairs
    ]
    lists = likely_targets(*(ragged([row[i] for row in rows]) for i in (0, 1)), len(words), 3, 0)
    names = list(words)
    translations = {"lamp": "Lampe", "new": "neu", "Anna": "Anna", "not": "nicht", "buy": "kaufen"}
    translations |= {"horse": "Pferd", "bag": "Tasche", "apple": "Apfel", "is": "ist", "We": "Wir"}
    for source, target in translations.items():
        assert target in [names[t] for t in lists[words[source]]], source


def test_of_many_pairs_those_with_new_words_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[0, 1], [0, 1], [], [1, 0], [0, 2], [1, 1], [3, 1]]
    side = ragged(rows)
    assert alignment.choose_pairs(side, side).tolist() == list(range(7))
    monkeypatch.setattr(alignment, "MOST_LINKS", 18)  # three pairs of (2 + 1) * 2
    assert {0, 4, 6} <= set(alignment.choose_pairs(side, side).tolist())
    assert len(alignment.choose_pairs(side, side)) <= 4  # one is empty
    assert alignment.first_occurrences(side).tolist() == [0, 1, 12, 2, 0, 3, 0]
