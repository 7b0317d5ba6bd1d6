"""Translation and chat: batches of pairs, losses and answers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers.errors import user_error
from regard.data import PairConfig
from regard.decode.beam import beam_search
from regard.decode.ensemble import Ensemble
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.models import MODELS
from regard.runs.model import Model
from regard.tasks import Chat, ChatConfig, Translate, TranslateConfig, targets
from regard.tasks import source as source_module
from regard.tasks.loss import IGNORED
from regard.tasks.request import DataRequest, Request
from regard.text.sentences import split_sentences
from regard.text.tokenizer import train_tokenizer
from regard.training.build import train

LETTERS = "abcdefgh .\n"
CONTEXT = 19
TEXTS = ["a", "bad cab", "", "face a bed", "hedge", "a", "   ", "each bag had a beg"]
GREEDY = Sampling(max_new_tokens=11, temperature=0)
SAMPLED = Sampling(max_new_tokens=11, temperature=3.0, top_k=13, top_p=0.97, seed=7)
FUSSY = Sampling(max_new_tokens=11, repetition_penalty=1.4, no_repeat_ngram_size=2, seed=3)
BEAMS = Sampling(max_new_tokens=7, num_beams=3, length_penalty=0.6)

SIZES = {"context": CONTEXT, "dim": 8, "depth": 1, "dropout": 0.0, "tied": False}
CASES = [
    ("transformer", {"heads": 2}),
    ("transformer", {"heads": 2, "positions": "rotary", "pre": True, "kv_heads": 1}),
    ("transformer", {"heads": 2, "positions": "relative", "decoder_depth": 2}),
    *(
        (cell, {"attention": attention})
        for cell in ("rnn", "gru", "lstm")
        for attention in ("none", "additive", "dot", "general")
    ),
    ("lstm", {"attention": "dot", "bidirectional": False, "depth": 2, "tied": True}),
]
every_pair = pytest.mark.parametrize(
    ("kind", "settings"), CASES, ids=["-".join([kind, *map(str, s.values())]) for kind, s in CASES]
)


def tokenizer(letters=LETTERS, cls=Translate):
    return train_tokenizer("char", [letters], 0, cls.specials)


def translator(context=CONTEXT, separate=False, **settings):
    other = [tokenizer("vwxyz .")] if separate else []
    return Translate(TranslateConfig(name="translate", **settings), tokenizer(), context, *other)


def chatter(context=CONTEXT, turns=1):
    return Chat(ChatConfig(name="chat", turns=turns), tokenizer(cls=Chat), context)


def build(task, kind="gru", **settings):
    """A model in double precision, with weights so large that its first token depends on the source."""
    cls, config, _ = MODELS[kind]
    other = task.target_tokenizer
    settings = SIZES | {"context": task.context} | settings
    model = cls(config(vocab=task.tokenizer.vocab, target_vocab=other and other.vocab, **settings))
    model = model.double().eval()
    sources = torch.randint(4, task.tokenizer.vocab, (13, 5))
    for _ in range(500):
        for weight in model.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight)
        first = model(sources, torch.full((13, 1), task.begin)).argmax(-1)
        if len(first.unique()) > 3 and task.end not in first:
            return model
    raise AssertionError("none of these looks at its source")


def ask(task, model, texts, sampling, **options):
    """The joined pieces of a stream."""
    return [
        "".join(row) for row in zip(*task.stream(model, Request(texts, sampling, **options)), strict=True)
    ]


def texts_of(answers):
    return [answer.text for several in answers for answer in several]


class Echo(nn.Module):
    """A "model" that repeats its source, or gives `said` instead."""

    def __init__(self, task, said=None):
        super().__init__()
        self.config, self.task, self.said = SimpleNamespace(context=task.context), task, said
        self.weight = nn.Parameter(torch.zeros(1))
        self.sources = []  # all that was read

    def start(self, source, prompt, attention_mask=None):
        attention_mask = (
            torch.ones_like(source, dtype=torch.bool) if attention_mask is None else attention_mask
        )
        rows = [row[mask].tolist() for row, mask in zip(source, attention_mask, strict=True)]
        self.sources += rows
        return self._next(state := Rows(rows, prompt.shape[1])), state

    def step(self, ids, state):
        state.length += 1
        return self._next(state), state

    def _next(self, state):
        said = [row if self.said is None else [*self.said, self.task.end] for row in state.rows]
        ids = torch.tensor([row[min(state.length, len(row)) - 1] for row in said])
        return 50.0 * F.one_hot(ids, self.task.output_tokenizer.vocab)


class Rows:
    def __init__(self, rows, length):
        self.rows, self.length = rows, length

    def reorder(self, rows):
        self.rows = [self.rows[i] for i in rows.tolist()]


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


def written(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return str(path)


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
        assert len(corpus.train) == 36
        assert len(corpus.valid) == 4
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


def test_what_was_dropped_is_told(tmp_path):
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


# Answers


@every_pair
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, FUSSY], ids=["greedy", "sampled", "fussy"])
def test_batched_is_alone_cached_is_uncached_streamed_is_whole(kind, settings, sampling):
    task = translator(separate=kind == "gru")
    model = build(task, kind, **settings)
    texts = [text for text in TEXTS if text.strip()]
    together = ask(task, model, texts, sampling)
    assert together == ask(task, model, texts, sampling, cached=False)
    assert together == texts_of(task.answers(model, Request(texts, sampling)))
    assert together == [ask(task, model, [text], sampling)[0] for text in texts]
    assert together == [task.answers(model, Request([text], sampling))[0][0].text for text in texts]
    assert together[0] == together[texts.index("a", 1)]
    assert len(set(together)) > 1
    with_blank = texts_of(task.answers(model, Request(TEXTS, sampling)))
    assert [answer for answer, text in zip(with_blank, TEXTS, strict=True) if text.strip()] == together
    assert ask(task, model, TEXTS, sampling) == with_blank


@every_pair
def test_beams_batched_are_alone(kind, settings):
    task = translator()
    model = build(task, kind, **settings)
    together = task.answers(model, Request(TEXTS, BEAMS, samples=2))
    for text, answers in zip(TEXTS, together, strict=True):
        (alone,) = task.answers(model, Request([text], BEAMS, samples=2))
        assert [answer.text for answer in answers] == [answer.text for answer in alone]
        if text.strip():
            assert [a.score for a in answers] == pytest.approx([a.score for a in alone], abs=1e-6)
    assert ask(task, model, TEXTS, BEAMS, samples=2) == texts_of(together)


def test_groups_do_not_change_answers(monkeypatch):
    task = translator()
    model = build(task, "transformer", heads=2)
    expected = [task.answers(model, Request(TEXTS, sampling, samples=2)) for sampling in (SAMPLED, BEAMS)]
    monkeypatch.setattr(source_module, "TOKENS_AT_ONCE", 60)
    assert texts_of(task.answers(model, Request(TEXTS, SAMPLED, samples=2))) == texts_of(expected[0])
    assert texts_of(task.answers(model, Request(TEXTS, BEAMS, samples=2))) == texts_of(expected[1])
    sizes = [len(group) for group in source_module.group_by_length([3, 50, 2, 7, 200, 5, 4], 2)]
    assert sizes == [1, 1, 4, 1]
    groups = list(source_module.group_by_length([3, 50, 2, 7, 200, 5, 4], 2))
    assert groups == [[4], [1], [3, 5, 6, 0], [2]]


def test_many_texts_keep_their_order():
    """Also if they are not in the order of their lengths."""
    task = translator()
    draw = np.random.default_rng(0)
    texts = ["".join(draw.choice([*"abcdefgh"], draw.integers(0, CONTEXT))) for _ in range(997)]
    assert texts_of(task.answers(Echo(task), Request(texts, GREEDY_LONG))) == texts
    assert (
        texts_of(task.answers(Echo(task), Request(texts[:97], replace(GREEDY_LONG, num_beams=2))))
        == texts[:97]
    )


GREEDY_LONG = replace(GREEDY, max_new_tokens=50)


def test_seeds_and_samples():
    task = translator()
    model = build(task)
    texts = ["a", "bad cab"]
    several = task.answers(model, Request(texts, SAMPLED, samples=5))
    assert several == task.answers(model, Request(texts, SAMPLED, samples=5))
    assert [len(answers) for answers in several] == [5, 5]
    assert len({answer.text for answer in several[0]}) > 2
    assert ask(task, model, texts, SAMPLED, samples=5) == texts_of(several)
    assert [answers[0].text for answers in several] == ask(task, model, texts, SAMPLED)
    assert several != task.answers(model, Request(texts, replace(SAMPLED, seed=8), samples=5))
    assert several[1] == task.answers(model, Request(texts[1:], SAMPLED, samples=5))[0]
    assert all(answer.score is None for answer in several[0])


def test_the_best_answers_come_first_with_their_scores():
    """As beam search finds them, with the scores of a full forward pass."""
    task = translator()
    model = build(task, "transformer", heads=2)
    (answers,) = task.answers(model, Request(["bad cab"], replace(BEAMS, num_beams=4), samples=3))
    source = torch.tensor([[*task.tokenizer.encode("bad cab"), task.end]])
    options = {"beams": 4, "end": task.end, "max_new_tokens": 7, "length_penalty": 0.6}
    start = model.start(source, torch.tensor([[task.begin]]))
    (hypotheses,) = beam_search(model.step, *start, **options)
    assert [a.text for a in answers] == [task.tokenizer.decode(h.tokens) for h in hypotheses[:3]]
    assert [a.score for a in answers] == pytest.approx([h.score for h in hypotheses[:3]])
    assert sorted((a.score for a in answers), reverse=True) == [a.score for a in answers]
    for h in hypotheses:
        ids = torch.tensor([*h.tokens, task.end][:7])
        target = torch.cat([torch.tensor([task.begin]), ids[:-1]])
        logits = model(source, target[None])[0]
        likely = -F.cross_entropy(logits, ids, reduction="sum").item()
        assert h.score == pytest.approx(likely / len(ids) ** 0.6, abs=1e-5)
    user_error(
        lambda: task.answers(model, Request(["a"], BEAMS, samples=4)), "num_return_sequences=4", "num_beams=3"
    )


@pytest.mark.parametrize("beams", [1, 3])
def test_an_answer_ends_where_the_context_does(beams):
    task = translator(context=7)
    loop = Echo(task, task.tokenizer.encode("abcdefgh" * 3))
    endless = Sampling(max_new_tokens=500, temperature=0, num_beams=beams)
    assert texts_of(task.answers(loop, Request(["a", "bed"], endless))) == ["abcdefg"] * 2
    assert texts_of(task.answers(loop, Request(["a"], endless, options={"prefix": "abc"}))) == ["abcdefg"]
    assert ask(task, loop, ["a"], endless, options={"prefix": "abcdef"}) == ["abcdefg"]
    user_error(
        lambda: task.answers(loop, Request(["a"], endless, options={"prefix": "abcdefg"})),
        "prefix",
        "7 tokens",
        "context of 7",
    )
    assert texts_of(
        task.answers(
            build(task), Request(["a"], replace(endless, max_new_tokens=3), options={"prefix": "abcd"})
        )
    )


SENTENCES = ["the cat sat on the mat.", "the cats sat, and the mats sat!", "a dog is on the mats of cats."]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "char"])
def test_prefix(kind, beams):
    """An answer continues the prefix; spaces between them are neither lost nor doubled."""
    words = train_tokenizer(kind, SENTENCES * 5, 300, Translate.specials)
    task = Translate(TranslateConfig(name="translate"), words, 31)
    how = replace(GREEDY_LONG, num_beams=beams)
    answer = "the cats sat on the mat."
    model = Echo(task, words.encode(answer))
    for prefix in ("the", "the cats", "the cats sat on the mat"):
        assert (
            texts_of(task.answers(model, Request(["a dog", "a"], how, options={"prefix": prefix})))
            == [answer] * 2
        )
        assert ask(task, model, ["a dog", "a"], how, options={"prefix": prefix}) == [answer] * 2
    for prefix in ["the cats "] if kind != "bpe" else []:  # there, a space belongs to the word that follows
        assert texts_of(task.answers(model, Request(["a dog"], how, options={"prefix": prefix}))) == [answer]
        assert ask(task, model, ["a dog"], how, options={"prefix": prefix}) == [answer]
    assert texts_of(task.answers(model, Request(["a"], how, options={"prefix": answer}))) == [answer]
    assert (
        texts_of(task.answers(model, Request(["a", ""], how, samples=beams, options={"prefix": "the"})))[
            beams:
        ]
        == [""] * beams
    )


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_prefix_with_a_model(kind):
    """The continuation is that of the model after these tokens."""
    words = train_tokenizer(kind, SENTENCES * 5, 300, Translate.specials)
    task = Translate(TranslateConfig(name="translate"), words, 31)
    model = build(task, "gru")
    begun = words.encode("the cat")
    source = [*words.encode("a dog"), task.end]
    for sampling in (GREEDY, SAMPLED):
        steps = generate(model, [[task.begin, *begun]], sampling, sources=[source], end=task.end)
        expected = words.decode([*begun, *(step[0] for step in steps)])
        assert expected.startswith("the cat")
        assert texts_of(task.answers(model, Request(["a dog"], sampling, options={"prefix": "the cat"}))) == [
            expected
        ]
        assert ask(task, model, ["a dog", "a"], sampling, options={"prefix": "the cat"})[0] == expected
    start = model.start(torch.tensor([source]), torch.tensor([[task.begin, *begun]]))
    (best,) = beam_search(model.step, *start, beams=3, end=task.end, max_new_tokens=7, length_penalty=0.6)
    expected = [words.decode([*begun, *h.tokens]) for h in best[:2]]
    assert (
        texts_of(task.answers(model, Request(["a dog"], BEAMS, samples=2, options={"prefix": "the cat"})))
        == expected
    )


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, BEAMS], ids=["greedy", "sampled", "beams"])
def test_every_row_ends_before_its_stop(sampling):
    task = translator()
    model = build(task, "transformer", heads=2)
    texts = ["bad cab", "a", "hedge"]
    free = texts_of(task.answers(model, Request(texts, sampling)))
    long = max(free, key=len)
    for stop in ([long[2]], [long[1:3], long[3]]):
        expected = [row[: min((row.find(s) for s in stop if s in row), default=None)] for row in free]
        assert texts_of(task.answers(model, Request(texts, sampling, stop=stop))) == expected != free
        assert ask(task, model, texts, sampling, stop=stop) == expected


# Translation: long texts


LONG = "A bed had a bag. Each cab faced a hedge.  He fed a bad dad, he had a cage, a beach!\nA deaf ace aged."


def long_translator(longest):
    letters = train_tokenizer("char", [LONG], 0, Translate.specials)
    return Translate(TranslateConfig(name="translate", longest=longest), letters, 29)


@pytest.mark.parametrize("longest", [5, 13, 24, 28, None, 500])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_long_text_goes_part_by_part(longest, beams):
    task = long_translator(longest)
    model = Echo(task)
    how = replace(GREEDY_LONG, num_beams=beams)
    texts = ["A bag.", LONG, "", LONG[::-1]]
    answers = task.answers(model, Request(texts, how, samples=2 if beams > 1 else 1))
    if longest != 5:  # there, words fall apart
        assert [a[0].text.split() for a in answers] == [text.split() for text in texts]
    assert [a[0].text.replace(" ", "") for a in answers] == ["".join(text.split()) for text in texts]
    most = min(longest or 28, 28)
    assert max(map(len, model.sources)) <= most + 1
    assert all(source[-1] == task.end for source in model.sources)
    assert len(model.sources) > 8
    assert ask(task, model, texts, how) == [samples[0].text for samples in answers]
    if beams > 1:
        single = [task.answers(model, Request([part], how))[0][0].score for part in task_parts(task, LONG)]
        assert answers[1][0].score == pytest.approx(sum(single), abs=1e-5)
        assert len(answers[1]) == 2


def task_parts(task, text):
    return [task.tokenizer.decode(ids) for ids in task.parts(text)]


def test_parts_are_sentences():
    task = long_translator(28)
    assert (
        task_parts(task, LONG)[:2]
        == split_sentences(LONG)[:2]
        == ["A bed had a bag.", "Each cab faced a hedge."]
    )
    assert task_parts(task, " A bag. A bed. ") == ["A bag. A bed."]  # as the data are: no space around
    assert task.parts(" \n ") == task.parts("") == []


@pytest.mark.parametrize("beams", [1, 3])
def test_a_long_answer_begins_with_the_prefix_once(beams):
    task = long_translator(28)
    how = replace(GREEDY_LONG, num_beams=beams)
    expected = " ".join(LONG.split())
    assert texts_of(
        task.answers(Echo(task), Request([LONG, "A bed."], how, options={"prefix": "A bed"}))
    ) == [expected, "A bed."]
    assert ask(task, Echo(task), [LONG, "A bed."], how, options={"prefix": "A bed"}) == [expected, "A bed."]


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
