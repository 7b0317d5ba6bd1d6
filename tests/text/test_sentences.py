"""Splitting into sentences, and into parts that fit."""

import random

import pytest

from regard.text.sentences import split_sentences, split_to_fit

SINGLE = [  # one sentence each
    "no end mark",
    "Mr. Smith met Mrs. Jones and Dr. Who at St. Mary.",
    "J. Smith and J.R.R. Tolkien live in the U.S. Army base.",
    "It costs 3.50 or 4,50 euros.",
    "See e.g. Bach, i.e. Johann, vs. Mozart et al. Then it goes on.",
    "See No. 5 and fig. 3 on pp. 7.",
    "Wir sehen uns am 3. Mai im 2. Stock, z.B. Montag, bzw. Dienstag, ca. 5 Uhr.",
    "Sie wohnt in der Goethestr. 5 (Str. und Nr. Unbekannt), z. B. Berlin.",
    "Äpfel, Birnen usw. Obst eben",
    "Der Dipl.-Ing. Meier war zum 1. Mal da.",
    "1. Eggs and milk",
    '"Stop!" he said.',
    "What?! no…really... yes.",
    "Version 2.0.1 of example.com is out",
    "He left at 5 p.m. and slept.",
]
APART = [
    ["Hi. How are you?", "Hi.|How are you?"],
    ["  Wait!  No?\tYes… Well... 3 left.  ", "Wait!|No?|Yes…|Well...|3 left."],
    ['He said "Go." She went. (He stayed.) „Gut.“ Ja.', 'He said "Go."|She went.|(He stayed.)|„Gut.“|Ja.'],
    ["« Oui. » Non. ¿Qué? ¡Ah! Él va.", "« Oui. »|Non.|¿Qué?|¡Ah!|Él va."],
    ["He said no. Then he left. So am I. What?", "He said no.|Then he left.|So am I.|What?"],
    ["I am 3. He is 5. Das war 1990. Der Mai kam.", "I am 3.|He is 5.|Das war 1990.|Der Mai kam."],
    ["»Ja.« »Nein.« ‘No.’ «Sí.» Ah. « Oui. » « Non. »\n", "»Ja.«|»Nein.«|‘No.’|«Sí.»|Ah.|« Oui. »|« Non. »"],
    ["It was 5 p.m. The sun set.", "It was 5 p.m.|The sun set."],
    ["Done. 1. Eggs. 2. Milk.", "Done.|1. Eggs.|2. Milk."],
    ["a title\n\nA line\r\nand another. \n", "a title|A line|and another."],
    ["你好。你好吗？「很好！」我说。3.5元！？好", "你好。|你好吗？|「很好！」|我说。|3.5元！？|好"],
    ["Привет. Как дела? Хорошо.", "Привет.|Как дела?|Хорошо."],
    ["– Ja. – Nein.", "– Ja.|– Nein."],
    ["", ""],
    [" \n\t ", ""],
]
WORDS = [
    *(
        "a",
        "I",
        "Mr.",
        "etc.",
        "no.",
        "3.",
        "3.5",
        "Mai",
        "der",
        "end.",
        "End!",
        "what?",
        "Ja,",
        "nun;",
        "so:",
    ),
    *("–", "—", "…", "你好。", "吗？", "（x）", "去，来", '"Go."', "'x'", "«", "a. »", "é🦊\n", "\n"),
]


@pytest.mark.parametrize("text", SINGLE)
def test_one_sentence(text: str) -> None:
    assert split_sentences(text) == [text]


@pytest.mark.parametrize(("text", "parts"), APART)
def test_several_sentences(text: str, parts: str) -> None:
    assert split_sentences(text) == [part for part in parts.split("|") if part]


def letters(text: str) -> str:
    return "".join(text.split())


def random_text(chance: random.Random) -> str:
    words = [chance.choice([*WORDS, "x" * chance.randint(1, 40)]) for _ in range(chance.randint(0, 30))]
    return chance.choice(["", " "]) + chance.choice([" ", "  ", "\t"]).join(words)


def test_nothing_is_lost() -> None:
    chance = random.Random(7)
    for _ in range(500):
        text = random_text(chance)
        sentences = split_sentences(text)
        assert letters("".join(sentences)) == letters(text)
        assert all(s and s == s.strip() and "\n" not in s for s in sentences)
        again = [part for s in sentences for part in split_sentences(s)]
        assert letters("".join(again)) == letters(text)


@pytest.mark.parametrize("length", [len, lambda text: len(text.encode()), lambda text: len(text.split())])
def test_parts_fit_and_nothing_is_lost(length) -> None:
    chance = random.Random(11)
    for _ in range(400):
        text, longest = random_text(chance), chance.randint(4, 60)  # 4: the bytes of a fox
        parts = split_to_fit(text, length, longest)
        assert all(length(part) <= longest for part in parts)
        if length(text) <= longest:
            assert parts == [text]
            continue
        assert all(part and part == part.strip() for part in parts)
        assert letters("".join(parts)) == letters(text)
        for sentence in split_sentences(text):
            if length(sentence) <= longest:
                assert sentence in parts
        if all(length(word) <= longest for word in text.split()) and not set("。？，") & set(text):
            assert " ".join(parts).split() == text.split()


def test_where_long_sentences_are_cut() -> None:
    text = "Short one. The first clause, the second; the third – the fourth clause."
    assert split_to_fit(text, len, 100) == [text]
    first, *rest = ("The first clause,", "the second;", "the third –", "the fourth clause.")
    assert split_to_fit(text, len, 60) == ["Short one.", " ".join([first, *rest])]
    assert split_to_fit(text, len, 41) == ["Short one.", " ".join([first, *rest[:2]]), rest[2]]
    assert split_to_fit(text, len, 20) == ["Short one.", first, *rest]
    assert split_to_fit("one two three, four", len, 8) == ["one two", "three,", "four"]
    assert split_to_fit("so abcdefgh, no", len, 3) == ["so", "abc", "def", "gh,", "no"]
    assert split_to_fit("3,50 at 3:30", len, 8) == ["3,50 at", "3:30"]
    assert split_to_fit("我们来，你们去，他们走。好。", len, 8) == ["我们来，你们去，", "他们走。", "好。"]
    assert split_to_fit("  as it \n was ", len, 14) == ["  as it \n was "]
    assert split_to_fit("", len, 5) == [""]
    assert split_to_fit("   ", len, 2) == []


def test_a_character_is_never_cut() -> None:
    assert split_to_fit("🦊🦊 a", lambda text: len(text.encode()), 3) == ["🦊", "🦊", "a"]


def test_long_texts_are_counted_in_small_pieces() -> None:
    """For long texts and words, `length` is called with the whole once or twice, then with pieces."""
    for text in "x" * 5000, "so it goes " * 500, "so, it, goes, " * 400, "." * 5000 + "x", "a. " * 2000:
        count = 0

        def length(part: str) -> int:
            nonlocal count
            count += len(part)
            return len(part)

        assert all(len(part) <= 50 for part in split_to_fit(text, length, 50))
        assert count < 40 * len(text)
