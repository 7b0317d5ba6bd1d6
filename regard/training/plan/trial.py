"""A few steps of the planned model on random inputs, timed on this machine.

The speed of a large product says little about the steps of a small model: what waits, what Muon's update
takes, and how much narrow products profit from a processor's matrix units differ from one to another.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import log, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models import MODELS
from regard.runs import recipe
from regard.training.optimizers import make_optimizers
from regard.training.plan.plan import Plan, rows_of, vocab_of
from regard.training.plan.precision import COMPILED_FASTER
from regard.training.plan.speed import Machine, Row, read_remembered, remember, remembered_path, step_seconds
from regard.training.throughput import Stopwatch

LARGEST = 0.5  # seconds that a step should take by the plan; of larger ones, fewer rows are timed
BUDGET = 0.6  # seconds after which no other step is timed
REPEATS = 4  # steps, of which the fastest counts; the first one of a process is slower
HEAVIEST = 6e7  # weights of a model that is made for this; larger ones take too long
MATTERS = 1.1  # a plan is made again if its steps take MATTERS times what it expected
SLOWEST = 4.0  # times what the formula expects, or a fourth of it: further off, the machine was disturbed
BUSY = 1.5  # times its own time takes a step where other programs use the processors, too
REMEMBERED = 500  # results
CPU = torch.device("cpu")


def is_timed(machine: Machine | None) -> bool:
    """Return whether steps can be timed: on this machine. A GPU's are as fast as they get once compiled."""
    return machine is not None and machine.here and not machine.gpu


class Trial(NamedTuple):
    """What was measured."""

    pace: float  # the time of a step, relative to that of the formula in speed.py
    busy: bool  # whether other programs use the machine


def adjust(plan: Plan, make: Callable[[Trial], Plan]) -> Plan:
    """Make the plan again with the pace of its own model, and once more if that changes the model."""
    for _ in range(2):
        machine, shape = plan.request.machine, shape_of(plan)
        assert machine is not None
        trial = measure_pace(plan)
        if trial is None or (abs(log(trial.pace / machine.pace)) < log(MATTERS) and not trial.busy):
            break
        plan = make(trial)
        if shape_of(plan) == shape:
            break
    return plan


def shape_of(plan: Plan) -> str:
    """What a step's time depends on."""
    model = {k: v for k, v in plan.model_settings().items() if isinstance(v, int | str)}
    optimizer = plan.get("train.optimizer"), plan.get("train.precision"), int(plan.batch)
    return f"{plan.request.task} {plan.request.kind} {sorted(model.items())} {vocab_of(plan)} {optimizer}"


def measure_pace(plan: Plan) -> Trial | None:
    """Time steps of the plan's model; None if they can't be."""
    machine = plan.request.machine
    assert machine is not None
    if plan.cost.weights > HEAVIEST or plan.request.task in ("words", "caption"):
        return None
    rows, expected = max(1, round(plan.batch / rows_of(plan)[1].units)), 0.0
    while True:
        units = rows * rows_of(plan)[1].units
        expected = step_seconds(replace(machine, pace=1.0), plan.cost, units)
        if rows == 1 or expected < LARGEST:
            break
        rows //= 2
    (seconds, busy), threads = time_steps(plan, rows), torch.get_num_threads()
    if busy and threads > 1:  # threads that wait for each other are no measure
        with one_thread():
            seconds, _ = time_steps(plan, rows)
        slower = replace(machine, pace=1.0, peak=machine.peak / threads)
        seconds *= expected / step_seconds(slower, plan.cost, rows * rows_of(plan)[1].units)
    seconds = remembered(f"step {machine.name} torch {torch.__version__} {shape_of(plan)} {rows}", seconds)
    if plan.get("train.compile") == "on":  # which the speed includes
        seconds /= COMPILED_FASTER
    return Trial(float(f"{min(SLOWEST, max(1 / SLOWEST, seconds / expected)):.2g}"), busy)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def remembered(key: str, seconds: float) -> float:
    """The smallest time so far; a little less is chance, and would change plans between runs."""
    path = remembered_path()
    known = read_remembered(path)
    if key in known and seconds >= known[key] / MATTERS:
        return known[key]
    seconds = float(f"{seconds:.3g}")
    remember(path, dict(list((known | {key: seconds}).items())[-REMEMBERED:]))
    return seconds


def time_steps(plan: Plan, rows: int) -> tuple[float, bool]:
    """The time of the fastest of a few steps of this many rows, and whether the machine is busy."""
    _, row, fixed = rows_of(plan)
    model_class, config, _ = MODELS[plan.request.kind]
    with torch.random.fork_rng(devices=[]):
        model: Any = model_class(recipe.fill("model", plan.model_settings(), config, **fixed))
        inputs = random_inputs(row, rows, vocab_of(plan))
        bf16 = plan.get("train.precision") == "bf16"
        optimizers = make_optimizers(model, str(plan.get("train.optimizer", "adamw")), 0.0, 0.0, 0.99, bf16)
        predicted, best, so_far = round(rows * row.predicted), float("inf"), Stopwatch(CPU)
        for _ in range(REPEATS):
            watch = Stopwatch(CPU)
            take_step(model.train(), inputs, predicted, vocab_of(plan), bf16)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            best = min(best, watch.seconds())
            own = so_far.seconds()
            if so_far.wall > BUDGET:
                break
    return best, so_far.wall > BUSY * own


def random_inputs(row: Row, rows: int, vocab: int) -> list[Tensor]:
    """Inputs of a model in these shapes, with several rows."""
    shapes = [(rows, *shape[1:]) for shape in row.shapes]
    inputs = [
        torch.rand(shape) if len(shape) > 2 else torch.randint(vocab, (prod(shape),)).view(shape)
        for shape in shapes
    ]
    if len(shapes) == 2 and len(shapes[0]) == 2:  # a source with its mask
        inputs.append(torch.ones(shapes[0], dtype=torch.bool))
    return inputs


def take_step(model: nn.Module, inputs: list[Tensor], predicted: int, vocab: int, bf16: bool) -> None:
    """A pass forward and back, with the loss of as many tokens as a task predicts."""
    forward: Any = model.hidden if hasattr(model, "hidden") else model
    logits_of: Any = getattr(model, "logits", None)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        x = forward(*inputs)
        loss = x.float().square().mean()
        if predicted and logits_of is not None:
            logits = logits_of(x.flatten(0, -2)[:predicted])
            loss = loss + F.cross_entropy(logits.float(), torch.zeros(len(logits), dtype=torch.long))
    loss.backward()
