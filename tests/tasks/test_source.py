"""Answers to a source: batched, streamed, with beams, prefixes and stops; long texts part by part."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from helpers.errors import user_error
from helpers.pairs import (
    BEAMS,
    CONTEXT,
    FUSSY,
    GREEDY,
    GREEDY_LONG,
    SAMPLED,
    TEXTS,
    Echo,
    ask,
    build,
    every_pair,
    texts_of,
    translator,
)
from helpers.slow import slow_after
from regard.decode.beam import beam_search
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.tasks import Translate, TranslateConfig
from regard.tasks import source as source_module
from regard.tasks.request import Request
from regard.text.sentences import split_sentences
from regard.text.tokenizer_kinds import train_tokenizer


@every_pair
@pytest.mark.parametrize("sampling", slow_after(1, [FUSSY, GREEDY]), ids=["fussy", "greedy"])
def test_batched_is_alone_cached_is_uncached_streamed_is_whole(kind, settings, sampling):
    check_batched_is_alone(kind, settings, sampling)


def test_sampled_batches():
    check_batched_is_alone("transformer", {"heads": 2}, SAMPLED)


def check_batched_is_alone(kind, settings, sampling):
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
    monkeypatch.setattr(source_module, "TOKENS_AT_ONCE", {"cpu": 60})
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
    limit = min(longest or 28, 28)
    assert max(map(len, model.sources)) <= limit + 1
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
