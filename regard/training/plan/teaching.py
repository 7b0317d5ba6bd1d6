"""The cost of teachers for a student: the time to answer its sources, or their share of every step."""

from collections.abc import Sequence
from dataclasses import replace

from regard.describe.export import without_head
from regard.runs.model import Model
from regard.tasks import TASKS
from regard.tasks.source import TOKENS_AT_ONCE
from regard.training.plan.plan import Plan, rows_of
from regard.training.plan.sizes import Request, Teaching
from regard.training.plan.speed import Row, cost_of, working_speed
from regard.training.settings import FROM_DATA


def plan_with(request: Request, model: Model) -> Plan:
    """A plan with the size and the vocabulary of a given model."""
    config = vars(without_head(model.model).config)
    sizes = {f"model.{k}": v for k, v in config.items() if k not in FROM_DATA and v is not None}
    vocab = model.tokenizers[0].vocab if model.tokenizers else 0
    facts = replace(request.facts, vocab=vocab)
    return Plan(replace(request, by_hand={**sizes, **request.by_hand}, facts=facts))


def with_teachers(request: Request, teachers: Sequence[Model]) -> Request:
    """The request of a student: with its teachers' vocabulary, if they share it, and their cost."""
    plans = [
        plan_with(replace(request, kind=teacher.kind or request.kind, by_hand={}), teacher)
        for teacher in teachers
    ]
    if TASKS[request.task][0].learns_from == "probabilities":
        flops = sum(plan.cost.flops / 3 for plan in plans)  # forward only
        facts = replace(request.facts, vocab=plans[0].request.facts.vocab or request.facts.vocab)
        return replace(request, facts=facts, teaching=Teaching(len(teachers), flops=flops))
    pairs = zip(plans, teachers, strict=True)
    seconds = sum(seconds_to_answer(plan, int(model.generation.get("num_beams", 1))) for plan, model in pairs)
    return replace(request, teaching=Teaching(len(teachers), seconds=seconds))


def seconds_to_answer(plan: Plan, beams: int) -> float:
    """The time in which a teacher answers all sources by beam search: each source is read once, and every
    beam writes a token at a time."""
    request, machine = plan.request, plan.request.machine
    if machine is None:
        return 0.0
    _, row, fixed = rows_of(plan)
    source, target = (shape[-1] for shape in row.shapes)
    shortest = Row(row.units, [row.shapes[0], (1, 1)], 1)
    full, reading = (
        cost_of(request.kind, plan.model_settings(), fixed, r, muon=False) for r in (row, shortest)
    )
    work = row.units / 3 * (reading.flops + beams * (full.flops - reading.flops))
    at_once = TOKENS_AT_ONCE.get(machine.kind, TOKENS_AT_ONCE["cpu"])
    together = max(1.0, at_once / (beams * source))
    waits = target / together * (machine.step_seconds + machine.layer_seconds * full.layers)
    return request.facts.rows / machine.processes * (work / working_speed(machine, full, False) + waits)
