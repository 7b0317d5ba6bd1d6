"""What an attack led to, and a suite's attacks together."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A kind of attack."""

    count: int  # attacks at full scale; `prepare` may return another "count"
    short: int  # attacks in the test suite
    seconds: float  # for one attack
    memory: int = 32 << 30  # bytes of address space for one attack, beyond what is there
    batch: int = 1  # attacks in one process
    alone: bool = False  # one at a time: it measures times
    needs_syscalls: bool = False
    limits: dict[str, float] = field(default_factory=dict)  # of peaks


@dataclass(frozen=True)
class Context:
    """What all attacks of a suite share."""

    place: Path  # a folder for what `prepare` made, and for temporary files
    seed: int
    shared: dict[str, Any]  # what `prepare` returned


@dataclass
class Outcome:
    """How one attack ended; `fault` is empty unless something is wrong with that."""

    end: str
    fault: str = ""
    peaks: dict[str, float] = field(default_factory=dict)  # of which the largest counts
    counts: dict[str, int] = field(default_factory=dict)  # which are added up
    samples: dict[str, list[float]] = field(default_factory=dict)  # of which the 99th percentile counts


@dataclass
class Summary:
    """The outcomes of a suite."""

    attacks: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    peaks: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, number: int, outcome: Outcome) -> None:
        self.attacks += 1
        self.ends[outcome.end] = self.ends.get(outcome.end, 0) + 1
        if outcome.fault:
            self.faults.append(f"{number}: {outcome.fault}")
        for name, value in outcome.peaks.items():
            self.peaks[name] = max(value, self.peaks.get(name, value))
        for name, value in outcome.counts.items():
            self.counts[name] = self.counts.get(name, 0) + value


def summarize(outcomes: dict[int, Outcome], limits: dict[str, float]) -> Summary:
    """Return the summary of all attacks; a peak above its limit is a fault as well."""
    summary, samples = Summary(), dict[str, list[float]]()
    for number, outcome in outcomes.items():
        summary.add(number, outcome)
        for name, values in outcome.samples.items():
            samples.setdefault(name, []).extend(values)
    for name, values in samples.items():
        summary.peaks[f"{name} p99"] = sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else 0.0
    for name, limit in limits.items():
        if summary.peaks.get(name, 0) > limit:
            summary.faults.append(f"{name}: {summary.peaks[name]} is more than {limit}")
    return summary
