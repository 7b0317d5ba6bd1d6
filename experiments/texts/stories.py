"""Short stories about aliens: each has one kind of alien, one place and one person of our planet."""

import random

from experiments.texts.grammar import expand

STORIES = 260
RULES = {
    "colour": ["green", "blue", "silver", "yellow"],
    "size": ["small", "tall", "quiet", "friendly"],
    "place": ["village", "harbour", "forest", "school", "market", "old town"],
    "person": ["baker", "teacher", "farmer", "doctor", "fisherman", "little girl"],
    "reaction": [
        "the people of the {place} looked up at the sky",
        "all the dogs of the {place} began to bark",
        "every clock in the {place} stopped at noon",
        "the {person} of the {place} was the first to see them",
        "nobody in the {place} knew what to say",
        "the children of the {place} ran out to meet them",
        "the birds of the {place} were silent for a moment",
        "a warm light fell on the roofs of the {place}",
    ],
    "arrival": [
        "Their ship was as round as a coin and as bright as the moon.",
        "Their ship came down slowly behind the {place}.",
        "They came out of their ship one by one and waved.",
        "They were {size} and {colour}, and they had kind eyes.",
        "They had {colour} skin, and they spoke in a soft voice.",
        "They landed near the {place} without a sound.",
    ],
    "question": [
        '"Where do you come from?" asked the {person}.',
        '"What are you looking for?" asked the {person}.',
        '"Are you hungry after the long journey?" asked the {person}.',
        '"Why did you come to our planet?" asked the {person}.',
        '"How long will you stay with us?" asked the {person}.',
    ],
    "reply": [
        '"We come from a star that you cannot see," said the aliens.',
        '"We are looking for a place with good bread," said the aliens.',
        '"We saw your lights from far away," said the aliens.',
        '"We want to learn how to laugh," said the aliens.',
        '"We have lost our way home," said the aliens.',
        '"We only want to look at the sea," said the aliens.',
    ],
    "middle": [
        "The {person} gave them bread and a cup of warm milk.",
        "The {person} showed them the {place} and the river.",
        "The {person} taught them a song about the summer.",
        "The aliens sat down in the grass and listened.",
        "The aliens touched the water and smiled for the first time.",
        "The aliens gave the {person} a small stone that shone in the dark.",
        "In the evening they all sat around a fire and told stories.",
        "The children showed the aliens how to play with a ball.",
    ],
    "end": [
        "In the morning the ship was gone, but the stone was still warm.",
        "At night the aliens flew home, and the {person} waved for a long time.",
        "Since that day the {person} looks at the stars every evening.",
        "The aliens stayed for a week, and they came back every year.",
        "Then they went home, and the {place} was quiet again.",
        "The {person} never forgot the visitors from the stars.",
    ],
    "opening": ["As aliens entered our planet, {reaction}.", "When the aliens landed, {reaction}."],
}
ORDER = ("opening", "arrival", "question", "reply", "middle", "middle", "end")


def make_stories() -> str:
    """The stories as paragraphs, a sentence in each line."""
    draw = random.Random(0)
    stories = []
    for _ in range(STORIES):
        one = {name: [draw.choice(RULES[name])] for name in ("colour", "size", "place", "person")}
        lines = [expand(f"{{{part}}}", RULES | one, draw) for part in ORDER]
        lines = list(dict.fromkeys(lines))  # the second `middle` may be the first again
        stories.append("\n".join(lines))
    return "\n\n".join(stories) + "\n"
