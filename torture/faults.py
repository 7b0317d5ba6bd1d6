"""A fault at every system call of training, resuming, asking, preparing and exporting.

Each call on a file fails in every way that fits it, or the process is killed there. Afterwards the result is
whole or what was there before is, the error is one line, and the next try gives the same bytes as a first.
"""

import errno
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import cli
from regard.files.locks import LOCK
from regard.runs import checkpoints
from torture import commands, forks
from torture.commands import DATA, OUT, RUN, check_same_run, tree
from torture.outcome import Context, Outcome, Suite
from torture.syscalls import FAIL, FAIL_ON, HALF, KILL, TORN, Watch

SUITE = Suite(count=0, short=8, seconds=180, batch=5, needs_syscalls=True)
FULL = "write create mkdir truncate rename"  # calls that fail on a full disk
DYING = FULL + " fsync open read stat list readdir unlink rmdir flock mmap chmod access"

# By call: how it goes wrong. A full or dying disk stays so; other errors happen once.
ONCE = {
    name: (FAIL, getattr(errno, name), "")
    for name in ("EIO", "EMFILE", "EACCES", "ENOSPC", "ENOLCK", "EINTR")
}
WAYS: dict[str, tuple[int, int, str]] = ONCE | {
    "ENOSPC on": (FAIL_ON, errno.ENOSPC, FULL),
    "EIO on": (FAIL_ON, errno.EIO, DYING),
    "kill": (KILL, 0, ""),
    "short": (HALF, 0, ""),
    "torn": (TORN, 0, ""),
}
OF_CALL = {
    "open": ("EIO", "EMFILE", "EACCES", "kill"),
    "create": ("EIO", "EMFILE", "EACCES", "ENOSPC", "ENOSPC on", "EIO on", "kill"),
    "read": ("EIO", "kill"),
    "write": ("EIO", "ENOSPC", "ENOSPC on", "short", "torn", "kill"),
    "fsync": ("EIO", "ENOSPC", "EIO on", "kill"),
    "rename": ("EIO", "EACCES", "ENOSPC", "ENOSPC on", "EIO on", "kill"),
    "mkdir": ("EIO", "EACCES", "ENOSPC", "ENOSPC on", "kill"),
    "flock": ("EIO", "ENOLCK", "kill"),
    "list": ("EIO", "EMFILE", "EACCES", "kill"),
}
OF_OTHER_CALLS = ("EIO", "EACCES", "kill")


@dataclass(frozen=True)
class Operation:
    """A command, what is there before it, and what must hold after it failed."""

    words: Callable[[Path], list[str]]
    set_up: Callable[[Path, Path], object]  # from the place of what was prepared, to the attack's folder
    check_failed: Callable[[Path, Path, dict[str, str]], None]
    check_done: Callable[[Path, Path], None]


def put(*names: str) -> Callable[[Path, Path], object]:
    """Copy files or folders of the prepared place: SOURCE or SOURCE:NAME."""

    def copy(place: Path, folder: Path) -> None:
        for name in names:
            source, _, to = name.partition(":")
            path = folder / (to or source)
            if (place / source).is_dir():
                shutil.copytree(place / source, path)
            else:
                shutil.copy(place / source, path)

    return copy


def check_new_run(place: Path, folder: Path, before: dict[str, str]) -> None:
    """There is no run, or one that can be continued."""
    assert tree(folder)[DATA] == before[DATA]
    assert not (out := folder / OUT).exists() or (out / "recipe.toml").exists() or not visible(out), tree(out)


def check_continued(place: Path, folder: Path, before: dict[str, str]) -> None:
    """The last checkpoint that was there is still intact, or a later one; and the model can be used."""
    path, damaged = checkpoints.newest(folder / OUT / "checkpoints")
    assert path is not None, tree(folder)
    assert not damaged, f"{damaged} after a fault"
    assert int(path.name[5:]) >= 4, path
    ended = commands.regard("ask", folder / OUT, "The", "--max-new-tokens", 2)
    assert ended.status == 0, f"the model is gone: {ended.errors}"


def check_unchanged(place: Path, folder: Path, before: dict[str, str]) -> None:
    after = tree(folder)
    assert after == before, f"changed: {sorted(set(after.items()) ^ set(before.items()))}"


def check_absent(place: Path, folder: Path, before: dict[str, str]) -> None:
    """The result is complete, or absent; nothing else has changed."""
    after = tree(folder)
    assert {name: after.get(name) for name in before} == before
    if visible(folder / OUT):
        compare_folders(place, folder, before)


def visible(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if not p.name.startswith(".")] if folder.is_dir() else []


def compare_folders(place: Path, folder: Path, before: dict[str, str]) -> None:
    name = "prepared" if (folder / OUT / "shards.json").exists() else f"exported/{OUT}"
    there, expected = tree(folder / OUT), tree(place / name)
    there = {path: digest for path, digest in there.items() if not path.startswith(".")}
    assert there == expected, f"differs: {sorted(set(there.items()) ^ set(expected.items()))}"


def is_complete(name: str, folder: Path) -> bool:
    """Whether a new folder is there, as `check_absent` has found, and only the last flush failed."""
    return name in ("prepare", "export") and bool(visible(folder / OUT))


def no_leftovers(folder: Path) -> None:
    """Nothing half-written is left; but a process that is killed when all is done may leave its lock."""
    paths = [path for path in folder.rglob("*") if path.name.startswith(".") or "damaged" in path.name]
    left = [str(path.relative_to(folder)) for path in paths if path != folder / OUT / LOCK]
    assert not left, f"left: {left}"


def same_run(name: str) -> Callable[[Path, Path], None]:
    return lambda place, folder: check_same_run(place / name, folder / OUT)


def same_folder(place: Path, folder: Path) -> None:
    compare_folders(place, folder, {})


def unchanged_run(place: Path, folder: Path) -> None:
    assert tree(folder / OUT) == tree(place / "four")


OPERATIONS: dict[str, Operation] = {
    "train": Operation(
        lambda folder: commands.train_words(folder, 3, resume=True),
        put(DATA),
        check_new_run,
        same_run("three"),
    ),
    "resume": Operation(
        lambda folder: commands.train_words(folder, 7, resume=True),
        put(DATA, f"four:{OUT}"),
        check_continued,
        same_run("seven"),
    ),
    "ask": Operation(
        lambda folder: ["ask", str(folder / OUT), "The", "--max-new-tokens", "2", "--seed", "1"],
        put(f"four:{OUT}"),
        check_unchanged,
        unchanged_run,
    ),
    "prepare": Operation(
        lambda folder: [
            "prepare",
            str(folder / DATA),
            "--out",
            str(folder / OUT),
            "--set",
            "data.tokenizer=char",
        ],
        put(DATA),
        check_absent,
        same_folder,
    ),
    "export": Operation(
        lambda folder: ["export", str(folder / RUN), str(folder / OUT)],
        put(f"four:{RUN}"),
        check_absent,
        same_folder,
    ),
}


def prepare(place: Path) -> dict[str, Any]:
    """Make the runs and folders to compare with, and count the system calls of each operation."""
    commands.write_data(place)
    for name, steps in (("three", 3), ("four", 4), ("seven", 7)):
        if name == "seven":  # goes on from the fourth step, as the operation does
            shutil.copytree(place / "four", place / OUT)
        commands.succeed(*commands.train_words(place, steps, resume=True))
        (place / OUT).rename(place / name)
    commands.succeed("prepare", place / DATA, "--out", place / "prepared", "--set", "data.tokenizer=char")
    commands.succeed("export", place / "four", place / "exported" / OUT)
    cases = []
    for name, operation in OPERATIONS.items():
        folder = place / "counting" / name
        folder.mkdir(parents=True)
        operation.set_up(place, folder)
        watch = Watch(folder)
        ended = forks.call(spoilt, watch, operation.words(folder), "", 0)
        assert ended.status == 0, ended.errors
        for k, (call, path) in enumerate(watch.read().calls, 1):
            cases += [
                [name, k, way, f"{call} {Path(path).name}"] for way in OF_CALL.get(call, OF_OTHER_CALLS)
            ]
    return {"cases": cases, "count": len(cases)}


def spoilt(watch: Watch, words: list[str], way: str, k: int) -> None:
    """Run a command whose k-th system call goes wrong."""
    if way:
        how, error, names = WAYS[way]
        watch.arm(k, how, error, names)
    else:
        watch.arm()
    cli.main(words)


def attack(context: Context, number: int) -> Outcome:
    name, k, way, _ = context.shared["cases"][number]
    return attack_call(context.place, name, k, way)


def attack_call(place: Path, name: str, k: int, way: str) -> Outcome:
    operation, folder = OPERATIONS[name], Path.cwd()
    operation.set_up(place, folder)
    before, watch = tree(folder), Watch(folder)
    ended = forks.call(spoilt, watch, operation.words(folder), way, k)
    hit = watch.read().hit
    where = f"{name}: {way} at call {k}, {' '.join(map(str, hit or ()))}".replace(str(folder), "")
    if hit is None:
        return Outcome("not reached")
    try:
        fatal = way in ("kill", "torn") and ended.status == -9
        complaint = "" if fatal else ended.complaint(0)
        assert not complaint, complaint
        if ended.status:
            operation.check_failed(place, folder, before)
        if ended.status and not is_complete(name, folder):
            again = commands.regard(*operation.words(folder))
            assert again.status == 0, f"the next try: {again.complaint(0) or again.message}"
        operation.check_done(place, folder)
        no_leftovers(folder)
    except AssertionError as e:
        return Outcome("fault", f"{where}: {' '.join(str(e).split())[:800]}")
    return Outcome("killed" if fatal else "refused" if ended.status else "done all the same")
