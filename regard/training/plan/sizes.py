"""The request for a plan, and the model sizes that it chooses from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from regard.models import MODELS
from regard.training.plan import rules
from regard.training.plan.facts import Facts
from regard.training.plan.rules import Size
from regard.training.plan.speed import Cost, Machine, work_seconds
from regard.training.teacher import TEACHERS_SHARE

SHARE = 0.93  # the share of the time for training; the rest are checkpoints, samples and waiting for data


@dataclass(frozen=True)
class Teaching:
    """The cost of teachers."""

    teachers: int = 0
    seconds: float = 0.0  # before the first step, in which they answer all sources
    flops: float = 0.0  # for a unit of each step, if their probabilities are learned

    def added_to(self, cost: Cost) -> Cost:
        return replace(cost, body=cost.body + self.flops)

    def seconds_of(self, minutes: float) -> float:
        """The time of a run that teachers take, a part of it at most."""
        return min(self.seconds, TEACHERS_SHARE * 60 * minutes)


@dataclass(frozen=True)
class Request:
    """The request for a plan."""

    task: str
    kind: str
    by_hand: Mapping[str, Any]  # by SECTION.NAME: settings of the recipe or the user
    facts: Facts  # of the training data
    machine: Machine | None = None  # not needed if the steps are given
    own_kind: bool = True  # the model is of the recipe's own kind
    teaching: Teaching = Teaching()
    bf16: bool = False  # for a CPU that computes faster in bf16
    held: float = 0.0  # the validation data, relative to the training data

    @property
    def gpu(self) -> bool:
        return self.machine is not None and self.machine.gpu

    @property
    def steps(self) -> int | None:
        return self.by_hand.get("train.steps")

    @property
    def minutes(self) -> float | None:
        return self.by_hand.get("train.minutes")

    @property
    def advice(self) -> rules.Advice:
        return rules.advice_for(self.task, self.kind)


def sizes(request: Request) -> list[tuple[Size, dict[str, Any]]]:
    """Sizes to choose from, smallest first, with their settings; only one if the size was given."""
    by_hand = {
        key.removeprefix("model."): v for key, v in request.by_hand.items() if key.startswith("model.")
    }
    presets, ladder = MODELS[request.kind][2], rules.ladder(request.kind)
    if "preset" in by_hand:
        preset = presets.get(by_hand["preset"], {}) | by_hand
        names = [name for name in ("dim", "depth", "heads", "hidden", "decoder_depth") if name in preset]
        return [(Size(**{"dim": 128, "depth": 1, "heads": 1} | {n: preset[n] for n in names}), {})]
    if not ladder:
        named = [name for name in presets if name in ("tiny", "small", "base")]
        chosen = ["small"] if request.task == "words" else named or list(presets)
        return [(Size(presets[n]["dim"], presets[n].get("depth", 1), 1), {"preset": n}) for n in chosen]
    if "dim" in by_hand:
        nearest = min(ladder, key=lambda size: abs(size.dim - by_hand["dim"]))
        ladder = [replace(nearest, dim=by_hand["dim"], hidden=nearest.hidden and 2 * by_hand["dim"])]
    ladder = [replace(size, heads=fit_heads(size, by_hand.get("heads"))) for size in ladder]
    for name in ("depth", "hidden", "decoder_depth"):
        if isinstance(by_hand.get(name), int):
            ladder = [replace(size, **{name: by_hand[name]}) for size in ladder]
    return [(size, {k: v for k, v in vars(size).items() if v is not None}) for size in ladder]


def fit_heads(size: Size, by_hand: int | None) -> int:
    """The given number of heads, or the one nearest to the ladder's that divides the width evenly."""
    if isinstance(by_hand, int):
        return by_hand
    limit = min(size.dim, 2 * size.heads)  # one head is nearer than more
    dividing = [n for n in range(1, limit + 1) if size.dim % n == 0 and size.dim // n % 2 == 0]
    return min(dividing, key=lambda n: abs(n - size.heads), default=1)


def fine_passes(request: Request) -> float:
    """The approximate number of passes over pictures in the time, of a ViT of width 256 with 196 patches."""
    machine, picture = request.machine, 4.4e9  # operations
    if machine is None:
        return 0.0
    seconds = 60 * (request.minutes or rules.DEFAULT_MINUTES) * SHARE
    rate = machine.peak * machine.processes * 256 / (256 + machine.half)
    return seconds * rate / picture / max(1, request.facts.rows)


def evaluation_seconds(request: Request, cost: Cost, units: float) -> float:
    """The time of an evaluation, including a second one for the moving average."""
    machine = request.machine
    if machine is None:
        return 0.0
    times = 1 if request.advice.ema is None else 2
    return times * work_seconds(machine, cost, request.held * units, False) / 3


def scale_cost(cost: Cost, of: Size, to: Size, kind: str) -> Cost:
    """Derive the cost of a size from another one's, without building the model. The cost of products grows
    with the weights, and the cost of scores with width and depth."""
    ratio, width = to.weights(kind) / of.weights(kind), to.dim / of.dim
    scores = min(cost.body, max(0.0, cost.body - 6 * cost.blocks)) if kind in ("gpt", "bert") else 0.0
    embedded = (cost.weights - cost.blocks) * width
    return replace(
        cost,
        weights=int(cost.blocks * ratio + embedded),
        blocks=int(cost.blocks * ratio),
        body=(cost.body - scores) * ratio + scores * width * to.depth / of.depth,
        output=cost.output * width,
        muon=cost.muon * ratio * width,
        layers=max(1, cost.layers * to.depth // of.depth),
        width=to.dim,
        activations=cost.activations * ratio / width,
    )
