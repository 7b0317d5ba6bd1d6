"""Tiny runs for the tests of training: what they train on, how they are stopped, and what must be equal."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import distributed, meter
from regard.train import train

TEXT = "The quick brown fox, aged %d, jumps over %d lazy dogs; then it sleeps.\n"
WAYS = {"North": "Norden", "the old mill": "die alte Mühle", "her": "ihr", "us all": "uns allen"}

ANY = {
    "model.dim": 8,
    "train.optimizer": "adamw",
    "train.schedule": "cosine",
    "train.warmup": 3,
    "train.lr": 0.01,
    "train.log": 1,
    "train.device": "cpu",
}
TINY = ANY | {"model.context": 11, "model.depth": 2, "model.heads": 2, "train.batch": 6}  # of writing
PAIRS = ANY | {"model.context": 23, "model.dropout": 0.0, "data.vocab": 320, "train.weight_decay": 0.1}
READ = PAIRS | {"model.depth": 2, "model.heads": 2}  # with an encoder, or to tell a class
TRANSLATE = PAIRS | {"train.tokens": 120}

# Every model that can be trained, in every task: a recipe's name, and settings.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "write": ("write", TINY),
    "translate-transformer": ("translate", TRANSLATE | {"model.depth": 2, "model.heads": 2}),
    "translate-rnn": ("translate", TRANSLATE | {"model.kind": "rnn", "model.attention": "none"}),
    "translate-gru": ("translate", TRANSLATE | {"model.kind": "gru", "model.attention": "additive"}),
    "translate-lstm": (
        "translate",
        TRANSLATE | {"model.kind": "lstm", "model.attention": "dot", "model.depth": 2},
    ),
    # rows instead of tokens; a vocabulary for each side, as in its recipe
    "chat-transformer": (
        "chat",
        PAIRS | {"train.batch": 9, "task.turns": 3, "model.depth": 1, "model.heads": 2},
    ),
    "chat-gru": (
        "chat",
        PAIRS
        | {"train.batch": 9, "task.turns": 3, "model.kind": "gru", "model.attention": "general"}
        | {"model.bidirectional": False, "model.tied": False},
    ),
    "restore-t5": ("restore", READ | {"model.depth": 1, "train.batch": 5}),
    "fill-bert": ("fill", READ | {"train.batch": 5, "train.optimizer": "muon"}),
    "fill-bert-packed": (
        "fill",
        READ | {"train.batch": 5, "task.next": False, "task.whole_words": True, "model.segments": 0},
    ),
    "classify-bert": ("classify", READ | {"train.batch": 9, "task.balanced": True}),
    "classify-gpt": ("classify", READ | {"train.batch": 9, "model.kind": "gpt", "model.context": 23}),
}
OF_PAIRS = [name for name in RUNS if name.startswith(("translate", "chat"))]
STEADY = [name for name in RUNS if name.startswith(("write", "restore", "fill"))]  # batches of one shape
QUESTIONS = {"restore": "The ___ fox", "fill": "The ___ fox"}  # that a model understands; others take any
TIMES = {"elapsed", "tokens_per_second", "mfu"}  # what may differ between runs that are the same


def write_text(path: Path, lines: int = 40) -> str:
    path.write_text("".join(TEXT % (n, n * n) for n in range(lines)))
    return str(path)


def write_pairs(path: Path) -> str:
    """Sentences of four to a dozen words, and their translations."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(36):
            ways = [list(WAYS.items())[(n + k) % 4] for k in range(1 + n % 3)]
            source, target = (" and ".join(way[i] for way in ways) for i in (0, 1))
            file.write(f"{n} go to {source}\t{n} gehen zu {target.replace(' and ', ' und ')}\n")
    return str(path)


def write_chats(path: Path) -> str:
    """Conversations of two, three or four turns."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(20):
            turns = [f"I am fox {n}.", f"Hello {n}!", "How many dogs are here?", f"{n * n} lazy dogs."]
            for i in range(1 + n % 3):
                file.write(f"{turns[i]}\t{turns[i + 1]}\n")
    return str(path)


def write_documents(path: Path) -> str:
    """Of one to four sentences, blank lines between them."""
    documents = ([TEXT.strip() % (n + k, n * k) for k in range(1 + n % 4)] for n in range(24))
    path.write_text("\n\n".join(" ".join(sentences) for sentences in documents))
    return str(path)


def write_labels(path: Path) -> str:
    """Three classes, of which the last is rare; a second text of another length goes with each."""
    with path.open("w", encoding="utf-8") as file:
        file.write("text\tother\tlabel\n")
        for n in range(36):
            ways = list(WAYS)[: 1 + n % 4]
            label = "small" if n < 12 else "middling" if n < 30 else "large"
            file.write(f"{n} go to {' and '.join(ways)}\t{'how ' * (n % 3)}many\t{label}\n")
    return str(path)


def write_data(case: str, folder: Path) -> str:
    """What a case of RUNS learns from."""
    name = RUNS[case][0]
    write = {
        "write": write_text,
        "translate": write_pairs,
        "chat": write_chats,
        "restore": write_text,
        "fill": write_documents,
        "classify": write_labels,
    }[name]
    return write(folder / (f"{name}.tsv" if name in ("translate", "chat", "classify") else f"{name}.txt"))


def settings_of(case: str, more: dict[str, Any]) -> dict[str, Any]:
    """A case's settings, and more; keys are written with two underscores, as in train__steps=5."""
    return RUNS[case][1] | {k.replace("__", "."): v for k, v in more.items()}


def tiny(data: str, out: Path, case: str = "write", **more: Any) -> Any:
    """Train one of RUNS."""
    options = {k: more.pop(k) for k in ("valid", "base", "steps", "minutes", "resume") if k in more}
    return train(RUNS[case][0], data, out=out, set=settings_of(case, more), **options)


@contextlib.contextmanager
def before(owner: Any, name: str, act: Callable[..., None]) -> Iterator[None]:
    """`act` with the arguments of every call of owner.name, before it."""
    true = getattr(owner, name)

    def both(*args: Any, **options: Any) -> Any:
        act(*args, **options)
        return true(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, both)
        yield


@contextlib.contextmanager
def stopped(owner: Any, name: str, when: Callable[..., bool], how: int = signal.SIGTERM) -> Iterator[None]:
    """The signal comes at the first call of owner.name of which `when` holds, and training stops."""
    sent = []

    def send(*args: Any, **options: Any) -> None:
        if not sent and when(*args, **options):
            sent.append(how)
            os.kill(os.getpid(), how)

    expected = KeyboardInterrupt if how == signal.SIGINT else SystemExit
    with before(owner, name, send), pytest.raises(expected) as caught:
        yield
    assert sent
    if expected is SystemExit:
        assert caught.value.code == 128 + how


def at_step(n: int) -> Callable[..., bool]:
    """As training comes to step n, counted from 0."""
    return lambda trainer, *_: trainer.step == n


def checkpoints(out: Path) -> list[str]:
    return sorted((p.name for p in (out / "checkpoints").iterdir()), key=lambda name: int(name[5:]))


def rows(out: Path) -> list[dict[str, Any]]:
    """log.jsonl, without what depends on the clock."""
    lines = (out / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def same(a: Path, b: Path, state: bool = True) -> None:
    """The runs' models, their last checkpoints and their logs are the same to the last bit.

    A stop between the last step and its evaluation leaves that to the next sitting, which saves no second
    time: then the checkpoint's `state` does not know of it.
    """
    assert checkpoints(a)[-1] == checkpoints(b)[-1]
    last = f"checkpoints/{checkpoints(a)[-1]}"
    for name in ("model.safetensors", f"{last}/model.safetensors", f"{last}/optimizer.safetensors"):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    assert rows(a) == rows(b)
    about_a, about_b = (json.loads((out / last / "state.json").read_text()) for out in (a, b))
    if state:
        assert about_a["best"] == about_b["best"]
        assert about_a["worse"] == about_b["worse"]
    for out in (a, b):
        assert not list(out.rglob(".*")), "something half-written is left"


def unmeasured(patch: pytest.MonkeyPatch) -> None:
    """Skip what takes longer than a tiny run: measuring the machine."""
    patch.setattr(meter, "peak", lambda device, bf16: 1e9)
    patch.setattr(meter, "flops", lambda objective, batch: 1.0)


@contextlib.contextmanager
def once_together(device: torch.device) -> Iterator[None]:
    """In place of `distributed.together`: the processes have met, and wait for each other before a run."""
    distributed.most(0)
    yield


def main(path: str) -> None:
    """Started by torchrun: train what a JSON file lists, one run after another in the same processes."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # so fine that the order of a sum does not show
    meter.peak, meter.flops = (lambda *_: 1e9), (lambda *_: 1.0)
    with distributed.together(torch.device("cpu")):
        distributed.together = once_together
        for data, out, settings in json.loads(Path(path).read_text()):
            tiny(data, Path(out), **settings)


if __name__ == "__main__":
    main(sys.argv[1])
