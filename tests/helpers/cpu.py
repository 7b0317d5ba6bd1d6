"""The processor time of tests, which other work on the machine changes less than the clock's.

    PYTHONPATH=tests python -m pytest -p helpers.cpu tests/training

prints what takes longest: seconds of this process and of those that it has waited for, by test function and
by fixture of a module or session. A fixture also counts for the test that needed it first.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

SHOWN = 30
seconds: Counter[str] = Counter()


def now() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    begun = now()
    try:
        return (yield)
    finally:
        seconds[item.nodeid.split("[")[0]] += now() - begun


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
    for name, taken in seconds.most_common(SHOWN):
        terminalreporter.line(f"{taken:7.1f} s  {name}")
