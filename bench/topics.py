"""Write a text with clear topics, for next sentence prediction: python bench/topics.py train.txt valid.txt

Each document is about one of a dozen topics, which has words of its own. Its sentences differ from those of
all others, so what is held out has to be recognised by its topic.
"""

import argparse
import random
from pathlib import Path

TOPICS = {  # nouns, adjectives and verbs
    "sea": "ship sailor harbour wave anchor net gull storm; salty deep stormy; sails sinks drifts",
    "kitchen": "cook oven soup pan knife bread onion spoon; hot spicy sour; boils bakes stirs",
    "garden": "rose bee hedge spade seed lawn tulip gardener; green leafy wild; grows blooms digs",
    "music": "violin singer drum choir melody concert piano tune; loud soft sweet; sings plays hums",
    "football": "goal striker referee ball fan keeper coach pitch; tired proud; kicks scores passes",
    "school": "teacher pupil book lesson desk exam chalk; clever strict curious; reads writes learns",
    "railway": "train station track engine ticket tunnel driver; late long electric; leaves arrives stops",
    "forest": "wolf oak deer moss owl path hunter mushroom; dark silent old; howls hides creeps",
    "hospital": "doctor nurse patient fever bandage ward pill; sick pale careful; heals coughs sleeps",
    "market": "trader coin stall price basket customer scale bargain; cheap busy greedy; sells buys pays",
    "space": "rocket planet comet moon astronaut orbit star crater; cold bright distant; lands spins shines",
    "winter": "snow sledge ice glove skater frost icicle chimney; white frozen thick; melts falls slides",
}
FRAMES = (
    "The {a} {n} {v} near the {m}.",
    "A {n} and a {m} are {a} today.",
    "Every {m} {v} when the {n} is {a}.",
    "Nobody saw the {a} {n} behind the {m}.",
)


def write_documents(count: int, seed: int, topics: int = len(TOPICS)) -> str:
    """Documents of 12 to 24 sentences, more than a row holds: a short pair must not give away its kind."""
    rng, documents, words_of_topics = random.Random(seed), [], list(TOPICS.values())[:topics]
    for _ in range(count):
        nouns, adjectives, verbs = (part.split() for part in rng.choice(words_of_topics).split(";"))
        sentences = []
        for _ in range(rng.randint(12, 24)):
            n, m = rng.sample(nouns, 2)
            words = {"n": n, "m": m, "a": rng.choice(adjectives), "v": rng.choice(verbs)}
            sentences.append(rng.choice(FRAMES).format(**words))
        documents.append("\n".join(sentences))
    return "\n\n".join(documents) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path, help="the file to write 1,200 documents to")
    parser.add_argument("valid", type=Path, help="the file to write 34 others to")
    options = parser.parse_args()
    for seed, (path, count) in enumerate(((options.train, 1200), (options.valid, 34))):
        path.write_text(write_documents(count, seed), encoding="utf-8")


if __name__ == "__main__":
    main()
