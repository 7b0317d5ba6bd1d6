"""Span corruption: how many spans, where, that no word is lost, and that a model learns to restore them."""

import numpy as np
import pytest
import torch

from helpers.errors import user_error
from regard.data import DataConfig, Stream
from regard.models import MODELS
from regard.tasks import Restore, RestoreConfig
from regard.tasks.request import DataRequest
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

CONTEXT = 31
TEXT = "".join(
    f"The {a} fox saw {n} {b} geese near the {a} river. "
    for n in range(9)
    for a in ("red", "old")
    for b in ("grey", "white")
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("bpe", [TEXT], 500, Restore.specials)


@pytest.fixture
def task(tokenizer):
    return Restore(RestoreConfig(name="restore"), tokenizer, CONTEXT)


@pytest.fixture
def stream(task):
    return Stream([np.array(task.tokenizer.encode(TEXT))], len(TEXT.encode()))


def restored(task, source, following):
    """Put the spans back into their text."""
    ids = [id for id in following if id != task.tokenizer.end]
    return task.tokenizer.encode(task.fill_in([id for id in source if id != task.tokenizer.end], ids))


def test_both_sides_fill_the_context(task):
    source, target = task.sizes(task.length)
    assert max(source, target) <= CONTEXT
    assert max(task.sizes(task.length + 1)) > CONTEXT


@pytest.mark.parametrize(("missing", "span"), [(0.15, 3.0), (0.5, 1.0), (0.9, 20.0), (0.01, 3.0)])
def test_the_longest_text_is_found_as_by_trying_all(tokenizer, missing, span):
    task = Restore(RestoreConfig(name="restore", missing=missing, span=span), tokenizer, 99)
    for context in range(1, 150):
        fitting = [n for n in range(2, 4 * context) if max(task.sizes(n)) <= context]
        assert task.longest(context) == max(fitting, default=2)


@pytest.mark.parametrize("context", [10**7, 2**31 - 1, 10**12])
def test_a_context_takes_no_time(tokenizer, context):
    """A model with relative positions has no table of them, so that its config.json may name any context."""
    task = Restore(RestoreConfig(name="restore"), tokenizer, context)
    assert task.length >= context


@pytest.mark.parametrize("length", [2, 3, 7, 30])
@pytest.mark.parametrize(("missing", "span"), [(0.15, 3.0), (0.5, 1.0), (0.9, 20.0), (0.01, 3.0)])
def test_nothing_is_lost(tokenizer, length, missing, span):
    task = Restore(RestoreConfig(name="restore", missing=missing, span=span), tokenizer, 99)
    texts = np.array([tokenizer.encode(TEXT)[i : i + length] for i in range(5)])
    source, attention_mask, target, following = task.collate(
        texts, [np.random.Philox(key=i) for i in range(5)]
    )
    assert (source.shape[1], following.shape[1]) == task.sizes(length)
    assert attention_mask.all()
    gone, spans = task.holes(length)
    for text, s, t, f in zip(
        texts.tolist(), source.tolist(), target.tolist(), following.tolist(), strict=True
    ):
        marks = [id for id in s if id in task.sentinels]
        assert marks == task.sentinels[:spans] == [id for id in f if id in task.sentinels]
        assert t == [task.begin, *f[:-1]]
        assert s[-1] == f[-1] == tokenizer.end
        assert len(f) - spans - 1 == gone
        pieces = {m: f[f.index(m) + 1 :] for m in marks}
        parts = {
            m: rest[: next(i for i, id in enumerate(rest) if id in {*task.sentinels, tokenizer.end})]
            for m, rest in pieces.items()
        }
        assert all(parts.values())
        assert [i for id in s[:-1] for i in parts.get(id, [id])] == text


def test_what_is_missing_over_many_texts(task, stream):
    """15 %, in spans of three, at all positions alike, and different each time a text is read."""
    samples = task.samples(stream, seed=5, rows=64, tokens=None)
    places = np.zeros(task.length)
    batches = [task.batch(samples, samples.rows(step)) for step in range(30)]
    for source, _, _, following in batches:
        for s, f in zip(source.tolist(), following.tolist(), strict=True):
            sizes = np.diff([f.index(m) for m in f if m in task.sentinels] + [len(f) - 1]) - 1
            i = 0
            for id in s[:-1]:
                if id in task.sentinels:
                    n = sizes[task.sentinels.index(id)]
                    places[i : i + n] += 1
                    i += n
                else:
                    i += 1
            assert i == task.length
    share = places / (30 * 64)
    gone, _ = task.holes(task.length)
    assert share.mean() == pytest.approx(gone / task.length)
    assert share[0] == 0  # a text begins with what is kept, and ends with what is missing
    assert share[3:-4].min() > 0.02
    assert share[3:-4].max() < 0.4
    assert len({tuple(row) for source, *_ in batches for row in source.tolist()}) > 0.9 * 30 * 64


def test_a_step_has_its_batch_at_any_time(task, stream):
    rows = task.samples(stream, 5, 3, None).rows(7)
    one = task.batch(task.samples(stream, 5, 3, None), rows)
    again = task.batch(task.samples(stream, 5, 3, None), rows[1:])
    assert all(torch.equal(a[1:], b) for a, b in zip(one, again, strict=True))
    other = task.batch(task.samples(stream, 6, 3, None), rows)
    assert not torch.equal(one[0], other[0])


def test_all_of_a_text_is_measured_once(task, stream):
    batches = list(task.evaluation_batches(stream, 100))
    again = list(task.evaluation_batches(stream, 1000))
    ids = [
        i
        for source, _, _, following in batches
        for s, f in zip(source.tolist(), following.tolist(), strict=True)
        for i in restored(task, s, f)
    ]
    assert task.tokenizer.decode(ids) == TEXT[: len(task.tokenizer.decode(ids))]
    assert len(stream) - len(ids) <= 1  # a lone last token has nothing to go with
    assert sum(map(task.batch_length, batches)) == sum(map(task.batch_length, again))


def test_blanks(task):
    a, b = task.sentinels[:2]
    want = [*task.tokenizer.encode("The"), a, *task.tokenizer.encode(" fox"), b, task.tokenizer.end]
    for text in ("The ___ fox __", "The [MASK] fox ____", "The <extra_id_0> fox <extra_id_1>"):
        assert task.source(text) == want
    assert (
        task.fill_in(want[:-1], [a, *task.tokenizer.encode(" red"), b, *task.tokenizer.encode(" ran")])
        == "The red fox ran"
    )
    user_error(lambda: task.source("The fox"), "___", "none")
    user_error(lambda: task.source("__ " * 150), "150", "100")
    user_error(lambda: task.source("fox __ " * 30), "context of 31")


def test_settings_that_make_no_sense():
    for wrong in ({"missing": 0.0}, {"missing": 1.0}, {"span": 0.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RestoreConfig(name="restore", **wrong)


def test_it_learns_asks_and_goes_on_to_translate(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    settings = {
        "model.dim": 32, "model.depth": 1, "model.heads": 2, "model.context": CONTEXT, "model.dropout": 0.0,
        "train.lr": 0.01, "train.batch": 16, "train.log": 50, "data.vocab": 500, "train.device": "cpu",
        "train.warmup": 5, "task.span": 1.0,
    }  # fmt: skip
    model = train("restore", str(tmp_path / "text.txt"), out=tmp_path / "t5", steps=240, set=settings)
    assert model.kind == "t5"
    scores = model.score(str(tmp_path / "text.txt"))
    assert set(scores) == {"loss", "perplexity"}
    assert scores["loss"] < 1.5
    assert model.ask("The red fox saw 3 ___ geese near the old river.") in {
        f"The red fox saw 3 {colour} geese near the old river." for colour in ("grey", "white")
    }
    several = model.answers(["The ___ fox"], num_beams=3, num_return_sequences=2, max_new_tokens=5)
    assert [a.score for a in several[0]] == sorted((a.score for a in several[0]), reverse=True)
    assert "".join(model.stream("The ___ fox")) == model.ask("The ___ fox")
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"the {w} fox\tder {v} Fuchs\n" for w, v in [("red", "rote"), ("old", "alte")] * 9)
    )
    further = train(
        "translate",
        str(tmp_path / "pairs.tsv"),
        valid=str(tmp_path / "pairs.tsv"),
        out=tmp_path / "tr",
        base=tmp_path / "t5",
        steps=40,
        set={"train.lr": 0.01, "train.warmup": 5},
    )
    assert further.kind == "t5"
    assert further.tokenizer.digest == model.tokenizer.digest
    assert further.ask("the old fox", num_beams=1) == "der alte Fuchs"
    wrong = {"base": tmp_path / "t5", "steps": 1, "set": {"model.kind": "gru"}}
    user_error(
        lambda: train("translate", str(tmp_path / "pairs.tsv"), out=tmp_path / "no", **wrong), "gru", "t5"
    )


def test_reading_brings_the_sentinels(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    corpus = Restore.read(
        DataRequest(
            [str(tmp_path / "a.txt")],
            [],
            DataConfig(tokenizer="bpe", vocab=500),
            RestoreConfig(name="restore"),
            CONTEXT,
        )
    )
    assert corpus.tokenizer.id("<extra_id_99>") is not None
    other = train_tokenizer("bpe", [TEXT], 500, ["</s>"])
    user_error(lambda: Restore(RestoreConfig(name="restore"), other, CONTEXT), "<extra_id_0>")
    assert MODELS["t5"][0].__name__ == "Transformer"
