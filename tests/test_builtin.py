"""The built-in pairs: well-formed, each said one way, and nothing held out has been trained on."""

from itertools import pairwise
from pathlib import Path

import pytest
from paraphrases import PARAPHRASES, normal, sensible

import regard

BUILTIN = Path(regard.__file__).parent / "builtin"
NAMES = ["chat.tsv", "chat.valid.tsv", "translate.tsv", "translate.valid.tsv"]


def rows(name: str) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in (BUILTIN / name).read_text("utf-8").split("\n")[:-1]]


def in_talks(pairs: list[tuple[str, ...]]) -> set[int]:
    """The places of the pairs that go on from the one before them or are gone on from."""
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
