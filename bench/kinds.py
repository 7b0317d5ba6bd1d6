"""Make small sets of many kinds, on which the plan was not tuned: what does it do with them?

    python -m bench.kinds DIR [--megabytes 8] [--only NAME ...]

Each set is drawn from rules with a fixed seed, in its own folder with a train and a test file; RECIPES names
the recipe of each. `large` is a text of as many megabytes as asked for.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

Rows = list[tuple[str, str]]
VOWELS, CONSONANTS = "aeiou", "bcdfghklmnprstvwyz"
RECIPES = {
    "spelling": "translate",
    "sums": "translate",
    "dates": "translate",
    "names": "classify",
    "topics": "classify",
    "unbalanced": "classify",
    "few": "classify",
    "long": "classify",
    "price": "classify",
    "parts": "tag",
    "sentence": "write",
    "large": "write",
}


def make_words(rng: np.random.Generator, count: int, syllables: int = 3) -> list[str]:
    """Distinct words that can be spoken."""
    words: dict[str, None] = {}
    while len(words) < count:
        parts = rng.integers(1, syllables + 1)
        syllable = [rng.choice(list(CONSONANTS)) + rng.choice(list(VOWELS)) for _ in range(parts)]
        words["".join(syllable) + (rng.choice(list("nrst")) if rng.random() < 0.4 else "")] = None
    return list(words)


def pronounce(word: str) -> str:
    """Sounds of a word by rules that look at its neighbours: soft c and g, long vowels, silent e."""
    sounds, i = [], 0
    while i < len(word):
        letter, following = word[i], word[i + 1 : i + 2]
        if word[i : i + 2] in ("ch", "sh", "th"):
            sounds.append({"ch": "CH", "sh": "SH", "th": "TH"}[word[i : i + 2]])
            i += 1
        elif letter == "c":
            sounds.append("S" if following and following in "ei" else "K")
        elif letter == "g":
            sounds.append("JH" if following and following in "ei" else "G")
        elif letter == "e" and i == len(word) - 1 and i > 2:
            pass
        elif letter in VOWELS:
            long = i + 2 < len(word) and word[i + 2] == "e" and following not in VOWELS
            sounds.append(
                {"a": "AE", "e": "EH", "i": "IH", "o": "AA", "u": "AH"}[letter]
                if not long
                else f"{letter.upper()}Y"
            )
        elif letter != following:
            sounds.append(letter.upper())
        i += 1
    return " ".join(sounds)


def spelling(rng: np.random.Generator) -> Rows:
    words = make_words(rng, 12_000, 4)
    mixed = [w.replace("ka", "cha").replace("zo", "sho").replace("ti", "thi") for w in words]
    return [(word, pronounce(word)) for word in dict.fromkeys(mixed)]


def sums(rng: np.random.Generator) -> Rows:
    pairs = {(int(a), int(b)) for a, b in rng.integers(0, 1000, (12_000, 2))}
    return [(f"{a}+{b}", str(a + b)) for a, b in sorted(pairs, key=lambda p: hash(p))]


def dates(rng: np.random.Generator) -> Rows:
    months = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ]
    rows = []
    for y, m, d in zip(
        rng.integers(1900, 2100, 6000), rng.integers(1, 13, 6000), rng.integers(1, 29, 6000), strict=True
    ):
        forms = (
            f"{d} {months[m - 1]} {y}",
            f"{months[m - 1]} {d}, {y}",
            f"{d}.{m}.{y}",
            f"{months[m - 1][:3]} {d} {y}",
        )
        rows.append((forms[rng.integers(4)], f"{y}-{m:02d}-{d:02d}"))
    return rows


def names(rng: np.random.Generator) -> Rows:
    """One word, three classes by its ending, one in twenty wrong."""
    kinds = {"a": "plant", "e": "plant", "n": "tool", "r": "tool", "s": "place", "t": "place"}
    rows = [(w, kinds.get(w[-1], "person")) for w in make_words(rng, 5000)]
    classes = sorted({c for _, c in rows})
    return [(w, c if rng.random() > 0.05 else classes[rng.integers(len(classes))]) for w, c in rows]


def bags(
    rng: np.random.Generator,
    classes: int,
    rows: int,
    length: int,
    share: float,
    weights: np.ndarray | None = None,
) -> Rows:
    """Texts of common words, of which a share are of the class."""
    common, own = make_words(rng, 800), make_words(rng, 20 * classes + 800)[800:]
    frequency = 1 / np.arange(1, 801)
    result = []
    for label in rng.choice(classes, rows, p=weights):
        count = max(2, rng.poisson(length))
        text = list(rng.choice(common, count, p=frequency / frequency.sum()))
        for i in np.flatnonzero(rng.random(count) < share):
            text[i] = (
                own[20 * label + rng.integers(20)] if rng.random() < 0.8 else own[rng.integers(len(own))]
            )
        result.append((" ".join(text), f"class{label:02d}"))
    return result


def topics(rng: np.random.Generator) -> Rows:
    return bags(rng, 100, 12_000, 14, 0.25)


def unbalanced(rng: np.random.Generator) -> Rows:
    return bags(rng, 2, 4000, 12, 0.12, np.array([0.95, 0.05]))


def few(rng: np.random.Generator) -> Rows:
    """Fifty rows to learn from."""
    return bags(rng, 2, 450, 8, 0.4)


def long(rng: np.random.Generator) -> Rows:
    """Texts of about 400 words, few of which tell."""
    return bags(rng, 4, 1500, 400, 0.02)


def price(rng: np.random.Generator) -> Rows:
    """A score: a list of things with their numbers, what each costs, and noise."""
    things = make_words(rng, 40, 2)
    cost = rng.gamma(2, 2, 40)
    rows = []
    for _ in range(5000):
        chosen, numbers = rng.choice(40, rng.integers(1, 5), replace=False), rng.integers(1, 6, 5)
        total = sum(cost[i] * n for i, n in zip(chosen, numbers, strict=False)) + rng.normal(0, 0.5)
        rows.append(
            (" and ".join(f"{n} {things[i]}" for i, n in zip(chosen, numbers, strict=False)), f"{total:.2f}")
        )
    return rows


def parts(rng: np.random.Generator) -> list[list[tuple[str, str]]]:
    """Sentences with the part of speech of each word; some words have two, told by the word before."""
    words = make_words(rng, 900)
    nouns, verbs, adjectives, both = words[:300], words[300:500], words[500:700], words[700:]
    sentences = []
    for _ in range(3000):
        sentence = []
        for _ in range(rng.integers(1, 4)):
            sentence.append((str(rng.choice(["the", "a", "my"])), "DET"))
            if rng.random() < 0.5:
                sentence.append((str(rng.choice(adjectives)), "ADJ"))
            sentence.append((str(rng.choice(both if rng.random() < 0.4 else nouns)), "NOUN"))
            sentence.append((str(rng.choice(["will", "can"])), "AUX"))
            sentence.append((str(rng.choice(both if rng.random() < 0.4 else verbs)), "VERB"))
        sentences.append(sentence)
    return sentences


def prose(rng: np.random.Generator, megabytes: float) -> Iterator[str]:
    """Paragraphs about one of 200 people each, who keeps the same place and trade throughout a text."""
    words = make_words(rng, 3000)
    people, places, trades, things = words[:200], words[200:400], words[400:500], words[500:]
    weights = 1 / np.arange(1, len(things) + 1)
    weights /= weights.sum()
    written = 0
    while written < megabytes * 1e6:
        who, where, trade = rng.choice(people), rng.choice(places), rng.choice(trades)
        own = rng.choice(things, 12)
        lines = [f"{who.title()} of {where.title()} was a {trade}."]
        for _ in range(rng.integers(5, 20)):
            a, b = rng.choice(own), rng.choice(things, p=weights)
            forms = (
                f"The {trade} took the {a} and the {b} to {where.title()}.",
                f"{who.title()} never saw a {b} without a {a}.",
                f"In {where.title()}, every {a} is worth {rng.integers(2, 90)} {b}s.",
                f'"{a.title()}!" said {who.title()}, and left the {b}.',
            )
            lines.append(forms[rng.integers(4)])
        text = " ".join(lines) + "\n\n"
        written += len(text)
        yield text


PAIRS: dict[str, Callable[[np.random.Generator], Rows]] = {
    "spelling": spelling,
    "sums": sums,
    "dates": dates,
    "names": names,
    "topics": topics,
    "unbalanced": unbalanced,
    "few": few,
    "long": long,
    "price": price,
}


def write_set(folder: Path, name: str, megabytes: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(sum(map(ord, name)))
    if name == "sentence":
        (folder / "train.txt").write_text("The animal did not cross the street because it was too tired.\n")
        return
    if name == "large":
        with open(folder / "train.txt", "w") as train, open(folder / "test.txt", "w") as test:
            for i, text in enumerate(prose(rng, megabytes)):
                (test if i % 50 == 49 else train).write(text)
        return
    if name == "parts":
        sentences = ["".join(f"{w}\t{t}\n" for w, t in sentence) + "\n" for sentence in parts(rng)]
        (folder / "train.conll").write_text("".join(sentences[:2600]))
        (folder / "test.conll").write_text("".join(sentences[2600:]))
        return
    rows = PAIRS[name](rng)
    order = rng.permutation(len(rows))
    count = 50 if name == "few" else len(rows) * 9 // 10
    header = "" if RECIPES[name] == "translate" else ("text\tscore\n" if name == "price" else "text\tlabel\n")
    for part, indices in (("train", order[:count]), ("test", order[count:])):
        (folder / f"{part}.tsv").write_text(
            header + "".join(f"{rows[i][0]}\t{rows[i][1]}\n" for i in indices)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--only", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    options = parser.parse_args()
    for name in options.only:
        write_set(options.folder / name, name, options.megabytes)


if __name__ == "__main__":
    main()
