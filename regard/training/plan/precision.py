"""The precision in which a CPU trains, and whether its steps are compiled."""

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from regard.training.plan import rules
from regard.training.plan.sizes import Request
from regard.training.plan.speed import Machine, known_machine, step_seconds

if TYPE_CHECKING:
    from regard.training.plan.plan import Plan

STATIC = ("write", "fill", "restore", "see")  # batches of one shape
NARROWEST = 64  # width; bf16 slows narrower models down, because converting takes longer than it saves
NARROWEST_RECURRENT = 256  # of recurrent models, which have smaller products: a step's
FASTER = 1.6  # speed-up by bf16 for models of the planned widths, to the same loss (docs/performance.md)
COMPILED_FASTER = 1.4  # a compiled step in bf16
COMPILING = 90.0  # seconds, on two cores
USUAL = known_machine("cpu2")  # if the steps are given, and no machine was measured


def wants_bf16(request: Request) -> bool:
    """Return whether a model that is wide enough should be trained in bf16 on this CPU. Vectors of words are
    looked up, not multiplied, and the built-in data have settings that were measured in float32."""
    measured = request.facts.built_in and request.minutes is None
    by_hand = request.by_hand.get("train.precision") is not None
    least = narrowest(request.kind)
    narrow = request.by_hand.get("model.dim", least) < least
    return request.bf16 and not (by_hand or narrow or measured) and request.task != "words"


def narrowest(kind: str) -> int:
    """The least width of a kind of model that is trained in bf16."""
    return NARROWEST_RECURRENT if kind in rules.RECURRENT_KINDS else NARROWEST


def use_bf16(request: Request) -> Request:
    """Return the request with a CPU's speed in the precision of training. That of recurrent models, which
    depends on their width, is planned as in float32."""
    machine = request.machine
    if machine is None or not wants_bf16(request) or request.kind in rules.RECURRENT_KINDS:
        return request
    faster = FASTER * (COMPILED_FASTER if compiling_pays(request) else 1.0)
    return replace(request, machine=replace(machine, peak=faster * machine.peak))


def compiling_pays(request: Request, seconds: float | None = None) -> bool:
    """Return whether compiling a step in bf16 saves more time than it takes, in a run of this many seconds;
    by default, in the given time."""
    compile = request.by_hand.get("train.compile", "auto")
    if compile != "auto" or not wants_bf16(request):
        return bool(compile == "on")
    if (
        request.kind in rules.RECURRENT_KINDS
        or request.task not in STATIC
        or not any(map(shutil.which, ("g++", "clang++")))
    ):
        return False
    seconds = 60 * (request.minutes or rules.DEFAULT_MINUTES) if seconds is None else seconds
    return seconds * (1 - 1 / COMPILED_FASTER) > COMPILING


def startup(machine: Machine, compiled: bool) -> float:
    """Seconds before steps run at their speed: compiling, or on a GPU recording graphs."""
    if not machine.gpu:
        return COMPILING if compiled else 1.0
    return 30.0 if compiled else 3.0


def choose_precision(plan: "Plan") -> None:
    """Choose bf16 on a CPU that is faster with it, and compiling if it saves more time than it takes."""
    request = plan.request
    if not wants_bf16(request) or plan.cost.width < narrowest(request.kind):
        return
    plan.choose("train.precision", "bf16", "which this processor multiplies faster")
    seconds = None  # the clock decides
    if plan.get("train.steps"):
        seconds = plan.steps * step_seconds(request.machine or USUAL, plan.cost, plan.batch)
    compiled = "on" if compiling_pays(request, seconds) else "off"
    plan.choose("train.compile", compiled, f"which takes about {COMPILING:.0f} s")
