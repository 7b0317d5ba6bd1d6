"""The commands that are attacked, on tiny models: what is there before, and what must hold afterwards."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from regard import cli
from regard.files.locks import LOCK
from regard.files.tensors import Tensors, read_tensors
from regard.runs import checkpoints
from regard.runs.film import film_steps, frame_path
from regard.training import background, film, live
from regard.training.checkpointer import Checkpointer
from torture import commands, forks
from torture.commands import DATA, OUT, RUN, check_same_run, tree
from torture.forks import Ended

TEXTS, PAIRS, BASE, TEACHER = "texts", "pairs.tsv", "base", "teacher"
FILE = f"{OUT}.gguf"
THOROUGH = ("train", "resume", "ask", "prepare", "export")  # attacked in every way, also by the test suite
ADAPT = ("--adapter", "--set", "train.lora=2", "--from")
BPE = ["--set", "data.tokenizer=bpe", "--set", "data.vocab=300"]


def unchanged(place: Path) -> None:
    """Attack the command as it is."""


@dataclass(frozen=True)
class Operation:
    """A command, what is there before it, and what must hold after it failed and after it succeeded."""

    words: Callable[[Path], list[str]]
    inputs: tuple[str, ...]  # what is there: a NAME of what was prepared, or NAME:OTHER
    check_failed: Callable[["Operation", Path, Path, dict[str, str]], None]
    check_done: Callable[["Operation", Path, Path], None]
    out: str = OUT
    change: Callable[[Path], object] = unchanged  # of the process, before the command
    needs: str = ""  # a package

    def set_up(self, place: Path, folder: Path) -> None:
        """Copy the inputs from the place of what was prepared to an attack's folder."""
        for name in self.inputs:
            source, _, to = name.partition(":")
            if (place / source).is_dir():
                shutil.copytree(place / source, folder / (to or source), dirs_exist_ok=True)
            else:
                shutil.copy(place / source, folder / (to or source))

    def run(self, place: Path, folder: Path, seconds: float = 60.0) -> Ended:
        return forks.call(self.start, place, folder, seconds=seconds)

    def start(self, place: Path, folder: Path) -> None:
        start(self.change, place, self.words(folder))

    def is_complete(self, place: Path, folder: Path) -> bool:
        """Whether a new result is there and right, and only the last flush failed."""
        if self.check_failed not in (check_absent, check_part):
            return False
        return result(folder / self.out) == result(reference(place, self) / self.out)

    def is_possible(self) -> bool:
        return not self.needs or find_spec(self.needs) is not None


def start(change: Callable[[Path], object], place: Path, words: list[str]) -> None:
    change(place)
    cli.main(words)


# What must hold


def check_new_run(operation: Operation, place: Path, folder: Path, before: dict[str, str]) -> None:
    """There is no run, or one that can be continued; what it is trained on is as it was."""
    after = tree(folder)
    assert {name: after.get(name) for name in before} == before
    assert not (out := folder / OUT).exists() or (out / "recipe.toml").exists() or not visible(out), tree(out)


def check_continued(operation: Operation, place: Path, folder: Path, before: dict[str, str]) -> None:
    """The last checkpoint that was there is still intact, or a later one; and the model can be used."""
    path, damaged = checkpoints.newest(folder / OUT / "checkpoints")
    assert path is not None, tree(folder)
    assert not damaged, f"{damaged} after a fault"
    assert int(path.name[5:]) >= 4, path
    ended = commands.regard("ask", folder / OUT, "The", "--max-new-tokens", 2)
    assert ended.status == 0, f"the model is gone: {ended.errors}"


def check_unchanged(operation: Operation, place: Path, folder: Path, before: dict[str, str]) -> None:
    after = tree(folder)
    assert after == before, f"changed: {sorted(set(after.items()) ^ set(before.items()))}"


def check_absent(operation: Operation, place: Path, folder: Path, before: dict[str, str]) -> None:
    """The result is complete, or absent; nothing else has changed."""
    after = tree(folder)
    assert {name: after.get(name) for name in before} == before
    if visible(folder / operation.out):
        same_result(operation, place, folder)


def check_part(operation: Operation, place: Path, folder: Path, before: dict[str, str]) -> None:
    """The other part is as it was; this one is complete or absent, and joined only if it is complete."""
    after = tree(folder)
    assert {name: after.get(name) for name in before} == before
    expected = tree(reference(place, operation) / OUT)
    there = {name: digest for name, digest in tree(folder / OUT).items() if is_visible(name)}
    assert there.items() <= expected.items(), f"differs: {sorted(set(there.items()) - set(expected.items()))}"
    if "shards.json" in there:
        assert there == expected, f"missing: {sorted(set(expected) - set(there))}"


def visible(path: Path) -> list[str]:
    """What is there of a result: a file, or the content of a folder."""
    if path.is_dir():
        return [p.name for p in path.iterdir() if not p.name.startswith(".")]
    return [path.name] if path.exists() else []


def is_visible(name: str) -> bool:
    return not any(part.startswith(".") for part in Path(name).parts)


def reference(place: Path, operation: Operation) -> Path:
    """Where an operation was not attacked."""
    (name,) = (name for name, each in OPERATIONS.items() if each is operation)
    return place / "reference" / name


def same_result(operation: Operation, place: Path, folder: Path) -> None:
    there, expected = (result(path / operation.out) for path in (folder, reference(place, operation)))
    assert there == expected, f"differs: {sorted(set(there.items()) ^ set(expected.items()))}"


def result(path: Path) -> dict[str, str]:
    if path.is_dir():
        return {name: digest for name, digest in tree(path).items() if is_visible(name)}
    return {path.name: commands.describe(path)} if path.exists() else {}


def same_run(operation: Operation, place: Path, folder: Path) -> None:
    check_same_run(reference(place, operation) / OUT, folder / OUT)


def same_film(operation: Operation, place: Path, folder: Path) -> None:
    """Frames are written beside the training: those that are there are whole."""
    same_run(operation, place, folder)
    steps = film_steps(folder / OUT)
    assert steps, "no frame"
    for step in steps:
        read_tensors(frame_path(folder / OUT, step))


def unchanged_run(operation: Operation, place: Path, folder: Path) -> None:
    assert tree(folder / OUT) == tree(place / "four")


def no_leftovers(folder: Path) -> None:
    """Nothing half-written is left; but a process that is killed when all is done may leave its lock."""
    paths = [path for path in folder.rglob("*") if path.name.startswith(".") or "damaged" in path.name]
    left = [
        str(path.relative_to(folder)) for path in paths if path.name != LOCK or not is_lock_of(path, folder)
    ]
    assert not left, f"left: {left}"


def is_lock_of(path: Path, folder: Path) -> bool:
    return path.parent == folder / OUT or path.parent.parent == folder / OUT  # of a part


# Changes of the process


class Immediate:
    """An executor that works when it is asked: so the order of system calls is always the same."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args))
        except Exception as e:
            future.set_exception(e)
        return future

    def shutdown(self, *_: object, **__: object) -> None:
        pass


def set_all(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def write_every_frame(place: Path) -> None:
    """A film without the process that shows it: a frame at every step, written before the next one."""

    def start(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(stdin=BytesIO(), stdout=BytesIO(), stderr=BytesIO(), wait=lambda: 0)

    set_all(live, subprocess=SimpleNamespace(Popen=start, PIPE=-1))
    set_all(film, ThreadPoolExecutor=Immediate)
    set_all(film.Film, is_due=lambda self: True)


def write_in_parts(place: Path) -> None:
    """Write checkpoints as several processes do, in two parts by their writer; here it is one process."""
    write, init = checkpoints.write_parts, Checkpointer.__init__

    def write_both(folder: Path, kinds: dict[str, Tensors], spans: Any, part: int, count: int) -> Any:
        halves: list[dict[str, Tensors]] = [
            {
                kind: {n: t for i, (n, t) in enumerate(sorted(all.items())) if i % 2 == half}
                for kind, all in kinds.items()
            }
            for half in range(2)
        ]
        return write(folder, halves[0], spans, 0, 2) | write(folder, halves[1], spans, 1, 2)

    def init_background(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.background = background.BackgroundWriter()

    set_all(background, ThreadPoolExecutor=Immediate, find_part=lambda tensors: (0, 2))
    set_all(checkpoints, write_parts=write_both)
    set_all(Checkpointer, __init__=init_background)


def reuse_graph(place: Path) -> None:
    """Converting takes seconds, and writes nothing: the graph is that of an earlier time."""
    import torch.onnx

    if (graph := place / "graph.onnx").exists():
        set_all(
            torch.onnx, export=lambda model, inputs, path, **_: Path(path).write_bytes(graph.read_bytes())
        )


# The commands


def training(folder: Path, recipe: str, data: str, steps: int, *more: str) -> list[str]:
    words = [
        "train",
        recipe,
        str(folder / data),
        "--out",
        str(folder / OUT),
        "--steps",
        str(steps),
        "--resume",
    ]
    return [*words, *more]


def preparing(folder: Path, *more: str) -> list[str]:
    return ["prepare", str(folder / TEXTS), "--out", str(folder / OUT), *BPE, *more]


def exporting(to: str, out: str = OUT) -> Callable[[Path], list[str]]:
    return lambda folder: ["export", str(folder / RUN), str(folder / out), "--to", to]


OPERATIONS: dict[str, Operation] = {
    "train": Operation(
        lambda folder: commands.train_words(folder, 3, resume=True), (DATA,), check_new_run, same_run
    ),
    "resume": Operation(
        lambda folder: commands.train_words(folder, 7, resume=True),
        (DATA, f"four:{OUT}"),
        check_continued,
        same_run,
    ),
    "ask": Operation(
        lambda folder: ["ask", str(folder / OUT), "The", "--max-new-tokens", "2", "--seed", "1"],
        (f"four:{OUT}",),
        check_unchanged,
        unchanged_run,
    ),
    "prepare": Operation(
        lambda folder: [
            "prepare", str(folder / DATA), "--out", str(folder / OUT), "--set", "data.tokenizer=char",
        ],
        (DATA,),
        check_absent,
        same_result,
    ),
    "export": Operation(
        lambda folder: ["export", str(folder / RUN), str(folder / OUT)],
        (f"four:{RUN}",),
        check_absent,
        same_result,
    ),
    "bpe": Operation(preparing, (TEXTS,), check_absent, same_result),
    "part": Operation(
        lambda folder: preparing(folder, "--part", "2/2"), (TEXTS, f"first:{OUT}"), check_part, same_result
    ),
    "gguf": Operation(
        exporting("gguf", FILE), (f"{BASE}:{RUN}",), check_absent, same_result, out=FILE, needs="gguf"
    ),
    "onnx": Operation(
        exporting("onnx"), (f"{BASE}:{RUN}",), check_absent, same_result,
        change=reuse_graph, needs="onnxscript",
    ),
    "ctranslate2": Operation(
        exporting("ctranslate2"), (f"{BASE}:{RUN}",), check_absent, same_result, needs="ctranslate2"
    ),
    "adapter": Operation(
        lambda folder: training(
            folder, "write", DATA, 3, *commands.TRAIN,
            *ADAPT, str(folder / BASE),
        ),
        (DATA, BASE),
        check_new_run,
        same_run,
    ),
    "merge": Operation(
        lambda folder: ["export", str(folder / RUN), str(folder / OUT)],
        (f"adapted:{RUN}",),
        check_absent,
        same_result,
    ),
    "peft": Operation(exporting("peft"), (f"adapted:{RUN}",), check_absent, same_result),
    "teacher": Operation(
        lambda folder: training(
            folder, "translate", PAIRS, 3, *commands.SET, *BPE, "--teacher", str(folder / TEACHER)
        ),
        (PAIRS, TEACHER),
        check_new_run,
        same_run,
    ),
    "film": Operation(
        lambda folder: [*commands.train_words(folder, 3, resume=True), "--look"],
        (DATA,),
        check_new_run,
        same_film,
        change=write_every_frame,
    ),
    "parts": Operation(
        lambda folder: commands.train_words(folder, 7, resume=True),
        (DATA, f"sharded:{OUT}"),
        check_continued,
        same_run,
        change=write_in_parts,
    ),
}  # fmt: skip


def possible(is_short: bool = False) -> dict[str, Operation]:
    """The operations whose packages are there, or a few of them."""
    return {
        name: operation
        for name, operation in OPERATIONS.items()
        if operation.is_possible() and (not is_short or name in THOROUGH)
    }


# What they need


def train_again(place: Path, *more: str) -> list[str]:
    return [*commands.train_words(place, 4), *more]


BASES: dict[str, tuple[Callable[[Path], list[str]], Callable[[Path], object]]] = {
    "four": (train_again, unchanged),
    "sharded": (train_again, write_in_parts),
    BASE: (lambda place: train_again(place, *BPE), unchanged),
    TEACHER: (lambda place: training(place, "translate", PAIRS, 3, *commands.SET, *BPE), unchanged),
    "adapted": (
        lambda place: training(place, "write", DATA, 3, *commands.TRAIN, *ADAPT, str(place / BASE)),
        unchanged,
    ),
    "first": (lambda place: preparing(place, "--part", "1/2"), unchanged),
}  # fmt: skip


def prepare(place: Path, chosen: dict[str, Operation]) -> None:
    """Make the data, runs and folders that the operations need, and let each do its work once."""
    commands.write_data(place)
    (place / TEXTS).mkdir()
    for name in ("a.txt", "b.txt"):
        shutil.copy(place / DATA, place / TEXTS / name)
    commands.write_pairs(place / PAIRS)
    wanted = {name.partition(":")[0] for operation in chosen.values() for name in operation.inputs}
    for name, (words, change) in BASES.items():
        if name in wanted or (name == BASE and "adapted" in wanted):
            ended = forks.call(start, change, place, words(place))
            assert ended.status == 0, f"{name}: {ended.errors}"
            (place / OUT).rename(place / name)
    for name, operation in chosen.items():
        folder = reference(place, operation)
        folder.mkdir(parents=True)
        operation.set_up(place, folder)
        ended = operation.run(place, folder, seconds=300)
        assert ended.status == 0, f"{name}: {ended.errors}"
        if name == "onnx":
            shutil.copy(next((folder / OUT).glob("*.onnx")), place / "graph.onnx")
