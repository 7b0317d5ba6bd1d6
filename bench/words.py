"""Compare word vectors with gensim's word2vec, same text and settings: speed and quality.

    python bench/words.py TEXT SETS [--gensim PYTHON] [--mode cbow] [--epochs N] [--seed N] [--threads N]
        [--device cuda] [--set train.lr=0.1]...

SETS is a folder of .csv files, as for `regard score`. PYTHON is a Python that has gensim; without it only our
own results are printed. Both get the same words and number of threads, one after the other. Times are of
training alone, ours without the first steps. The same code scores both. Prints one JSON line at the end.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from regard.data.documents import read_documents
from regard.models import Word2Vec, WordsConfig
from regard.runs import recipe
from regard.runs.model import Model
from regard.tasks.words import UNKNOWN
from regard.text.tokenizer import WORDS
from regard.training.build import train

GENSIM = """
import json, sys, time
from gensim.models import Word2Vec
o = json.loads(sys.argv[1])
lines = [line.split() for line in open(o["text"], encoding="utf-8") if line.strip()]
model = Word2Vec(
    vector_size=o["dim"], window=o["window"], negative=o["negative"], min_count=o["least"],
    sample=o["subsample"], sg=o["mode"] == "skipgram", workers=o["workers"], seed=o["seed"],
)
model.build_vocab(lines)
start = time.perf_counter()
model.train(lines, total_examples=len(lines), epochs=o["epochs"])
print(json.dumps({"seconds": time.perf_counter() - start}))
model.wv.save_word2vec_format(o["out"])
"""
WARMUP_STEPS = 20  # not timed: compiling and filling caches


def split_words(text: str) -> str:
    """Return a text in lower case with a space between words, line by line."""
    lines = text.lower().replace(UNKNOWN, " ").splitlines()
    return "\n".join(" ".join(re.findall(WORDS, line)) for line in lines)


def score_answers(model: Model, sets: str) -> dict[str, float]:
    scores = model.task.score(model.model, model.task.held_out([sets]))
    assert scores is not None
    return scores


def train_ours(
    text: Path, words: int, epochs: int, changes: dict[str, Any], folder: Path
) -> tuple[Model, float]:
    """Return the model, and words per second."""
    tokens = changes["train.tokens"]
    steps = max(2 * WARMUP_STEPS, epochs * words // tokens)
    model = train("words", str(text), out=folder, steps=steps, set=changes | {"train.log": WARMUP_STEPS})
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    times = {row["step"]: row["elapsed"] for row in rows if "elapsed" in row}
    return model, tokens * (steps - WARMUP_STEPS) / (times[steps] - times[WARMUP_STEPS])


def train_gensim(python: str, options: dict[str, Any], ours: Model) -> tuple[Model, float]:
    """Return gensim's vectors in a model of ours, and its seconds; unknown words are zero."""
    done = subprocess.run(
        [python, "-c", GENSIM, json.dumps(options)], check=True, capture_output=True, text=True
    )
    vectors = torch.zeros(ours.tokenizer.vocab, options["dim"])
    for line in Path(options["out"]).read_text("utf-8").splitlines()[1:]:
        word, *numbers = line.split(" ")
        if (id := ours.tokenizer.id(word)) is not None:
            vectors[id] = torch.tensor([float(number) for number in numbers])
    model = Word2Vec(WordsConfig(vocab=ours.tokenizer.vocab, dim=options["dim"]))
    with torch.no_grad():
        model.embed.weight.copy_(vectors)
    return Model(model, ours.task, {}), json.loads(done.stdout)["seconds"]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("text", metavar="TEXT")
    p.add_argument("sets", metavar="SETS")
    p.add_argument("--gensim", metavar="PYTHON")
    p.add_argument("--mode", choices=["skipgram", "cbow"], default="skipgram")
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--device", default="cpu")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = p.parse_args()
    torch.set_num_threads(options.threads)
    shared = {"dim": 100, "window": 5, "negative": 5, "least": 5, "subsample": 1e-3, "mode": options.mode}
    changes = {
        "model.dim": shared["dim"],
        "model.context": shared["window"],
        "task.negative": shared["negative"],
        "task.subsample": shared["subsample"],
        "task.mode": options.mode,
        "data.least": shared["least"],
        "data.holdout": 0.0,
        "train.seed": options.seed,
        "train.device": options.device,
        "train.tokens": recipe.read("words")["train"]["tokens"],
        "train.save": 10**9,
    } | recipe.assignments(options.set)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text_words = split_words("\n".join(read_documents([options.text])))
        text.write_text(text_words, "utf-8")
        words = len(text_words.split())
        model, rate = train_ours(text, words, options.epochs, changes, Path(folder) / "run")
        rates, scores = {"regard": rate}, {"regard": score_answers(model, options.sets)}
        if options.gensim:
            more = {"text": str(text), "out": str(Path(folder) / "gensim.txt"), "epochs": options.epochs}
            gensim_options = shared | more | {"workers": options.threads, "seed": options.seed}
            other, seconds = train_gensim(options.gensim, gensim_options, model)
            rates["gensim"], scores["gensim"] = (
                options.epochs * words / seconds,
                score_answers(other, options.sets),
            )
    for name, rate in rates.items():
        against = f"  {rate / rates['gensim']:.2f}x gensim" if "gensim" in rates else ""
        print(f"{name:10} {rate:12,.0f} words/s{against}")
    for key in scores["regard"]:
        print(f"{key:30}" + "".join(f"  {name} {values[key]:.4f}" for name, values in scores.items()))
    settings = {"set": options.set, "mode": options.mode, "seed": options.seed, "device": options.device}
    print(json.dumps(settings | {"words_per_second": rates, "scores": scores}))


if __name__ == "__main__":
    main()
