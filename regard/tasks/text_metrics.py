"""Metrics of texts: similarity to references, diversity, and tests of significance."""

import contextlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.tasks.metrics import PUNCTUATION, check_matched

WORD = re.compile(r"\w+|[^\w\s]")  # a run of letters and digits, or one mark
SEED = "SACREBLEU_SEED"


def text_scores(answers: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """BLEU (Papineni et al. 2002), chrF (Popović 2015) and TER (Snover et al. 2006) of all answers together.

    As computed by sacreBLEU (Post 2018), with the signature to quote beside BLEU; and the share of answers
    that equal their reference, ignoring white space.
    """
    check_matched(answers, references)
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


def compare(
    a: Sequence[str],
    b: Sequence[str],
    references: Sequence[str | Sequence[str]],
    samples: int = 1000,
    seed: int = 12345,
) -> dict[str, float]:
    """Test whether a and b differ by more than chance: paired bootstrap resampling (Koehn 2004) by sacreBLEU.

    For bleu and chrf: `bleu` of a, `bleu_mean` ± `bleu_ci` its 95 % interval; `bleu_against`,
    `bleu_against_mean` and `bleu_against_ci`, the same of b; `bleu_p`, the two-sided p-value of their
    difference.
    """
    check_matched(a, references)
    check_matched(b, references)
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
        # for equal scores, sacreBLEU gives the smallest p-value: no resample differs by more than 0
        scores[f"{name}_p"] = 1.0 if ours.score == theirs.score else ours.p_value
    return {key: float(value) for key, value in scores.items()}


def by_length(
    answers: Sequence[str], references: Sequence[str], sources: Sequence[str], edges: Sequence[int]
) -> list[dict[str, float]]:
    """BLEU by the number of words in the source, for every interval [from, to) between edges with any."""
    check_matched(answers, references)
    check_matched(sources, references, "sources")
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
    of their references; chrF too, if sacreBLEU is installed. Capitals and punctuation don't count."""
    check_matched(answers, references)
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
    mean of the precisions, each n-gram counted at most as often as in any one reference; short
    answers are penalised by the length of their nearest reference. No smoothing, as usual for captions."""
    right, said = np.zeros(4), np.zeros(4)
    length = expected = 0
    for words, refs in zip(answers, references, strict=True):
        length += len(words)
        expected += min((abs(len(r) - len(words)), len(r)) for r in refs)[1]
        for n in range(4):
            mine, highest = _grams(words, n + 1), Counter[tuple[str, ...]]()
            for reference in refs:
                highest |= _grams(reference, n + 1)
            right[n] += (mine & highest).total()
            said[n] += mine.total()
    brief = min(0.0, 1 - expected / length) if length else -math.inf
    with np.errstate(divide="ignore"):
        precisions = np.log(right / np.maximum(said, 1))
    return [100 * math.exp(brief + precisions[:n].mean()) for n in range(1, 5)]


def cider(
    answers: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]], sigma: float = 6.0
) -> float:
    """CIDEr-D (Vedantam et al. 2015, eq. 6): the similarity of n-gram counts, where rare ones count more; 10
    for the reference itself. N-grams that all references share don't count."""
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


# sacreBLEU


def _columns(references: Sequence[str | Sequence[str]]) -> list[list[str | None]]:
    """References in sacreBLEU's order: everyone's first, everyone's second, ...; None if there is none."""
    rows = ([refs] if isinstance(refs, str) else refs for refs in references)
    return [list(column) for column in zip_longest(*rows)]


def _sacrebleu() -> Any:
    """Import the library at first use, since it takes a moment to load."""
    try:
        import sacrebleu.significance
    except ImportError:
        raise UserError("BLEU needs one more package: pip install sacrebleu") from None
    return sacrebleu


def _bleu(lib: Any) -> Any:
    return lib.BLEU(force=True)  # the score is the same, without advice about spaces before full stops


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Set sacreBLEU's seed, which it takes only from the environment."""
    before = os.environ.get(SEED)
    os.environ[SEED] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[SEED]
        else:
            os.environ[SEED] = before
