"""The progress of a run: the part of a checkpoint besides tensors, and checks that it belongs to the run."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeGuard

from regard.errors import UserError
from regard.runs import checkpoints
from regard.training.guard import GuardState


@dataclass
class TrainState:
    """The part of a checkpoint besides the weights and the optimizer state."""

    step: int = 0  # steps done
    elapsed: float = 0.0  # seconds spent on them by earlier processes
    evaluated: int = 0  # step of the last evaluation
    best: dict[str, float] | None = None  # the best evaluation
    worse: int = 0  # evaluations since the best one
    guard: GuardState = field(default_factory=GuardState)
    rate: float = 1.0  # factor of the schedule's learning rate
    stream: list[list[int]] = field(default_factory=list)  # the place in each part of a stream


def read_state(
    path: Path, about: dict[str, Any], seed: int, settings: dict[str, dict[str, Any]]
) -> TrainState:
    """Return the state of a checkpoint. Raise UserError that names the key if it can't be that of a run with
    this seed and these settings."""
    file = path / checkpoints.STATE
    step = about.get("step")
    limit = step if is_count(step) else 0
    guard = GuardState.read(about.get("guard", {}))  # earlier versions have none
    reached = max(limit, guard.back_from) if guard else limit
    checks: dict[str, Callable[[Any], bool]] = {
        "step": lambda v: is_count(v) and path.name == f"step-{v}",
        "elapsed": lambda v: is_number(v) and 0 <= v < math.inf,
        "evaluated": lambda v: is_count(v) and v <= limit,
        "best": lambda v: v is None or is_evaluation(v, reached),
        "worse": is_count,
        "seed": lambda v: is_count(v) and v == seed,
        "data": lambda v: isinstance(v, list | dict),
        "stream": is_place_of_stream,
        "rate": lambda v: is_number(v) and 0 < v < math.inf,
        "guard": lambda _: guard is not None and max(guard.good, guard.saved, guard.back_to) <= limit,
    }
    earlier: dict[str, Any] = {"guard": {}, "stream": [], "rate": 1.0}  # fields that earlier versions lack
    about = earlier | about
    for key, is_valid in checks.items():
        if key not in about or not is_valid(about[key]):
            text = f"is {str(about[key])[:80]!r}" if key in about else "is missing"
            raise UserError(f"{file}: {key} {text}, which can't be; {checkpoints.REPLACE}")
    for section, ours in settings.items():
        theirs = about.get(section, {})  # version 0 has none
        if not isinstance(theirs, dict):
            raise UserError(f"{file}: {section} should be an object; {checkpoints.REPLACE}")
        for key in theirs.keys() & ours.keys():
            if theirs[key] != ours[key]:
                was, now = str(theirs[key])[:80], str(ours[key])[:80]
                raise UserError(
                    f"{file}: {section}.{key} is {was}, not {now}; it is a checkpoint of another run"
                )
    return TrainState(**{f.name: about[f.name] for f in fields(TrainState)} | {"guard": guard})


def is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**53)


def is_place_of_stream(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and len(row) == 6 and all(type(v) is int and v >= -1 for v in row)
        for row in value
    )


def is_evaluation(value: Any, step: int) -> bool:
    """Return whether this can be the metrics of an evaluation at a step up to this one."""
    if not isinstance(value, dict) or not {"step", "valid_loss"} <= value.keys():
        return False
    return all(is_number(v) for v in value.values()) and is_count(value["step"]) and value["step"] <= step
