"""Tags: their positions among a word's pieces, that no word is lost, and training."""

import dataclasses
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import regard
from helpers.errors import user_error
from helpers.labelling import TINY, tiny_model
from regard.data import DataConfig
from regard.data.tags import read_tags
from regard.decode.sampling import Sampling
from regard.runs.load import load
from regard.tasks import Tag, TagConfig, targets
from regard.tasks import metrics as scoring
from regard.tasks.loss import IGNORED
from regard.tasks.request import DataRequest, Request
from regard.tasks.tag import format_tags, parse_tags, split_words
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

pytestmark = pytest.mark.usefixtures("quick")

LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
PEOPLE = [(["Anna"], ["B-PER"]), (["Björn", "Ruiz-Hart"], ["B-PER", "I-PER"]), (["Kim"], ["B-PER"])]
PLACES = [(["Bonn"], ["B-LOC"]), (["Sankt", "Gallen"], ["B-LOC", "I-LOC"]), (["Köln"], ["B-LOC"])]
SENTENCES = [
    ([*who, verb, "in", *where, "."], [*is_who, "O", "O", *is_where, "O"])
    for who, is_who in PEOPLE
    for where, is_where in PLACES
    for verb in ("lives", "worked", "sleeps")
]
SMALL = TINY | {"model.context": 31}


def conll(path, sentences):
    path.write_text("\n".join("".join(f"{w}\t{t}\n" for w, t in zip(*s, strict=True)) for s in sentences))
    return str(path)


def tokenizer(kind):
    return train_tokenizer(kind, [" ".join(words) for words, _ in SENTENCES], 300, Tag.specials)


def task_of(kind, context=31):
    return Tag(TagConfig(name="tag", labels=LABELS), tokenizer(kind), context)


# Where tags stand


@pytest.mark.parametrize(
    ("kind", "pieces", "begins"),
    [
        # lower-cased, without accents; a word that has an unknown letter is one piece
        ("wordpiece", "[CLS] bjorn li ##v ##e in koln [UNK] [SEP]", [1, 2, 5, 6, 7]),
        ("bpe", "[CLS] Bj Ã¶ rn Ġliv e Ġin ĠKÃ¶ ln Ġ ! [SEP]", [1, 4, 6, 7, 10]),
        ("char", "[CLS] B j ö r n _ l i v e _ i n _ K ö l n _ <unk> [SEP]", [1, 7, 12, 15, 20]),
        ("word", "[CLS] Björn <unk> in Köln <unk> [SEP]", [1, 2, 3, 4, 5]),
    ],
)
def test_a_tag_stands_at_the_first_piece_of_its_word(kind, pieces, begins):
    task = task_of(kind)
    words = ["Björn", "live", "in", "Köln", "!"]
    (((ids, at),),) = task.windows([words])
    tokens = [task.tokenizer.inner.id_to_token(id).replace(" ", "_") for id in ids]
    assert tokens == pieces.split(" ")
    assert at == begins
    # the pieces are the whole text's; the tag's is the first that has some of the word, not of what is before
    encoded = task.tokenizer.inner.encode(" ".join(words), add_special_tokens=False)
    assert ids[1:-1] == encoded.ids
    starts = np.cumsum([0] + [len(word) + 1 for word in words[:-1]])
    for place, start in zip(at, starts, strict=True):
        a, b = encoded.offsets[place - 1]
        assert a <= start < b
        assert place == 1 or encoded.offsets[place - 2][1] <= start
    examples, notes = task.examples([(words, ["B-PER", "O", "O", "B-LOC", "O"])])
    assert notes == []
    ((_, _, labels),) = task.evaluation_batches(examples, 100)
    assert {i: LABELS[n] for i, n in enumerate(labels[0].tolist()) if n != IGNORED} == dict(
        zip(at, ["B-PER", "O", "O", "B-LOC", "O"], strict=True)
    )


def test_no_word_is_invisible():
    task = task_of("wordpiece")
    (((ids, at),),) = task.windows([["ANNA", "annain", "\u200b", "Köln"]])
    tokens = [task.tokenizer.inner.id_to_token(id) for id in ids]
    assert tokens == ["[CLS]", "anna", "anna", *tokens[3:-3], "[UNK]", "koln", "[SEP]"]
    assert all(token.startswith("##") for token in tokens[3:-3])
    assert at == [1, 2, len(tokens) - 3, len(tokens) - 2]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "char"])
@pytest.mark.parametrize("context", [3, 7, 13])
def test_long_sentences_are_read_in_parts_and_no_word_is_lost(kind, context):
    task = task_of(kind, context)
    words, tags = (list(chain(*part)) for part in zip(*SENTENCES, strict=True))
    examples, notes = task.examples([(words, tags), (["Kim"], ["B-PER"])])
    assert "1 of 2" in notes[0]
    assert examples.ids.lengths.max() <= context
    batches = list(task.evaluation_batches(examples, 50))
    assert (
        sum(map(targets, batches)) == sum(map(task.batch_length, batches)) == len(words) + 1 == len(examples)
    )
    windows = task.windows([words])[0]
    assert sum(len(begins) for _, begins in windows) == len(words)
    assert all(begins for _, begins in windows)
    numbers = [n for row in range(len(windows)) for n in examples.labels[row].tolist() if n != IGNORED]
    assert [LABELS[n] for n in numbers] == tags
    predicted = task.tags(tiny_model(task), [words, [], ["Kim"]])
    assert list(map(len, predicted)) == [len(words), 0, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Anna lives in Bonn.", "Anna|lives|in|Bonn|."),
        ("  “Who's Ruiz-Hart?”, 3.5 % asked…", "“|Who's|Ruiz-Hart|?|”|,|3.5|%|asked|…"),
        ("a/b  c\tü_1 U.S. -x- Ko\u0308ln हिन्दी", "a|/|b|c|ü_1|U.S|.|-|x|-|Ko\u0308ln|हिन्दी"),
        (" \n", ""),
    ],
)
def test_words_of_a_line(text, words):
    assert "|".join(split_words(text)) == words


def test_what_is_written_is_read():
    words, tags = ["a/b", "/", "a\u00a0b", "c d"], ["O", "B-PER", "I-PER", "X"]
    assert format_tags(words, tags) == "a/b/O //B-PER a\u00a0b/I-PER c d/X"
    assert parse_tags(format_tags(words, tags)) == tags
    assert parse_tags("") == []


# Loss and figures


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_loss_and_measure_are_torchs(kind):
    task = task_of("wordpiece")
    model = tiny_model(task, kind).eval()
    examples, _ = task.examples(SENTENCES[:7])
    ((ids, attention_mask, labels),) = task.evaluation_batches(examples, 10**6)
    assert not attention_mask.all()
    logits = model(ids, attention_mask)
    mask = labels != IGNORED
    want = -logits.log_softmax(-1)[mask].gather(1, labels[mask][:, None]).sum()
    torch.testing.assert_close(task.loss(model, ids, attention_mask, labels), want)
    torch.testing.assert_close(want, F.cross_entropy(logits[mask], labels[mask], reduction="sum"))
    loss, right, *entities = sums = task.measure(model, ids, attention_mask, labels).tolist()
    assert loss == pytest.approx(want.item(), rel=1e-5)
    assert right == (logits[mask].argmax(-1) == labels[mask]).sum()
    assert task.metrics(6.0, 3, examples, 2, 1, 3, 4) == {"loss": 2.0, "accuracy": 2 / 3, "f1": 2 / 7}
    predicted = task.tags(model, examples.sources)
    score_answers = scoring.entity_f1(predicted, [tags for _, tags in SENTENCES[:7]])
    assert min(entities[1:]) > 0
    assert task.metrics(loss, 3, examples, right, *entities)["f1"] == score_answers["f1"]
    # in parts it is the same, and padding changes nothing
    parts = [task.measure(model, *batch) for batch in task.evaluation_batches(examples, 20)]
    assert len(parts) > 1
    assert sum(parts).tolist() == pytest.approx(sums, rel=1e-5)


def test_a_gpt_only_looks_back_and_a_bert_both_ways():
    task = task_of("wordpiece")
    for kind, blind in (("gpt", True), ("bert", False)):
        model = tiny_model(task, kind).eval()
        (((a, _),), ((b, _),)) = task.windows([["Anna", "lives"], ["Anna", "Köln"]])
        x, y = (model(torch.tensor([row]))[0, 1] for row in (a, b))
        assert torch.equal(x, y) == blind


def test_only_tags_of_entities_are_judged_as_such():
    tokens = tokenizer("wordpiece")
    entities = Tag(TagConfig(name="tag", labels=LABELS), tokens, 31)
    answers = ["Anna/B-PER in/O Bonn/O", "Kim/I-LOC"]
    true = ["Anna/B-PER in/O Bonn/B-LOC", "Kim/I-LOC"]
    assert entities.score_answers(answers, true) == {
        "precision": 1.0,
        "recall": 2 / 3,
        "f1": pytest.approx(0.8),
    }
    parts = Tag(TagConfig(name="tag", labels=("NOUN", "VERB")), tokens, 31)
    assert parts.score_answers(["Anna/NOUN"], ["Anna/VERB"]) == {}


# Data


def test_reading(tmp_path):
    path = conll(tmp_path / "a.conll", SENTENCES)
    config, data = TagConfig(name="tag"), DataConfig(tokenizer="wordpiece", vocab=300)
    corpus = Tag.read(DataRequest([path], [], data, config, 31))
    assert corpus.task_settings == {"labels": list(LABELS)}
    assert (len(corpus.train.sources), len(corpus.valid.sources)) == (25, 2)
    assert corpus.valid.sources == [SENTENCES[9][0], SENTENCES[19][0]]
    assert corpus.train.describe() == f"{len(corpus.train):,} words"
    again = Tag.read(DataRequest([path], [path], data, config, 31, [corpus.tokenizer]))
    assert again.train.fingerprint() == again.valid.fingerprint() != corpus.train.fingerprint()
    for holdout, held in ((0.0, 0), (0.9, 13)):
        small = Tag.read(DataRequest([path], [], dataclasses.replace(data, holdout=holdout), config, 31))
        assert len(small.valid.sources if small.valid else ()) == held
    rare = conll(tmp_path / "rare.conll", [(["x"], ["B-RARE"])])
    assert "B-RARE" in Tag.read(DataRequest([path], [rare], data, config, 31)).task_settings["labels"]
    chosen = TagConfig(name="tag", labels=("O", "B-PER", "I-PER"))
    user_error(
        lambda: Tag.read(DataRequest([path], [], data, chosen, 31)),
        "sentence 1",
        "Anna lives",
        "B-LOC",
        "O, B-PER",
    )
    slash = conll(tmp_path / "slash.conll", [(["x", "y"], ["A/B", "C"])])
    user_error(lambda: Tag.read(DataRequest([slash], [], data, config, 31)), "A/B", "slash")
    one = conll(tmp_path / "one.conll", [(["x"], ["A"])])
    user_error(lambda: Tag.read(DataRequest([one], [], data, config, 31)), '"A"', "two or more")
    user_error(
        lambda: Tag.read(DataRequest([str(tmp_path / "none.conll")], [], data, config, 31)), "none.conll"
    )
    user_error(lambda: Tag.read(DataRequest([path], [], data, config, 2)), "context=2")


def test_a_step_has_its_batch_at_any_time():
    task = task_of("bpe")
    examples, _ = task.examples(SENTENCES)
    one, again = (task.samples(examples, 5, 4, None) for _ in range(2))
    again.rows(30)
    for step in (0, 3, 19):
        assert all(
            torch.equal(a, b)
            for a, b in zip(task.batch(one, one.rows(step)), task.batch(again, again.rows(step)), strict=True)
        )


# All of it


@pytest.mark.parametrize(
    ("kind", "tokens"), [("bert", "wordpiece"), ("gpt", "bpe"), ("bert", "char")], ids=str
)
def test_it_learns_is_kept_and_scored(tmp_path, kind, tokens):
    data = conll(tmp_path / "train.conll", SENTENCES)
    settings = SMALL | {"model.kind": kind, "data.tokenizer": tokens}
    settings |= {"model.context": 61} if tokens == "char" else {}
    model = train("tag", data, valid=data, out=tmp_path / "run", steps=80, set=settings)
    loaded = load(tmp_path / "run", "cpu")
    text = "Anna lives in Sankt Gallen."
    if kind == "bert":
        assert model.ask(text) == "Anna/B-PER lives/O in/O Sankt/B-LOC Gallen/I-LOC ./O"
    texts = [" ".join(words) for words, _ in SENTENCES[3:20:4]]
    alone = [loaded.ask(one) for one in [text, *texts]]
    assert model.ask([text, *texts]) == alone
    assert "".join(loaded.stream(text)) == alone[0]
    assert loaded.ask([["U.S.", "a b"], [], ["Kim"]])[1:] == ["", alone_tag(loaded, "Kim")]
    scores = loaded.score(data)
    assert set(scores) == {"loss", "accuracy", "precision", "recall", "f1"}
    predicted = loaded.task.tags(loaded.model, [words for words, _ in SENTENCES])
    true = [tags for _, tags in SENTENCES]
    assert {k: scores[k] for k in ("precision", "recall", "f1")} == scoring.entity_f1(predicted, true)
    assert scores["accuracy"] == pytest.approx(scoring.accuracy([*chain(*predicted)], [*chain(*true)]))
    assert scores["f1"] > (0.95 if kind == "bert" else 0.8)
    more = loaded.score(data, details=True)
    assert scores.items() <= more.items()
    counts = {name: [*chain(*true)].count(name) for name in loaded.task.config.labels}
    assert {name: row["rows"] for name, row in more["classes"].items()} == counts
    right = sum(row[i] for i, row in enumerate(more["confusion"]))
    assert right / sum(counts.values()) == pytest.approx(scores["accuracy"])
    assert more["rows"] == len(SENTENCES)
    user_error(lambda: loaded.ask(text, num_return_sequences=2), "num_return_sequences=2")
    new = conll(tmp_path / "new.conll", [(["Kim", "runs"], ["B-ORG", "O"])])
    user_error(lambda: loaded.score(new), "sentence 1", "B-ORG")


def alone_tag(model, word):
    return f"{word}/{model.task.tags(model.model, [[word]])[0][0]}"


def test_from_a_model_that_fills_in(tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(words) for words, _ in SENTENCES))
    base = train("fill", str(tmp_path / "text.txt"), out=tmp_path / "fill", steps=2, set=SMALL)
    data = conll(tmp_path / "train.conll", SENTENCES)
    more = {"train.lr": 0.01, "train.warmup": 5}
    model = train("tag", data, valid=data, out=tmp_path / "a", base=tmp_path / "fill", steps=40, set=more)
    assert model.tokenizer.digest == base.tokenizer.digest
    assert model.score(data)["f1"] > 0.8
    further = train(
        "tag", data, valid=data, out=tmp_path / "b", base=tmp_path / "a", steps=1, set={"train.warmup": 5}
    )
    assert further.task.config == model.task.config
    # what takes no part is neither trained nor lost
    for name in ("pooler", "next", "transform"):
        a, b = (getattr(m, name).weight for m in (base.model, model.model.model))
        assert torch.equal(a, b)


def test_asking_leaves_a_model_as_it_was():
    task = task_of("wordpiece")
    model = tiny_model(task)
    assert model.training
    (answers,) = task.stream(model, Request(["Anna, Bonn", ""], Sampling()))
    assert model.training
    assert [word.rpartition("/")[0] for word in answers[0].split(" ")] == ["Anna", ",", "Bonn"]
    assert answers[1] == ""


def test_the_built_in_set_reads():
    here = [str(Path(regard.__file__).parent / "builtin" / name) for (name,) in Tag.builtin]
    corpus = Tag.read(
        DataRequest(here[:1], here[1:], DataConfig(tokenizer="bpe"), TagConfig(name="tag"), 128)
    )
    assert corpus.notes == []
    assert len(corpus.task_settings["labels"]) == 9
    assert [parse_tags(text) for text in corpus.valid.targets] == [tags for _, tags in read_tags(here[1:])]


def test_rare_tags_count_as_much_as_frequent_ones(tmp_path):
    """The weights follow from the data and are kept; evaluations are without them."""
    path = conll(tmp_path / "a.conll", SENTENCES)
    data, plain = DataConfig(holdout=0.0), TagConfig(name="tag")
    config = dataclasses.replace(plain, balanced=True)
    request = DataRequest([path], [], data, config, 31, [tokenizer("wordpiece")])
    corpus = Tag.read(request)
    names, weights = corpus.task_settings["labels"], np.array(corpus.task_settings["weights"])
    assert "weights" not in Tag.read(dataclasses.replace(request, config=plain)).task_settings
    tags = list(chain.from_iterable(tags for _, tags in SENTENCES))
    counts = np.array([tags.count(name) for name in names])
    assert weights * counts == pytest.approx(np.full(len(names), len(tags) / len(names)))
    settings = dataclasses.replace(config, labels=tuple(names), weights=tuple(weights.tolist()))
    balanced = Tag(settings, corpus.tokenizer, 31)
    model = tiny_model(balanced).eval()
    batch = balanced.collate(corpus.train, np.arange(7))
    ids, mask, labels = batch
    expected = F.cross_entropy(
        model(ids, mask).flatten(0, 1), labels.flatten(), torch.tensor(weights).float(), reduction="sum"
    )
    torch.testing.assert_close(balanced.loss(model, *batch), expected)
    unweighted = Tag(dataclasses.replace(settings, weights=None), corpus.tokenizer, 31)
    assert torch.equal(balanced.measure(model, *batch), unweighted.measure(model, *batch))
