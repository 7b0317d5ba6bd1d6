"""Temperature: what a writer's samples are like at 0.2, 1.0 and 1.5.

A GPT that writes letter by letter learns the built-in stories, and goes on from one beginning many times.

Shapes: T letters.
"""

import math
import re
import tempfile
from pathlib import Path

import torch

import regard
from experiments.training import Result

STEPS = 800
TEMPERATURES = (0.2, 1.0, 1.5)
SAMPLES, LENGTH, PROMPT = 64, 60, "As aliens entered our planet, "
STORIES = Path(regard.__file__).parent / "builtin" / "stories.txt"
SMALL = {"model.dim": 64, "model.depth": 2, "model.heads": 2, "train.batch": 24, "data.holdout": 0.0}


def train_writer(seed: int, steps: int) -> regard.Model:
    with tempfile.TemporaryDirectory() as folder:
        changes = SMALL | {"train.seed": seed, "train.log": steps, "train.save": steps}
        return regard.train("write", str(STORIES), out=Path(folder) / "run", steps=steps, set=changes)


@torch.no_grad()
def next_letter_entropy(model: regard.Model, temperature: float) -> float:
    """How many bits the choice of a letter has, on average over the first letters of the stories."""
    ids = model.tokenizer.encode(STORIES.read_text("utf-8"))[:6400]
    logits = model.model(torch.tensor(ids).view(-1, 64)).double() / temperature
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).mean().item() / math.log(2)


def run(seed: int, steps: int = STEPS) -> Result:
    model = train_writer(seed, steps)
    known = set(re.findall(r"\w+", STORIES.read_text("utf-8")))
    result = {}
    for temperature in TEMPERATURES:
        samples = model.ask(
            PROMPT, temperature=temperature, seed=seed, num_return_sequences=SAMPLES, max_new_tokens=LENGTH
        )
        words = [word for text in samples for word in re.findall(r"\w+", text)[:-1]]  # the last may be cut
        result[f"temperature={temperature}"] = {
            "different texts, %": 100 * len(set(samples)) / SAMPLES,
            "words that exist, %": 100 * sum(word in known for word in words) / len(words),
            "bits per letter": next_letter_entropy(model, temperature),
        }
    return result
