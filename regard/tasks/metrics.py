"""Figures about answers: how near texts are to references, how varied, and what is chance; how often a class,
an entity or a span is the right one, and how two rows of numbers go together."""

import contextlib
import math
import os
import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence, Sized
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError

WORD = re.compile(r"\w+|[^\w\s]")  # a run of letters and digits, or one mark
TAG = re.compile(r"O|[BIES](-.+)?")  # of IOB1, IOB2 and BIOES: outside, or the part of an entity and its kind
ARTICLE = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
SEED = "SACREBLEU_SEED"


def text_scores(answers: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """BLEU (Papineni et al. 2002), chrF (Popović 2015) and TER (Snover et al. 2006) of all answers together.

    As sacreBLEU has them (Post 2018), with the signature to quote beside BLEU; and the share of answers that
    are their reference, whatever the white space.
    """
    _matched(answers, references)
    lib = _sacrebleu()
    bleu, metrics = _bleu(lib), {"chrf": lib.CHRF(), "ter": lib.TER()}
    scores: dict[str, float | str] = {"bleu": bleu.corpus_score(answers, [references]).score}
    scores |= {name: metric.corpus_score(answers, [references]).score for name, metric in metrics.items()}
    same = sum(a.split() == r.split() for a, r in zip(answers, references, strict=True))
    return scores | {"exact": same / len(answers), "signature": str(bleu.get_signature())}


def distinct(answers: Sequence[str], n: int) -> float:
    """distinct-n (Li et al. 2016): different n-grams of words over all of them; 0 if there are none.

    Words are lower-cased runs of letters and digits, every other mark a word of its own; an n-gram stays
    within its answer.
    """
    if n < 1:
        raise UserError(f"distinct n={n}: 1 or more words")
    texts = [WORD.findall(answer.lower()) for answer in answers]
    grams = [tuple(words[i : i + n]) for words in texts for i in range(len(words) - n + 1)]
    return len(set(grams)) / max(1, len(grams))


def count_confusions(
    classes: Sequence[str], answers: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """How many rows of each class were taken for which (`confusion`, in the order of the classes); and the
    precision, recall, F1 and rows of each (`classes`)."""
    counts = Counter(zip(references, answers, strict=True))
    confusion = [[counts[true, predicted] for predicted in classes] for true in classes]
    figures: dict[str, dict[str, float]] = {}
    for name, row, column in zip(classes, confusion, zip(*confusion, strict=True), strict=True):
        right = counts[name, name]
        precision, recall = right / max(1, sum(column)), right / max(1, sum(row))
        f1 = 2 * right / max(1, sum(row) + sum(column))
        figures[name] = {"precision": precision, "recall": recall, "f1": f1, "rows": sum(row)}
    return {"classes": figures, "confusion": confusion}


def compare(
    a: Sequence[str],
    b: Sequence[str],
    references: Sequence[str | Sequence[str]],
    samples: int = 1000,
    seed: int = 12345,
) -> dict[str, float]:
    """Whether a and b differ by more than chance: paired bootstrap resampling (Koehn 2004) by sacreBLEU.

    For bleu and chrf: `bleu` of a, `bleu_mean` ± `bleu_ci` its 95 % interval; `bleu_against`,
    `bleu_against_mean` and `bleu_against_ci`, the same of b; `bleu_p`, the two-sided p-value of their
    difference.
    """
    _matched(a, references)
    _matched(b, references)
    if samples < 1:
        raise UserError(f"samples={samples}: 1 or more; 1000 are usual")
    if seed < 1:
        raise UserError(f"seed={seed}: 1 or more, as sacreBLEU takes 0 for none")
    lib = _sacrebleu()
    with _seeded(seed):
        test = lib.significance.PairedTest(
            [("b", b), ("a", a)],
            {"bleu": _bleu(lib), "chrf": lib.CHRF()},
            _columns(references),
            test_type="bs",
            n_samples=samples,
        )
        results = test()[1]
    scores: dict[str, float] = {}
    for name, (theirs, ours) in (("bleu", results["BLEU"]), ("chrf", results["chrF2"])):
        for key, result in ((name, ours), (f"{name}_against", theirs)):
            scores |= {key: result.score, f"{key}_mean": result.mean, f"{key}_ci": result.ci}
        # of equals sacreBLEU says the smallest p there is: no resample differs by more than nothing
        scores[f"{name}_p"] = 1.0 if ours.score == theirs.score else ours.p_value
    return {key: float(value) for key, value in scores.items()}


def by_length(
    answers: Sequence[str], references: Sequence[str], sources: Sequence[str], edges: Sequence[int]
) -> list[dict[str, float]]:
    """BLEU by the number of words in the source: of every interval [from, to) between edges that has any."""
    _matched(answers, references)
    _matched(sources, references, "sources")
    if len(edges) < 2 or any(low >= high for low, high in pairwise(edges)):
        raise UserError(f"edges={list(edges)}: two or more numbers of words, each above the one before")
    lib, rows = _sacrebleu(), list(zip(answers, references, sources, strict=True))
    groups = []
    for low, high in pairwise(edges):
        group = [(answer, reference) for answer, reference, s in rows if low <= len(s.split()) < high]
        if group:
            mine, theirs = zip(*group, strict=True)
            score = _bleu(lib).corpus_score(mine, [theirs]).score
            groups.append({"from": low, "to": high, "count": len(group), "bleu": score})
    return groups


# Captions


def caption_scores(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """BLEU of up to 1, 2, 3 and 4 words (the last is `bleu`), CIDEr-D, and the share of answers that are one
    of their references; chrF too, where sacreBLEU is installed. Capitals and punctuation don't count."""
    _matched(answers, references)
    for number, refs in enumerate(references, 1):
        if not refs:
            raise UserError(f"answer {number}: no reference to compare it with; give at least one")
    mine, theirs = [_words(answer) for answer in answers], [[_words(r) for r in refs] for refs in references]
    *shorter, full = corpus_bleu(mine, theirs)
    scores = {"bleu": full} | {f"bleu_{n}": score for n, score in enumerate(shorter, 1)}
    with contextlib.suppress(UserError):
        plain = [[" ".join(r) for r in refs] for refs in theirs]
        answered = [" ".join(words) for words in mine]
        scores["chrf"] = _sacrebleu().CHRF().corpus_score(answered, _columns(plain)).score
    scores["cider"] = cider(mine, theirs)
    same = sum(words in refs for words, refs in zip(mine, theirs, strict=True))
    return scores | {"exact": same / len(answers)}


def corpus_bleu(
    answers: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> list[float]:
    """BLEU of 1, 2, 3 and 4 words (Papineni et al. 2002) of all answers together, in percent: the geometric
    mean of the precisions, each n-gram counted as often as the reference has it that has it most often;
    short answers pay for the length of their nearest reference. As captions are scored: nothing smoothed."""
    right, said = np.zeros(4), np.zeros(4)
    length = expected = 0
    for words, refs in zip(answers, references, strict=True):
        length += len(words)
        expected += min((abs(len(r) - len(words)), len(r)) for r in refs)[1]
        for n in range(4):
            mine, most = _grams(words, n + 1), Counter[tuple[str, ...]]()
            for reference in refs:
                most |= _grams(reference, n + 1)
            right[n] += (mine & most).total()
            said[n] += mine.total()
    brief = min(0.0, 1 - expected / length) if length else -math.inf
    with np.errstate(divide="ignore"):
        precisions = np.log(right / np.maximum(said, 1))
    return [100 * math.exp(brief + precisions[:n].mean()) for n in range(1, 5)]


def cider(
    answers: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]], sigma: float = 6.0
) -> float:
    """CIDEr-D (Vedantam et al. 2015, eq. 6): how alike the counts of n-grams are, the rarer the more; 10 for
    the reference itself. N-grams that all references share count nothing."""
    documents = Counter(
        gram for refs in references for gram in {g for r in refs for n in range(1, 5) for g in _grams(r, n)}
    )

    def weighed(words: Sequence[str], n: int) -> dict[tuple[str, ...], float]:
        count = _grams(words, n)
        return {g: k * math.log(len(references) / max(1, documents[g])) for g, k in count.items()}

    def norm(vector: dict[tuple[str, ...], float]) -> float:
        return math.sqrt(sum(x * x for x in vector.values()))

    total = 0.0
    for words, refs in zip(answers, references, strict=True):
        for reference in refs:
            unlike = math.exp(-((len(words) - len(reference)) ** 2) / (2 * sigma**2))
            for n in range(1, 5):
                mine, theirs = weighed(words, n), weighed(reference, n)
                both = sum(min(mine[g], x) * x for g, x in theirs.items() if g in mine)
                if both:
                    total += 10 / 4 * unlike * both / (norm(mine) * norm(theirs)) / len(refs)
    return total / len(answers)


def _words(text: str) -> list[str]:
    return text.lower().translate(PUNCTUATION).split()


def _grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _columns(references: Sequence[str | Sequence[str]]) -> list[list[str | None]]:
    """As sacreBLEU wants them: everyone's first reference, everyone's second; None where there is none."""
    rows = ([refs] if isinstance(refs, str) else refs for refs in references)
    return [list(column) for column in zip_longest(*rows)]


# Numbers


def pearson(predicted: ArrayLike, true: ArrayLike) -> float:
    """The product-moment correlation of two rows of numbers; 0 if one of them never changes."""
    x, y = np.asarray(predicted, dtype=float), np.asarray(true, dtype=float)
    _matched(x, y, "predictions")
    if (x == x[0]).all() or (y == y[0]).all():
        return 0.0  # nothing goes together with it; scipy's NaN would be no JSON
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    x, y = (side / np.abs(side).max() for side in (x, y))  # so that no square overflows
    x, y = x - x.mean(), y - y.mean()
    r = x @ y / (np.linalg.norm(x) * np.linalg.norm(y))
    return float(np.clip(r, -1, 1))


def spearman(predicted: ArrayLike, true: ArrayLike) -> float:
    """The rank correlation (Spearman 1904): pearson of the ranks, where equals share the mean of theirs."""
    x, y = np.asarray(predicted, dtype=float), np.asarray(true, dtype=float)
    _matched(x, y, "predictions")
    if np.isnan(x).any() or np.isnan(y).any():
        return float("nan")  # which has no rank
    return pearson(_ranks(x), _ranks(y))


CORRELATIONS = {"spearman": spearman, "pearson": pearson}


def _ranks(x: np.ndarray) -> np.ndarray:
    """1 for the smallest; equals have the mean of the ranks that they take up together."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


# Classes


def accuracy(predicted: Sequence[Hashable], true: Sequence[Hashable]) -> float:
    """The share of predictions that are right."""
    _matched(predicted, true, "predictions")
    return sum(p == t for p, t in zip(predicted, true, strict=True)) / len(true)


def f1(predicted: Sequence[Hashable], true: Sequence[Hashable], positive: Hashable | None = None) -> float:
    """The harmonic mean of precision and recall: of the positive class, or, without one, the mean over all
    classes that are there or predicted. A class that is never right has 0."""
    _matched(predicted, true, "predictions")
    right = Counter(t for p, t in zip(predicted, true, strict=True) if p == t)
    # 2 TP / (2 TP + FP + FN): what was predicted and what was true are TP + FP and TP + FN
    of = Counter(predicted) + Counter(true)
    if positive is not None:
        return 2 * right[positive] / max(1, of[positive])
    return sum(2 * right[name] / of[name] for name in of) / len(of)


def matthews(predicted: Sequence[Hashable], true: Sequence[Hashable]) -> float:
    """The correlation of predicted and true classes (Matthews 1975), of two or more of them (Gorodkin 2004,
    eq. 8); 0 if all are predicted, or are, the same."""
    _matched(predicted, true, "predictions")
    n, right = len(true), sum(p == t for p, t in zip(predicted, true, strict=True))
    guessed, there = Counter(predicted), Counter(true)
    together = right * n - sum(guessed[name] * count for name, count in there.items())
    spread = [n * n - sum(count * count for count in side.values()) for side in (guessed, there)]
    return together / (spread[0] * spread[1]) ** 0.5 if all(spread) else 0.0


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
            raise UserError(f'tag "{tag}": no entity\'s; it is O, or B, I, E or S and a kind, as in B-PER')
        part, kind = tag[0], tag[2:] or "_"
        if before in "OES" or part in "OBS" or kind != kind_before:
            if before != "O":
                spans.add((kind_before, start, place))
            start = place
        before, kind_before = part, kind
    return spans


def entity_counts(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> tuple[int, int, int]:
    """How many entities of all sentences are right, predicted and there: kind and both ends must be right."""
    _matched(predicted, true, "tagged sentences")
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


# Spans


def exact_match(answers: Sequence[str], references: Sequence[str | Sequence[str]]) -> float:
    """The share of answers that are their reference, or one of several, as SQuAD compares them (Rajpurkar et
    al. 2016): whatever the capitals, punctuation, articles and white space."""
    same = lambda answer, reference: float(_bare(answer) == _bare(reference))  # noqa: E731
    return _best(answers, references, same)


def token_f1(answers: Sequence[str], references: Sequence[str | Sequence[str]]) -> float:
    """The mean f1 of an answer's words against its reference's, or the best of several; as SQuAD 2 has it,
    where two that have no words are the same."""
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
    """The mean over all answers of the measure by the reference that is nearest."""
    _matched(answers, references)
    total = 0.0
    for number, (answer, refs) in enumerate(zip(answers, references, strict=True), 1):
        if not isinstance(refs, str) and not refs:
            raise UserError(f"answer {number}: no reference to compare it with; give at least one")
        total += max(measure(answer, one) for one in ([refs] if isinstance(refs, str) else refs))
    return total / len(answers)


def _matched(answers: Sized, references: Sized, what: str = "answers") -> None:
    """sacreBLEU would leave out what has no partner, and say nothing."""
    if len(answers) != len(references):
        raise UserError(f"{len(answers)} {what} but {len(references)} references: give one for each")
    if not len(answers):
        raise UserError(f"no {what} to score: give at least one, and its reference")


def _sacrebleu() -> Any:
    """The library, when it is needed: it takes a moment to load."""
    try:
        import sacrebleu.significance
    except ImportError:
        raise UserError("BLEU needs one more package: pip install sacrebleu") from None
    return sacrebleu


def _bleu(lib: Any) -> Any:
    return lib.BLEU(force=True)  # the score is the same; it would print advice about spaces before full stops


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment and nowhere else."""
    before = os.environ.get(SEED)
    os.environ[SEED] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[SEED]
        else:
            os.environ[SEED] = before
