"""Masked words and sentence pairs: batches, losses, answers and training."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import BertConfig as TheirConfig
from transformers import BertForPreTraining

from helpers.berts import bert_weights
from helpers.errors import user_error
from helpers.filling import CONTEXT, DOCUMENTS, TEXT, build, documents, filler, random_generator, within
from regard.data import DataConfig, Stream
from regard.data.passages import encode_passages
from regard.decode.sampling import Sampling, sample_tokens
from regard.models import Electra
from regard.runs.load import load
from regard.tasks import Fill, FillConfig, idle, targets
from regard.tasks.fill import BEST, REPLACED_WEIGHT, SPECIALS, put_in
from regard.tasks.loss import IGNORED
from regard.tasks.request import DataRequest, Request
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

pytestmark = pytest.mark.usefixtures("quick")

GREEDY = Sampling()


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("wordpiece", [TEXT], 200, SPECIALS)


@pytest.fixture
def task(tokenizer):
    return filler(tokenizer)


@pytest.fixture
def data(task):
    return encode_passages(DOCUMENTS, task.tokenizer, CONTEXT - 3)


def test_what_is_hidden_is_drawn_anew_every_epoch(task, data):
    samples = task.samples(data, 5, 4, None)
    count = len(data)
    epochs = [np.arange(count) + epoch * count for epoch in (0, 1)]
    orders = [samples.at(rows).tolist() for rows in epochs]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(count))
    places = [
        task.batch(samples, rows)[4][np.argsort(order)] for rows, order in zip(epochs, orders, strict=True)
    ]
    assert (places[0] != places[1]).any(1).float().mean() > 0.8


# Pairs of texts


def test_half_of_the_pairs_follow(tokenizer):
    """0 is yes, as in Hugging Face's models; what does not follow is from another document."""
    task = filler(tokenizer)
    draw = np.random.default_rng(0)
    data = documents(task, *(draw.integers(3, 12, draw.integers(2, 30)).tolist() for _ in range(59)))
    follow = full = 0
    lengths = {0: [], 1: []}
    many = [n for n, (first, stop) in enumerate(data.cuts.tolist()) if stop - first > 1]
    assert len(many) > 100
    pairs = 4000
    for n in range(pairs):
        at = many[n % len(many)]
        ids, second, label = task.two(data, at, random_generator(7, n))
        a, b = ids[1 : second - 1], ids[second:-1]
        assert ids == [task.first, *a, task.end, *b, task.end]
        assert len(ids) <= CONTEXT
        assert a
        assert b
        assert len(set(a)) == len(set(b)) == 1
        assert (label == 0) == (a[0] == b[0])
        first, stop = data.cuts[at].tolist()
        ends = (data.ids.offsets[first + 1 : stop] - data.ids.offsets[first]).tolist()
        assert len(a) in ends  # whole sentences
        if label == 0:
            assert a + b == data.sentence_ids(first, stop).tolist()
            follow += 1
        lengths[label].append(len(ids))
        full += len(ids) == CONTEXT
    assert within(follow, pairs, 0.5)
    # a length that gives the answer away would leave nothing to learn
    assert np.mean(lengths[0]) == pytest.approx(np.mean(lengths[1]), rel=0.1)
    shares = [np.mean(np.array(lengths[label]) == CONTEXT) for label in (0, 1)]
    assert shares[1] < shares[0] + 0.2
    assert full > 0


def test_a_passage_of_one_sentence_is_followed_by_another_document(tokenizer):
    task = filler(tokenizer)
    room = CONTEXT - 3
    data = documents(task, [5], [room], [200], [1, 1], [300, 2])
    for at, (first, stop) in enumerate(data.cuts.tolist()):
        for n in range(40):
            ids, second, label = task.two(data, at, random_generator(at, n))
            a, b = ids[1 : second - 1], ids[second:-1]
            assert len(ids) <= CONTEXT
            assert 0 < len(a) <= len(data.sentence_ids(first, stop))
            assert len(b) > 0
            if stop - first == 1:
                assert label == 1
                assert a[0] != b[0]
            if stop - first == 1 and len(a) < len(data.sentence_ids(first, stop)):
                assert len(ids) == CONTEXT  # cut because there is no room
                assert len(a) >= room - room // 2


def test_a_batch_of_pairs(task, data):
    samples = task.samples(data, 5, 8, None)
    ids, attention_mask, segments, label, places, following = task.batch(samples, samples.rows(2))
    assert ids.shape == attention_mask.shape == segments.shape == (8, CONTEXT)
    assert set(label.tolist()) == {0, 1}
    for b in range(8):
        n = int(attention_mask[b].sum())
        assert attention_mask[b, :n].all()
        assert (ids[b, n:] == task.pad).all()
        hidden = following[b] != IGNORED
        text = ids[b].scatter(0, places[b][hidden], following[b][hidden])[:n].tolist()
        ends = [i for i, id in enumerate(text) if id == task.end]
        assert len(ends) == 2
        assert text[0] == task.first
        assert ends[1] == n - 1
        assert segments[b].tolist() == [0] * (ends[0] + 1) + [1] * (n - 1 - ends[0]) + [0] * (CONTEXT - n)
        assert len(set(places[b][hidden].tolist())) == int(hidden.sum()) == max(1, round(0.15 * (n - 3)))
    assert targets((following,)) == int((following != IGNORED).sum()) > 8


@pytest.mark.parametrize("following", [True, False])
def test_a_step_has_its_batch_at_any_time(tokenizer, following):
    task = filler(tokenizer, next=following)
    text = Stream([np.array(tokenizer.encode(TEXT))], len(TEXT))
    data = encode_passages(DOCUMENTS, tokenizer, CONTEXT - 3) if following else text
    rows = task.samples(data, 5, 3, None).rows(7)
    one = task.batch(task.samples(data, 5, 3, None), rows)
    again = task.batch(task.samples(data, 5, 3, None), rows[1:])
    assert all(torch.equal(a[1:], b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], task.batch(task.samples(data, 6, 3, None), rows)[0])
    assert {len(task.samples(data, 5, 3, 5 * CONTEXT + 3).rows(step)) for step in range(9)} == {5}
    assert {
        tuple(t.shape for t in task.batch(task.samples(data, 5, 3, None), rows + i)) for i in range(9)
    } == {((3, CONTEXT),) * 3 + ((3,), (3, task.masker.limit), (3, task.masker.limit))}  # steady


@pytest.mark.parametrize("following", [True, False])
def test_everything_is_measured_once_and_always_alike(tokenizer, following):
    task = filler(tokenizer, next=following)
    text = Stream([np.array(tokenizer.encode(TEXT))], len(TEXT))
    data = encode_passages(DOCUMENTS, tokenizer, CONTEXT - 3) if following else text
    batches, again = (list(task.evaluation_batches(data, n * CONTEXT + 1)) for n in (1, 5))
    assert {len(batch[0]) for batch in batches} == {1}
    assert len(again[0][0]) == 5
    for a, b in zip(zip(*batches, strict=True), zip(*again, strict=True), strict=True):
        assert torch.equal(torch.cat(a), torch.cat(b))
    assert sum(map(task.batch_length, again)) == sum(map(task.batch_length, batches)) == len(data)
    if not following:
        ids, attention_mask, _, _, places, labels = (torch.cat(part) for part in zip(*again, strict=True))
        labels = torch.where(labels == IGNORED, ids.gather(1, places), labels)
        ids = ids.scatter(1, places, labels)
        assert (
            ids[attention_mask & (ids != task.first) & (ids != task.end)].tolist()
            == text.read(0, len(text)).tolist()
        )


# The loss


def read_and_wanted(task, data, rows=7):
    samples = task.samples(data, 5, rows, None)
    return task.batch(samples, samples.rows(0))


def test_the_loss_is_torchs(task, data):
    model = build(task)
    batch = read_and_wanted(task, data)
    ids, attention_mask, segments, label, places, following = batch
    labels = torch.full_like(ids, IGNORED)
    for b in range(len(ids)):
        hidden = following[b] != IGNORED
        labels[b, places[b][hidden]] = following[b][hidden]
    logits = model(ids, attention_mask, segments)
    words = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    follows = F.cross_entropy(
        model.next_sentence(model.encode(ids, attention_mask, segments)), label, reduction="sum"
    )
    assert_close(task.loss(model, *batch), words + task.masker.limit * follows)
    sums = task.measure(model, *batch).tolist()
    right = (logits.argmax(-1) == labels).sum().item()
    agreed = (
        (model.next_sentence(model.encode(ids, attention_mask, segments)).argmax(-1) == label).sum().item()
    )
    expected = [(words + task.masker.limit * follows).item(), words.item(), follows.item(), right, agreed, 7]
    assert sums == pytest.approx(expected, rel=1e-5)
    metrics = task.metrics(sums[0], targets(batch), data, *sums[1:])
    count = targets(batch)
    assert metrics == pytest.approx(
        {
            "loss": expected[0] / count, "words_loss": words.item() / count, "words_accuracy": right / count,
            "next_loss": follows.item() / 7, "next_accuracy": agreed / 7,
        },
        rel=1e-5,
    )  # fmt: skip


def test_the_loss_is_hugging_faces(task, data):
    """Theirs adds the two means; ours weighs the second by the number of masked words of a full text."""
    sizes = {"vocab_size": task.tokenizer.vocab, "hidden_size": 12, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 3, "intermediate_size": 48, "max_position_embeddings": CONTEXT}
    theirs = BertForPreTraining(TheirConfig(**sizes)).eval()
    ours = build(task)
    ours.load_state_dict(bert_weights(theirs.state_dict(), ours))
    batch = read_and_wanted(task, data)
    ids, attention_mask, segments, label, places, following = batch
    labels = torch.full((7, CONTEXT), IGNORED)
    for b, hidden in enumerate(following != IGNORED):
        labels[b, places[b][hidden]] = following[b][hidden]
    with torch.no_grad():
        y = theirs(ids, attention_mask.long(), segments, labels=labels, next_sentence_label=label)
        _, words, follows, *_ = task.measure(ours, *batch)
        assert words.item() / targets(batch) + follows.item() / 7 == pytest.approx(y.loss.item(), rel=1e-5)
        assert task.loss(ours, *batch).item() == pytest.approx(
            (words + task.masker.limit * follows).item(), rel=1e-5
        )


@pytest.mark.parametrize("following", [True, False])
def test_an_idle_batch_counts_for_nothing(tokenizer, following):
    task = filler(tokenizer, next=following)
    model = build(task, segments=2 if following else 0).train()
    text = Stream([np.array(tokenizer.encode(TEXT))], len(TEXT))
    batch = read_and_wanted(task, encode_passages(DOCUMENTS, tokenizer, CONTEXT - 3) if following else text)
    nothing = idle(batch)
    assert targets(nothing) == 0
    loss = task.loss(model, *nothing)
    loss.backward()
    assert loss == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    assert not task.measure(model, *nothing).any()
    task.loss(model, *batch).backward()
    grads = {name for name, p in model.named_parameters() if p.grad.any()}
    assert ("next.weight" in grads) == following


# Replaced words


def replaced(tokenizer, data, **settings):
    """A task, its model, a batch, the original texts and those with the generator's words."""
    task = filler(tokenizer, replaced=True, **settings)
    model, batch = build(task), read_and_wanted(task, data)
    ids, attention_mask, segments, _, places, throws, following = batch
    written, shown = ids.clone(), ids.clone()
    logits = model(ids, attention_mask, segments)
    for b in range(len(ids)):
        for m in range(task.masker.limit):
            if following[b, m] != IGNORED:
                written[b, places[b, m]] = following[b, m]
                shown[b, places[b, m]] = sample_tokens(
                    logits[b, places[b, m]][None], throws[b, m][None, None]
                )
    return task, model, batch, written, shown


def test_the_loss_of_replaced_words(tokenizer, data):
    """It is over all words; where the generator predicts the original word, it is not replaced."""
    task, model, batch, written, shown = replaced(tokenizer, data)
    ids, attention_mask, segments, label, places, _, following = batch
    assert isinstance(model, Electra)
    x = model.model.encode(shown, attention_mask, segments)
    wrong = F.binary_cross_entropy_with_logits(
        model.detect(x)[attention_mask], (shown != written)[attention_mask].float(), reduction="sum"
    )
    picked = model(ids, attention_mask, segments)[torch.arange(7)[:, None], places]
    words = F.cross_entropy(picked.flatten(0, 1), following.flatten(), reduction="sum")
    follows = F.cross_entropy(model.model.next_sentence(x), label, reduction="sum")
    loss = words + task.masker.limit * follows + REPLACED_WEIGHT * 0.15 * wrong
    assert_close(task.loss(model, *batch), loss)
    sums = task.measure(model, *batch).tolist()
    right = ((model.detect(x) > 0) == (shown != written))[attention_mask].sum()
    assert sums[:3] == pytest.approx([loss.item(), words.item(), follows.item()], rel=1e-5)
    assert sums[-3:] == pytest.approx([wrong.item(), right.item(), attention_mask.sum().item()], rel=1e-5)
    metrics = task.metrics(sums[0], targets(batch), data, *sums[1:])
    assert metrics["replaced_accuracy"] == pytest.approx(right.item() / attention_mask.sum().item())
    assert metrics["replaced_loss"] == pytest.approx(wrong.item() / attention_mask.sum().item(), rel=1e-5)


def test_replaced_words_do_not_depend_on_company(tokenizer, data):
    """Replacements in a row depend on that row only: with one process or two, at once or in parts."""
    task, model, batch, *_ = replaced(tokenizer, data)
    measured = task.measure(model, *batch)
    parts = [task.measure(model, *(t[i : i + 1] for t in batch)) for i in range(7)]
    assert_close(torch.stack(parts).sum(0), measured)


def test_put_in():
    ids = torch.tensor([[2, 4, 4, 4, 3], [2, 4, 4, 3, 0]])
    places = torch.tensor([[1, 3, 0], [2, 0, 0]])
    counts = torch.tensor([[True, True, False], [True, False, False]])
    words = torch.tensor([[7, 8, 9], [6, 9, 9]])
    assert put_in(ids, places, words, counts).tolist() == [[2, 7, 4, 8, 3], [2, 4, 6, 3, 0]]


def test_an_idle_batch_replaces_nothing(tokenizer, data):
    task, model, batch, *_ = replaced(tokenizer, data)
    loss = task.loss(model.train(), *idle(batch))
    loss.backward()
    assert loss == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    assert not task.measure(model, *idle(batch)).any()
    task.loss(model, *batch).backward()
    assert all(p.grad.any() for p in model.parameters())


# Reading


def written(path, text):
    path.write_text(text)
    return str(path)


def test_reading(tmp_path):
    path = written(tmp_path / "a.txt", TEXT)
    data, config = DataConfig(tokenizer="wordpiece", vocab=200), FillConfig(name="fill")
    corpus = Fill.read(DataRequest([path], [], data, config, CONTEXT))
    assert len(corpus.train.firsts) - 1 == 28
    assert len(corpus.valid.firsts) - 1 == 3
    assert all(corpus.tokenizer.id(name) is not None for name in SPECIALS)
    assert max(len(corpus.train.sentence_ids(*cut)) for cut in corpus.train.cuts.tolist()) <= CONTEXT - 3
    again = Fill.read(DataRequest([path], [path], data, config, CONTEXT, [corpus.tokenizer]))
    assert again.tokenizer is corpus.tokenizer
    assert again.train.fingerprint() == again.valid.fingerprint()
    packed = Fill.read(DataRequest([path], [], data, FillConfig(name="fill", next=False), CONTEXT))
    assert isinstance(packed.train, Stream)
    task = Fill(config, corpus.tokenizer, CONTEXT)
    assert task.held_out([path]).fingerprint() == again.train.fingerprint()


def test_one_document_is_not_enough(tmp_path, task):
    one, many = written(tmp_path / "one.txt", DOCUMENTS[4]), written(tmp_path / "many.txt", TEXT)
    data, config = DataConfig(tokenizer="wordpiece"), FillConfig(name="fill")
    user_error(
        lambda: Fill.read(DataRequest([one], [], data, config, CONTEXT)),
        one,
        "one document",
        "task.next=false",
    )
    user_error(lambda: Fill.read(DataRequest([many], [one], data, config, CONTEXT)), one, "one document")
    user_error(lambda: task.held_out([one]), one, "one document")
    assert Fill.read(DataRequest([one], [], data, FillConfig(name="fill", next=False), CONTEXT)).train


def test_settings_that_make_no_sense(tokenizer):
    for hidden in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match="hidden"):
            FillConfig(name="fill", hidden=hidden)
    other = train_tokenizer("char", ["abc"], 9, ["[PAD]", "[CLS]"])
    user_error(lambda: filler(other), "[MASK]", "tokenizer")


# Asking


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_blanks(kind):
    words = train_tokenizer(kind, [TEXT], 400, SPECIALS)
    task = filler(words, 20)
    model = build(task)
    read = []

    def note(model, read_texts, count):
        read.extend(read_texts)
        return Fill._likeliest(task, model, read_texts, count)

    task._likeliest = note
    questions = ["The ___ fox saw 3 [MASK].", "The fox __", "[MASK] fox"]
    answers = task.answers(model, Request(questions, GREEDY))
    fox = words.encode(" fox")
    assert read == [
        [task.first, *words.encode("The"), task.mask, *words.encode(" fox saw 3"), task.mask,
         *words.encode("."), task.end],
        [task.first, *words.encode("The"), *fox, task.mask, task.end],
        [task.first, task.mask, *fox, task.end],
    ]  # fmt: skip
    for question, (answer,), ids in zip(questions, answers, read[:3], strict=True):
        blanks = answer.text.split("; ")
        assert len(blanks) == ids.count(task.mask)
        assert task.answers(model, Request([question], GREEDY)) == [[answer]]  # alone as with others
        probs = model(torch.tensor([ids]))[0].softmax(-1)
        for blank, at in zip(blanks, [i for i, id in enumerate(ids) if id == task.mask], strict=True):
            best = probs[at].topk(BEST)
            tokens = [words.tokens([i])[0].strip() for i in best.indices.tolist()]
            expected = [f"{word} {p:.2f}" for word, p in zip(tokens, best.values.tolist(), strict=True)]
            assert blank == ", ".join(expected)
    two = Request(questions, GREEDY, (), 2)
    assert list(task.stream(model, two)) == [[a.text for pair in task.answers(model, two) for a in pair]]
    assert all(a != b and a.score >= b.score for a, b in task.answers(model, two))
    assert task.answers(model, Request([], GREEDY)) == []
    user_error(lambda: task.answers(model, Request(["The fox"], GREEDY)), "[MASK]", "___")
    full = "The" + " fox" * 16 + " ___"
    assert len(task.answers(model, Request([full], GREEDY))) == 1
    longer = full.replace("The", "The fox")
    user_error(lambda: task.answers(model, Request([longer], GREEDY)), "21 tokens", "context of 20")


def test_a_sample_is_a_sentence_with_a_blank(task, data):
    model = build(task).train()
    shown, answer = task.preview(model, data, 0).split("\n  → ")
    before, after = shown.split(" ___ ")
    assert DOCUMENTS[0].lower().startswith(before)
    assert answer.count(", ") == BEST - 1
    assert after
    assert model.training
    long = documents(task, [500], [3])
    assert "___" in task.preview(model, long, 0)
    packed = filler(task.tokenizer, next=False)
    assert "___" in packed.preview(model, Stream([np.array(task.tokenizer.encode(TEXT))], 0), 0)


# Whole runs

SETTINGS = {
    "model.dim": 32, "model.depth": 1, "model.heads": 2, "model.context": CONTEXT, "model.dropout": 0.0,
    "train.batch": 16, "train.log": 10, "train.lr": 0.01, "train.warmup": 5, "train.evaluate": 100,
    "train.device": "cpu", "data.vocab": 200,
}  # fmt: skip


@pytest.mark.parametrize(
    "following", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["bert", "roberta"]
)
def test_it_learns(tmp_path, following):
    path = written(tmp_path / "a.txt", TEXT)
    roberta = {"task.next": False, "model.segments": 0, "data.tokenizer": "bpe", "data.vocab": 400}
    more = {"task.next": True} if following else roberta | {"model.positions": "relative"}  # begin anywhere
    model = train("fill", path, out=tmp_path / "out", steps=200 if following else 300, set=SETTINGS | more)
    assert model.kind == "bert"
    rows = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    names = {"loss", "words_loss", "words_accuracy"} | (
        {"next_loss", "next_accuracy"} if following else set()
    )
    last = [row for row in rows if "valid_loss" in row][-1]
    assert set(last) - {"best"} == {"step"} | {f"valid_{name}" for name in names}
    assert last["valid_words_accuracy"] > 0.5
    scores = model.score(path)
    assert set(scores) == names
    assert scores["words_accuracy"] > 0.5
    assert scores["words_loss"] < 1.5
    if following:
        assert scores["next_accuracy"] > 0.5
        weight = model.task.masker.limit * scores["next_loss"]
        assert scores["loss"] > scores["words_loss"]
        assert scores["loss"] <= scores["words_loss"] + weight
    else:
        assert scores["loss"] == scores["words_loss"]
    best = model.ask("The red fox saw 3 grey ___ near the wide river.")
    assert best.startswith("geese ")
    assert load(tmp_path / "out").ask("The red ___ saw 3 grey geese.") == model.ask(
        "The red ___ saw 3 grey geese."
    )
    probabilities = [float(word.split()[-1]) for word in best.split(", ")]
    assert all(a >= b for a, b in pairwise(probabilities))
    assert "".join(model.stream("The ___ fox")) == model.ask("The ___ fox")


def test_it_learns_to_tell_replaced_words(tmp_path):
    path = written(tmp_path / "a.txt", TEXT)
    electra = {"task.replaced": True, "task.next": False, "model.positions": "relative", "model.depth": 2}
    electra |= {"train.lr": 0.02}
    model = train("fill", path, out=tmp_path / "out", steps=300, set=SETTINGS | electra)
    scores = model.score(path)
    assert set(scores) == {"loss", "words_loss", "words_accuracy", "replaced_loss", "replaced_accuracy"}
    assert scores["replaced_accuracy"] > 0.92
    assert model.ask("The red fox saw 3 grey ___ near the wide river.").startswith("geese ")
    odd = model.ask("The red fox saw 3 grey geese geese the wide river.")
    assert odd.startswith("geese ")
    assert len(odd.split(", ")) == BEST
    classify = train(
        "classify", out=tmp_path / "head", base=tmp_path / "out", steps=1, set={"train.device": "cpu"}
    )
    trained, before = classify.model.model.state_dict(), load(tmp_path / "out").model.model
    assert trained.keys() == before.state_dict().keys()  # without the generator
