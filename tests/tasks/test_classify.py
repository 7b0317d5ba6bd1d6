"""Classes and scores of texts and pairs: inputs, loss, answers and training."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from torch.testing import assert_close

import regard
from helpers.errors import user_error
from regard.data import DataConfig
from regard.data.labels import LabelledTexts
from regard.decode.sampling import Sampling
from regard.models import GPT, Bert, BertConfig, GPTConfig, ModelWithHead, T5Config, Transformer
from regard.runs.load import load
from regard.runs.model import Model
from regard.tasks import Classify, ClassifyConfig, classify, idle, targets
from regard.tasks import metrics as scoring
from regard.tasks.fill import SPECIALS
from regard.tasks.loss import IGNORED
from regard.tasks.request import DataRequest, Request
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

pytestmark = pytest.mark.usefixtures("quick")

CONTEXT = 19
LETTERS = "abcdefgh"
NAMES = ("bad", "good", "mixed")
GREEDY = Sampling()
BUILTIN = Path(regard.__file__).parent / "builtin"


@pytest.fixture(scope="module")
def letters():
    return train_tokenizer("char", [LETTERS], 0, SPECIALS)


def classify_task(letters, context=CONTEXT, **settings):
    return Classify(ClassifyConfig(name="classify", **settings), letters, context)


@pytest.fixture
def task(letters):
    return classify_task(letters, labels=NAMES)


def build(task, kind="bert", **settings):
    """Weights large enough that answers differ."""
    sizes = {"vocab": task.tokenizer.vocab, "context": task.context, "dim": 12, "depth": 2, "heads": 3}
    inner = {"bert": (Bert, BertConfig), "gpt": (GPT, GPTConfig), "t5": (Transformer, T5Config)}[kind]
    model = Classify.add_head(inner[0](inner[1](**sizes, dropout=0.0, **settings)), task.config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5 * torch.randn_like(p))
    return model


def ids(task, text):
    """The ids of a text's special tokens and letters."""
    marks = {"^": task.first, "$": task.end}
    return [marks[c] if c in marks else task.tokenizer.id(c) for c in text]


TABLE = LabelledTexts(["abc", "de", "abcdefgh", "h"], None, ["bad", "mixed", "good", "bad"], None)
PAIRS = LabelledTexts(
    ["abc", "de", "abcdefgh", "h"], ["h", "gfed", "a", "bb"], ["bad", "mixed", "good", "bad"], None
)
SCORES = LabelledTexts(["abc", "de", "abcdefgh", "h"], None, None, [2.0, 5.0, 3.5, 2.5])


# What is read


def test_one_text(task):
    examples, notes = task.examples(TABLE)
    read, attention_mask, segments, labels = task.collate(examples, np.array([1, 0, 3]))
    texts = [ids(task, text) for text in ("^de$", "^abc$", "^h$")]
    assert read.tolist() == [text + [0] * (5 - len(text)) for text in texts]
    assert attention_mask.sum(1).tolist() == [4, 5, 3]
    assert [row[n].tolist() for row, n in zip(read, attention_mask, strict=True)] == texts
    assert not segments.any()
    assert labels.tolist() == [2, 0, 0]
    assert notes == []
    assert examples.sources == TABLE.texts
    assert examples.targets == TABLE.labels
    assert examples.describe() == "4 texts"


def test_two_texts(task):
    examples, _ = task.examples(PAIRS)
    read, attention_mask, segments, _ = task.collate(examples, np.arange(4))
    for row, mask, kinds, text in zip(
        read, attention_mask, segments, ["^abc$h$", "^de$gfed$", "^abcdefgh$a$", "^h$bb$"], strict=True
    ):
        assert row[mask].tolist() == ids(task, text)
        assert mask.tolist() == [True] * len(text) + [False] * (len(row) - len(text))
        second = text.index("$") + 1
        assert kinds[mask].tolist() == [0] * second + [1] * (len(text) - second)
        assert not kinds[~mask].any()
    assert examples.sources == ["abc\th", "de\tgfed", "abcdefgh\ta", "h\tbb"]


@pytest.mark.parametrize(
    ("text", "other", "read"),
    [
        ("abcdef", None, "^abcdef$"),
        ("abcdefg", None, "^abcdef$"),
        ("abcdefg" * 9, None, "^abcdef$"),
        ("abc", "de", "^abc$de$"),
        ("abcd", "efg", "^ab$efg$"),  # room for five
        ("abcdefg", "h", "^abcd$h$"),
        ("a", "bcdefgh", "^a$bcde$"),
        ("abcdefg", "bcdefgh", "^ab$bcd$"),
        ("", "", "^$$"),
        ("", None, "^$"),
    ],
)
def test_what_is_too_long_is_cut(letters, text, other, read):
    task = classify_task(letters, 8, labels=NAMES)
    encoded = [np.array(task.tokenizer.encode(part)) for part in (text, other) if part is not None]
    first, second, lost = task.frame(*encoded)
    assert first.tolist() == ids(task, read)
    assert second == (len(read) if other is None else read.index("$") + 1)
    assert lost == (len(read.strip("^$").replace("$", "")) < len(text + (other or "")))


def test_a_note_tells_how_many_were_cut(letters, tmp_path):
    path = written(tmp_path / "a.tsv", ["text\tlabel", "abcdefg\tx", "abc\ty", "abcdefgh\tx", "a\ty"])
    corpus = Classify.read(
        DataRequest([path], [path], DataConfig(), ClassifyConfig(name="classify"), 8, [letters])
    )
    assert corpus.notes == [
        "cut 2 of 4 texts to 8 tokens (model.context)",
        "held out: cut 2 of 4 texts to 8 tokens (model.context)",
    ]
    assert corpus.train.ids.lengths.max() == 8
    assert not Classify.read(
        DataRequest([path], [path], DataConfig(), ClassifyConfig(name="classify"), 10, [letters])
    ).notes


def test_a_gpt_reads_no_marks_that_its_tokenizer_lacks():
    plain = train_tokenizer("char", [LETTERS], 0, ["<|endoftext|>"])
    task = Classify(ClassifyConfig(name="classify", labels=NAMES), plain, CONTEXT)
    assert task.frame(np.array([5, 6]))[0].tolist() == [5, 6, plain.end]
    assert task.frame(np.array([5, 6]), np.array([7]))[0].tolist() == [5, 6, plain.end, 7, plain.end]


# Files


def written(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def reading(path, valid=(), context=CONTEXT, tokenizer=None, **settings):
    config = ClassifyConfig(name="classify", **settings)
    return Classify.read(
        DataRequest([path], valid, DataConfig(), config, context, [tokenizer] if tokenizer else [])
    )


def test_classes_are_in_order(tmp_path):
    path = written(tmp_path / "a.tsv", ["text\tlabel", "a\tworse", "b\t10", "c\t9", "d\tbetter", "e\t9"])
    corpus = reading(path, valid=[path])
    assert corpus.task_settings == {"labels": ["9", "10", "better", "worse"], "metric": "f1"}
    assert corpus.train.labels.tolist() == corpus.valid.labels.tolist() == [3, 1, 0, 2, 0]
    assert all(corpus.tokenizer.id(name) is not None for name in SPECIALS)
    labels = ("worse", "9", "10", "better", "none")
    assert reading(path, valid=[path], labels=labels).train.labels.tolist() == [0, 2, 1, 3, 1]
    balanced = reading(path, valid=[path], balanced=True)
    assert balanced.task_settings["weights"] == pytest.approx([5 / 4 / 2, 5 / 4, 5 / 4, 5 / 4])


def test_an_unknown_class_in_the_validation_data(tmp_path):
    path = written(tmp_path / "a.tsv", ["text\tlabel", "a\tx", "b\ty"])
    other = written(tmp_path / "b.tsv", ["text\tlabel", "a\tx", "b\tz"])
    user_error(lambda: reading(path, valid=[other]), f"{other}:3", '"z"', '"x", "y"')


def test_scores_are_between_nothing_and_one(tmp_path, letters):
    path = written(tmp_path / "a.tsv", ["text\tscore", "a\t2", "b\t5", "c\t3.5", "d\t2.75"])
    corpus = reading(path, valid=[path])
    assert corpus.task_settings == {"metric": "spearman", "low": 2.0, "high": 5.0}
    assert corpus.train.labels.tolist() == [0, 1, 0.5, 0.25]
    assert corpus.train.labels.dtype == np.float32
    wide = reading(path, valid=[path], low=0.0, high=10.0)
    assert wide.task_settings == {"metric": "spearman", "low": 0.0, "high": 10.0}
    assert wide.train.labels.tolist() == pytest.approx([0.2, 0.5, 0.35, 0.275])
    same = written(tmp_path / "b.tsv", ["text\tscore", "a\t2", "b\t2"])
    user_error(lambda: reading(same, valid=[same]), "every score is 2")
    answer = classify_task(letters, **corpus.task_settings)._answer(torch.tensor([0.5]), 1)
    assert [a.text for a in answer] == ["3.5000"]


def test_classes_are_not_scored_on_scores(tmp_path, letters, task):
    classes = written(tmp_path / "a.tsv", ["text\tlabel", "a\tbad", "b\tgood"])
    scores = written(tmp_path / "b.tsv", ["text\tscore", "a\t2", "b\t5"])
    assert task.held_out([classes]).labels.tolist() == [0, 1]
    user_error(lambda: task.held_out([scores]), scores, "score", "class")
    user_error(
        lambda: classify_task(letters, low=0.0, high=1.0).held_out([classes]), classes, "score", "class"
    )


def test_fingerprints_tell_data_apart(task):
    one = task.examples(TABLE)[0].fingerprint()
    other = LabelledTexts(TABLE.texts, None, ["bad", "mixed", "good", "good"], None)
    longer = LabelledTexts(["abc", "de", "abcdefgh", "hh"], None, TABLE.labels, None)
    assert one == task.examples(TABLE)[0].fingerprint()
    assert len({one, *(task.examples(table)[0].fingerprint() for table in (other, longer, PAIRS))}) == 4


def test_batches(task):
    draw = np.random.default_rng(0)
    texts = ["".join(draw.choice([*LETTERS], draw.integers(1, 15))) for _ in range(97)]
    examples, _ = task.examples(LabelledTexts(texts, None, draw.choice(NAMES, 97).tolist(), None))
    samples = task.samples(examples, 5, 10, None)
    epoch = [samples.rows(step) for step in range(samples.buckets.count)]
    assert sorted(np.concatenate(epoch).tolist()) == list(range(97))
    for rows in epoch:
        read, attention_mask, _, labels = task.batch(samples, rows)
        assert len(read) == len(rows) <= 10
        assert read.shape[1] == attention_mask.sum(1).max()
        assert labels.tolist() == examples.labels[rows].tolist()
    assert samples.rows(3).tolist() == task.samples(examples, 5, 10, None).rows(3).tolist()
    assert any("padding" in note for note in samples.notes)
    tokens = task.samples(examples, 5, 10, 60)
    assert all(task.batch(tokens, tokens.rows(step))[0].numel() <= 60 for step in range(30))
    batches = list(task.evaluation_batches(examples, 60))
    assert all(batch[0].numel() <= 60 for batch in batches)
    assert sum(map(task.batch_length, batches)) == 97


# The loss


def batch_of(task, table=PAIRS, rows=4):
    return task.collate(task.examples(table)[0], np.arange(rows))


@pytest.mark.parametrize("kind", ["bert", "gpt"])
@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 3.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_torchs(letters, kind, weights, smoothing):
    task = classify_task(letters, labels=NAMES, weights=weights, smoothing=smoothing)
    model = build(task, kind)
    read, attention_mask, segments, labels = batch = batch_of(task)
    logits = model(read, attention_mask, segments if kind == "bert" else None)
    alone = torch.cat(
        [
            model(
                read[i : i + 1, attention_mask[i]],
                segments=segments[i : i + 1, attention_mask[i]] if kind == "bert" else None,
            )
            for i in range(4)
        ]
    )
    assert_close(logits, alone, atol=1e-5, rtol=1e-5)
    weight = None if weights is None else torch.tensor(weights)
    each = [
        F.cross_entropy(logits, labels, weight, reduction="none", label_smoothing=s) for s in (smoothing, 0)
    ]
    assert_close(task.loss(model.train(), *batch), each[0].sum())
    assert_close(task.loss(model.eval(), *batch), each[1].sum())  # what is measured has none
    loss, *counts = task.measure(model, *batch).tolist()  # which has no weights, either
    assert loss == pytest.approx(F.cross_entropy(logits, labels, reduction="sum").item(), rel=1e-5)
    right = (logits.argmax(-1) == labels).sum().item()
    assert sum(counts[:3]) == right
    metrics = task.metrics(loss, 4, None, *counts)
    assert (metrics["loss"], metrics["accuracy"]) == pytest.approx((loss / 4, right / 4))


def test_the_loss_of_scores_is_their_squared_error(letters):
    task = classify_task(letters, low=2.0, high=5.0)
    model = build(task)
    read, attention_mask, segments, labels = batch = batch_of(task, SCORES)
    outputs = model(read, attention_mask, segments)
    assert outputs.shape == (4, 1)
    assert labels.tolist() == pytest.approx([0, 1, 0.5, 1 / 6])
    want = F.mse_loss(outputs[:, 0], labels, reduction="sum")
    assert_close(task.loss(model, *batch), want)
    examples = task.examples(SCORES)[0]
    batches = list(task.evaluation_batches(examples, 20))
    assert len(batches) > 1
    loss, *rows = sum(task.measure(model, *batch) for batch in batches).tolist()
    assert rows == pytest.approx(outputs[:, 0].tolist(), rel=1e-4)  # wherever a batch has them
    metrics = task.metrics(loss, 4, examples, *rows)
    correlations = {"spearman": scoring.spearman(rows, labels), "pearson": scoring.pearson(rows, labels)}
    assert metrics == pytest.approx({"loss": want.item() / 4} | correlations, rel=1e-4)


@pytest.fixture(scope="module")
def bytes_():
    return train_tokenizer("byte", [], 0, SPECIALS)


def written_likelihood(task, model, read, attention_mask, text):
    """log p of a text and its end, token by token, for one source."""
    ids = [*task.tokenizer.encode(text), task.end]
    target = torch.tensor([[task.tokenizer.id("[PAD]"), *ids[:-1]]])
    logp = model(read[attention_mask][None], target).log_softmax(-1)
    return logp[0, torch.arange(len(ids)), torch.tensor(ids)].sum()


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 3.0)])
def test_a_t5_writes_the_names(bytes_, weights):
    """The loss is that of the true name; the answer is the most likely name."""
    task = classify_task(bytes_, labels=NAMES, weights=weights)
    model = build(task, "t5")
    read, attention_mask, segments, labels = batch = batch_of(task)
    with torch.no_grad():
        each = [
            [written_likelihood(task, model, *row, name) for name in NAMES]
            for row in zip(read, attention_mask, strict=True)
        ]
    each = torch.tensor(each)
    assert_close(task.logits(model, read, attention_mask, segments), each, atol=1e-4, rtol=1e-4)
    true = (
        each[torch.arange(4), labels] * (torch.ones(3) if weights is None else torch.tensor(weights))[labels]
    )
    assert_close(task.loss(model.train(), *batch), -true.sum(), atol=1e-4, rtol=1e-4)
    loss, *counts = task.measure(model.eval(), *batch).tolist()
    assert sum(counts[:3]) == (each.argmax(-1) == labels).sum()
    assert loss == pytest.approx(F.cross_entropy(each, labels, reduction="sum").item(), rel=1e-4)
    (best, *_), *_ = task.answers(model, Request(TABLE.texts[:1], GREEDY, samples=3))
    alone = written_likelihood  # of the text without the other
    ids = torch.tensor(task.frame(np.array(bytes_.encode(TABLE.texts[0])))[0])
    with torch.no_grad():
        p = torch.stack([alone(task, model, ids, ids >= 0, name) for name in NAMES]).softmax(0)
    assert best.text == NAMES[int(p.argmax())]
    assert best.score == pytest.approx(p.max().item(), rel=1e-4)


def test_a_t5_writes_scores(bytes_):
    task = classify_task(bytes_, low=2.0, high=5.0)
    model = build(task, "t5")
    names = [f"{2 + 3 * i / 20:.4g}" for i in range(21)]
    ids = task.names.ids.on(torch.device("cpu"))
    assert ids.shape == (21, 5)
    assert [bytes_.decode(row[row >= 0][:-1].tolist()) for row in ids] == names
    read, attention_mask, segments, labels = batch = batch_of(task, SCORES)
    with torch.no_grad():
        each = torch.tensor(
            [
                [written_likelihood(task, model, *row, name) for name in names]
                for row in zip(read, attention_mask, strict=True)
            ]
        )
    scores = (each.softmax(-1) * torch.linspace(0, 1, 21)).sum(1)
    assert_close(task.logits(model, read, attention_mask, segments)[:, 0], scores, atol=1e-4, rtol=1e-4)
    true = each[torch.arange(4), [0, 20, 10, 3]]
    assert_close(task.loss(model, *batch), -true.sum(), atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        (batch,) = task.evaluation_batches(task.examples(SCORES)[0], 10**6)
        loss = task.measure(model, *batch)[0].item()
    assert loss == pytest.approx((scores - labels).square().sum().item(), rel=1e-4)
    (answer,), *_ = task.answers(model, Request(["a"], GREEDY))
    assert 2 <= float(answer.text) <= 5


def test_names_that_are_spelt_alike(letters):
    task = classify_task(letters, labels=("a", "xyz", "zyx"))
    assert "'xyz' and 'zyx'" in user_error(lambda: task.names)
    assert "task.smoothing=0.1" in user_error(
        lambda: build(classify_task(letters, labels=NAMES, smoothing=0.1), "t5")
    )


@pytest.mark.parametrize("kind", ["bert", "t5"])
@pytest.mark.parametrize("settings", [{"labels": NAMES}, {"low": 2.0, "high": 5.0}])
def test_an_idle_batch_counts_for_nothing(bytes_, settings, kind):
    task = classify_task(bytes_, **settings)
    model = build(task, kind).train()
    nothing = idle(batch_of(task, TABLE if "labels" in settings else SCORES))
    assert (nothing[-1] == IGNORED).all()
    assert targets(nothing) == 0
    loss = task.loss(model, *nothing)
    loss.backward()
    assert loss == 0
    learns = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None and not p.grad.any() for p in learns)


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_every_weight_learns_but_those_of_other_heads(task, kind):
    """Only BERT has segments; the second of two texts has another one."""
    model = build(task, kind).train()
    task.loss(model, *batch_of(task)).backward()
    still = {name for name, p in model.named_parameters() if not p.requires_grad}
    for name, p in model.named_parameters():
        assert (p.grad is not None and p.grad.abs().max() > 0) != (name in still), name
    parts = {name.split(".")[1] for name in still}
    assert parts == ({"transform", "transform_norm", "bias", "next"} if kind == "bert" else set())


# Answers


TEXTS = ["abc", "h", "abcdefgh", "gfe", "abc\tde", "h\tgfe", "", "c" * 50, "a\tb\tc"]


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_batched_is_alone(task, kind, monkeypatch):
    model = build(task, kind)
    together = task.answers(model, Request(TEXTS, GREEDY))
    assert len({answers[0].text for answers in together}) > 1
    for text, (answer,) in zip(TEXTS, together, strict=True):
        ((alone,),) = task.answers(model, Request([text], GREEDY))
        assert alone.text == answer.text
        assert alone.score == pytest.approx(answer.score, abs=1e-5)
    monkeypatch.setattr(classify, "TOKENS_AT_ONCE", 20)
    again = task.answers(model, Request(TEXTS, GREEDY))
    assert [a.text for (a,) in again] == [a.text for (a,) in together]
    assert list(task.stream(model, Request(TEXTS, GREEDY))) == [[a.text for (a,) in together]]
    assert task.answers(model, Request([], GREEDY)) == []
    model.train()
    assert [a.text for (a,) in task.answers(model, Request(TEXTS, GREEDY))] == [a.text for (a,) in together]
    assert model.training


def test_a_tab_parts_two_texts(task):
    model = build(task)
    examples, _ = task.examples(PAIRS)
    logits = task.logits(model, *task.collate(examples, np.arange(4))[:3])
    answers = task.answers(model, Request(examples.sources, GREEDY))
    assert [a.text for (a,) in answers] == [NAMES[i] for i in logits.argmax(-1).tolist()]
    best = logits.softmax(-1).max(-1).values.tolist()
    assert [a.score for (a,) in answers] == pytest.approx(best, abs=1e-5)
    one, _ = task.examples(LabelledTexts(["ab\tcd"], None, ["bad"], None))
    assert one.sources == ["ab cd"]  # a tab of its own does not


def test_the_likeliest_come_first(task):
    model = build(task)
    ((*answers,),) = task.answers(model, Request(["abc"], GREEDY, samples=2))
    ((*every,),) = task.answers(model, Request(["abc"], GREEDY, samples=9))
    assert [a.text for a in every[:2]] == [a.text for a in answers]
    assert sorted(a.text for a in every) == sorted(NAMES)
    assert sum(a.score for a in every) == pytest.approx(1, abs=1e-5)
    assert sorted((a.score for a in every), reverse=True) == [a.score for a in every]
    asked = Model(model, task, {}).ask(["abc", "h"], num_return_sequences=2)
    assert len(asked) == 4
    assert asked[:2] == [a.text for a in answers]


def test_scores_are_answered_on_the_scale_of_the_data(letters):
    task = classify_task(letters, low=2.0, high=5.0)
    model = build(task)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(0.25)
    assert task.answers(model, Request(["abc"], GREEDY, samples=3))[0][0].text == "2.7500"
    assert len(task.answers(model, Request(["abc"], GREEDY, samples=3))[0]) == 1


def test_judged(letters):
    answers, true = ["good", "bad", "good", "bad", "good"], ["good", "good", "good", "bad", "bad"]
    scores = classify_task(letters, labels=("bad", "good")).score_answers(answers, true)
    assert scores == pytest.approx(
        {"f1": 2 * 2 / (2 * 2 + 1 + 1), "matthews": scoring.matthews(answers, true)}
    )  # of good
    assert scores["matthews"] == pytest.approx((2 * 1 - 1 * 1) / 6)
    three = classify_task(letters, labels=NAMES).score_answers(answers, true)
    assert three["f1"] == pytest.approx(scoring.f1(answers, true, None))
    predicted, want = ["1.0000", "2.0000", "4.0000"], ["1.0", "3.0", "2.0"]
    score = classify_task(letters, low=1.0, high=4.0).score_answers(predicted, want)
    assert score == pytest.approx({"spearman": 0.5, "pearson": np.corrcoef([1, 2, 4], [1, 3, 2])[0, 1]})


def test_a_sample_shows_texts_and_classes(task):
    shown = task.preview(build(task), task.examples(PAIRS)[0], 0).splitlines()
    assert shown[::2] == ["abc\th", "de\tgfed", "abcdefgh\ta"]
    assert all(line.removeprefix("  → ") in NAMES for line in shown[1::2])


def test_settings_that_make_no_sense():
    for smoothing in (1.0, -0.1):
        with pytest.raises(ValueError, match="smoothing"):
            ClassifyConfig(name="classify", smoothing=smoothing)


# Whole runs

SETTINGS = {
    "model.dim": 16, "model.depth": 1, "model.heads": 2, "model.context": 23, "model.dropout": 0.0,
    "train.lr": 0.01, "train.warmup": 5, "train.log": 20, "train.evaluate": 50, "train.device": "cpu",
    "train.batch": 16, "data.vocab": 300,
}  # fmt: skip
FURTHER = {name: value for name, value in SETTINGS.items() if name.startswith("train.")}


def test_it_learns_the_built_in_classes(tmp_path):
    """Also after loading it from its folder, and when fine-tuned for other classes."""
    model = train("classify", out=tmp_path / "a", steps=100, set=SETTINGS | {"task.balanced": True})
    assert isinstance(model.model, ModelWithHead)
    names = set(model.task.config.labels)
    rows = [json.loads(line) for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    assert set(rows[-1]) - {"best"} == {"step", "valid_loss", "valid_accuracy", "valid_f1", "valid_matthews"}
    scores = model.score(str(BUILTIN / "classify.tsv"))
    assert set(scores) == {"loss", "accuracy", "f1", "matthews"}
    assert scores["accuracy"] > 0.75  # chance is one in two
    held = model.score(str(BUILTIN / "classify.valid.tsv"))
    best = min((row for row in rows if "valid_loss" in row), key=lambda row: row["valid_loss"])
    assert held["accuracy"] == pytest.approx(best["valid_accuracy"])
    lines = (BUILTIN / "classify.valid.tsv").read_text().splitlines()
    texts = [line.split("\t")[0] for line in lines[1:40]]
    again = load(tmp_path / "a")
    assert again.task.config == model.task.config
    assert again.answers(texts) == model.answers(texts)
    assert set(model.ask(texts)) == names
    assert model.ask(texts[0]) in names
    assert "".join(again.stream(texts[0])) == model.ask(texts[0])

    path = written(
        tmp_path / "b.tsv",
        ["text\tlabel", *(f"{a}\t{b}" for a, b in [("one", 1), ("two", 2), ("three", 3)] * 9)],
    )
    further = train("classify", path, out=tmp_path / "b", base=tmp_path / "a", steps=120, set=FURTHER)
    assert further.task.config.labels == ("1", "2", "3")
    assert further.model.head.weight.shape == (3, 16)
    assert further.tokenizer.digest == model.tokenizer.digest
    assert further.score(path)["accuracy"] > 0.6  # chance is one in three


def test_a_restored_t5_learns_classes(tmp_path):
    """Text to text: it has no head."""
    (tmp_path / "a.txt").write_text("\n\n".join(f"The red fox saw {n} geese. It ran." for n in range(30)))
    t5 = SETTINGS | {"data.tokenizer": "bpe", "model.heads": 2}
    before = train("restore", str(tmp_path / "a.txt"), out=tmp_path / "a", steps=3, set=t5)
    lines = ["text\tlabel", *(f"{n % 7} {'geese' if n % 2 else 'red'} fox\t{n % 2}" for n in range(40))]
    path = written(tmp_path / "b.tsv", lines)
    model = train("classify", path, out=tmp_path / "b", base=tmp_path / "a", steps=60, set=FURTHER)
    assert model.kind == before.kind == "t5"
    assert isinstance(model.model, Transformer)
    scores = model.score(path)
    assert set(scores) == {"loss", "accuracy", "f1", "matthews"}
    assert scores["accuracy"] > 0.9
    text = "3 geese fox"
    assert load(tmp_path / "b").answers(text) == model.answers(text)


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_from_a_model_that_has_read(tmp_path, kind):
    """Its weights are kept, and its own heads do not change."""
    text = "\n\n".join(f"The red fox saw {n} geese. It ran." for n in range(30))
    (tmp_path / "a.txt").write_text(text)
    name = {"bert": "fill", "gpt": "write"}[kind]
    before = train(name, str(tmp_path / "a.txt"), out=tmp_path / "a", steps=3, set=SETTINGS)
    path = written(
        tmp_path / "b.tsv", ["text\tother\tlabel", *(f"{n} geese\tran\t{n % 2}" for n in range(20))]
    )
    settings = FURTHER | {"train.lr": 1e-9, "train.weight_decay": 0.0}
    after = train("classify", path, out=tmp_path / "b", base=tmp_path / "a", steps=1, set=settings)
    assert after.kind == before.kind == kind
    assert after.tokenizer.digest == before.tokenizer.digest
    old, new = (load_file(tmp_path / x / "model.safetensors") for x in "ab")
    assert {name.removeprefix("model.") for name in new} - old.keys() == {"head.weight", "head.bias"}
    for name in old:
        assert_close(new[f"model.{name}"], old[name], atol=1e-7, rtol=0)
    for name in ("transform.weight", "next.weight", "bias") if kind == "bert" else ():
        assert torch.equal(new[f"model.{name}"], old[name])
    assert after.ask("3 geese\tran") in ("0", "1")


def test_scores_of_pairs(tmp_path):
    words = ["fox", "goose", "river", "den"]
    lines = [f"a {a}\tthe {b}\t{1.5 * k + i}" for k, a in enumerate(words) for i, b in enumerate(words)] * 3
    path = written(tmp_path / "a.tsv", ["text\tother\tscore", *lines])
    model = train("classify", path, valid=path, out=tmp_path / "out", steps=100, set=SETTINGS)
    assert model.task.config.labels is None
    assert (model.task.config.low, model.task.config.high) == (0.0, 7.5)
    scores = model.score(path)
    assert set(scores) == {"loss", "spearman", "pearson"}
    assert scores["pearson"] > 0.8
    assert float(model.ask("a den\tthe den")) > float(model.ask("a fox\tthe fox")) + 3
    assert load(tmp_path / "out").ask("a fox\tthe fox") == model.ask("a fox\tthe fox")
