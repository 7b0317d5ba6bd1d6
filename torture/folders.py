"""Resume runs whose folder was changed by chance: it ends the same, or with one line, and nothing is lost.

Fields of JSON files are dropped or changed, with or without a new manifest; tensors are cut, flipped or
replaced; files are swapped, linked, removed, added; folders are files, and files are folders.
"""

import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.hostile import ODD_VALUES, mutate, mutate_json
from regard import cli
from regard.files import atomic
from regard.runs import checkpoints
from regard.runs.layout import parse_row, parse_rows
from regard.training.trainer import Trainer
from torture import commands, forks
from torture.commands import DATA, OUT, check_same_run, tree
from torture.outcome import Context, Outcome, Suite

SUITE = Suite(count=1000, short=3, seconds=120, batch=10)
STEPS, SAVED = 8, 6  # of the run, and where it was killed
REWRITTEN = {  # at the top
    *("log.jsonl", "recipe.toml", "README.md", "curve.svg", "model.safetensors", "fingerprints.json"),
    *(".regard.lock",),
}
EDITABLE = ("recipe.toml", "log.jsonl", "manifest.json")  # by hand, or forged: the run may then end otherwise
OURS = r"(manifest.json|state.json|model.safetensors|optimizer.safetensors)"
OLD = re.compile(rf"step-[0-5]/{OURS}$|\.partial$")  # checkpoints to be removed, and what is unfinished
Change = Callable[[random.Random, Path], str]  # returns what was done


def prepare(place: Path, is_short: bool) -> dict[str, Any]:
    """A run that was killed after a checkpoint, and the same one that was not."""
    commands.write_data(place)
    words = commands.train_words(place, STEPS)
    commands.succeed(*words)
    (place / OUT).rename(place / "whole")
    ended = forks.call(train_and_die, words)
    assert ended.status == -signal.SIGKILL, ended.errors
    (place / OUT).rename(place / "killed")
    return {}


def train_and_die(words: list[str]) -> None:
    save = Trainer.save

    def save_and_die(trainer: Trainer) -> None:
        save(trainer)
        if trainer.step == SAVED:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer: Any = Trainer
    trainer.save = save_and_die
    cli.main(words)


def pick(rng: random.Random, out: Path, pattern: str = "*") -> Path:
    files = sorted(p for p in out.rglob(pattern) if p.is_file() and not p.is_symlink())
    deeper = [p for p in files if p.parent.parent.name == "checkpoints"]
    return rng.choice(deeper if deeper and rng.random() < 0.6 else files)


def change_bytes(rng: random.Random, out: Path) -> str:
    path = pick(rng, out)
    path.write_bytes(mutate(rng, path.read_bytes()))
    return path.name


def change_json(rng: random.Random, out: Path) -> str:
    path = pick(rng, out, "*.json")
    path.write_bytes(mutate_json(rng, path.read_bytes()) or b"{}")
    return path.name


def change_consistently(rng: random.Random, out: Path) -> str:
    """Change a file of a checkpoint, and write the manifest that belongs to it."""
    path = rng.choice(sorted(p for p in (out / "checkpoints").glob("step-*/[mos][opt]*.*") if p.is_file()))
    path.write_bytes(mutate_json(rng, path.read_bytes()) or b"")
    if not all(p.is_file() for p in path.parent.iterdir()):
        raise OSError(f"{path.parent} has pipes or folders, which an earlier change put there")
    (path.parent / checkpoints.MANIFEST).write_text(checkpoints.manifest(path.parent))
    return f"{path.name} and its manifest.json"


def set_field(rng: random.Random, out: Path) -> str:
    """Give one field of the last state.json a strange value, with its manifest."""
    path = sorted((out / "checkpoints").glob("step-*"))[-1] / "state.json"
    if not all(p.is_file() for p in path.parent.iterdir()):
        raise OSError(f"{path.parent} has pipes or folders, which an earlier change put there")
    state = json.loads(path.read_text())
    key = rng.choice([*state, "mine"])
    value = rng.choice((*ODD_VALUES, 3, "6", "drop"))
    state[key] = value
    if value == "drop":
        del state[key]
    path.write_text(json.dumps(state))
    (path.parent / checkpoints.MANIFEST).write_text(checkpoints.manifest(path.parent))
    return f"state.json {key}={value} and manifest.json"


def cut(rng: random.Random, out: Path) -> str:
    path = pick(rng, out)
    os.truncate(path, rng.randrange(path.stat().st_size + 1))
    return f"{path.name} cut"


def flip(rng: random.Random, out: Path) -> str:
    path = pick(rng, out, "*.safetensors")
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"a bit of {path.name}"


def swap(rng: random.Random, out: Path) -> str:
    one, other = pick(rng, out), pick(rng, out)
    data = one.read_bytes(), other.read_bytes()
    one.write_bytes(data[1])
    other.write_bytes(data[0])
    return f"{one.name} and {other.name} swapped"


def remove(rng: random.Random, out: Path) -> str:
    path = pick(rng, out)
    path.unlink()
    return f"{path.name} removed"


def link(rng: random.Random, out: Path) -> str:
    path = pick(rng, out)
    to = rng.choice(
        ["/dev/zero", "/dev/null", path.name, "nowhere", "/etc/passwd", "..", str(out.parent / "moved")]
    )
    if to.endswith("moved"):
        shutil.copy(path, to)
    path.unlink()
    path.symlink_to(to)
    return f"{path.name} a link to {to}"


def link_folder(rng: random.Random, out: Path) -> str:
    path = rng.choice([out / "checkpoints", *sorted((out / "checkpoints").iterdir())])
    path.rename(out.parent / "moved")
    path.symlink_to(out.parent / "moved")
    return f"{path.name} a link"


def replace_kind(rng: random.Random, out: Path) -> str:
    """Put a folder or a pipe in the place of a file, or a file in the place of a folder."""
    if rng.random() < 0.3:
        path = rng.choice([out / "checkpoints", *sorted((out / "checkpoints").iterdir())])
        shutil.rmtree(path)
        path.write_text("a file")
        return f"{path.name} a file"
    path = pick(rng, out)
    path.unlink()
    if rng.random() < 0.5:
        path.mkdir()
        return f"{path.name} a folder"
    os.mkfifo(path)
    return f"{path.name} a pipe"


def rename_step(rng: random.Random, out: Path) -> str:
    path = rng.choice(sorted((out / "checkpoints").iterdir()))
    name = rng.choice(
        ["step-9", "step-5", "step-0", "step-06", "step-99999999999999999999", "step--1", "step-٣", "mine"]
    )
    if rng.random() < 0.5 or (path.parent / name).exists():
        shutil.copytree(path, path.parent / name, dirs_exist_ok=True)
    else:
        path.rename(path.parent / name)
    return f"{path.name} as {name}"


def add_file(rng: random.Random, out: Path) -> str:
    folder = rng.choice([out, out / "checkpoints", *sorted((out / "checkpoints").iterdir())])
    name = rng.choice(
        ["notes.txt", ".step-9.partial", ".model.safetensors.partial", "step-7", "x.damaged", ".regard.lock"]
    )
    if not (folder / name).exists():
        (folder / name).write_text("mine")
    return f"{folder.name}/{name} added"


def add_folder(rng: random.Random, out: Path) -> str:
    folder = rng.choice([out, out / "checkpoints", *sorted((out / "checkpoints").iterdir())])
    path = folder / rng.choice([".step-8.partial", "thesis", "step-7", "step-6.damaged", ".partial"])
    path.mkdir(exist_ok=True)
    (path / "thesis.txt").write_text("years of work")
    return f"{folder.name}/{path.name}/ added"


def change_mode(rng: random.Random, out: Path) -> str:
    path = rng.choice([pick(rng, out), out / "checkpoints", *sorted((out / "checkpoints").iterdir())])
    path.chmod(rng.choice([0, 0o200, 0o400, 0o500]))
    return f"mode of {path.name}"


CHANGES: tuple[Change, ...] = (
    *(
        change_bytes,
        change_json,
        change_consistently,
        set_field,
        set_field,
        cut,
        flip,
        flip,
        swap,
        remove,
        link,
    ),
    *(link_folder, replace_kind, rename_step, add_file, add_folder, change_mode),
)


def attack(context: Context, number: int) -> Outcome:
    rng, folder = random.Random(f"{context.seed} {number}"), Path.cwd()
    shutil.copy(context.place / DATA, folder)
    out = folder / OUT
    shutil.copytree(context.place / "killed", out)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        try:
            done.append(rng.choice(CHANGES)(rng, out))
        except (OSError, ValueError, IndexError):  # an earlier change is in the way
            continue
    before, logged = contents(folder), log_lines(out)
    ended = commands.regard(*commands.train_words(folder, STEPS, resume=True), seconds=30)
    try:
        if complaint := ended.complaint(0):
            raise AssertionError(complaint)
        check_nothing_lost(context.place, before, contents(folder), failed=ended.status == 2)
        if ended.status == 0:
            check_log(logged, log_lines(out))
            check_end(context.place / "whole", out, done)
    except AssertionError as e:
        return Outcome("fault", f"{', '.join(done)}: {' '.join(str(e).split())[:800]}")
    return Outcome("refused in one line" if ended.status else "the same end")


def contents(folder: Path) -> dict[str, str]:
    """What is below a folder, readable or not."""
    for path in folder.rglob("*"):
        if not path.is_symlink() and not os.access(path, os.R_OK):
            path.chmod(0o700 if path.is_dir() else 0o600)
    return tree(folder)


def check_nothing_lost(place: Path, before: dict[str, str], after: dict[str, str], failed: bool) -> None:
    """A refusal changes nothing; a run keeps all but old checkpoints and what it writes anew."""
    if failed:
        changed = {name for name, _ in after.items() ^ before.items()} - {f"{OUT}/.regard.lock"}
        assert not changed, f"refused, but changed: {sorted(changed)}"
        return
    replaceable = Counter(tree(place / "killed").values())  # the run's own files, unchanged
    left = Counter(after.values())
    for name, text in before.items():
        path = Path(name)
        if text == "folder" or (path.parent.name == OUT and path.name in REWRITTEN):
            continue
        if OLD.search(str(path)):  # however damaged it is
            continue
        assert left[text] or replaceable[text], f"{name} is gone"


def log_lines(out: Path) -> list[bytes]:
    """The lines of the log, and the damaged ones that were moved aside."""
    files = [path for path in out.glob("log.jsonl*") if path.is_file()]
    lines = [line for path in files for line in path.read_bytes().splitlines(keepends=True)]
    return [line for line in lines if line.endswith(b"\n") and line.strip()]


def check_log(before: list[bytes], after: list[bytes]) -> None:
    """Damaged lines are still there, and for each row one of its step: rows may be trained again."""
    damaged = [line for line in before if parse_row(line) is None]
    assert not Counter(damaged) - Counter(after), "damaged lines of the log are gone"
    steps = {row["step"] for row in parse_rows(before) if 0 <= row["step"] <= STEPS}
    assert steps <= {row["step"] for row in parse_rows(after)}, "rows of the log are gone"


def check_end(reference: Path, out: Path, done: list[str]) -> None:
    if any(name in text for name in EDITABLE for text in done):
        return
    saved = (out / "checkpoints").resolve()  # it may be a link, which rglob does not follow
    names = ("*damaged*", "thesis*", "step-9999*")
    for path in [path for folder in (out, saved) for name in names for path in folder.rglob(name)]:
        atomic.remove(path)
    try:
        check_same_run(reference, out)
    except (AssertionError, ValueError, OSError) as e:
        if "half-written" not in str(e) and "invalid literal" not in str(e):
            raise AssertionError(f"another end: {e}") from None
