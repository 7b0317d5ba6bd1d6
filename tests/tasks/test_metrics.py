"""Figures about texts: sacreBLEU's own, on its command line and called directly; the others: those of
scikit-learn 1.9, scipy 1.17, seqeval 1.2 and transformers 4.57 on seeded random data, written down here."""

import json
import logging
import math
import multiprocessing
import os
import random
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from helpers.errors import user_error
from helpers.forking import Process
from regard.tasks.metrics import (
    accuracy,
    entities,
    entity_f1,
    exact_match,
    f1,
    matthews,
    pearson,
    sign_test,
    spearman,
    token_f1,
)
from regard.tasks.text_metrics import (
    by_length,
    caption_scores,
    cider,
    compare,
    corpus_bleu,
    distinct,
    text_scores,
)

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
    """The output of sacreBLEU's command for these systems, the baseline first."""
    paths = []
    for name, lines in zip(["references", "b", "a"], [references, *systems], strict=False):
        paths.append(folder / name)
        paths[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    words = ("-m", "sacrebleu", paths[0], "-i", *paths[1:], *options.split())
    with Process(*words, env=os.environ | {"NO_COLOR": "1"}, encoding="utf-8") as run:
        output, errors = run.communicate()
    assert run.returncode == 0, errors
    return output


# One system


def test_scores_are_the_commands(tmp_path: Path) -> None:
    references = texts(31)
    answers = worse(references, 0.3)
    scores = text_scores(answers, references)
    said = command(tmp_path, references, answers, options="-m bleu chrf ter -b -w 9")
    for name, score in zip(("bleu", "chrf", "ter"), json.loads(said), strict=True):
        assert scores[name] == pytest.approx(score, abs=1e-8)
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
    groups = by_length(answers, references, sources, edges)
    expected = []
    for low, high in pairwise(edges):
        rows = [i for i, source in enumerate(sources) if low <= len(source.split()) < high]
        if rows:
            bleu = sacrebleu.corpus_bleu([answers[i] for i in rows], [[references[i] for i in rows]]).score
            expected.append({"from": low, "to": high, "count": len(rows), "bleu": bleu})
    assert groups == expected
    assert 3 < len(groups) < len(edges) - 1  # the last is empty
    assert sum(row["count"] for row in groups) == 47
    assert by_length(answers, references, sources, [500, 600]) == []


# Numbers


@pytest.mark.parametrize(
    ("seed", "count", "digits", "r", "rho"),
    [  # pearsonr(x, y)[0] and spearmanr(x, y)[0] of scipy.stats; with few digits there are many equals
        (0, 97, 9, 0.7917778030840851, 0.7484483484115294),
        (1, 101, 0, 0.6675240896656156, 0.6432299495210708),
        (2, 7, 1, 0.9307231287350516, 0.8829187134416479),
        (3, 503, 1, 0.7110928817980382, 0.7055467202543141),
    ],
)
def test_correlations_are_scipys(seed: int, count: int, digits: int, r: float, rho: float) -> None:
    rng = random.Random(seed)
    exact = [rng.gauss(0, 1) for _ in range(count)]
    y = [round(value, digits) for value in [value + rng.gauss(0, 1) for value in exact]]
    x = [round(value, digits) for value in exact]
    assert pearson(x, y) == pytest.approx(r, abs=1e-12)
    assert spearman(x, y) == pytest.approx(rho, abs=1e-12)
    assert spearman(np.array(x) ** 3, np.exp(y)) == pytest.approx(rho, abs=1e-12)  # only the order counts
    assert pearson(1e200 * np.array(x), -1e-200 * np.array(y)) == pytest.approx(-r, abs=1e-12)


def test_correlations_at_their_ends() -> None:
    for measure in (pearson, spearman):
        assert measure([1, 2, 4], [2, 4, 8]) == pytest.approx(1)
        assert measure([1, 2, 4], [3, 2, 0]) == pytest.approx(-1)
        assert type(measure(np.float32([1, 2]), [1, 2])) is float  # which JSON can hold
        assert measure([0.1] * 3, [1, 2, 3]) == measure([1, 2, 3], [0.1] * 3) == measure([1], [2]) == 0
        assert math.isnan(measure([1, 2, math.nan], [1, 2, 3]))
        user_error(lambda measure=measure: measure([1, 2], [1]), "2 predictions but 1 references")  # type: ignore[misc]
        user_error(lambda measure=measure: measure([], []), "no predictions")  # type: ignore[misc]
    assert spearman([1, 2, math.inf], [1, 2, 3]) == pytest.approx(1)
    assert math.isnan(pearson([1, 2, math.inf], [1, 2, 3]))


# Classes


@pytest.mark.parametrize(
    ("seed", "count", "names", "right", "macro", "of_a", "phi"),
    [  # accuracy_score(t, p), f1_score(t, p, average="macro"), f1_score(t, p, labels=["a"], average=None)[0]
        # and matthews_corrcoef(t, p) of sklearn.metrics
        (0, 97, "ab", 0.6597938144329897, 0.6597938144329897, 0.6597938144329897, 0.32085106382978723),
        (1, 101, "abc", 0.7227722772277227, 0.7211456364805633, 0.6774193548387096, 0.5838248014538493),
        (2, 503, "abcdefg", 0.6679920477137177, 0.6664539830792656, 0.7468354430379747, 0.6125164537369798),
        (3, 5, "abcdefg", 0.4, 0.27777777777777773, 0.0, 0.3913118960624632),
    ],
)
def test_classes_are_scikit_learns(
    seed: int, count: int, names: str, right: float, macro: float, of_a: float, phi: float
) -> None:
    rng = random.Random(seed)
    true = [rng.choice(names) for _ in range(count)]
    predicted = [t if rng.random() < 0.6 else rng.choice(names) for t in true]
    for p, t in ((predicted, true), (np.array(predicted), np.array(true))):
        assert accuracy(p, t) == pytest.approx(right, abs=1e-12)
        assert f1(p, t) == pytest.approx(macro, abs=1e-12)
        assert f1(p, t, positive="a") == pytest.approx(of_a, abs=1e-12)
        assert matthews(p, t) == pytest.approx(phi, abs=1e-12)


def test_classes_at_their_ends() -> None:
    assert accuracy("aab", "aab") == f1("aab", "aab") == f1("aab", "aab", "b") == matthews("aab", "aab") == 1
    assert matthews("ab", "ba") == -1
    assert matthews("aaa", "aab") == matthews("aab", "aaa") == matthews("a", "a") == 0
    assert f1("aa", "aa", "b") == f1("aa", "bb") == accuracy("aa", "bb") == 0
    assert f1([0, 1, 1], [0, 0, 1], positive=0) == pytest.approx(2 / 3)
    for measure in (accuracy, f1, matthews):
        user_error(lambda measure=measure: measure("ab", "a"), "2 predictions but 1 references")  # type: ignore[misc]
        user_error(lambda measure=measure: measure("", ""), "no predictions")  # type: ignore[misc]


# Entities


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("", []),
        ("B-X I-X O B-Y", [("X", 0, 2), ("Y", 3, 4)]),
        ("B-X B-X", [("X", 0, 1), ("X", 1, 2)]),
        ("I-X I-X O I-X", [("X", 0, 2), ("X", 3, 4)]),  # IOB1
        ("I-X B-X I-X", [("X", 0, 1), ("X", 1, 3)]),
        ("I-X I-Y", [("X", 0, 1), ("Y", 1, 2)]),
        ("B-X I-Y", [("X", 0, 1), ("Y", 1, 2)]),
        ("S-X S-X B-X I-X E-X E-X", [("X", 0, 1), ("X", 1, 2), ("X", 2, 5), ("X", 5, 6)]),  # BIOES
        ("B-A-B I-A-B", [("A-B", 0, 2)]),
        ("B I O", [("_", 0, 2)]),
    ],
)
def test_entities(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == set(expected)


@pytest.mark.parametrize(
    ("seed", "parts", "share", "precision", "recall", "f", "count"),
    [  # precision_score(t, p), recall_score(t, p), f1_score(t, p) and the number of get_entities of seqeval
        (0, "BI", 0.8, 0.8266666666666667, 0.788135593220339, 0.806941431670282, 236),
        (1, "I", 0.9, 0.8659217877094972, 0.856353591160221, 0.8611111111111112, 181),
        (2, "BIES", 0.7, 0.7781954887218046, 0.7752808988764045, 0.776735459662289, 267),
        (3, "BIES", 0.0, 0.35275080906148865, 0.35275080906148865, 0.35275080906148865, 309),
    ],
)
def test_entities_are_seqevals(
    seed: int, parts: str, share: float, precision: float, recall: float, f: float, count: int
) -> None:
    rng = random.Random(seed)
    names = ["O", *(f"{part}-{kind}" for part in parts for kind in ("PER", "LOC"))]
    true = [rng.choices(names, k=rng.randint(1, 13)) for _ in range(53)]
    predicted = [[t if rng.random() < share else rng.choice(names) for t in row] for row in true]
    scores = entity_f1(predicted, true)
    assert list(scores) == ["precision", "recall", "f1"]
    assert list(scores.values()) == pytest.approx([precision, recall, f], abs=1e-12)
    assert sum(len(entities(row)) for row in true) == count


def test_entities_at_their_ends() -> None:
    nothing = {"precision": 0, "recall": 0, "f1": 0}
    assert entity_f1([["O"]], [["O"]]) == entity_f1([["O"]], [["B-X"]]) == nothing
    assert entity_f1([["B-X", "I-X"]], [["B-X", "O"]]) == nothing
    assert entity_f1([["B-X"], []], [["I-X"], []])["f1"] == 1
    user_error(lambda: entity_f1([["O"]], [["O", "O"]]), "sentence 1: 1 tags for 2 words")
    user_error(lambda: entity_f1([], [["O"]]), "0 tagged sentences but 1 references")
    for tag in ("NOUN", "", "B-", "X-PER", "OO", "BPER"):
        user_error(lambda tag=tag: entities(["O", tag]), f'tag "{tag}"', "B-PER")  # type: ignore[misc]


# Spans


@pytest.mark.parametrize(
    ("seed", "count", "longest", "exact", "f"),
    [  # the means of compute_exact and compute_f1 of transformers.data.metrics.squad_metrics
        (0, 97, 3, 0.16494845360824742, 0.2085910652920962),
        (1, 101, 5, 0.09900990099009901, 0.21404997642621404),
        (2, 503, 2, 0.26043737574552683, 0.2852882703777335),
    ],
)
def test_spans_are_squads(seed: int, count: int, longest: int, exact: float, f: float) -> None:
    rng = random.Random(seed)
    words = ["the", "The", "a", "An", "cat", "Cat", "house", "don't", "42", "4.2", "-"]
    words += ["«été»", "Ruiz-Hart", "of"]
    both = [" ".join(rng.choices(words, k=rng.randint(0, longest))) for _ in range(2 * count)]
    answers, references = both[:count], both[count:]
    assert exact_match(answers, references) == pytest.approx(exact, abs=1e-12)
    assert token_f1(answers, references) == pytest.approx(f, abs=1e-12)


def test_spans_at_their_ends() -> None:
    assert exact_match(["  The U.S.A.\n"], ["usa"]) == token_f1(["  The U.S.A.\n"], ["usa"]) == 1
    assert token_f1(["the red cat"], ["a cat"]) == pytest.approx(2 / 3)
    assert token_f1(["cat"], ["cat cat"]) == pytest.approx(2 / 3)  # each word counts once
    assert exact_match(["the", "the"], ["", "x"]) == token_f1(["the", "the"], ["", "x"]) == 0.5
    several = [["a dog", "two cats"], ["x", "y"]]
    assert exact_match(["cats", "Y."], several) == 0.5
    assert token_f1(["cats", "Y."], several) == pytest.approx((2 / 3 + 1) / 2)
    for measure in (exact_match, token_f1):
        user_error(lambda measure=measure: measure(["a"], []), "1 answers but 0 references")  # type: ignore[misc]
        user_error(lambda measure=measure: measure([], []), "no answers")  # type: ignore[misc]
        user_error(lambda measure=measure: measure(["a"], [[]]), "no reference")  # type: ignore[misc]


# Messages


def test_mistakes() -> None:
    two, three = texts(2), texts(3)
    user_error(lambda: text_scores(two, three), "2 answers but 3 references")
    user_error(lambda: text_scores([], []), "no answers")
    user_error(lambda: compare(two, three, three), "2 answers but 3 references")
    user_error(lambda: compare(three, two, three), "2 answers but 3 references")
    user_error(lambda: compare([], [], []), "no answers")
    user_error(lambda: compare(two, two, two, samples=0), "samples=0")
    user_error(lambda: compare(two, two, two, seed=0), "seed=0")
    user_error(lambda: by_length(three, three, two, [0, 9]), "2 sources but 3 references")
    user_error(lambda: by_length(two, three, three, [0, 9]), "2 answers but 3 references")
    for edges in ([], [3], [3, 3], [0, 5, 2]):
        user_error(lambda edges=edges: by_length(two, two, two, edges), f"edges={edges}")  # type: ignore[misc]
    user_error(lambda: distinct(two, 0), "n=0")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.significance", None)
    two = texts(2)
    for call in (
        lambda: text_scores(two, two),
        lambda: compare(two, two, two),
        lambda: by_length(two, two, two, [0, 9]),
    ):
        user_error(call, "BLEU needs one more package: pip install sacrebleu")
    assert distinct(two, 1)


def test_it_is_loaded_only_when_needed() -> None:
    code = "import sys, regard.tasks.text_metrics; assert 'sacrebleu' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# Captions


def several(number: int) -> tuple[list[str], list[list[str]]]:
    """Answers, and two to four references to each, one of which is near."""
    answers = texts(number, 5, 11)
    more = [texts(number, seed, 11) for seed in (6, 7, 8)]
    near = worse(answers, 0.3)
    return answers, [[near[i], *(other[i] for other in more[: 1 + i % 3])] for i in range(number)]


def test_bleu_of_captions_is_sacrebleus_without_its_tokenizer() -> None:
    answers, references = several(41)
    plain = [[" ".join(bare(r)) for r in captions] for captions in references]
    columns = [[captions[i] if i < len(captions) else None for captions in plain] for i in range(4)]
    scores = caption_scores(answers, references)
    for n, name in enumerate(("bleu_1", "bleu_2", "bleu_3", "bleu"), 1):
        metric = sacrebleu.BLEU(tokenize="none", max_ngram_order=n, smooth_method="none", force=True)
        want = metric.corpus_score([" ".join(bare(a)) for a in answers], columns).score
        assert scores[name] == pytest.approx(want, abs=1e-9)


def bare(text: str) -> list[str]:
    return re.sub(r"[,.']", "", text.lower()).split()


def test_short_captions_pay_for_their_nearest_reference() -> None:
    """Papineni et al. 2002, 2.2.2; of two that are as near, the shorter one counts, as in COCO's code."""
    answer, references = ["a", "b", "c"], [["a", "b", "c", "d", "e"], ["a"], list("abcdefghi")]
    assert corpus_bleu([answer], [references])[0] == pytest.approx(100)  # 1 and 5 are as near
    assert corpus_bleu([answer], [references[::2]])[0] == pytest.approx(100 * math.exp(1 - 5 / 3))
    assert corpus_bleu([["x"]], [[["a"]]]) == [0, 0, 0, 0]
    assert corpus_bleu([[]], [[["a"]]]) == [0, 0, 0, 0]


def test_cider_by_hand() -> None:
    """Two pictures. "dog" is in one of them: it weighs log 2; "a" is in both, and weighs nothing."""
    references = [[["a", "dog"]], [["a", "cat"]]]
    assert cider([["a", "dog"], ["a", "cat"]], references) == pytest.approx(
        5.0
    )  # of 1 and 2 words, not 3 or 4
    # a word too many: the words' vectors are log 2 (dog 1, sits 1) and (dog 1), as sits is in no reference
    words = pairs = 1 / math.sqrt(2)
    want = 10 / 4 * math.exp(-1 / 72) * (words + pairs)
    assert cider([["a", "dog", "sits"], ["x"]], references) == pytest.approx(want / 2)
    # said twice, it counts once, as in the reference, but the vector is twice as long
    assert cider([["dog", "dog"], ["x"]], references) == pytest.approx(10 / 4 * (1 / 2) / 2)


def test_cider_is_pycocoevalcaps() -> None:
    """Results of version 1.2 for the same words."""
    answers, references = several(41)
    scores = caption_scores(answers, references)
    assert scores["cider"] == pytest.approx(1.9331960243653983, abs=1e-12)
    assert scores["bleu"] == pytest.approx(43.09909339539136, abs=1e-8)


def test_exact_captions_are_one_of_their_references() -> None:
    scores = caption_scores(["A dog.", "a cat"], [["no", "a dog"], ["a cat sits"]])
    assert scores["exact"] == 0.5
    assert list(scores) == ["bleu", "bleu_1", "bleu_2", "bleu_3", "chrf", "cider", "exact"]
    user_error(lambda: caption_scores(["a"], [[]]), "answer 1: no reference")
    user_error(lambda: caption_scores(["a", "b"], [["a"]]), "2 answers but 1 references")


def test_captions_are_scored_without_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.significance", None)
    answers, references = several(7)
    assert "chrf" not in caption_scores(answers, references)


def test_captions_are_compared_by_all_their_references() -> None:
    answers, references = several(41)
    other = worse(answers, 0.5, 3)
    result = compare(answers, other, references, samples=97)
    columns = [[captions[i] if i < len(captions) else None for captions in references] for i in range(4)]
    assert result["bleu"] == pytest.approx(sacrebleu.BLEU(force=True).corpus_score(answers, columns).score)
    assert result["bleu"] > result["bleu_against"]


def test_the_sign_test() -> None:
    """Beside the sum of binomial coefficients."""
    for better, worse, ties in ((5, 1, 3), (1, 5, 0), (4, 4, 2), (0, 0, 3), (60, 40, 0), (900, 1100, 7)):
        a = [1.0] * better + [0.0] * worse + [0.5] * ties
        b = [0.0] * better + [0.25] * worse + [0.5] * ties
        n, few = better + worse, min(better, worse)
        p = min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) / 2**n)
        test_result = sign_test(a, b)
        assert (test_result["better"], test_result["worse"]) == (better, worse)
        assert test_result["better_p"] == pytest.approx(p, rel=1e-9)
    assert sign_test([1] * 5 + [0], [0] * 5 + [1])["better_p"] == pytest.approx(14 / 64)
