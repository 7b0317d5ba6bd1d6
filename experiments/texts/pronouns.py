"""Sentences in which "it" is an animal or a place, as the adjective says: tired, or wide."""

import random
from itertools import product

ANIMALS = [
    "animal", "dog", "cat", "horse", "cow", "sheep", "rabbit", "fox", "bear", "goat", "donkey", "mouse",
    "wolf", "hen", "duck", "deer",
]  # fmt: skip
PLACES = [
    "street", "road", "river", "bridge", "field", "lake", "valley", "square", "path", "canal", "stream",
    "market",
]  # fmt: skip
TEMPLATES = (
    "The {animal} did not cross the {place} because it was too {adjective}.",
    "The {place} was not crossed by the {animal} because it was too {adjective}.",
    "The {animal} stopped at the {place} since it was too {adjective}.",
    "At the {place} the {animal} turned back because it was too {adjective}.",
)
OF_ANIMALS = [
    "tired", "hungry", "scared", "sick", "weak", "sleepy", "thirsty", "shy", "lazy", "slow", "nervous",
    "ill",
]  # fmt: skip
OF_PLACES = [
    "wide", "long", "deep", "narrow", "steep", "muddy", "icy", "dangerous", "broad", "crowded", "wet",
    "slippery",
]  # fmt: skip
SHARE_HELD_OUT = 8  # one in so many combinations of animal, place and adjective
EXAMPLES = [
    ("The animal did not cross the street because it was too tired.", "animal"),
    ("The animal did not cross the street because it was too wide.", "street"),
]

Row = tuple[str, str]  # a sentence, and what "it" is


def make_rows(train: int, valid: int) -> tuple[list[Row], list[Row]]:
    """Rows to train on, and rows of other combinations, which begin with the two well-known ones."""
    sides: tuple[list[Row], list[Row]] = [], []
    words = product(enumerate(ANIMALS), enumerate(PLACES), enumerate(OF_ANIMALS + OF_PLACES))
    for (i, animal), (j, place), (k, adjective) in words:
        referent = animal if adjective in OF_ANIMALS else place
        held_out = (i + 2 * j + 4 * k) % SHARE_HELD_OUT == 0
        for template in TEMPLATES:
            sentence = template.format(animal=animal, place=place, adjective=adjective)
            sides[held_out].append((sentence, referent))
    draw = random.Random(0)
    rest = [row for row in sides[True] if row not in EXAMPLES]
    return draw.sample(sides[False], train), EXAMPLES + draw.sample(rest, valid - len(EXAMPLES))
