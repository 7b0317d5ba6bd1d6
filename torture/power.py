"""Power cuts while checkpoints are saved: anything that was not flushed may be lost, torn or reordered.

The changes that a process makes to files are recorded once. A power cut is a prefix of them, replayed by a
model of a disk: what a file holds is certain up to its last fsync, what a folder lists up to the folder's.
After that, each write may be there, missing or half there, and each change of a name may have happened or
not, in any combination. Whatever is left must load: the last checkpoint that was saved, or a later one.
"""

import os
import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regard.files.tensors import read_tensors
from regard.runs import checkpoints
from regard.runs.film import film_steps, frame_path
from regard.runs.layout import published
from torture import forks, operations
from torture.commands import OUT, check_same_run, tree
from torture.faults import spoilt
from torture.operations import OPERATIONS, Operation, possible, visible
from torture.outcome import Context, Outcome, Suite
from torture.syscalls import Effect, Watch, mark

SUITE = Suite(count=20_000, short=20, seconds=120, batch=100, needs_syscalls=True)
LUCK = (
    "nothing",
    "everything",
    "in order",
    "by chance",
    "by chance",
    "by chance",
)  # what unflushed changes have
STEPS, RESUMED = 9, 20  # one in so many replays is resumed to the end


@dataclass
class Inode:
    """A file or a folder, with what is certain and the changes that are not."""

    data: bytes | None = b""  # None: a folder
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)  # offset and bytes; None: cut there
    entries: dict[str, int] = field(default_factory=dict)


Change = list[tuple[int, str, int | None]]  # of names in folders: the inode, or None if it is removed


class Disk:
    """Replays changes; a name is changed in one or, if it moves, in two folders at once."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.inodes = {0: Inode(None)}
        self.now: dict[int, dict[str, int]] = {0: {}}  # the entries of each folder as the processes see them
        self.pending: list[Change] = []
        self.numbers: dict[int, int] = {}  # the system's inode: ours
        self.marks: list[str] = []

    def find(self, path: str) -> tuple[int, str]:
        """Return the folder of a path, and its name there."""
        *parents, name = os.path.relpath(path, self.root).split("/")
        at = 0
        for parent in parents:
            at = self.now[at][parent]
        return at, name

    def add_folder(self, name: str) -> None:
        """Add a folder that was there before."""
        number = self.add(Inode(None))
        self.now[0][name] = self.inodes[0].entries[name] = number

    def add(self, inode: Inode) -> int:
        number = len(self.inodes)
        self.inodes[number] = inode
        if inode.data is None:
            self.now[number] = {}
        return number

    def replay(self, e: Effect) -> None:
        if e.name == "mark":
            self.marks.append(e.path)
        elif e.name == "write":
            self.inodes[self.numbers[e.inode]].writes.append((e.offset, e.data))
        elif e.name == "truncate":
            self.inodes[self.numbers[e.inode]].writes.append((e.offset, None))
        elif e.name == "fsync":
            self.flush(e)
        else:
            self.change_names(e)

    def change_names(self, e: Effect) -> None:
        folder, name = self.find(e.path)
        if e.name in ("create", "mkdir"):
            number = self.add(Inode(None if e.name == "mkdir" else b""))
            if e.name == "create":
                self.numbers[e.inode] = number
            change: Change = [(folder, name, number)]
        elif e.name in ("unlink", "rmdir"):
            change = [(folder, name, None)]
        elif e.name == "rename":
            change = [(folder, name, None), (*self.find(e.other), self.now[folder][name])]
        else:
            raise AssertionError(f"the model of a disk does not know {e.name}")
        self.pending.append(change)
        apply(change, self.now)

    def flush(self, e: Effect) -> None:
        if e.path == self.root or self.is_folder(e.path):
            folder = 0 if e.path == self.root else self.now[(place := self.find(e.path))[0]][place[1]]
            flushed = [change for change in self.pending if any(part[0] == folder for part in change)]
            self.pending = [change for change in self.pending if change not in flushed]
            certain = {number: inode.entries for number, inode in self.inodes.items() if inode.data is None}
            for change in flushed:
                apply(change, certain)
            return
        inode = self.inodes[self.numbers[e.inode]]
        inode.data, inode.writes = merge(inode.data or b"", inode.writes), []

    def is_folder(self, path: str) -> bool:
        folder, name = self.find(path)
        return self.inodes[self.now[folder][name]].data is None

    def cut(self, to: Path, rng: random.Random, luck: str) -> None:
        """Write what may be left of the disk to a folder."""
        entries = {number: dict(i.entries) for number, i in self.inodes.items() if i.data is None}
        for change in choose(self.pending, rng, luck):
            apply(change, entries)
        self.write_folder(to, 0, entries, rng, luck, set())

    def write_folder(
        self,
        to: Path,
        number: int,
        entries: dict[int, dict[str, int]],
        rng: random.Random,
        luck: str,
        ancestors: set[int],
    ) -> None:
        to.mkdir(exist_ok=True)
        for name, child in entries[number].items():
            inode = self.inodes[child]
            if inode.data is None:
                if child not in ancestors:  # a folder that moved may seem to be at both places: it is at one
                    self.write_folder(to / name, child, entries, rng, luck, ancestors | {child})
                continue
            writes = [tear(write, rng, luck) for write in choose(inode.writes, rng, luck)]
            (to / name).write_bytes(merge(inode.data, writes))


def apply(change: Change, entries: dict[int, dict[str, int]]) -> None:
    for folder, name, number in change:
        if number is None:
            entries[folder].pop(name, None)
        else:
            entries[folder][name] = number


def choose(changes: list[Any], rng: random.Random, luck: str) -> list[Any]:
    """Return those of some changes that came to the disk."""
    if luck == "nothing":
        return []
    if luck == "everything":
        return changes
    if luck == "in order":
        return changes[: rng.randrange(len(changes) + 1)]
    share = rng.random()
    return [change for change in changes if rng.random() < share]


def tear(write: tuple[int, bytes | None], rng: random.Random, luck: str) -> tuple[int, bytes | None]:
    offset, data = write
    if luck != "by chance" or data is None or rng.random() < 0.7:
        return write
    return offset, data[: rng.randrange(len(data) + 1)]


def merge(data: bytes, writes: list[tuple[int, bytes | None]]) -> bytes:
    result = bytearray(data)
    for offset, written in writes:
        result.extend(bytes(max(0, offset - len(result))))  # a hole
        if written is None:
            del result[offset:]
        else:
            result[offset : offset + len(written)] = written
    return bytes(result)


# What is recorded, and what must hold afterwards


def training(name: str) -> Operation:
    """An operation that trains, in more steps."""
    operation = OPERATIONS[name]

    def words(folder: Path) -> list[str]:
        return [*operation.words(folder), "--steps", str(STEPS)]

    inputs = tuple(name for name in operation.inputs if not name.endswith(f":{OUT}"))
    return replace(operation, words=words, inputs=inputs)


TRAININGS = {name: training(name) for name in ("train", "parts", "film", "adapter", "teacher")}
WRITERS = ("prepare", "export", "bpe", "part", "gguf", "onnx", "ctranslate2", "merge", "peft")
RECORDS = TRAININGS | {name: OPERATIONS[name] for name in WRITERS}
WEIGHTS = {"train": 6, "parts": 4, "film": 2, "adapter": 1, "teacher": 1}  # others: half


def prepare(place: Path, is_short: bool) -> dict[str, Any]:
    """Record trainings, preparations and exports, and keep every checkpoint of the trainings."""
    chosen = {name: operation for name, operation in RECORDS.items() if name in possible(is_short)}
    operations.prepare(place, {name: OPERATIONS[name] for name in chosen})
    lengths = {}
    for name, operation in chosen.items():
        if name in TRAININGS:
            (folder := place / "whole" / name).mkdir(parents=True)
            operation.set_up(place, folder)
            ended = operation.run(place, folder)
            assert ended.status == 0, ended.errors
        (folder := place / "recorded" / name).mkdir(parents=True)
        operation.set_up(place, folder)
        watch = Watch(folder)
        ended = forks.call(record, watch, operation, place, place / "kept" / name)
        assert ended.status == 0, ended.errors
        lengths[name] = len(watch.read().effects)
        watch.file.seek(0)
        with (place / f"{name}.trace").open("wb") as file:
            shutil.copyfileobj(watch.file, file)
    return {"lengths": lengths}


def record(watch: Watch, operation: Operation, place: Path, copies: Path) -> None:
    """Run an operation under the watch; mark each checkpoint that is saved, and keep a copy of it."""
    commit = checkpoints.commit

    def commit_and_mark(*args: Any) -> Path:
        path = commit(*args)
        mark(f"saved {path.name.removeprefix('step-')}")
        shutil.copytree(path, copies / path.name, dirs_exist_ok=True)
        return path

    module: Any = checkpoints
    module.commit = commit_and_mark
    spoilt(watch, operation, place, "", 0)


def attack(context: Context, number: int) -> Outcome:
    rng = random.Random(f"{context.seed} {number}")
    names = list(context.shared["lengths"])
    (name,) = rng.choices(names, [WEIGHTS.get(name, 0.5) for name in names])
    operation, watch = RECORDS[name], Watch(context.place / "recorded" / name)
    with (context.place / f"{name}.trace").open("rb") as file:
        shutil.copyfileobj(file, watch.file)
    effects = watch.read().effects
    cut, luck = rng.randrange(len(effects) + 1), rng.choice(LUCK)
    disk = Disk(str(watch.folder))
    for source, _, to in (there.partition(":") for there in operation.inputs):
        if (context.place / source).is_dir():
            disk.add_folder(to or source)
    for effect in effects[:cut]:
        disk.replay(effect)
    folder = Path.cwd()
    disk.cut(folder, rng, luck)
    operation.set_up(context.place, folder)
    last = f"{effects[cut - 1].name} {Path(effects[cut - 1].path).name}" if cut else "the start"
    where = f"{name}: cut after change {cut}, {last}, {luck}"
    try:
        if name not in TRAININGS:
            operation.check_failed(operation, context.place, folder, {})
            return Outcome("complete" if visible(folder / operation.out) else "absent")
        end = check_run(context.place / "kept" / name, folder, disk.marks)
    except AssertionError as e:
        return Outcome("fault", f"{where}: {' '.join(str(e).split())[:600]}")
    if rng.randrange(RESUMED) == 0:
        again = operation.run(context.place, folder)
        complaint = again.complaint(0) or again.message
        if not disk.marks and "left by an interrupted command" in complaint:
            return Outcome("a draft without a lock is left to the user")
        if complaint:
            return Outcome("fault", f"{where}: resuming: {complaint}")
        check_resumed(context.place / "whole" / name / OUT, folder / OUT)
        end = "resumed to the same end"
    return Outcome(end)


def check_run(copies: Path, folder: Path, marks: list[str]) -> str:
    saved = max((int(text.split()[1]) for text in marks), default=0)
    path, _ = checkpoints.newest(folder / OUT / "checkpoints")
    newest = int(path.name[5:]) if path else 0
    assert newest >= saved, f"step {saved} was saved, and {newest} is left: {sorted(tree(folder))}"
    if path is None:
        return "nothing was saved yet"
    assert tree(path) == tree(copies / path.name), f"{path.name} differs"
    checkpoints.load(path)
    for step in film_steps(folder / OUT):
        read_tensors(frame_path(folder / OUT, step))
    assert saved == 0 or published(folder / OUT).exists(), "no weights beside the checkpoints"
    return "the last one saved" if newest == saved else "one that was being saved"


def check_resumed(reference: Path, out: Path) -> None:
    for path in out.rglob("*.damaged*"):  # a checkpoint, or lines of the log
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    check_same_run(reference, out)
