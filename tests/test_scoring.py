"""Figures about texts: sacreBLEU's own, on its command line and called directly."""

import logging
import multiprocessing
import os
import random
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import sacrebleu
from mistakes import mistake

from regard.scoring import by_length, compare, distinct, text_scores

WORDS = ["the", "a", "cat", "dog", "house", "sees", "under", "it", ",", ".", "«", "naïve", "42", "don't"]


def texts(number: int, seed: int = 0, longest: int = 23) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(number)]


def worse(references: list[str], share: float, seed: int = 1) -> list[str]:
    """The references with a share of their words replaced."""
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(WORDS) if rng.random() < share else word for word in reference.split())
        for reference in references
    ]


def command(folder: Path, references: list[str], *systems: list[str], options: str) -> str:
    """What sacreBLEU's command says about systems, the baseline first."""
    paths = []
    for name, lines in zip(["references", "b", "a"], [references, *systems], strict=False):
        paths.append(folder / name)
        paths[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    run = [sys.executable, "-m", "sacrebleu", str(paths[0]), "-i", *map(str, paths[1:]), *options.split()]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    done = subprocess.run(run, capture_output=True, check=True, env=environment, encoding="utf-8")
    return done.stdout


# One system


def test_scores_are_the_commands(tmp_path: Path) -> None:
    references = texts(31)
    answers = worse(references, 0.3)
    scores = text_scores(answers, references)
    for name, metric in (("bleu", "bleu"), ("chrf", "chrf"), ("ter", "ter")):
        said = command(tmp_path, references, answers, options=f"-m {metric} -b -w 9")
        assert scores[name] == pytest.approx(float(said), abs=1e-8)
    said = command(tmp_path, references, answers, options="-m bleu -f text")
    assert f"|{scores['signature']} = " in said
    assert scores["signature"] == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_scores_are_the_librarys(share: float) -> None:
    references = texts(29)
    answers = tuple(worse(references, share))
    scores = text_scores(answers, references)
    assert scores["bleu"] == sacrebleu.corpus_bleu(answers, [references]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(answers, [references]).score
    assert scores["ter"] == sacrebleu.corpus_ter(answers, [references]).score
    assert list(scores) == ["bleu", "chrf", "ter", "exact", "signature"]
    if not share:
        assert (scores["bleu"], scores["ter"], scores["exact"]) == (pytest.approx(100), 0, 1)


def test_exact_minds_no_white_space() -> None:
    references = ["a b c", "d e", "f", "", "g"]
    answers = [" a  b\tc\n", "d e.", "F", " ", "g"]
    assert text_scores(answers, references)["exact"] == 3 / 5


def test_strange_answers() -> None:
    for answers, references in (([""], [""]), ([""], ["a b"]), (["a b"], [""]), (["\n", "é"], ["a", "é"])):
        scores = text_scores(answers, references)
        assert scores["bleu"] == sacrebleu.corpus_bleu(answers, [references]).score
        compare(answers, references, references, samples=7)


# Variety


@pytest.mark.parametrize(
    ("answers", "n", "expected"),
    [
        (["a b a b"], 1, 2 / 4),
        (["a b a b"], 2, 2 / 3),
        (["A b", "a B"], 1, 2 / 4),  # capitals are no difference
        (["a b", "a b"], 2, 1 / 2),  # of all answers together
        (["a", "b", "c"], 2, 0.0),  # no n-gram goes from one answer to the next
        (["Yes, yes."], 1, 3 / 4),  # yes , .
        (["don't"], 1, 3 / 3),  # don ' t
        (["été  été\nété"], 1, 1 / 3),
        (["?!"], 1, 2 / 2),
        ([""], 1, 0.0),
        ([], 1, 0.0),
        (["a b"], 3, 0.0),
    ],
)
def test_distinct(answers: list[str], n: int, expected: float) -> None:
    assert distinct(answers, n) == expected


# Two systems


def test_compare_is_the_command(tmp_path: Path) -> None:
    references = texts(37)
    a, b = worse(references, 0.35), worse(references, 0.4, seed=2)
    scores = compare(a, b, references, samples=101)
    options = "-m bleu chrf --paired-bs --paired-bs-n 101 -w 4 -f text"
    said = command(tmp_path, references, b, a, options=options)
    number = r"(\d+\.\d+)"
    rows = re.findall(rf"{number} \({number} ± {number}\)", said)
    bleu_b, chrf_b, bleu_a, chrf_a = [tuple(map(float, row)) for row in rows]
    ps = [float(p) for p in re.findall(rf"\(p = {number}\)", said)]
    for name, of_a, of_b, p in (("bleu", bleu_a, bleu_b, ps[0]), ("chrf", chrf_a, chrf_b, ps[1])):
        for key, (score, mean, ci) in ((name, of_a), (f"{name}_against", of_b)):
            assert scores[key] == pytest.approx(score, abs=1e-4)
            assert scores[f"{key}_mean"] == pytest.approx(mean, abs=1e-4)
            assert scores[f"{key}_ci"] == pytest.approx(ci, abs=1e-4)
        assert scores[f"{name}_p"] == pytest.approx(p, abs=1e-4)
    assert len(scores) == 14
    assert {type(value) for value in scores.values()} == {float}  # which JSON can hold
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(a, [references]).score)
    assert scores["chrf_against"] == pytest.approx(sacrebleu.corpus_chrf(b, [references]).score)


def test_equal_systems_do_not_differ() -> None:
    references = texts(23)
    answers = worse(references, 0.3)
    scores = compare(answers, answers, references, samples=100)
    for name in ("bleu", "chrf"):
        assert scores[f"{name}_p"] == 1
        for of in ("", "_mean", "_ci"):
            assert scores[f"{name}{of}"] == pytest.approx(scores[f"{name}_against{of}"])


def test_p_values_tell_better_from_as_good() -> None:
    references = texts(53)
    good, as_good, bad = worse(references, 0.2), worse(references, 0.2, seed=2), worse(references, 0.6)
    for name in ("bleu", "chrf"):
        assert compare(good, bad, references, samples=200)[f"{name}_p"] < 0.05
        assert compare(bad, good, references, samples=200)[f"{name}_p"] < 0.05
        assert compare(good, as_good, references, samples=200)[f"{name}_p"] > 0.05


def test_the_seed_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    references = texts(19)
    a, b = worse(references, 0.3), worse(references, 0.4)
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    first = compare(a, b, references, samples=50)
    assert "SACREBLEU_SEED" not in os.environ
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    assert compare(a, b, references, samples=50) == first
    assert os.environ["SACREBLEU_SEED"] == "77"
    assert compare(a, b, references, samples=50, seed=3) != first


def test_nothing_is_said_and_nothing_left(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    references = ["the cat sees the dog ."] * 101  # so many spaces before full stops make sacreBLEU talk
    with caplog.at_level(logging.WARNING):
        text_scores(references, references)
        compare(references, references, references, samples=5)
        by_length(references, references, references, [0, 9])
    assert not caplog.records
    assert capfd.readouterr() == ("", "")
    assert not multiprocessing.active_children()


# By length


def test_by_length() -> None:
    references, sources = texts(47), texts(47, seed=3, longest=31)
    answers = worse(references, 0.3)
    edges = [0, 2, 11, 12, 23, 29, 100, 200]
    found = by_length(answers, references, sources, edges)
    expected = []
    for low, high in pairwise(edges):
        rows = [i for i, source in enumerate(sources) if low <= len(source.split()) < high]
        if rows:
            bleu = sacrebleu.corpus_bleu([answers[i] for i in rows], [[references[i] for i in rows]]).score
            expected.append({"from": low, "to": high, "count": len(rows), "bleu": bleu})
    assert found == expected
    assert 3 < len(found) < len(edges) - 1  # the last is empty
    assert sum(row["count"] for row in found) == 47
    assert by_length(answers, references, sources, [500, 600]) == []


# What a user is told


def test_mistakes() -> None:
    two, three = texts(2), texts(3)
    mistake(lambda: text_scores(two, three), "2 answers but 3 references")
    mistake(lambda: text_scores([], []), "no answers")
    mistake(lambda: compare(two, three, three), "2 answers but 3 references")
    mistake(lambda: compare(three, two, three), "2 answers but 3 references")
    mistake(lambda: compare([], [], []), "no answers")
    mistake(lambda: compare(two, two, two, samples=0), "samples=0")
    mistake(lambda: compare(two, two, two, seed=0), "seed=0")
    mistake(lambda: by_length(three, three, two, [0, 9]), "2 sources but 3 references")
    mistake(lambda: by_length(two, three, three, [0, 9]), "2 answers but 3 references")
    for edges in ([], [3], [3, 3], [0, 5, 2]):
        mistake(lambda edges=edges: by_length(two, two, two, edges), f"edges={edges}")  # type: ignore[misc]
    mistake(lambda: distinct(two, 0), "n=0")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.significance", None)
    two = texts(2)
    for call in (
        lambda: text_scores(two, two),
        lambda: compare(two, two, two),
        lambda: by_length(two, two, two, [0, 9]),
    ):
        mistake(call, "BLEU needs one more package: pip install sacrebleu")
    assert distinct(two, 1)


def test_it_is_loaded_only_when_needed() -> None:
    code = "import sys, regard.scoring; assert 'sacrebleu' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
