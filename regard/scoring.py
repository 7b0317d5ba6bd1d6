"""Figures about answers as texts: how near they are to references, how varied, and what is chance."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from .errors import Mistake

WORD = re.compile(r"\w+|[^\w\s]")  # a run of letters and digits, or one mark
SEED = "SACREBLEU_SEED"


def text_scores(answers: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """BLEU (Papineni et al. 2002), chrF (Popović 2015) and TER (Snover et al. 2006) of all answers together.

    As sacreBLEU has them (Post 2018), with the signature to quote beside BLEU; and the share of answers that
    are their reference, whatever the white space.
    """
    _matched(answers, references)
    lib = _sacrebleu()
    bleu, others = _bleu(lib), {"chrf": lib.CHRF(), "ter": lib.TER()}
    scores: dict[str, float | str] = {"bleu": bleu.corpus_score(answers, [references]).score}
    scores |= {name: metric.corpus_score(answers, [references]).score for name, metric in others.items()}
    same = sum(a.split() == r.split() for a, r in zip(answers, references, strict=True))
    return scores | {"exact": same / len(answers), "signature": str(bleu.get_signature())}


def distinct(answers: Sequence[str], n: int) -> float:
    """distinct-n (Li et al. 2016): different n-grams of words over all of them; 0 if there are none.

    Words are lower-cased runs of letters and digits, every other mark a word of its own; an n-gram stays
    within its answer.
    """
    if n < 1:
        raise Mistake(f"distinct n={n}: 1 or more words")
    texts = [WORD.findall(answer.lower()) for answer in answers]
    grams = [tuple(words[i : i + n]) for words in texts for i in range(len(words) - n + 1)]
    return len(set(grams)) / max(1, len(grams))


def compare(
    a: Sequence[str], b: Sequence[str], references: Sequence[str], samples: int = 1000, seed: int = 12345
) -> dict[str, float]:
    """Whether a and b differ by more than chance: paired bootstrap resampling (Koehn 2004) by sacreBLEU.

    For bleu and chrf: `bleu` of a, `bleu_mean` ± `bleu_ci` its 95 % interval; `bleu_against`,
    `bleu_against_mean` and `bleu_against_ci`, the same of b; `bleu_p`, the two-sided p-value of their
    difference.
    """
    _matched(a, references)
    _matched(b, references)
    if samples < 1:
        raise Mistake(f"samples={samples}: 1 or more; 1000 are usual")
    if seed < 1:
        raise Mistake(f"seed={seed}: 1 or more, as sacreBLEU takes 0 for none")
    lib = _sacrebleu()
    with _seeded(seed):
        test = lib.significance.PairedTest(
            [("b", b), ("a", a)],
            {"bleu": _bleu(lib), "chrf": lib.CHRF()},
            [references],
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
        raise Mistake(f"edges={list(edges)}: two or more numbers of words, each above the one before")
    lib, rows = _sacrebleu(), list(zip(answers, references, sources, strict=True))
    found = []
    for low, high in pairwise(edges):
        some = [(answer, reference) for answer, reference, s in rows if low <= len(s.split()) < high]
        if some:
            mine, theirs = zip(*some, strict=True)
            score = _bleu(lib).corpus_score(mine, [theirs]).score
            found.append({"from": low, "to": high, "count": len(some), "bleu": score})
    return found


def _matched(answers: Sequence[str], references: Sequence[str], what: str = "answers") -> None:
    """sacreBLEU would leave out what has no partner, and say nothing."""
    if len(answers) != len(references):
        raise Mistake(f"{len(answers)} {what} but {len(references)} references: give one for each")
    if not answers:
        raise Mistake(f"no {what} to score: give at least one, and its reference")


def _sacrebleu() -> Any:
    """The library, when it is needed: it takes a moment to load."""
    try:
        import sacrebleu.significance
    except ImportError:
        raise Mistake("BLEU needs one more package: pip install sacrebleu") from None
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
