"""Word vectors: samples, loss, answers and scores."""

import gzip
import math
import stat
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.errors import user_error
from helpers.runs import at_step, rows, stopped, unmeasured
from helpers.runs import same as same_runs
from regard.data import Stream
from regard.decode.sampling import Sampling
from regard.models import Word2Vec, WordsConfig
from regard.tasks import idle, targets
from regard.tasks import words as module
from regard.tasks.loss import IGNORED
from regard.tasks.request import DataRequest, Request
from regard.tasks.words import Chances, WordsDataConfig, WordsTask, WordsTaskConfig, read_table
from regard.text.tokenizer_kinds import word_tokenizer
from regard.training.build import train
from regard.training.trainer import Trainer

CONTEXT, DIM = 3, 5
LETTERS = "abcdefghijk"
SPECIALS = len(WordsTask.specials)


def text_of(words: int, seed: int = 0) -> str:
    """Letters as words, the first the most frequent, the k-th as 1/k."""
    shares = 1 / np.arange(1, len(LETTERS) + 1)
    return " ".join(np.random.default_rng(seed).choice(list(LETTERS), words, p=shares / shares.sum()))


def task_of(context: int = CONTEXT, **settings: object) -> WordsTask:
    tokenizer = word_tokenizer([text_of(999)], 100, WordsTask.specials)
    return WordsTask(WordsTaskConfig(name="words", **settings), tokenizer, context)  # type: ignore[arg-type]


def stream_of(task: WordsTask, text: str) -> Stream:
    return Stream([np.array(task.tokenizer.encode(text))], len(text))


@pytest.fixture
def task() -> WordsTask:
    return task_of(subsample=0.0)


@pytest.fixture
def stream(task: WordsTask) -> Stream:
    return stream_of(task, text_of(9973))


@pytest.fixture
def model(task: WordsTask) -> Word2Vec:
    model = Word2Vec(WordsConfig(vocab=task.tokenizer.vocab, context=CONTEXT, dim=DIM))
    for p in model.parameters():
        torch.nn.init.normal_(p)
    return model


# What a step draws


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_batch_depends_on_seed_and_rows_alone(task: WordsTask, stream: Stream) -> None:
    rows = np.array([17, 4, 251])
    batch = task.batch(task.samples(stream, 3, 5, None), rows)
    again = task_of(subsample=0.0)
    samples = again.samples(stream, 3, 2, None)
    for _ in range(3):
        again.batch(samples, np.arange(5))  # what came before does not matter
    assert same(again.batch(samples, rows), batch)
    assert not same(again.batch(again.samples(stream, 4, 2, None), rows), batch)


def test_a_row_draws_the_same_in_any_company() -> None:
    task = task_of(subsample=0.05)
    samples = task.samples(stream_of(task, text_of(9973)), 3, 5, None)
    together = task.batch(samples, np.arange(5))
    for i in range(5):
        ids, negatives, reach = task.batch(samples, np.array([i]))
        attention_mask = reach[0] != IGNORED
        assert torch.equal(ids[0][attention_mask], together[0][i][together[2][i] != IGNORED])
        assert torch.equal(reach[0][attention_mask], together[2][i][together[2][i] != IGNORED])
        assert torch.equal(negatives[0], together[1][i])
    (everything, *_), (later, *_) = together, task.batch(samples, np.arange(5, 10))
    assert everything.shape[1] % module.STEP == 0
    assert everything.shape != later.shape or not torch.equal(everything, later)


def test_a_step_reads_so_many_rows_or_words(task: WordsTask, stream: Stream) -> None:
    assert len(task.samples(stream, 3, 5, None).rows(7)) == 5
    assert len(task.samples(stream, 3, 5, 3 * module.STRETCH + 1).rows(7)) == 3
    assert len(task.samples(stream, 3, 5, 1).rows(7)) == 1


def test_without_sub_sampling_nothing_is_lost(task: WordsTask, stream: Stream) -> None:
    task.samples(stream, 3, 5, None)
    batches = list(task.evaluation_batches(stream, 700))
    words = torch.cat([ids[reach != IGNORED] for ids, _, reach in batches])
    assert words.tolist() == stream.read(0, len(stream) - 1).tolist()
    assert sum(map(targets, batches)) == sum(map(task.batch_length, batches)) == len(words)
    assert all(same(a, b) for a, b in zip(batches, task.evaluation_batches(stream, 700), strict=True))


def test_frequent_words_are_passed_over_as_word2vec_does() -> None:
    t = 0.02
    task = task_of(subsample=t)
    stream = stream_of(task, text_of(99_991))
    task.samples(stream, 3, 5, None)
    there = np.bincount(stream.read(0, len(stream)), minlength=task.tokenizer.vocab)
    counts = sum(
        np.bincount(ids[reach != IGNORED].numpy(), minlength=len(there))
        for ids, _, reach in task.evaluation_batches(stream, 10**4)
    )
    for n, count in zip(there[SPECIALS:], counts[SPECIALS:], strict=True):
        f = n / there.sum()
        p = min(1, (math.sqrt(f / t) + 1) * t / f)  # word2vec.c
        assert count == pytest.approx(n * p, abs=4 * math.sqrt(n * p * (1 - p)) + 2)
    assert counts[SPECIALS] < there[SPECIALS] / 3


def test_negatives_follow_the_counts_to_three_fourths(task: WordsTask, stream: Stream) -> None:
    samples = task.samples(stream, 3, 1000, None)
    _, negatives, _ = task.batch(samples, np.arange(1000))
    assert negatives.shape == (1000, module.SHARED)
    counts = Counter(stream.read(0, len(stream)).tolist())
    total, n = sum(c**0.75 for c in counts.values()), negatives.numel()
    sampled = Counter(negatives.flatten().tolist())
    assert set(sampled) <= set(range(SPECIALS, task.tokenizer.vocab))
    for word, count in counts.items():
        p = count**0.75 / total
        assert sampled[word] == pytest.approx(n * p, abs=4 * math.sqrt(n * p * (1 - p)))


def test_a_word_looks_one_to_context_far(task: WordsTask, stream: Stream) -> None:
    samples = task.samples(stream, 3, 300, None)
    *_, reach = task.batch(samples, np.arange(300))
    counts = Counter(reach[reach != IGNORED].tolist())
    n, p = sum(counts.values()), 1 / CONTEXT
    assert set(counts) == set(range(1, CONTEXT + 1))
    for count in counts.values():
        assert count == pytest.approx(n * p, abs=4 * math.sqrt(n * p * (1 - p)))


def test_unknown_words_leave_no_gap_and_documents_one_as_wide_as_the_context(task: WordsTask) -> None:
    a, b, c = (task.tokenizer.id(letter) for letter in "abc")
    unknown, end = task.tokenizer.id("<unk>"), task.tokenizer.end
    ids = np.array([[a, unknown, b, end, c, unknown, unknown, a, b]])
    task.samples(Stream([ids[0]], 1), 3, 5, None)
    words, _, reach = task.collate(ids, np.array([5], dtype=np.uint64))
    gap = [-1] * CONTEXT
    contexts = torch.where(reach != IGNORED, words, -1)[0].tolist()
    assert contexts[: 5 + CONTEXT] == [a, b, *gap, c, a, b]
    assert set(contexts[5 + CONTEXT :]) <= {-1}


def test_chances_of_what_is_not_there() -> None:
    chances = Chances.of(Stream([np.array([2, 2, 3, 0])], 1), 6, [0], 1e-3)
    assert chances.keep[[0, 1, 4, 5]].tolist() == [0, 0, 0, 0]
    assert 0 < chances.keep[2] < chances.keep[3] < 1
    assert set(chances.draw(np.linspace(0, 1 - 1e-9, 99)).tolist()) == {2, 3}
    user_error(lambda: Chances.of(Stream([np.array([0])], 1), 6, [0], 0.0), "data.least")


# The loss


def slowly(model: Word2Vec, ids: Tensor, negatives: Tensor, reach: Tensor, mode: str, k: int) -> float:
    """Mikolov et al. 2013, eq. 4, pair by pair; the expectation is the mean over the row's samples."""
    v, u = model.embed.weight.detach().double(), model.near.weight.detach().double()
    total = 0.0

    def log_sigmoid(x: Tensor) -> float:
        return -math.log1p(math.exp(-float(x)))

    for row in range(len(ids)):
        T = ids.shape[1]
        for i in range(T):
            r = int(reach[row, i])
            near = [j for j in range(max(0, i - r), min(T, i + r + 1)) if j != i and reach[row, j] != IGNORED]
            if r == IGNORED or not near:
                continue
            if mode == "skipgram":
                guesses = [(v[ids[row, i]], ids[row, j]) for j in near]
            else:
                guesses = [(sum(v[ids[row, j]] for j in near) / len(near), ids[row, i])]
            for x, aim in guesses:
                total -= log_sigmoid(u[aim] @ x)
                total -= k * sum(log_sigmoid(-(u[n] @ x)) for n in negatives[row]) / len(negatives[row])
    return total


@pytest.mark.parametrize("mode", ["skipgram", "cbow"])
def test_the_loss_is_that_of_the_paper(model: Word2Vec, mode: str) -> None:
    task = task_of(subsample=0.1, mode=mode, negative=7)
    text = stream_of(task, text_of(2003))
    text.parts[0][::31] = task.tokenizer.end
    batch = task.batch(task.samples(text, 3, 2, None), np.arange(2))
    assert (batch[-1] == IGNORED).any()
    expected = slowly(model, *batch, mode, 7)
    assert float(task.loss(model, *batch).detach()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("mode", ["skipgram", "cbow"])
def test_parts_of_a_batch_add_up_and_an_idle_one_is_nothing(model: Word2Vec, mode: str) -> None:
    task = task_of(subsample=0.1, mode=mode)
    samples = task.samples(stream_of(task, text_of(2003)), 3, 5, None)
    total = task.loss(model, *task.batch(samples, np.arange(5)))
    parts = sum(task.loss(model, *task.batch(samples, np.array([i]))) for i in range(5))
    torch.testing.assert_close(parts, total)
    nothing = task.loss(model, *idle(task.batch(samples, np.arange(5))))
    nothing.backward()
    assert nothing == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_metrics(task: WordsTask, stream: Stream) -> None:
    assert task.metrics(6.0, 4, stream) == {"loss": 1.5}
    assert task.metrics(0.0, 0, stream) == {"loss": 0.0}


# Learning


def groups(lines: int) -> str:
    """Two groups of words; words of a group have the same neighbours."""
    rng = np.random.default_rng(0)
    kinds = {"cat dog cow hen": "eats sleeps runs", "red blue green pink": "paint colour shade"}
    tokens = []
    for _ in range(lines):
        words, near = list(kinds.items())[rng.integers(2)]
        tokens += [rng.choice(words.split()), rng.choice(near.split()), rng.choice(near.split()), "."]
    return " ".join(tokens)


@pytest.mark.parametrize("mode", ["skipgram", "cbow"])
def test_words_of_the_same_company_come_together(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a.txt").write_text(groups(1500))
    config = WordsTaskConfig(name="words", mode=mode, subsample=0.05)  # type: ignore[arg-type]
    corpus = WordsTask.read(
        DataRequest([str(tmp_path / "a.txt")], [], WordsDataConfig(holdout=0.1), config, 2)
    )
    task = WordsTask(config, corpus.tokenizer, 2)
    model = Word2Vec(WordsConfig(vocab=corpus.tokenizer.vocab, context=2, dim=11))
    samples = task.samples(corpus.train, 3, 32, None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)

    def measured() -> float:
        return sum(
            float(task.loss(model, *batch).detach()) for batch in task.evaluation_batches(corpus.valid, 4096)
        )

    before = measured()
    for step in range(80):
        batch = task.batch(samples, samples.rows(step))
        (task.loss(model, *batch) / targets(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert measured() < before
    for word, neighbours in (("cat", {"dog", "cow", "hen"}), ("Red", {"blue", "green", "pink"})):
        (answers,) = task.answers(model, Request([word], Sampling(), samples=3))
        assert {answer.text for answer in answers} == neighbours
    assert "\n  → " in task.preview(model, corpus.train, 1)


# Reading


def test_reading_counts_lower_cases_and_holds_out(tmp_path: Path, task: WordsTask) -> None:
    (tmp_path / "a.txt").write_text("The the THE\ncat Cat dog\n" + "the cat " * 20)
    paths, config = [str(tmp_path / "a.txt")], task.config
    corpus = WordsTask.read(DataRequest(paths, [], WordsDataConfig(holdout=0.25, least=2), config, CONTEXT))
    assert corpus.tokenizer.vocab == SPECIALS + 2
    assert corpus.tokenizer.id("the") < corpus.tokenizer.id("cat")
    assert len(corpus.train) + len(corpus.valid) >= 46
    as_they_are = WordsDataConfig(holdout=0.0, least=1, lower=False)
    corpus = WordsTask.read(DataRequest(paths, [], as_they_are, config, CONTEXT))
    assert corpus.valid is None
    assert corpus.tokenizer.vocab == SPECIALS + len({"the", "The", "THE", "cat", "Cat", "dog"})
    again = WordsTask.read(DataRequest(paths, [], as_they_are, config, CONTEXT, [task.tokenizer]))
    assert again.tokenizer is task.tokenizer
    user_error(
        lambda: WordsTask.read(DataRequest(paths, [], WordsDataConfig(least=99), config, CONTEXT)),
        paths[0],
        "99 times",
        "data.least",
    )


def test_signs_are_no_part_of_a_word(tmp_path: Path, task: WordsTask) -> None:
    (tmp_path / "a.txt").write_text("The bear. A Bear, (bears) and the bear's bear-skin: <unk> bear! @-@ b")
    data = WordsDataConfig(holdout=0.0, least=1)
    corpus = WordsTask.read(DataRequest([str(tmp_path / "a.txt")], [], data, task.config, CONTEXT))
    count = Counter(corpus.tokenizer.tokens(corpus.train.read(0, len(corpus.train))))
    assert count["bear"] == 4
    assert count["<unk>"] == count["bears"] == count["bear-skin"] == count["'s"] == count["@-@"] == 1
    assert not {"bear.", "bear,", "bear!", "unk", "@", "-"} & set(count)


@pytest.mark.parametrize("name", ["negative", "subsample"])
def test_settings_that_make_no_sense(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=-1"):
        WordsTaskConfig(name="words", **{name: -1})
    with pytest.raises(ValueError, match="least=0"):
        WordsDataConfig(least=0)


# Asking


@pytest.fixture
def plane(task: WordsTask) -> Word2Vec:
    """a to f are around the origin; the others are far away, on the other side."""
    model = Word2Vec(WordsConfig(vocab=task.tokenizer.vocab, context=CONTEXT, dim=2))
    places = {"a": (1, 0), "b": (3, 0.3), "c": (1, 0.9), "d": (0, 1), "e": (0.1, 2), "f": (2, 2.1)}
    with torch.no_grad():
        model.embed.weight[:] = torch.tensor([-9.0, -9.0])
        for word, place in places.items():
            model.embed.weight[task.tokenizer.id(word)] = torch.tensor(place, dtype=torch.float32)
    return model


def asked(task: WordsTask, model: Word2Vec, text: str, **options: str) -> str:
    return "".join(
        piece for (piece,) in task.stream(model, Request([text], Sampling(top_k=2), options=options))
    )


def test_neighbours_by_angle_and_by_distance(task: WordsTask, plane: Word2Vec) -> None:
    cosine = 3 / math.hypot(3, 0.3)
    assert asked(task, plane, "a") == f"b {cosine:.2f}, c {1 / math.hypot(1, 0.9):.2f}"
    assert asked(task, plane, "a", distance="euclidean") == f"c 0.90, d {math.sqrt(2):.2f}"
    user_error(lambda: asked(task, plane, "a", distance="manhattan"), "distance=manhattan", "euclidean")


def test_sums_and_differences(task: WordsTask, plane: Word2Vec) -> None:
    assert asked(task, plane, "b - a + d").startswith("e ")
    assert asked(task, plane, "a + d") == asked(task, plane, "d a")
    assert asked(task, plane, "a + d").startswith("f 1.00, c ")  # and neither a nor d
    assert asked(task, plane, "a \N{MINUS SIGN} d") == asked(task, plane, "a - d")


def test_answers_with_their_scores(task: WordsTask, plane: Word2Vec) -> None:
    (answers, other) = task.answers(plane, Request(["a", "d"], Sampling(), samples=2))
    assert [answer.text for answer in answers] == ["b", "c"]
    assert answers[1].score == pytest.approx(1 / math.hypot(1, 0.9))
    assert len(other) == 2
    ((line,),) = task.answers(plane, Request(["a"], Sampling()))
    assert line.text.count(",") == 9  # ten of them
    assert len(task.answers(plane, Request(["a"], Sampling(), samples=99))[0]) == len(LETTERS) - 1


def test_words_that_have_no_vector(task: WordsTask, plane: Word2Vec) -> None:
    user_error(lambda: asked(task, plane, "aa"), "aa: not among", "did you mean a?")
    user_error(lambda: asked(task, plane, "zzz"), "zzz: not among", "11")
    user_error(lambda: asked(task, plane, " - "), "king - man + woman")
    user_error(lambda: asked(task, plane, "<unk>"), "<unk>: not among")


# Judging


def test_similarities_and_analogies_are_known_by_their_columns(
    task: WordsTask, plane: Word2Vec, tmp_path: Path
) -> None:
    likeness, tagged, analogies = (tmp_path / f"{name}.csv" for name in ("likeness", "tagged", "analogies"))
    likeness.write_text(",word1,word2,similarity\n0,a,b,9\n1,a,c,8.5\n2,a,d,3\n3,a,zebra,10\n4,e,d,9\n5,,,\n")
    tagged.write_text("word1,word2,similarity\na-n,b-v,2\na-j,d-n,1\n")
    analogies.write_text(",type,word1,word2,word3,target\n0,x,a,b,d,e\n1,x,a,b,d,f\n2,x,a,b,d,zoo\n")
    with gzip.open(tmp_path / "likeness.csv.gz", "wt") as file:
        file.write(likeness.read_text())
    score_answers = lambda *paths: task.score(plane, task.held_out([str(path) for path in paths]))  # noqa: E731
    # cosines: ab .995, ac .743, ad 0, ed .9988; people: 9, 8.5, 3, 9. Ranks 3 2 1 4 and 3.5 2 1 3.5
    x, y = np.array([3, 2, 1, 4]), np.array([3.5, 2, 1, 3.5])
    expected = {"spearman": np.corrcoef(x, y)[0, 1], "covered": 4 / 5}
    assert score_answers(likeness) == score_answers(tmp_path / "likeness.csv.gz") == pytest.approx(expected)
    assert score_answers(tagged) == pytest.approx({"spearman": 1, "covered": 1})
    assert score_answers(analogies) == pytest.approx({"accuracy": 1 / 2, "covered": 2 / 3})
    (tmp_path / "likeness.csv.gz").unlink()
    assert task.count_scored(task.held_out([str(tmp_path)])) == 5 + 2 + 3
    assert set(score_answers(tmp_path)) == {
        f"{name}_{what}"
        for name, what in [
            ("analogies", "accuracy"),
            *((name, "spearman") for name in ("likeness", "tagged")),
            *((name, "covered") for name in ("analogies", "likeness", "tagged")),
        ]
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", ["a.csv:1", "a, b", "word1,word2,similarity"]),
        ("word1,word2,similarity\n", ["a.csv: empty"]),
        ("", ["a.csv:1", "missing"]),
        ("word1,word2,similarity\na,b,1\na,b,x\n", ["a.csv:3", "similarity", "x is not a number"]),
        ("word1,word2,similarity\na,b\n", ["a.csv:2", "fewer cells"]),
    ],
)
def test_sets_that_are_none(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "a.csv").write_text(text)
    user_error(lambda: read_table(str(tmp_path / "a.csv")), *words)
    user_error(lambda: read_table(str(tmp_path / "a.txt")), "a.txt", ".csv")


# Keeping


def test_vectors_are_written_in_the_common_format(task: WordsTask, model: Word2Vec, tmp_path: Path) -> None:
    task.finish(tmp_path, model.state_dict(), None)
    first, *rows = (tmp_path / "vectors.txt").read_text("utf-8").splitlines()
    assert first == f"{len(LETTERS)} {DIM}"
    assert len(rows) == len(LETTERS)
    for row in rows:
        word, *numbers = row.split(" ")
        vector = torch.tensor([float(number) for number in numbers])
        torch.testing.assert_close(
            vector, model.embed.weight[task.tokenizer.id(word)].detach(), rtol=1e-5, atol=1e-6
        )


def test_a_map_is_kept_beside_them(task: WordsTask, model: Word2Vec, tmp_path: Path) -> None:
    task.finish(tmp_path, model.state_dict(), None)
    shown = [
        text.text
        for text in ElementTree.parse(tmp_path / "map.svg").iterfind(".//{*}text[@text-anchor='middle']")
    ]
    assert sorted(shown) == list(LETTERS)


def test_a_stopped_run_goes_on_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmeasured(monkeypatch)
    (tmp_path / "a.txt").write_text(text_of(5003))
    settings = {"model.dim": 7, "train.tokens": 700, "train.log": 1, "train.device": "cpu", "train.warmup": 2}
    settings |= {"data.holdout": 0.1, "train.evaluate": 4, "train.save": 3, "train.micro": 3}

    def run(out: str, **options: Any) -> Any:
        return train("words", str(tmp_path / "a.txt"), out=tmp_path / out, steps=9, set=settings, **options)

    model = run("whole")
    with stopped(Trainer, "train_step", at_step(5)):
        run("parts")
    (tmp_path / "parts" / "model.safetensors").chmod(0o600)
    beside = [tmp_path / "parts" / name for name in ("vectors.txt", "map.svg")]
    for path in beside:
        path.unlink(missing_ok=True)
    run("parts", resume=True)
    assert [stat.S_IMODE(path.stat().st_mode) for path in beside] == [0o600] * 2  # as the weights
    same_runs(tmp_path / "whole", tmp_path / "parts")
    straight, other = ((tmp_path / out / "vectors.txt").read_text() for out in ("whole", "parts"))
    assert straight == other
    assert len(straight.splitlines()) == 1 + len(LETTERS)
    assert model.ask("A").count(",") == 9
    assert model.ask("a", distance="euclidean", top_k=3).count(",") == 2
    assert len(model.ask("a", num_return_sequences=4)) == 4
    assert {row["step"] for row in rows(tmp_path / "whole") if "valid_loss" in row} == {4, 8, 9}
