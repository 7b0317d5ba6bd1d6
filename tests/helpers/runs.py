"""Tiny runs for the tests of training: their data, how they are stopped, and what must be equal."""

import contextlib
import json
import os
import re
import signal
import struct
import wave
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor

from helpers.disks import without_fsync
from regard import cli
from regard.runs import checkpoints as saved
from regard.tasks import Write
from regard.tasks.request import Request
from regard.training import distributed
from regard.training import throughput as meter
from regard.training.build import train
from regard.training.plan import follow, speed
from regard.training.reporter import Reporter
from regard.training.trainer import Trainer

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
OF_CELLS = ANY | {"model.context": 11, "model.dropout": 0.0, "train.batch": 6}
PAIRS = ANY | {"model.context": 23, "model.dropout": 0.0, "data.vocab": 320, "train.weight_decay": 0.1}
READ = PAIRS | {"model.depth": 2, "model.heads": 2}  # with an encoder, or to tell a class
TRANSLATE = PAIRS | {"train.tokens": 120}
CAPTION = PAIRS | {"model.heads": 2, "model.patch": 4, "train.batch": 9, "task.area": 0.5, "task.flip": True}

# Every model that can be trained, in every task: a recipe's name, and settings.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "write": ("write", TINY),
    "write-lstm-cells": ("write", OF_CELLS | {"model.kind": "lstm", "model.depth": 2}),
    "write-rnn-cells": ("write", OF_CELLS | {"model.kind": "rnn", "model.tied": False}),
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
    "fill-elmo": ("fill", PAIRS | {"train.batch": 5, "model.kind": "elmo"}),
    "fill-elmo-packed": (
        "fill",
        PAIRS | {"train.batch": 5, "model.kind": "elmo", "task.next": False, "task.whole_words": True},
    ),
    "fill-electra": ("fill", READ | {"train.batch": 5, "task.replaced": True}),
    "classify-bert": ("classify", READ | {"train.batch": 9, "task.balanced": True}),
    "classify-t5": (
        "classify",
        READ | {"train.batch": 9, "model.kind": "t5", "model.depth": 1, "data.tokenizer": "bpe"},
    ),
    "classify-gpt": ("classify", READ | {"train.batch": 9, "model.kind": "gpt", "model.context": 23}),
    "classify-gru": (
        "classify",
        PAIRS | {"train.batch": 9, "model.kind": "gru", "model.bidirectional": True, "model.depth": 2},
    ),
    "classify-elmo": ("classify", PAIRS | {"train.batch": 9, "model.kind": "elmo"}),
    "tag-bert": ("tag", READ | {"train.batch": 9}),
    "tag-elmo": ("tag", PAIRS | {"train.batch": 9, "model.kind": "elmo"}),
    "tag-gpt": ("tag", READ | {"train.batch": 9, "model.kind": "gpt"}),
    "span-bert": ("span", READ | {"train.batch": 9}),
    "span-elmo": ("span", PAIRS | {"train.batch": 9, "model.kind": "elmo"}),
    "embed-elmo": ("embed", PAIRS | {"train.batch": 9, "model.kind": "elmo"}),
    "embed-bert": ("embed", READ | {"train.batch": 9}),
    "see-vit": (
        "see",
        ANY
        | {"model.patch": 2, "model.depth": 2, "model.heads": 2, "model.skip": 0.0, "train.batch": 9}
        | {"task.operations": 2, "task.area": 0.5, "task.erase": 0.5, "task.mixup": 0.4, "task.cutmix": 1.0},
    ),
    "hear-vit": (
        "hear",
        ANY
        | {"model.patch": 8, "model.depth": 2, "model.heads": 2, "model.dropout": 0.0, "train.batch": 9}
        | {"task.mels": 7},
    ),
    "caption-soft": ("caption", CAPTION),
    "caption-hard": ("caption", CAPTION | {"model.attention": "hard"}),
    "caption-transformer": (
        "caption",
        CAPTION | {"model.decoder": "transformer", "model.encoder": "vit", "model.decoder_depth": 2},
    ),
    "words": ("words", ANY | {"model.context": 3, "data.least": 1, "data.holdout": 0.1, "train.tokens": 448}),
}
# Made of a model and a task that others have, too.
SIMILAR = (
    *("write-rnn-cells", "translate-rnn", "translate-lstm", "chat-gru", "fill-elmo-packed", "classify-elmo"),
    *("tag-elmo", "tag-gpt", "span-elmo"),
)
DIFFERENT = [name for name in RUNS if name not in SIMILAR]
ONE_OF_EACH = [*{RUNS[name][0]: name for name in reversed(DIFFERENT)}.values(), "translate-gru"]  # tasks


def others_are_slow(cases: Iterable[str]) -> list[Any]:
    """One case of each task for `make test`; the others of these are slow."""
    return [case if case in ONE_OF_EACH else pytest.param(case, marks=pytest.mark.slow) for case in cases]


# All batches of one shape; and batches that cannot be cut.
FIXED_SHAPES = [
    name for name in RUNS if name.startswith(("write", "restore", "fill", "words", "see", "hear"))
]
# Every part of a batch draws its own regions, so that parts are not the whole.
DRAWN = ["caption-hard"]
UNDIVIDED = [name for name in RUNS if name.startswith("embed")]
REFUSED = {"embed": {"train.micro"}, "words": {"model.dropout"}}  # settings that a task or its model lacks
QUESTIONS = {  # that a model understands; others take any
    "restore": "The ___ fox",
    "fill": "The ___ fox",
    "span": "Who is it?\tIt is fox 3.",
    "words": "brown",
    "see": "one.png",  # beside the data
    "hear": "hear/low_ada_0.wav",
    "caption": "caption/3.png",
}
TIMES = {"elapsed", "mfu", "first_step_seconds"} | {  # what may differ between runs that are the same
    f"{unit}_per_second" for unit in ("tokens", "target_tokens", "images", "seconds_of_sound")
}


def write_text(path: Path, lines: int = 40) -> str:
    path.write_text("".join(TEXT % (n, n * n) for n in range(lines)))
    return str(path)


def write_pairs(path: Path) -> str:
    """Write sentences of four to a dozen words, and their translations."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(36):
            ways = [list(WAYS.items())[(n + k) % 4] for k in range(1 + n % 3)]
            source, target = (" and ".join(way[i] for way in ways) for i in (0, 1))
            file.write(f"{n} go to {source}\t{n} gehen zu {target.replace(' and ', ' und ')}\n")
    return str(path)


def write_chats(path: Path) -> str:
    """Write conversations of two, three or four turns."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(20):
            turns = [f"I am fox {n}.", f"Hello {n}!", "How many dogs are here?", f"{n * n} lazy dogs."]
            for i in range(1 + n % 3):
                file.write(f"{turns[i]}\t{turns[i + 1]}\n")
    return str(path)


def write_documents(path: Path) -> str:
    """Write documents of one to four sentences, separated by blank lines."""
    documents = ([TEXT.strip() % (n + k, n * k) for k in range(1 + n % 4)] for n in range(24))
    path.write_text("\n\n".join(" ".join(sentences) for sentences in documents))
    return str(path)


def write_labels(path: Path) -> str:
    """Write pairs of texts of three classes, of which the last is rare."""
    with path.open("w", encoding="utf-8") as file:
        file.write("text\tother\tlabel\n")
        for n in range(36):
            ways = list(WAYS)[: 1 + n % 4]
            label = "small" if n < 12 else "middling" if n < 30 else "large"
            file.write(f"{n} go to {' and '.join(ways)}\t{'how ' * (n % 3)}many\t{label}\n")
    return str(path)


def write_tags(path: Path) -> str:
    """Write names and places; one sentence is longer than the context, and read in parts."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(36):
            for way in list(WAYS)[n % 2 : n % 4 + 1] * (5 if n == 30 else 1):
                words = [(str(n), "O"), ("go", "O"), ("to", "O")]
                words += [(word, f"{'I' if i else 'B'}-LOC") for i, word in enumerate(way.split())]
                file.write("".join(f"{word}\t{tag}\n" for word, tag in words))
            file.write("Fox\tB-PER\n\n")
    return str(path)


def write_spans(path: Path) -> str:
    """Write two questions for each text, some of which are longer than the context."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(24):
            ways = " and ".join(list(WAYS)[: 1 + n % 4])
            context = f"{n} go to {ways}; then fox {n * n} sleeps."
            for question, answer in (("Who sleeps then?", f"fox {n * n}"), ("Where to?", ways)):
                row = {"question": question, "context": context, "answer": answer}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return str(path)


def write_pictures(path: Path) -> str:
    """Write three classes of noise of increasing brightness as IDX, and an image to ask about."""
    pixels, labels = np.random.default_rng(0).integers(0, 86, (37, 6, 6)), np.arange(37) % 3
    pixels += 80 * labels[:, None, None]
    path.write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", *pixels.shape) + pixels.astype(np.uint8).tobytes())
    beside = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    beside.write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 37) + labels.astype(np.uint8).tobytes())
    Image.fromarray(pixels[7].astype(np.uint8)).save(path.with_name("one.png"))
    return str(path)


def write_captions(path: Path) -> str:
    """Write noise with one to three captions of different lengths, in a folder beside their table."""
    path.with_suffix("").mkdir(exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (23, 12, 12, 3)).astype(np.uint8)
    with path.open("w", encoding="utf-8") as file:
        file.write("image\tcaption\n")
        for n, picture in enumerate(pixels):
            Image.fromarray(picture).save(path.with_suffix("") / f"{n}.png")
            for way in list(WAYS)[: 1 + n % 3]:
                file.write(f"{n}.png\t{'a ' * (n % 5)}fox {n} goes to {way}\n")
    return str(path)


def write_sounds(path: Path) -> str:
    """Write three classes of tones of different lengths, by four voices of different loudness."""
    path.mkdir(exist_ok=True)
    for n in range(36):
        tone, voice = n % 3, n // 3 % 4
        samples = np.sin(np.arange(900 + 83 * n) * (0.2 + 0.5 * tone)) / (1 + voice)
        name = f"{('low', 'middle', 'high')[tone]}_{('ada', 'ben', 'cy', 'dee')[voice]}_{n // 12}.wav"
        with wave.open(str(path / name), "wb") as file:
            file.setparams((1, 2, 16_000, len(samples), "NONE", ""))
            file.writeframes((32767 * samples).astype("<i2").tobytes())
    return str(path)


FILES: dict[str, tuple[str, Callable[[Path], str]]] = {  # by task: a file's ending, and what writes it
    "write": (".txt", write_text),
    "translate": (".tsv", write_pairs),
    "chat": (".tsv", write_chats),
    "restore": (".txt", write_text),
    "fill": (".txt", write_documents),
    "classify": (".tsv", write_labels),
    "tag": (".conll", write_tags),
    "span": (".jsonl", write_spans),
    "embed": (".tsv", write_pairs),
    "words": (".txt", write_text),
    "see": ("-images-idx3-ubyte", write_pictures),
    "hear": ("", write_sounds),
    "caption": (".tsv", write_captions),
}


def write_data(case: str, folder: Path) -> str:
    """Write the data of a case of RUNS."""
    ending, write = FILES[name := RUNS[case][0]]
    return write(folder / f"{name}{ending}")


def settings_of(case: str, more: dict[str, Any]) -> dict[str, Any]:
    """A case's settings, and more; keys are written with two underscores, as in train__steps=5. What the case
    has no use for is left out."""
    name, settings = RUNS[case]
    settings = settings | {k.replace("__", "."): v for k, v in more.items()}
    return {k: v for k, v in settings.items() if k not in REFUSED.get(name, ())}


def tiny(data: str, out: Path, case: str = "write", **more: Any) -> Any:
    """Train one of RUNS."""
    names = ("valid", "base", "teacher", "steps", "minutes", "resume", "look")
    options = {k: more.pop(k) for k in names if k in more}
    return train(RUNS[case][0], data, out=out, set=settings_of(case, more), **options)


@contextlib.contextmanager
def before(owner: Any, name: str, act: Callable[..., None]) -> Iterator[None]:
    """Call `act` with the arguments of every call of owner.name, before it."""
    true = getattr(owner, name)

    def both(*args: Any, **options: Any) -> Any:
        act(*args, **options)
        return true(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, both)
        yield


@contextlib.contextmanager
def stopped(owner: Any, name: str, when: Callable[..., bool], how: int = signal.SIGTERM) -> Iterator[None]:
    """Send the signal at the first call of owner.name for which `when` is true; training stops."""
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
    """Return whether training is at step n, counted from 0."""
    return lambda trainer, *_: trainer.step == n


def checkpoints(out: Path) -> list[str]:
    names = (p.name for p in (out / "checkpoints").iterdir())
    return sorted(filter(re.compile(r"step-\d+").fullmatch, names), key=lambda name: int(name[5:]))


def rows(out: Path) -> list[dict[str, Any]]:
    """Read log.jsonl, without notices and times."""
    lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if k not in TIMES} for row in lines if "notice" not in row]


def notices(out: Path) -> list[str]:
    """What log.jsonl says in words."""
    lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [row["notice"] for row in lines if "notice" in row]


def guard_of(out: Path) -> dict[str, Any]:
    """The guard's state in the last checkpoint, without times."""
    state = json.loads((out / "checkpoints" / checkpoints(out)[-1] / "state.json").read_text())
    return {k: v for k, v in state["guard"].items() if not k.startswith("back_d")}


def assert_rows_close(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]], rel: float) -> None:
    """Two logs have the same rows: numbers up to `rel`, words exactly."""
    for a, b in zip(first, second, strict=True):
        numbers = {k: v for k, v in a.items() if not isinstance(v, str)}
        assert {k: v for k, v in b.items() if not isinstance(v, str)} == pytest.approx(numbers, rel=rel)
        assert a.keys() == b.keys()
        assert {k: v for k, v in a.items() if isinstance(v, str)}.items() <= b.items()


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
    """Skip what takes longer than a tiny run: measuring the machine, and most tokens of the samples shown."""
    patch.setattr(meter, "peak", lambda device, bf16: 1e9)
    patch.setattr(meter, "flops", lambda objective, batch: 1.0)
    in_float32(patch)
    show_sample = Reporter.show_sample

    def show_short_sample(reporter: Reporter, *args: Any) -> None:
        task = type(reporter.task)
        answers = task.answers

        def short_answers(self: Any, model: Any, request: Request) -> Any:
            few = replace(request.sampling, max_new_tokens=3)
            return answers(self, model, replace(request, sampling=few))

        with pytest.MonkeyPatch.context() as during:
            during.setattr(task, "answers", short_answers)
            show_sample(reporter, *args)

    patch.setattr(Reporter, "show_sample", show_short_sample)


def in_float32(patch: pytest.MonkeyPatch) -> None:
    """Plan runs in float32 on every machine, and so without measuring."""
    for module in (follow, speed):
        patch.setattr(module, "has_bf16", lambda device: False)


def losses(monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
    """Make evaluations return these losses, one after another."""
    remaining = iter(values)
    monkeypatch.setattr(Write, "metrics", lambda *_: {"loss": next(remaining)})


@contextlib.contextmanager
def process_group_once(device: torch.device) -> Iterator[None]:
    """Replaces `distributed.process_group`: the group exists already, and processes wait for each other."""
    distributed.barrier()
    yield


def main(path: str) -> None:
    """Called by helpers/ranks.py: run the command lines of a JSON file, and train its runs, one after another
    in the same processes. What process 0 prints stands in out-0 and err-0 of the folder that is its key."""
    patch, plan = pytest.MonkeyPatch(), json.loads(Path(path).read_text())
    torch.set_num_threads(1)
    unmeasured(patch)
    without_fsync(patch)
    with distributed.process_group(torch.device("cpu")):
        patch.setattr(distributed, "process_group", process_group_once)
        for folder, words in plan["commands"].items():
            with (
                (Path(folder) / f"out-{distributed.RANK}").open("w") as out,
                (Path(folder) / f"err-{distributed.RANK}").open("w") as err,
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                pytest.raises(SystemExit),
            ):
                cli.main(words)
        torch.set_default_dtype(torch.float64)  # so fine that the order of a sum does not show
        for data, folder, settings in plan["runs"]:
            if (step := settings.pop("killed_at", None)) is not None:
                patch.setattr(Trainer, "train_step", killed_at(step))
            if (step := settings.pop("killed_writing", None)) is not None:
                patch.setattr(saved, "write_part", killed_writing(step))
            with contextlib.ExitStack() as stack:
                if (file := settings.pop("measured", None)) is not None:
                    stack.enter_context(before(Trainer, "evaluate", partial(write_measured, Path(file))))
                    stack.enter_context(counted_messages())
                if settings_of(settings.get("case", "write"), {})["train.optimizer"] != "muon":  # of matrices
                    stack.enter_context(before(distributed, "gather_full", refuse_rows))
                tiny(data, Path(folder), **settings)


def refuse_rows(t: Tensor) -> None:
    """No process needs all rows of what it shares with others."""
    assert not (t.ndim and hasattr(t, "full_tensor"))


MESSAGES = {"all-gather": 0.0, "reduce-scatter": 0.0, "all-reduce": 0.0}  # bytes that this process has sent


@contextlib.contextmanager
def counted_messages() -> Iterator[None]:
    """Count what FSDP sends while training steps are computed, as rings send it."""
    size = dist.get_world_size

    def gather(output: Tensor, own: Tensor, group: Any = None, **_: Any) -> None:
        MESSAGES["all-gather"] += own.nbytes * (size(group) - 1)

    def scatter(output: Tensor, input: Tensor, op: Any = None, group: Any = None, **_: Any) -> None:
        MESSAGES["reduce-scatter"] += output.nbytes * (size(group) - 1)

    def reduce(tensor: Tensor, op: Any = None, group: Any = None, **_: Any) -> None:
        if tensor.numel() > 100:  # not what processes agree on
            MESSAGES["all-reduce"] += 2 * tensor.nbytes * (size(group) - 1) / size(group)

    with (
        before(dist, "all_gather_single", gather),
        before(dist, "reduce_scatter_single", scatter),
        before(dist, "all_reduce", reduce),
    ):
        yield


def write_measured(file: Path, trainer: Trainer, *_: Any) -> None:
    """Write what the first process has, in bytes, and what it sent."""
    if distributed.RANK == 0:
        state = [t for t in trainer.checkpointer.optimizer_state().values() if t.ndim]
        numbers = {"weights": list(trainer.model.parameters()), "optimizer": state}
        memory = {
            name: sum(getattr(t, "to_local", lambda t=t: t)().nbytes for t in tensors)
            for name, tensors in numbers.items()
        }
        file.write_text(json.dumps({"memory": memory, "sent": MESSAGES}))


def killed_at(step: int) -> Callable[[Trainer], Any]:
    """`Trainer.train_step`, which ends the process by SIGKILL instead of this step, once the checkpoints are
    written."""
    true = Trainer.train_step

    def train_step(trainer: Trainer) -> Any:
        if trainer.step == step:
            trainer.checkpointer.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return true(trainer)

    return train_step


def killed_writing(step: int) -> Callable[..., None]:
    """`checkpoints.write_part`, which ends the process by SIGKILL when its part of a checkpoint's weights is
    written, and the optimizer's state is not."""
    true = saved.write_part

    def write_part(path: Path, *args: Any) -> None:
        if path.parent.name == f".step-{step}.partial" and path.name.startswith("optimizer"):
            os.kill(os.getpid(), signal.SIGKILL)
        true(path, *args)

    return write_part
