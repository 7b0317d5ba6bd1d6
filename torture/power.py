"""Power cuts while checkpoints are saved: anything that was not flushed may be lost, torn or reordered.

The changes that a process makes to files are recorded once. A power cut is a prefix of them, replayed by a
model of a disk: what a file holds is certain up to its last fsync, what a folder lists up to the folder's.
After that, each write may be there, missing or half there, and each change of a name may have happened or
not, in any combination. Whatever is left must load: the last checkpoint that was saved, or a later one.
"""

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.runs import checkpoints
from regard.training.trainer import Trainer
from torture import commands, forks
from torture.commands import DATA, OUT, check_same_run, tree
from torture.faults import spoilt
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


def prepare(place: Path) -> dict[str, Any]:
    """Record a run, a preparation and an export, and keep every checkpoint of the run."""
    commands.write_data(place)
    for name in ("train", "prepare", "export"):
        (place / name).mkdir()
    shutil.copy(place / DATA, place / "train")
    commands.succeed(*commands.train_words(place / "train", STEPS))
    (place / "train" / OUT).rename(place / "whole")
    (place / "kept").mkdir()
    commands.succeed("prepare", place / DATA, "--out", place / "prepared", "--set", "data.tokenizer=char")
    commands.succeed("export", place / "whole", place / "exported" / OUT)
    records = {
        "train": commands.train_words(place / "train", STEPS),
        "prepare": ["prepare", str(place / DATA), "--out", str(place / "prepare" / OUT), "--set",
                    "data.tokenizer=char"],
        "export": ["export", str(place / "whole"), str(place / "export" / OUT)],
    }  # fmt: skip
    lengths = {}
    for name, words in records.items():
        watch = Watch(place / name)
        ended = forks.call(record, watch, words, place / "kept")
        assert ended.status == 0, ended.errors
        lengths[name] = len(watch.read().effects)
        watch.file.seek(0)
        with (place / f"{name}.trace").open("wb") as file:
            shutil.copyfileobj(watch.file, file)
    return {"lengths": lengths}


def record(watch: Watch, words: list[str], copies: Path) -> None:
    """Run a command under the watch; mark each checkpoint that is saved, and keep a copy of it."""
    save = Trainer.save

    def save_and_mark(trainer: Trainer) -> None:
        save(trainer)
        mark(f"saved {trainer.step}")
        path = trainer.folder / "checkpoints" / f"step-{trainer.step}"
        shutil.copytree(path, copies / path.name, dirs_exist_ok=True)

    trainer: Any = Trainer
    trainer.save = save_and_mark
    spoilt(watch, words, "", 0)


def attack(context: Context, number: int) -> Outcome:
    rng = random.Random(f"{context.seed} {number}")
    name = rng.choices(("train", "prepare", "export"), (8, 1, 1))[0]
    watch = Watch(context.place / name)
    with (context.place / f"{name}.trace").open("rb") as file:
        shutil.copyfileobj(file, watch.file)
    effects = watch.read().effects
    cut, luck = rng.randrange(len(effects) + 1), rng.choice(LUCK)
    disk = Disk(str(context.place / name))
    for effect in effects[:cut]:
        disk.replay(effect)
    folder = Path.cwd()
    disk.cut(folder, rng, luck)
    last = f"{effects[cut - 1].name} {Path(effects[cut - 1].path).name}" if cut else "the start"
    try:
        end = CHECKS[name](context, folder, disk.marks)
    except AssertionError as e:
        return Outcome(
            "fault", f"{name}: cut after change {cut}, {last}, {luck}: {' '.join(str(e).split())[:600]}"
        )
    if name == "train" and rng.randrange(RESUMED) == 0:
        shutil.copy(context.place / DATA, folder)
        again = commands.regard(*commands.train_words(folder, STEPS, resume=True))
        complaint = again.complaint(0) or again.message
        if not disk.marks and "left from an interrupted command" in complaint:
            return Outcome("a draft without a lock is left to the user")
        if complaint:
            return Outcome("fault", f"train: cut after change {cut}, {last}, {luck}: resuming: {complaint}")
        check_resumed(context.place / "whole", folder / OUT)
        end = "resumed to the same end"
    return Outcome(end)


def check_run(context: Context, folder: Path, marks: list[str]) -> str:
    saved = max((int(text.split()[1]) for text in marks), default=0)
    path, _ = checkpoints.newest(folder / OUT / "checkpoints")
    newest = int(path.name[5:]) if path else 0
    assert newest >= saved, f"step {saved} was saved, and {newest} is left: {sorted(tree(folder))}"
    if path is None:
        return "nothing was saved yet"
    assert tree(path) == tree(context.place / "kept" / path.name), f"{path.name} differs"
    checkpoints.load(path)
    assert saved == 0 or (folder / OUT / "model.safetensors").exists(), "no weights beside the checkpoints"
    return "the last one saved" if newest == saved else "one that was being saved"


def check_resumed(reference: Path, out: Path) -> None:
    for path in out.rglob("*.damaged*"):
        shutil.rmtree(path)
    check_same_run(reference, out)


def check_folder(name: str) -> Any:
    def check(context: Context, folder: Path, marks: list[str]) -> str:
        out = folder / OUT
        there = {n: d for n, d in tree(out).items() if not n.startswith(".")} if out.exists() else {}
        assert not there or there == tree(context.place / name), f"half of it: {sorted(there)}"
        return "complete" if there else "absent"

    return check


CHECKS = {"train": check_run, "prepare": check_folder("prepared"), "export": check_folder(f"exported/{OUT}")}
