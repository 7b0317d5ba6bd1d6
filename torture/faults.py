"""A fault at every system call of the commands in `operations`.

Each call on a file fails in every way that fits it, or the process is killed there. Afterwards the result is
whole or what was there before is, the error is one line, and the next try gives the same bytes as a first.
"""

import errno
import re
from collections import Counter
from pathlib import Path
from typing import Any

from torture import forks, operations
from torture.commands import tree
from torture.operations import THOROUGH, Operation, no_leftovers
from torture.outcome import Context, Outcome, Suite
from torture.syscalls import CHANGES, FAIL, FAIL_ON, HALF, KILL, TORN, Watch

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


def prepare(place: Path, is_short: bool) -> dict[str, Any]:
    """Let each operation do its work, and count its system calls."""
    chosen = operations.possible(is_short)
    operations.prepare(place, chosen)
    cases = []
    for name, operation in chosen.items():
        folder = place / "counting" / name
        folder.mkdir(parents=True)
        operation.set_up(place, folder)
        watch = Watch(folder)
        ended = forks.call(spoilt, watch, operation, place, "", 0)
        assert ended.status == 0, ended.errors
        cases += choose_cases(name, watch.read().calls)
    return {"cases": cases, "count": len(cases)}


def choose_cases(name: str, calls: list[tuple[str, str]]) -> list[list[Any]]:
    """Every call in every way that fits it, for THOROUGH operations. For others, every change to a file by a
    kill and one more way, which takes turns, and two of all calls of a kind that only read one."""
    cases: list[list[Any]] = []
    of_kind: Counter[str] = Counter()
    for k, (call, path) in enumerate(calls, 1):
        at, ways = f"{call} {Path(path).name}", OF_CALL.get(call, OF_OTHER_CALLS)
        if name not in THOROUGH:
            kind = re.sub(r"\d+", "0", at)
            of_kind[kind] += 1
            errors = [way for way in ways if way != "kill"]
            if call in CHANGES:
                ways = errors[k % len(errors)], "kill"
            else:
                ways = ways[k % len(ways) :][:1] if of_kind[kind] <= 2 else ()
        cases += [[name, k, way, at] for way in ways]
    return cases


def spoilt(watch: Watch, operation: Operation, place: Path, way: str, k: int) -> None:
    """Run an operation whose k-th system call goes wrong."""
    if way:
        how, error, names = WAYS[way]
        watch.arm(k, how, error, names)
    else:
        watch.arm()
    operation.start(place, watch.folder)


def attack(context: Context, number: int) -> Outcome:
    name, k, way, _ = context.shared["cases"][number]
    return attack_call(context.place, name, k, way)


def attack_call(place: Path, name: str, k: int, way: str) -> Outcome:
    operation, folder = operations.OPERATIONS[name], Path.cwd()
    operation.set_up(place, folder)
    before, watch = tree(folder), Watch(folder)
    ended = forks.call(spoilt, watch, operation, place, way, k)
    hit = watch.read().hit
    where = f"{name}: {way} at call {k}, {' '.join(map(str, hit or ()))}".replace(str(folder), "")
    if hit is None:
        return Outcome("not reached")
    try:
        fatal = way in ("kill", "torn") and ended.status == -9
        complaint = "" if fatal else ended.complaint(0)
        assert not complaint, complaint
        if ended.status:
            operation.check_failed(operation, place, folder, before)
        if ended.status and not operation.is_complete(place, folder):
            again = operation.run(place, folder)
            assert again.status == 0, f"the next try: {again.complaint(0) or again.message}"
        operation.check_done(operation, place, folder)
        no_leftovers(folder)
    except AssertionError as e:
        return Outcome("fault", f"{where}: {' '.join(str(e).split())[:800]}")
    return Outcome("killed" if fatal else "refused" if ended.status else "done all the same")
