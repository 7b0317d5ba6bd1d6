"""Commands of Regard in forks of this process, on tiny models, and what they leave in a folder."""

import hashlib
import json
import os
import stat
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
import torch._dynamo  # optimizers ask for it at their first step; better once than in every fork

from helpers.runs import checkpoints, rows, write_text
from regard import cli
from regard.tasks import TASKS
from regard.training import throughput as meter
from torture import forks
from torture.forks import Ended

DATA, OUT, RUN = "data.txt", "out", "run"
SETTINGS = {
    "model.dim": 8, "model.context": 11, "model.depth": 1, "model.heads": 2, "model.dropout": 0.1,
    "train.batch": 6, "train.device": "cpu", "train.log": 1, "train.save": 2, "train.evaluate": 2,
    "train.keep": 2, "train.lr": 0.01, "train.warmup": 3, "train.optimizer": "adamw",
}  # fmt: skip
SET = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
TRAIN = [
    word for pair in zip(SET[::2], SET[1::2], strict=True) if pair[1].startswith("train.") for word in pair
]


def load_libraries(exporters: bool = True) -> None:
    """Import what commands import, and leave out what takes longer than a tiny run."""
    import regard.convert.huggingface.export
    import regard.runs.load
    import regard.training.build  # noqa: F401

    for name in ("gguf", "onnx", "onnxscript", "onnxruntime", "ctranslate2"):
        if exporters and find_spec(name) is not None:
            import_module(name)

    torch.set_num_threads(1)
    meter.peak, meter.flops = (lambda *_: 1e9), (lambda *_: 1.0)
    for task, _ in TASKS.values():
        task.sample = lambda *_: ""  # type: ignore[attr-defined]


def regard(*words: object, seconds: float = 60.0) -> Ended:
    """Run a command in a fork."""
    return forks.call(cli.main, list(map(str, words)), seconds=seconds)


def train_words(folder: Path, steps: int, resume: bool = False) -> list[str]:
    """The command that trains in folder/out on folder/data.txt."""
    words = ["train", "write", str(folder / DATA), "--out", str(folder / OUT), "--steps", str(steps), *SET]
    return words + (["--resume"] if resume else [])


def write_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / DATA, lines=12)


def write_pairs(path: Path) -> None:
    path.write_text("".join(f"the {n} dogs run\tdie {n} Hunde laufen\n" for n in range(24)))


def succeed(*words: object) -> Ended:
    ended = regard(*words)
    assert ended.status == 0, ended.errors
    return ended


def tree(folder: Path) -> dict[str, str]:
    """What is below a folder: the digest of each file, the target of each link, the kind of all else."""
    return {str(path.relative_to(folder)): describe(path) for path in sorted(folder.rglob("*"))}


def describe(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"link to {os.readlink(path)}"
    if stat.S_ISREG(mode):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "folder" if stat.S_ISDIR(mode) else "special"


def check_same_run(reference: Path, out: Path) -> None:
    """Raise AssertionError unless the runs are the same to the last bit, and nothing half-written is left."""
    assert checkpoints(reference)[-1] == checkpoints(out)[-1]
    last = f"checkpoints/{checkpoints(reference)[-1]}"
    for folder in ("", last):
        there, expected = (tensors(path / folder) for path in (out, reference))
        assert there == expected, f"differs: {sorted(set(there.items()) ^ set(expected.items()))}"
    assert rows(reference) == rows(out)
    states = [json.loads((path / last / "state.json").read_text()) for path in (reference, out)]
    assert all(states[0][key] == states[1][key] for key in ("best", "worse")), states
    assert not list(out.rglob(".*")), "something half-written is left"


def tensors(folder: Path) -> dict[str, str]:
    return {path.name: describe(path) for path in folder.glob("*.safetensors")}
