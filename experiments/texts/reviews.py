"""Reviews in which praise goes with praise, and blame with blame: a large text, and a few with labels."""

import random

from experiments.texts.grammar import expand

PRAISE = [
    "wonderful", "great", "brilliant", "lovely", "superb", "excellent", "charming", "delightful",
    "splendid", "marvellous", "fantastic", "amazing", "perfect", "beautiful", "clever", "witty", "touching",
    "gripping", "elegant", "moving",
]  # fmt: skip
BLAME = [
    "awful", "terrible", "boring", "dull", "horrible", "dreadful", "poor", "weak", "clumsy", "tedious",
    "stale", "ugly", "silly", "bland", "annoying", "shallow", "messy", "pointless", "hopeless", "lifeless",
]  # fmt: skip
LIKED, HATED = ["loved", "enjoyed", "admired", "praised"], ["hated", "disliked", "regretted", "blamed"]
RULES = {
    "review": ["{short}", "{verdict}", "{verdict} because {short}"],
    "short": [
        "it was {word} and {word}",
        "a {word} {part} and a {word} {part}",
        "the {part} was {word} , {word} and {word}",
        "what a {word} {part} and what a {word} {part}",
    ],
    "verdict": ["I {liked} the {word} {part}", "we {liked} this {word} and {word} {part}"],
    "part": ["film", "story", "book", "play", "song", "plot", "ending", "scene"],
}


def make_review(praise: bool, draw: random.Random) -> str:
    words = {"word": PRAISE, "liked": LIKED} if praise else {"word": BLAME, "liked": HATED}
    return expand("{review}", RULES | words, draw) + " ."


def make_text(seed: int, bytes: int) -> str:
    """Plain reviews without labels, of about this size: four of one opinion in a paragraph."""
    draw, parts, size = random.Random(seed), list[str](), 0
    while size < bytes:
        praise = draw.random() < 0.5
        parts.append("\n".join(make_review(praise, draw) for _ in range(4)))
        size += len(parts[-1]) + 2
    return "\n\n".join(parts) + "\n"


def make_labelled(seed: int, count: int, known: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """`count` reviews with `known` words of praise and of blame, and 400 with the others; no verdicts."""
    draw = random.Random(seed)
    words = {"praise": draw.sample(PRAISE, len(PRAISE)), "blame": draw.sample(BLAME, len(BLAME))}

    def rows(n: int, part: slice) -> list[tuple[str, str]]:
        labels = ["praise", "blame"] * (n // 2)
        return [
            (expand("{short}", RULES | {"word": words[label][part]}, draw) + " .", label) for label in labels
        ]

    return rows(count, slice(known)), rows(400, slice(known, None))
