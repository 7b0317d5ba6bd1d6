"""The built-in data: well-formed, without duplicates, and validation data are not in the training data."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import regard
from helpers.paraphrases import PARAPHRASES, normal, sensible
from regard.data.labels import LabelledTexts, class_names, read_labels
from regard.data.spans import Span, read_spans
from regard.data.tags import TaggedSentence, read_tags
from regard.tasks.metrics import entities

BUILTIN = Path(regard.__file__).parent / "builtin"
NAMES = ["chat.tsv", "chat.valid.tsv", "translate.tsv", "translate.valid.tsv"]


def rows(name: str) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in (BUILTIN / name).read_text("utf-8").split("\n")[:-1]]


def in_talks(pairs: list[tuple[str, ...]]) -> set[int]:
    """The indices of pairs that continue the one before them, or are continued."""
    links = [place for place, (this, after) in enumerate(pairwise(pairs)) if this[1] == after[0]]
    return {*links, *(place + 1 for place in links)}


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_two_columns_of_printable_text(name: str) -> None:
    text = (BUILTIN / name).read_text("utf-8")
    assert text.endswith("\n")
    for row in rows(name):
        assert len(row) == 2, row
        for side in row:
            assert side, row
            assert side == side.strip(), row
            assert "  " not in side, row
            assert side.isprintable(), row


@pytest.mark.parametrize("name", NAMES)
def test_no_pair_stands_twice(name: str) -> None:
    pairs = rows(name)
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize(("name", "least"), [*zip(NAMES, [500, 60, 500, 50], strict=True)])
def test_there_are_enough_pairs(name: str, least: int) -> None:
    assert len(rows(name)) >= least


@pytest.mark.parametrize("task", ["chat", "translate"])
def test_nothing_held_out_is_trained_on(task: str) -> None:
    trained = {normal(first) for first, _ in rows(f"{task}.tsv")}
    held_out = [normal(first) for first, _ in rows(f"{task}.valid.tsv")]
    assert len(set(held_out)) == len(held_out)
    assert not trained & set(held_out)


def test_an_utterance_has_one_reply_outside_the_conversations() -> None:
    pairs = rows("chat.tsv")
    talks, replies = in_talks(pairs), dict[str, str]()
    for place, (utterance, reply) in enumerate(pairs):
        if place not in talks:
            assert replies.setdefault(normal(utterance), reply) == reply, utterance


def test_a_sentence_has_one_translation() -> None:
    translations = dict[str, str]()
    for english, german in rows("translate.tsv") + rows("translate.valid.tsv"):
        assert translations.setdefault(normal(english), german) == german, english


def test_some_conversations_have_several_turns() -> None:
    pairs = rows("chat.tsv")
    assert len(in_talks(pairs)) >= 45


def test_a_held_out_reply_is_one_that_can_be_learnt() -> None:
    assert {reply for _, reply in rows("chat.valid.tsv")} <= {reply for _, reply in rows("chat.tsv")}


def test_how_are_you_is_answered_by_i_am_fine() -> None:
    asked = [reply for utterance, reply in rows("chat.tsv") if normal(utterance).endswith("how are you")]
    assert len(asked) >= 10
    assert set(asked) == {"I am fine."}


def test_the_paraphrases_are_held_out() -> None:
    trained = {normal(utterance) for utterance, _ in rows("chat.tsv")}
    held_out = {normal(utterance): reply for utterance, reply in rows("chat.valid.tsv")}
    assert len({normal(utterance) for utterance, _ in PARAPHRASES}) == len(PARAPHRASES) == 20
    for utterance, accepted in PARAPHRASES:
        assert normal(utterance) not in trained, utterance
        assert sensible(held_out[normal(utterance)], accepted), utterance


def test_an_answer_is_compared_by_its_words() -> None:
    assert sensible(" I am  FINE!", ("i am fine",))
    assert not sensible("I am", ("i am fine",))
    assert not sensible("I am not fine.", ("i am fine",))
    assert not sensible("", ("i am fine",))


# Labels and tags


def labels(name: str) -> LabelledTexts:
    return read_labels([str(BUILTIN / name)])


def sentences(name: str) -> list[TaggedSentence]:
    return read_tags([str(BUILTIN / name)])


@pytest.mark.parametrize(("name", "least"), [("classify.tsv", 400), ("classify.valid.tsv", 80)])
def test_labels_are_balanced(name: str, least: int) -> None:
    table = labels(name)
    assert table.columns == ["text", "label"]
    assert table.labels
    assert class_names(table.labels) == ["negative", "positive"]
    assert len(table) >= least
    assert table.labels.count("positive") == len(table) / 2
    for text in table.texts:
        assert text.isprintable(), text
        assert "  " not in text, text
        assert text[0].isupper(), text
        assert text[-1] in ".!?", text


def test_no_labelled_text_stands_twice() -> None:
    texts = [normal(text) for name in ("classify.tsv", "classify.valid.tsv") for text in labels(name).texts]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(("name", "least"), [("tag.conll", 300), ("tag.valid.conll", 60)])
def test_tags_are_iob2_and_of_four_kinds(name: str, least: int) -> None:
    tagged = sentences(name)
    assert len(tagged) >= least
    kinds = Counter[str]()
    for words, tags in tagged:
        assert all(word.isprintable() for word in words), words
        assert words[-1] in {".", "?"}, words
        assert words.count('"') % 2 == 0, words
        for before, tag in pairwise(["O", *tags]):
            if tag.startswith("I-"):
                assert before[1:] == tag[1:], (words, tags)  # it goes on with what B- began
        kinds.update(kind for kind, _, _ in entities(tags))
    assert set(kinds) == {"PER", "LOC", "ORG", "DATE"}
    assert min(kinds.values()) >= least / 10
    assert sum(set(tags) == {"O"} for _, tags in tagged) >= least / 20  # not every sentence has one


def test_no_tagged_sentence_stands_twice() -> None:
    texts = [tuple(words) for name in ("tag.conll", "tag.valid.conll") for words, _ in sentences(name)]
    assert len(set(texts)) == len(texts)


def test_held_out_entities_are_known_and_new_ones() -> None:
    def names(file: str) -> set[tuple[str, ...]]:
        return {
            (kind, *words[start:end])
            for words, tags in sentences(file)
            for kind, start, end in entities(tags)
            if kind in {"LOC", "ORG"}
        }

    known, held_out = names("tag.conll"), names("tag.valid.conll")
    assert len(held_out & known) >= 10
    assert len(held_out - known) >= 5


# Answers


def questions(name: str) -> list[Span]:
    return read_spans([str(BUILTIN / name)])


@pytest.mark.parametrize(("name", "least"), [("span.jsonl", 150), ("span.valid.jsonl", 30)])
def test_answers_are_words_of_their_texts(name: str, least: int) -> None:
    rows = questions(name)
    assert len(rows) >= least
    of_text = Counter(span.context for span in rows)
    assert set(of_text.values()) <= {2, 3}
    for span in rows:
        assert span.context[span.start : span.end] == span.answer
        for text in (span.question, span.context, span.answer):
            assert text.isprintable(), text
            assert text == text.strip(), text
            assert "  " not in text, text
        assert span.question[0].isupper(), span.question
        assert span.question.endswith("?"), span.question
        assert span.context.endswith("."), span.context
        before, after = span.context[: span.start][-1:], span.context[span.end :][:1]
        assert not before.isalnum(), span  # whole words
        assert not after.isalnum(), span
        assert span.answer[-1] not in ".,;", span


def test_no_question_stands_twice_and_no_text_on_both_sides() -> None:
    train, held_out = questions("span.jsonl"), questions("span.valid.jsonl")
    asked = [(normal(span.question), span.context) for span in train + held_out]
    assert len(set(asked)) == len(asked)
    assert not {span.context for span in train} & {span.context for span in held_out}


# Sentences that mean the same


@pytest.mark.parametrize(("name", "many"), [("embed.tsv", 200), ("embed.valid.tsv", 40)])
def test_paraphrases_are_whole_sentences(name: str, many: int) -> None:
    pairs = rows(name)
    assert len(pairs) == many
    for pair in pairs:
        assert len(pair) == 2, pair
        assert normal(pair[0]) != normal(pair[1])
        for text in pair:
            assert text.isprintable(), text
            assert text == text.strip(), text
            assert "  " not in text, text
            assert text[0].isupper(), text
            assert text[-1] in ".?", text


def test_no_sentence_means_the_same_as_two_others() -> None:
    texts = [normal(t) for name in ("embed.tsv", "embed.valid.tsv") for pair in rows(name) for t in pair]
    assert len(set(texts)) == len(texts)
