"""What a window of memory is worth: an RNN, an LSTM and a GPT of equal size, trained on one text.

    python docs/writers.py [TEXT] [--steps 600] [--out docs/pictures/writers.svg]

prints what each writes, its loss by the number of characters before, and how far back a change of its state
matters, and draws the second. It takes about five minutes on two cores.
"""

import argparse
import gzip
import tempfile
from pathlib import Path
from typing import Any

import torch

import regard
from regard.draw.picture import draw
from regard.draw.plots import position_curves
from regard.models import MODELS
from regard.runs.model import Model
from regard.runs.score import loss_table
from regard.tracing.jacobians import jacobian_norms

PROMPT = "As aliens entered our planet"
KINDS: dict[str, dict[str, Any]] = {
    "GPT": {"kind": "gpt", "dim": 64, "depth": 4, "heads": 4},
    "LSTM": {"kind": "recurrent", "cell": "lstm", "depth": 2, "dropout": 0.0},
    "RNN": {"kind": "recurrent", "cell": "rnn", "depth": 2, "dropout": 0.0},
}
DISTANCES = (1, 2, 4, 8, 16, 32, 64)
SHARED = {"train.optimizer": "adamw", "train.lr": 3e-3, "train.batch": 16, "train.device": "cpu"}
SHARED |= {"train.evaluate": 10_000, "train.save": 10_000, "train.log": 100, "model.context": 128}


def count_weights(settings: dict[str, Any], vocab: int) -> int:
    model, config, _ = MODELS[settings["kind"]]
    with torch.device("meta"):
        built = model(config(vocab=vocab, **{k: v for k, v in settings.items() if k != "kind"}))
    return sum(p.numel() for p in built.parameters())


def equal_sizes(vocab: int) -> dict[str, dict[str, Any]]:
    """The settings of all models, each with the width that makes it as large as the first."""
    first = next(iter(KINDS.values()))
    size = count_weights(first, vocab)

    def fitted(settings: dict[str, Any]) -> dict[str, Any]:
        widths = ({"dim": dim} | settings for dim in range(16, 512, 4))
        return min(widths, key=lambda one: abs(count_weights(one, vocab) - size))

    return {name: fitted(settings) for name, settings in KINDS.items()}


def train(folder: Path, text: Path, steps: int, settings: dict[str, Any]) -> Model:
    changes = SHARED | {f"model.{name}": value for name, value in settings.items()}
    return regard.train(
        "write", str(text), valid=str(folder / "valid.txt"), out=folder / "run", steps=steps, set=changes
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    here = Path(__file__).parent
    parser.add_argument(
        "text", nargs="?", type=Path, default=Path(regard.__file__).parent / "builtin/write.txt"
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, default=here / "pictures/writers.svg")
    options = parser.parse_args()
    with (gzip.open if options.text.suffix == ".gz" else open)(options.text, "rt", encoding="utf-8") as file:
        text = file.read()
    cut = len(text) * 9 // 10
    models, losses = dict[str, Model](), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as temporary:
        for name, settings in equal_sizes(len(set(text)) + 1).items():
            folder = Path(temporary) / name
            folder.mkdir()
            (folder / "valid.txt").write_text(text[cut:], encoding="utf-8")
            (folder / "train.txt").write_text(text[:cut], encoding="utf-8")
            models[name] = train(folder, folder / "train.txt", options.steps, settings)
            losses[name] = models[name].score(str(folder / "valid.txt"), by_position=True)["loss_by_position"]
    sizes = {name: sum(p.numel() for p in model.model.parameters()) for name, model in models.items()}
    for name, model in models.items():
        answer = model.ask(PROMPT, max_new_tokens=100, temperature=0.7, seed=1)
        print(f"**{name}**, {sizes[name]:,} weights: {' '.join((PROMPT + answer).split())}\n")
    ranges = [place for place, _ in loss_table(losses["GPT"])]
    rows = [[name, *(f"{loss:.2f}" for _, loss in loss_table(ys))] for name, ys in losses.items()]
    print(table(["loss after so many characters", *ranges], rows), end="\n\n")
    beginning = text[cut : cut + max(DISTANCES) + 1]
    rows = []
    for name, model in models.items():
        norms = jacobian_norms(model, beginning).tolist()
        rows.append([name, *(f"{norms[k]:.2g}" for k in DISTANCES)])
    print(table(["∣∂h_T/∂h_{T−k}∣ at the distance k", *map(str, DISTANCES)], rows))
    draw(position_curves(losses)).save(options.out)


if __name__ == "__main__":
    main()
