"""Metrics of answers: how often a class, an entity or a span is right, and the correlation of two rows of
numbers. Metrics of texts are in `text_metrics.py`."""

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Sequence, Sized
from math import exp, fsum, lgamma, log
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError

TAG = re.compile(r"O|[BIES](-.+)?")  # of IOB1, IOB2 and BIOES: outside, or a part of an entity and its kind
ARTICLE = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def check_matched(answers: Sized, references: Sized, what: str = "answers") -> None:
    """Check that every answer has a reference: sacreBLEU would silently leave out the others."""
    if len(answers) != len(references):
        raise UserError(f"{len(answers)} {what} but {len(references)} references: give one for each")
    if not len(answers):
        raise UserError(f"no {what} to score: give at least one, and its reference")


# Numbers


def pearson(predicted: ArrayLike, true: ArrayLike) -> float:
    """The product-moment correlation of two rows of numbers; 0 if one of them never changes."""
    x, y = np.asarray(predicted, dtype=float), np.asarray(true, dtype=float)
    check_matched(x, y, "predictions")
    if (x == x[0]).all() or (y == y[0]).all():
        return 0.0  # no correlation; scipy's NaN would not be JSON
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    x, y = (side / np.abs(side).max() for side in (x, y))  # so that no square overflows
    x, y = x - x.mean(), y - y.mean()
    r = x @ y / (np.linalg.norm(x) * np.linalg.norm(y))
    return float(np.clip(r, -1, 1))


def spearman(predicted: ArrayLike, true: ArrayLike) -> float:
    """The rank correlation (Spearman 1904): pearson of the ranks; equal values share a rank."""
    x, y = np.asarray(predicted, dtype=float), np.asarray(true, dtype=float)
    check_matched(x, y, "predictions")
    if np.isnan(x).any() or np.isnan(y).any():
        return float("nan")  # which has no rank
    return pearson(_ranks(x), _ranks(y))


CORRELATIONS = {"spearman": spearman, "pearson": pearson}


def _ranks(x: np.ndarray) -> np.ndarray:
    """Ranks from 1 for the smallest; equal values share their mean rank."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


# Classes


def accuracy(predicted: Sequence[Hashable], true: Sequence[Hashable]) -> float:
    """The share of predictions that are right."""
    check_matched(predicted, true, "predictions")
    return sum(p == t for p, t in zip(predicted, true, strict=True)) / len(true)


def f1(predicted: Sequence[Hashable], true: Sequence[Hashable], positive: Hashable | None = None) -> float:
    """The harmonic mean of precision and recall: of the positive class, or, without one, the mean over all
    classes that occur or are predicted. A class that is never right has 0."""
    check_matched(predicted, true, "predictions")
    right = Counter(t for p, t in zip(predicted, true, strict=True) if p == t)
    # 2 TP / (2 TP + FP + FN): what was predicted and what was true are TP + FP and TP + FN
    of = Counter(predicted) + Counter(true)
    if positive is not None:
        return 2 * right[positive] / max(1, of[positive])
    return sum(2 * right[name] / of[name] for name in of) / len(of)


def matthews(predicted: Sequence[Hashable], true: Sequence[Hashable]) -> float:
    """The correlation of predicted and true classes (Matthews 1975), of two or more of them (Gorodkin 2004,
    eq. 8); 0 if all predictions, or all classes, are the same."""
    check_matched(predicted, true, "predictions")
    n, right = len(true), sum(p == t for p, t in zip(predicted, true, strict=True))
    guessed, there = Counter(predicted), Counter(true)
    together = right * n - sum(guessed[name] * count for name, count in there.items())
    spread = [n * n - sum(count * count for count in side.values()) for side in (guessed, there)]
    return together / (spread[0] * spread[1]) ** 0.5 if all(spread) else 0.0


def count_confusions(
    classes: Sequence[str], answers: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """Count how many rows of each class were predicted as which (`confusion`, in the order of the classes);
    and compute the precision, recall, F1 and rows of each (`classes`)."""
    counts = Counter(zip(references, answers, strict=True))
    confusion = [[counts[true, predicted] for predicted in classes] for true in classes]
    figures: dict[str, dict[str, float]] = {}
    for name, row, column in zip(classes, confusion, zip(*confusion, strict=True), strict=True):
        right = counts[name, name]
        precision, recall = right / max(1, sum(column)), right / max(1, sum(row))
        f1 = 2 * right / max(1, sum(row) + sum(column))
        figures[name] = {"precision": precision, "recall": recall, "f1": f1, "rows": sum(row)}
    return {"classes": figures, "confusion": confusion}


# Entities


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """(kind, start, end) of every entity in a sentence's tags, IOB1, IOB2 or BIOES: words[start:end].

    As seqeval reads them by default, and conlleval before it: an entity goes on until a tag begins another
    (B, S), ends it (after E or S), is outside or of another kind; so I may begin one as well as B.
    """
    spans = set()
    before, kind_before, start = "O", "", 0
    for place, tag in enumerate([*tags, "O"]):
        if not TAG.fullmatch(tag):
            raise UserError(f'tag "{tag}": not an entity\'s; give O, or B, I, E or S and a kind, as in B-PER')
        part, kind = tag[0], tag[2:] or "_"
        if before in "OES" or part in "OBS" or kind != kind_before:
            if before != "O":
                spans.add((kind_before, start, place))
            start = place
        before, kind_before = part, kind
    return spans


def entity_counts(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> tuple[int, int, int]:
    """Count the entities that are right (in kind and both ends), predicted, and true."""
    check_matched(predicted, true, "tagged sentences")
    right = guessed = there = 0
    for number, (mine, theirs) in enumerate(zip(predicted, true, strict=True), 1):
        if len(mine) != len(theirs):
            raise UserError(f"sentence {number}: {len(mine)} tags for {len(theirs)} words: give one for each")
        a, b = entities(mine), entities(theirs)
        right, guessed, there = right + len(a & b), guessed + len(a), there + len(b)
    return right, guessed, there


def entity_f1(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and f1 of all sentences' entities together."""
    right, guessed, there = entity_counts(predicted, true)
    return {
        "precision": right / max(1, guessed),
        "recall": right / max(1, there),
        "f1": 2 * right / max(1, guessed + there),
    }


# Two models


def sign_test(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """Count in how many rows a is `better` than b and in how many `worse`; `better_p` is the probability of
    such counts, or more extreme ones, if both are equally good (the sign test, or McNemar's)."""
    check_matched(a, b)
    better, worse = (sum(x > y for x, y in zip(*sides, strict=True)) for sides in ((a, b), (b, a)))
    n = better + worse
    few = range(min(better, worse) + 1)
    logs = (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) - n * log(2) for k in few)
    return {"better": better, "worse": worse, "better_p": min(1.0, 2 * fsum(map(exp, logs)))}


# Spans


def exact_match(answers: Sequence[str], references: Sequence[str | Sequence[str]]) -> float:
    """The share of answers that are their reference, or one of several, as SQuAD compares them (Rajpurkar et
    al. 2016): ignoring capitals, punctuation, articles and white space."""
    same = lambda answer, reference: float(_bare(answer) == _bare(reference))  # noqa: E731
    return _best(answers, references, same)


def token_f1(answers: Sequence[str], references: Sequence[str | Sequence[str]]) -> float:
    """The mean f1 of an answer's words against its reference's, or the best of several; as in SQuAD 2, two
    texts without words are equal."""
    return _best(answers, references, _overlap)


def _overlap(answer: str, reference: str) -> float:
    mine, theirs = Counter(_bare(answer)), Counter(_bare(reference))
    if not mine or not theirs:
        return float(mine == theirs)
    return 2 * (mine & theirs).total() / (mine.total() + theirs.total())


def _bare(text: str) -> list[str]:
    return ARTICLE.sub(" ", text.lower().translate(PUNCTUATION)).split()


def _best(
    answers: Sequence[str],
    references: Sequence[str | Sequence[str]],
    measure: Callable[[str, str], float],
) -> float:
    """The mean of a measure over all answers, each with the reference that gives the best value."""
    check_matched(answers, references)
    total = 0.0
    for number, (answer, refs) in enumerate(zip(answers, references, strict=True), 1):
        if not isinstance(refs, str) and not refs:
            raise UserError(f"answer {number}: no reference to compare it with; give at least one")
        total += max(measure(answer, one) for one in ([refs] if isinstance(refs, str) else refs))
    return total / len(answers)
