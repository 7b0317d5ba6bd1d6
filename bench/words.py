"""Word vectors: ours and gensim's word2vec on the same text with the same settings, speed and quality.

    python bench/words.py TEXT SETS [--gensim PYTHON] [--mode cbow] [--epochs N] [--seed N] [--threads N]
        [--device cuda] [--set train.lr=0.1]...

SETS is a folder of .csv files, as `regard score` takes them. PYTHON is one that has gensim; without it only
our own figures are printed. Both get the same words, as ours parts them, and learn on as many threads, one
after the other; times are of the learning alone, without reading and counting, ours also without its first
steps. Both are judged by the same code. Ends with one JSON line.
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

from regard import recipe
from regard.data.reading import documents
from regard.models import Words, WordsConfig
from regard.run import Model
from regard.tasks.words import UNKNOWN
from regard.text import WORDS
from regard.train import train

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
FIRST = 20  # steps, of ours: what is compiled and cached in them is not learning


def parted(text: str) -> str:
    """A text in small letters with a space between any two words, line by line."""
    lines = text.lower().replace(UNKNOWN, " ").splitlines()
    return "\n".join(" ".join(re.findall(WORDS, line)) for line in lines)


def judged(model: Model, sets: str) -> dict[str, float]:
    return model.task.scored(model.model, model.task.held_out([sets]))


def ours(text: Path, words: int, epochs: int, changes: dict[str, Any], folder: Path) -> tuple[Model, float]:
    """The model, and words a second."""
    tokens = changes["train.tokens"]
    steps = max(2 * FIRST, epochs * words // tokens)
    model = train("words", str(text), out=folder, steps=steps, set=changes | {"train.log": FIRST})
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    times = {row["step"]: row["elapsed"] for row in rows if "elapsed" in row}
    return model, tokens * (steps - FIRST) / (times[steps] - times[FIRST])


def theirs(python: str, options: dict[str, Any], ours: Model) -> tuple[Model, float]:
    """Its vectors inside a model of ours: words that only one of them knows, such as those whose capitals are
    not ASCII, have none. And its seconds."""
    found = subprocess.run(
        [python, "-c", GENSIM, json.dumps(options)], check=True, capture_output=True, text=True
    )
    vectors = torch.zeros(ours.tokenizer.vocab, options["dim"])
    for line in Path(options["out"]).read_text("utf-8").splitlines()[1:]:
        word, *numbers = line.split(" ")
        if (id := ours.tokenizer.id(word)) is not None:
            vectors[id] = torch.tensor([float(number) for number in numbers])
    model = Words(WordsConfig(vocab=ours.tokenizer.vocab, dim=options["dim"]))
    with torch.no_grad():
        model.embed.weight.copy_(vectors)
    return Model(model, ours.task, {}), json.loads(found.stdout)["seconds"]


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
    same = {"dim": 100, "window": 5, "negative": 5, "least": 5, "subsample": 1e-3, "mode": options.mode}
    changes = {
        "model.dim": same["dim"],
        "model.context": same["window"],
        "task.negative": same["negative"],
        "task.subsample": same["subsample"],
        "task.mode": options.mode,
        "data.least": same["least"],
        "data.holdout": 0.0,
        "train.seed": options.seed,
        "train.device": options.device,
        "train.tokens": recipe.read("words")["train"]["tokens"],
        "train.save": 10**9,
    } | recipe.assignments(options.set)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        whole = parted("\n".join(documents([options.text])))
        text.write_text(whole, "utf-8")
        words = len(whole.split())
        mine, rate = ours(text, words, options.epochs, changes, Path(folder) / "run")
        rates, scores = {"regard": rate}, {"regard": judged(mine, options.sets)}
        if options.gensim:
            more = {"text": str(text), "out": str(Path(folder) / "gensim.txt"), "epochs": options.epochs}
            given = same | more | {"workers": options.threads, "seed": options.seed}
            other, seconds = theirs(options.gensim, given, mine)
            rates["gensim"], scores["gensim"] = options.epochs * words / seconds, judged(other, options.sets)
    for name, rate in rates.items():
        against = f"  {rate / rates['gensim']:.2f}x gensim" if "gensim" in rates else ""
        print(f"{name:10} {rate:12,.0f} words/s{against}")
    for key in scores["regard"]:
        print(f"{key:30}" + "".join(f"  {name} {found[key]:.4f}" for name, found in scores.items()))
    settings = {"set": options.set, "mode": options.mode, "seed": options.seed, "device": options.device}
    print(json.dumps(settings | {"words_per_second": rates, "scores": scores}))


if __name__ == "__main__":
    main()
