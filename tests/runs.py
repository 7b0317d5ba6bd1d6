"""Tiny runs for the tests of training: what they train on, how they are stopped, and what must be equal."""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regard import meter
from regard.train import train

TEXT = "The quick brown fox, aged %d, jumps over %d lazy dogs; then it sleeps.\n"
TINY = {
    "model.context": 11,
    "model.dim": 8,
    "model.depth": 2,
    "model.heads": 2,
    "train.batch": 6,
    "train.optimizer": "adamw",
    "train.schedule": "cosine",
    "train.warmup": 3,
    "train.lr": 0.01,
    "train.log": 1,
    "train.device": "cpu",
}
TIMES = {"elapsed", "tokens_per_second", "mfu"}  # what may differ between runs that are the same


def write_text(path: Path, lines: int = 40) -> str:
    path.write_text("".join(TEXT % (n, n * n) for n in range(lines)))
    return str(path)


def tiny(text: str, out: Path, **more: Any) -> Any:
    """Train a tiny writer; keys are written with two underscores, as in train__steps=5."""
    options = {k: more.pop(k) for k in ("valid", "base", "steps", "minutes", "resume") if k in more}
    settings = TINY | {k.replace("__", "."): v for k, v in more.items()}
    return train("write", text, out=out, set=settings, **options)


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
    """Skip what takes longer than a tiny run: measuring the machine, and writing samples."""
    patch.setattr(meter, "peak", lambda device, bf16: 1e9)
    patch.setattr(meter, "flops", lambda objective, batch: 1.0)
