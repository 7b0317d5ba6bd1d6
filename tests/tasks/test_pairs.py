"""Translation and chat: batches of pairs, losses, turns and scores."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from helpers.errors import user_error
from helpers.pairs import (
    BEAMS,
    CONTEXT,
    GREEDY,
    TEXTS,
    Echo,
    ask,
    build,
    chatter,
    every_pair,
    texts_of,
    tokenizer,
    translator,
    written,
)
from regard.data import PairConfig
from regard.decode.ensemble import Ensemble
from regard.runs.model import Model
from regard.tasks import Chat, ChatConfig, Translate, TranslateConfig, targets
from regard.tasks.loss import IGNORED
from regard.tasks.request import DataRequest, Request
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

# Batches and losses


def test_a_batch_by_hand():
    task = translator()
    a, b, c, d = task.tokenizer.encode("abcd")
    begin, end = task.tokenizer.id("<s>"), task.tokenizer.id("</s>")
    assert len({a, b, c, d, begin, end, 0}) == 7
    pairs = task.encode([(["ab"], "c"), (["cabd"], "dda"), (["a"], "bc")])
    source, attention_mask, target, following = task.collate(pairs, np.array([2, 0, 1]))
    assert source.tolist() == [[a, end, 0, 0, 0], [a, b, end, 0, 0], [c, a, b, d, end]]
    assert attention_mask.tolist() == [[True, True] + [False] * 3, [True] * 3 + [False] * 2, [True] * 5]
    no = IGNORED
    assert following.tolist() == [[b, c, end, no], [c, end, no, no], [d, d, a, end]]
    expected = [[begin, b, c, -1], [begin, c, -1, -1], [begin, d, d, a]]
    assert target.masked_fill(following == no, -1).tolist() == expected
    assert targets((source, attention_mask, target, following)) == 9
    assert task.batch_length((source, attention_mask, target, following)) == 3


def test_two_vocabularies_end_each_in_their_own_way():
    task = Translate(
        TranslateConfig(name="translate"),
        tokenizer("ab"),
        CONTEXT,
        train_tokenizer("char", ["xy"], 0, ["<unk>", "<eos>", "<pad>"]),
    )
    pairs = task.encode([(["ab"], "xy")])
    source, _, target, following = task.collate(pairs, np.array([0]))
    assert source[0, -1] == task.tokenizer.id("</s>") == 2
    assert following[0, -1] == task.output_tokenizer.id("<eos>") == 1
    assert target[0, 0] == task.output_tokenizer.id("<pad>") == 2  # there is no <s>
    mute = train_tokenizer("char", ["ab"], 0, [])
    user_error(lambda: Translate(TranslateConfig(name="translate"), mute, CONTEXT), "</s>")
    user_error(lambda: Translate(TranslateConfig(name="translate"), tokenizer(), CONTEXT, mute), "</s>")


def test_what_does_not_fit_is_cut():
    """Only in scoring: the end of a source and the beginning of a target are used."""
    task = translator(context=4)
    pairs = task.encode([(["abcdefgh"], "hgfedcba"), (["ab"], "c")])
    source, attention_mask, target, following = task.collate(pairs, np.array([0, 1]))
    assert source.shape == attention_mask.shape == target.shape == following.shape == (2, 4)
    assert task.tokenizer.decode(source[0, :3]) == "fgh"
    assert task.tokenizer.decode(following[0, :3]) == "hgf"
    assert source[0, 3] == following[0, 3] == task.end


@pytest.mark.parametrize("tokens", [1, 23, 10_000])
def test_in_order_every_pair_comes_once(tokens):
    task = translator()
    pairs = task.encode([([text or "a"], text[::-1] or "b") for text in TEXTS])
    read = []
    for source, attention_mask, _, following in task.evaluation_batches(pairs, tokens):
        for row, mask, target in zip(source, attention_mask, following, strict=True):
            assert row[mask][-1] == target[target != IGNORED][-1] == task.end
            read.append((task.tokenizer.decode(row[mask]), task.tokenizer.decode(target[target != IGNORED])))
    assert sorted(read) == sorted((text or "a", text[::-1] or "b") for text in TEXTS)


def test_training_is_by_rows_or_by_tokens():
    task = translator()
    pairs = task.encode([(["abcdefgh"[: 1 + n % 7]], "hgf"[: 1 + n % 3]) for n in range(50)])
    by_rows, by_tokens = task.samples(pairs, 3, 7, None), task.samples(pairs, 3, 7, 29)
    assert sorted(np.concatenate([by_rows.rows(step) for step in range(8)]).tolist()) == list(range(50))
    for step in range(20):
        assert len(by_rows.rows(step)) in (7, 50 % 7)
        source, _, target, _ = task.batch(by_tokens, by_tokens.rows(step))
        assert len(source) * max(source.shape[1], target.shape[1]) <= 29
    assert "batches an epoch" in by_rows.notes[0]


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("kind", ["transformer", "lstm"])
def test_the_loss_is_torchs(kind, separate):
    """With label smoothing in training, without it otherwise."""
    task = translator(smoothing=0.3, separate=separate)
    model = build(task, kind, **({"heads": 2} if kind == "transformer" else {}))
    pairs = task.encode([(["abc"], "zyx."), (["a"], "v w xy"), (["had a bag"], "x")])
    source, attention_mask, target, following = task.collate(pairs, np.arange(3))
    logits = model(source, target, attention_mask).flatten(0, 1).detach()
    for training, smoothing in ((True, 0.3), (False, 0.0)):
        model.train(training)
        options = {"ignore_index": IGNORED, "reduction": "sum", "label_smoothing": smoothing}
        expected = F.cross_entropy(logits, following.flatten(), **options)
        torch.testing.assert_close(task.loss(model, source, attention_mask, target, following), expected)
    metrics = task.metrics(float(expected), targets((following,)), pairs)
    assert metrics["loss"] == pytest.approx(float(expected) / (5 + 7 + 2))
    assert metrics["bits_per_byte"] == pytest.approx(float(expected) / np.log(2) / (4 + 6 + 1))


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_forcing_reaches_recurrent_models(kind):
    """At 0, the target is not read after its first token; in evaluation, it is always read."""
    task = translator(forcing=0.0)
    model = build(task, kind)
    source, attention_mask, target, following = task.collate(
        task.encode([(["abc"], "face")] * 3), np.arange(3)
    )
    other = torch.cat([target[:, :1], target[:, 1:].flip(1)], dim=1)

    def change(task):
        losses = [task.loss(model, source, attention_mask, words, following) for words in (target, other)]
        return abs(losses[0] - losses[1]).item()

    model.train()
    assert change(task) == 0
    assert change(translator(forcing=1.0)) > 0.1
    model.eval()
    assert change(task) > 0.1


def test_forcing_is_not_for_others(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\n" * 7)
    line = {"task.forcing": 0.5, "train.device": "cpu", "model.dim": 8, "model.heads": 2}
    call = lambda: train("translate", str(tmp_path / "a.tsv"), out=tmp_path / "out", steps=1, set=line)  # noqa: E731
    said = user_error(call, "task.forcing", "recurrent", "model.kind=gru")
    assert said.startswith("task.forcing is for recurrent models; ")
    assert not (tmp_path / "out").exists()
    task = translator(forcing=0.5)  # but a mixed ensemble may have such a task
    batch = task.collate(task.encode([(["abc"], "face")]), np.arange(1))
    models = [build(task, "gru"), build(task, "transformer", heads=2)]
    assert task.loss(Ensemble(models).eval(), *batch) > 0


def test_settings():
    for config, wrong in [
        (TranslateConfig, {"smoothing": -0.1}),
        (TranslateConfig, {"forcing": 1.1}),
        (TranslateConfig, {"longest": 0}),
        (ChatConfig, {"turns": 0}),
        (ChatConfig, {"smoothing": 2}),
    ]:
        ((name, value),) = wrong.items()
        with pytest.raises(ValueError, match=f"{name}={value} must be"):
            config(name="translate" if config is TranslateConfig else "chat", **wrong)


# Reading


PAIRS = [("abc"[: 1 + n % 3] * (1 + n % 5), "xyz"[n % 3 :] * (1 + n % 4)) for n in range(40)]
JOINT = PairConfig(tokenizer="char", ratio=0)
SEPARATE = replace(JOINT, target_tokenizer="char")


def test_one_vocabulary_or_two(tmp_path):
    path = written(tmp_path / "a.tsv", PAIRS)
    config = TranslateConfig(name="translate")
    joint = Translate.read(DataRequest([path], [], JOINT, config, CONTEXT))
    assert joint.target_tokenizer is None
    assert all(joint.tokenizer.id(letter) is not None for letter in "abcxyz")
    two = Translate.read(DataRequest([path], [], SEPARATE, config, CONTEXT))
    for side, mine, other in ((two.tokenizer, "abc", "xyz"), (two.target_tokenizer, "xyz", "abc")):
        assert all(side.id(letter) is not None for letter in mine)
        assert all(side.id(letter) is None for letter in other)
        assert [side.id(special) for special in Translate.specials] == [0, 1, 2]
    for corpus in (joint, two):
        assert len(corpus.train) + len(corpus.valid) == 40
        assert not set(corpus.train.sources) & set(corpus.valid.sources)
        assert corpus.notes == []
        own = [corpus.tokenizer, corpus.target_tokenizer or corpus.tokenizer]
        assert own[0].decode(corpus.train.source(3)) == corpus.train.sources[3]
        assert own[1].decode(corpus.train.target(3)) == corpus.train.targets[3]
        again = Translate.read(DataRequest([path], [], JOINT, config, CONTEXT, own[: 1 + (corpus is two)]))
        assert again.tokenizer is corpus.tokenizer
        assert again.target_tokenizer is corpus.target_tokenizer
        assert again.train.fingerprint() == corpus.train.fingerprint()


def test_held_out_data_that_are_given(tmp_path):
    paths = [written(tmp_path / name, rows) for name, rows in (("a.tsv", PAIRS), ("b.tsv", PAIRS[:3]))]
    corpus = Translate.read(
        DataRequest(paths[:1], paths[1:], JOINT, TranslateConfig(name="translate"), CONTEXT)
    )
    assert (len(corpus.train), len(corpus.valid)) == (40, 3)
    assert corpus.valid.targets == [target for _, target in PAIRS[:3]]
    nothing = Translate.read(
        DataRequest(paths[1:], [], replace(JOINT, holdout=0), TranslateConfig(name="translate"), CONTEXT)
    )
    assert (len(nothing.train), nothing.valid) == (3, None)


def test_what_was_dropped_is_reported(tmp_path):
    long = "a" * CONTEXT
    odd = [*PAIRS[:5], ("a", ""), (long, "x"), ("a", long), (long[1:], long[1:])]
    paths = [written(tmp_path / "a.tsv", odd), written(tmp_path / "b.tsv", [*PAIRS, (long, "x")])]
    config = TranslateConfig(name="translate")
    corpus = Translate.read(DataRequest(paths[:1], paths[1:], JOINT, config, CONTEXT))
    assert len(corpus.train) == 6
    assert len(corpus.valid) == 40
    first, second, third = corpus.notes
    assert first == "dropped 1 of 9 pairs: an empty side"
    assert second.startswith("dropped 2 of 9 pairs: longer than 18 tokens")
    assert third.startswith("held out: dropped 1 of 41 pairs: longer than 18 tokens")
    assert corpus.task_settings == {"longest": CONTEXT - 1}
    assert Translate.read(
        DataRequest(paths[:1], [], replace(JOINT, longest=7, holdout=0), config, CONTEXT)
    ).task_settings == {"longest": 4}
    task = Translate(config, corpus.tokenizer, CONTEXT)
    assert len(task.held_out(paths[:1])) == len(odd)  # to be answered all the same


def test_a_conversation_loses_its_oldest_words(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"turns": ["abc", "de", "fgh", "a"]}\n{"turns": ["had", "bag"]}\n')
    path, data = str(tmp_path / "a.jsonl"), replace(JOINT, holdout=0)
    for turns, expected in (
        (1, ["abc", "de", "fgh", "had"]),
        (2, ["abc", "abc|de", "de|fgh", "had"]),
        (5, ["abc", "abc|de", "abc|de|fgh", "had"]),
    ):
        corpus = Chat.read(DataRequest([path], [], data, ChatConfig(name="chat", turns=turns), 99))
        shown = ["".join(corpus.tokenizer.tokens(ids)) for ids in map(corpus.train.source, range(4))]
        assert [text.replace("<sep>", "|") for text in shown] == expected
        assert corpus.train.sources == [text.replace("|", "\n") for text in expected]
        assert corpus.train.targets == ["de", "fgh", "a", "bag"]
        assert corpus.task_settings == {}
    short = Chat.read(DataRequest([path], [], data, ChatConfig(name="chat", turns=5), 6))
    shown = ["".join(short.tokenizer.tokens(ids)) for ids in map(short.train.source, range(4))]
    assert shown == ["abc", "bc<sep>de", "e<sep>fgh", "had"]
    assert short.notes[0].startswith("cut 2 of 4 pairs: the last 5 tokens")


# Chat: turns


def heard(task, text):
    """The text that the model reads."""
    model = Echo(task)
    task.answers(model, Request([text], GREEDY))
    return ["".join(task.tokenizer.tokens(ids)) for ids in model.sources]


def test_several_lines_are_turns():
    text = "abc\n de \n\nfgh"
    assert heard(chatter(turns=1), text) == ["fgh</s>"]
    assert heard(chatter(turns=2), text) == ["de<sep>fgh</s>"]
    assert heard(chatter(turns=3), text) == heard(chatter(turns=9), text) == ["abc<sep>de<sep>fgh</s>"]
    assert heard(chatter(turns=3), "had") == ["had</s>"]
    assert heard(chatter(turns=3), "\n \n") == []
    assert texts_of(chatter().answers(Echo(chatter()), Request(["", "a", " \n"], GREEDY))) == ["", "a", ""]


def test_what_is_too_long_loses_its_oldest_words():
    task = chatter(context=7, turns=3)
    assert heard(task, "abc\nde\nfgh") == ["de<sep>fgh</s>"]
    assert heard(task, "abcdefgh" * 9) == ["cdefgh</s>"]


def test_a_turn_with_several_lines_is_one(tmp_path):
    """The input in training equals the input of a question."""
    (tmp_path / "a.jsonl").write_text('{"turns": ["ab\\ncd", "ef\\ngh", "a"]}\n')
    path = str(tmp_path / "a.jsonl")
    task = chatter(turns=2)
    pairs = task.held_out([path])
    assert pairs.sources == ["ab cd", "ab cd\nef gh"]
    assert pairs.targets == ["ef\ngh", "a"]
    read = [[*pairs.source(row).tolist(), task.end] for row in range(2)]
    model = Echo(task)
    task.answers(model, Request(pairs.sources, GREEDY))
    assert sorted(model.sources) == sorted(read)


@every_pair
def test_chat_batched_is_alone(kind, settings):
    task = chatter(turns=2)
    model = build(task, kind, **settings)
    texts = ["abc\nde", "a", "", "bad cab\nface a bed\nhedge had", "d" * 50]
    for sampling in (GREEDY, BEAMS):
        together = texts_of(task.answers(model, Request(texts, sampling)))
        assert together == [texts_of(task.answers(model, Request([text], sampling)))[0] for text in texts]
        assert together == ask(task, model, texts, sampling)


# Scoring and showing


@pytest.mark.parametrize("cls", [Translate, Chat])
@pytest.mark.parametrize("kind", ["transformer", "gru"])
def test_sources_longer_than_the_context_are_scored(tmp_path, cls, kind):
    task = translator() if cls is Translate else chatter(turns=2)
    settings = {"heads": 2} if kind == "transformer" else {}
    model = Model(build(task, kind, **settings), task, task.generation | {"max_new_tokens": 5})
    path = written(tmp_path / "a.tsv", [("a bed. " * 19, "cab"), ("a", "face " * 19), ("", "a"), ("b", "")])
    scores = model.score(path)
    assert scores["loss"] > 0
    assert 0 <= scores["bleu"] <= 100
    assert ("distinct_1" in scores) == (cls is Chat)
    count = sum(targets(batch) for batch in task.evaluation_batches(task.held_out([path]), 100))
    assert count == 4 + CONTEXT + 2 + 1
    user_error(lambda: model.score(path, num_return_sequences=2), "num_return_sequences=2", "one answer")
    user_error(lambda: model.score(path, num_beam=2), "num_beam", "num_beams?")


def test_an_echo_scores_perfectly(tmp_path):
    task = translator()

    class Sure(Echo):
        def hidden(self, source, target, attention_mask):
            logits = torch.zeros(*target.shape, task.tokenizer.vocab)
            logits.scatter_(2, source[:, : target.shape[1], None], 50.0)
            return logits

        output = output_bias = None

    pairs = [("bad cab", "bad cab"), ("a face had beg", "a face had beg"), ("hedge had a", "hedge had a")]
    scores = Model(Sure(task).eval(), task, {"temperature": 0}).score(written(tmp_path / "a.tsv", pairs))
    assert scores["loss"] == pytest.approx(0, abs=1e-6)
    assert scores["exact"] == 1
    assert scores["bleu"] == pytest.approx(100)
    assert scores["chrf"] == pytest.approx(100)
    assert scores["ter"] == 0
    assert "nrefs:1" in scores["signature"]


def test_a_sample_shows_sources_and_answers():
    task = translator()
    pairs = task.encode([([text], "a") for text in ("bad", "cab", "face", "hedge")])
    assert task.preview(Echo(task).train(), pairs, 0) == "bad\n  → bad\ncab\n  → cab\nface\n  → face"
