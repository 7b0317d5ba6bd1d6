"""The processor time of tests, which other work on the machine changes less than the clock's.

    PYTHONPATH=tests python -m pytest -p helpers.cpu -p no:xdist tests/training

prints what takes longest: seconds of this process and of all that it has started, Chromium among them, by
file, by test function and by fixture of a module or session. A fixture also counts for the test that needed
it first.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SHOWN = int(os.environ.get("SHOWN", "30"))
TICKS = os.sysconf("SC_CLK_TCK")
seconds: Counter[str] = Counter()
files: Counter[str] = Counter()


def now() -> float:
    """Seconds of this process, of its descendants, and of those that these have waited for."""
    children, times = defaultdict(list), {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            pid = int(folder.name)
            children[int(fields[1])].append(pid)
            times[pid] = sum(map(int, fields[11:15])) / TICKS
    tree = [os.getpid()]
    for pid in tree:
        tree += children[pid]
    return sum(times.get(pid, 0.0) for pid in tree)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    begun = now()
    try:
        return (yield)
    finally:
        taken = now() - begun
        seconds[item.nodeid.split("[")[0]] += taken
        files[item.nodeid.split("::")[0]] += taken


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    begun = now()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            seconds[f"fixture {fixturedef.argname} of {fixturedef.baseid or 'tests'}"] += now() - begun


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section(f"processor time, {now():.0f} s in all")
    for counter in (files, seconds):
        for name, taken in counter.most_common(SHOWN):
            terminalreporter.line(f"{taken:7.1f} s  {name}")
        terminalreporter.line("")
