"""Make the plan of a job, and put it into the job's settings."""

from dataclasses import replace
from math import ceil

import torch

from regard.data.reading import describe_sources, read_together
from regard.models import MODELS
from regard.runs.model import Model
from regard.training import distributed
from regard.training.job import Job
from regard.training.plan import trial
from regard.training.plan.facts import compare_sizes, read_facts
from regard.training.plan.finetune import Base, choose_batch, finetune_settings
from regard.training.plan.held_out import (
    describe_held_out,
    limit_held_out,
    may_limit,
    share_held_out,
)
from regard.training.plan.plan import Plan, make_plan, rows_of, seconds_to_train
from regard.training.plan.precision import choose_precision, use_bf16
from regard.training.plan.report import comments, describe, odd_rate_words, precision_words
from regard.training.plan.rules import DEFAULT_MINUTES
from regard.training.plan.sizes import Request
from regard.training.plan.speed import Machine, has_bf16, step_seconds, this_machine
from regard.training.plan.teaching import plan_with, with_teachers
from regard.training.teacher import load_teachers

FEW_STEPS, SMALLEST = (
    50,
    4,
)  # a language model gets smaller batches, if that leaves time for more steps
EVALUATING = 0.1  # of the time
HELD_OUT = 20, 200  # the smallest and the largest number of conversations to evaluate on


def follow_plan(job: Job, kind: str, parent: Model | None, device: torch.device) -> None:
    """Fill the settings that the job's recipe leaves open; all processes follow the first one's plan.

    The recipe of an existing run leaves nothing open.
    """
    if "version" in job.sections["data"]:
        return
    plan, problem = None, None
    if distributed.RANK == 0:
        try:
            knows_length = any(job.sections["train"].get(name) for name in ("steps", "epochs"))
            machine = None if knows_length else this_machine(device)
            bf16 = has_bf16(device) if machine is None else machine.bf16
            plan = plan_job(job, kind, parent, machine, bf16)
        except Exception as e:  # the others wait for the plan
            problem = e
    settings = distributed.broadcast(None if plan is None else plan.settings)
    if problem is not None:
        raise problem
    if settings is None:
        raise SystemExit(2)  # the first process reports why
    for key, value in settings.items():
        section, _, name = key.partition(".")
        job.sections[section][name] = value
    if plan is not None:
        job.comments = comments(plan)
        if plan.request.machine is not None:  # the plan has chosen more than rates
            job.summary = describe(plan)
        elif plan.settings.get("train.precision"):
            job.summary = [f"plan: {precision_words(plan)}"]
        if plan.request.machine is None and (words := odd_rate_words(plan)):
            job.summary.append(f"plan: {words}")


def plan_job(job: Job, kind: str, parent: Model | None, machine: Machine | None, bf16: bool) -> Plan:
    """Make the plan for a job, on a machine; None if the steps are given, so that its speed does not matter.
    `bf16`: the machine is a CPU that multiplies bf16 much faster than float32.
    """
    sections = job.sections
    by_hand = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    task, chosen = sections["task"]["name"], {"model.kind", "task.name"}
    by_hand = {key: value for key, value in by_hand.items() if key not in chosen and value is not None}
    preset = MODELS[kind][2].get(sections["model"].get("preset", ""), {})
    by_hand = {f"model.{name}": value for name, value in preset.items()} | by_hand
    if by_hand.get("train.precision") == "auto":
        del by_hand["train.precision"]
    with read_together() as reading:
        facts = read_facts(task, job.data, job.built_in, sections["task"].get("turns"))
    rows, share, validated = facts.rows, 0.0, bool(job.valid)
    held = compare_sizes(job.valid, job.data) if validated and not job.built_in else 0.0
    if not job.valid and not job.built_in:
        share = default = share_held_out(task, sections["data"], rows)

    def request(share: float, pace: float = 1.0, busy: bool = False) -> Request:
        """The request for a plan that holds out this share, and whose steps take `pace` times as long."""
        here = machine and replace(machine, pace=pace, busy=busy)
        part, own = facts.training_part(1 - share), held or share / max(0.01, 1 - share)
        return Request(task, kind, by_hand, part, here, job.own_kind, bf16=bf16, held=own)

    if job.teachers:
        teachers = load_teachers(job.teachers, task, torch.device("cpu"))
        plan = plan_student(request(share), teachers, parent, job)
    else:
        limited = share > 0 and may_limit(task, sections["data"], job.data)
        share = limit_held_out(share, facts.characters) if limited else share
        plan = plan_request(request(share), parent, validated)
        if limited and (less := limit_held_out(share, facts.characters, plan)) < share:
            plan = plan_request(request(share := less), parent, validated)
        if trial.is_timed(machine):
            plan = trial.adjust(plan, lambda t: plan_request(request(share, *t), parent, validated))
        if limited and share < default:
            plan.choose("data.holdout", share, "enough to evaluate on, or as much as there is time for")
    split = f"evaluated on {', '.join(job.valid[:2])}" if job.valid else ""
    if not job.valid and not job.built_in:
        split = describe_held_out(share_held_out(task, plan.section("data"), rows), rows)
    plan.data = describe_sources(
        reading.sources.values(), split, facts.share < 1, [*job.notes, *reading.notes]
    )
    return plan


def plan_student(request: Request, teachers: list[Model], parent: Model | None, job: Job) -> Plan:
    """Make the plan for a student; if it learns probabilities, its context fits its teachers'."""
    plan = plan_request(with_teachers(request, teachers), parent, bool(job.valid))
    context = min(teacher.task.context for teacher in teachers)
    if plan.request.teaching.flops and plan.settings.get("model.context", 0) > context:
        plan.settings["model.context"], plan.reasons["model.context"] = context, "that of a teacher"
    return plan


def plan_request(request: Request, parent: Model | None, validated: bool) -> Plan:
    epochs = request.by_hand.get("train.epochs")
    if epochs is None:
        return plan_steps(request, parent, validated)
    steps = FEW_STEPS
    for _ in range(3):  # the batch depends on the steps, which depend on it
        plan = plan_steps(
            replace(request, by_hand={**request.by_hand, "train.steps": steps}), parent, validated
        )
        steps = max(1, ceil(epochs * rows_of(plan)[0] / plan.batch))
    return plan


def plan_steps(request: Request, parent: Model | None, validated: bool) -> Plan:
    if parent is None:
        return make_plan(request)
    if request.task != "words":
        return plan_from_base(request, parent, validated)
    plan = make_plan(request)  # vectors are fine-tuned as they are trained
    for key in [key for key in plan.settings if key.startswith("model.")]:  # from the base
        del plan.settings[key], plan.reasons[key]
    return plan


def plan_from_base(request: Request, parent: Model, validated: bool) -> Plan:
    """Make the plan for fine-tuning: the model's sizes and tokenizers are known."""
    plan = plan_with(use_bf16(request), parent)
    facts, get, affordable = plan.request.facts, request.by_hand.get, None
    batch = get("train.batch")
    if request.machine is not None:
        batch = batch or affordable_batch(plan, choose_batch(request.task, facts.rows))
        affordable = count_affordable(plan, batch)
    choices = finetune_settings(
        request.task,
        Base(task=str(parent.task.config.name), dim=plan.cost.width),
        facts.rows,
        facts.classes,
        facts.balance,
        validated,
        batch,
        request.steps,
        affordable,
        int(get("train.lora", 0)),
        bool(get("train.adapter")),
    )
    for choice in choices:
        if choice.key != "train.batch" or "train.tokens" not in request.by_hand:
            plan.choose(choice.key, choice.value, f"{choice.reason} ({choice.source})")
    if request.steps is None:
        plan.choose("train.minutes", DEFAULT_MINUTES, "the default")
        if affordable is not None and plan.get("train.steps") is None:  # running text
            useful = int(request.advice.passes * rows_of(plan)[0] / plan.batch)
            if useful < affordable:
                plan.choose(
                    "train.steps", max(1, useful), "more passes over the data would only memorise them"
                )
    plan.steps = int(plan.get("train.steps") or affordable or 0)
    choose_precision(plan)
    if request.task == "converse" and request.machine is not None:
        about = "evaluations take about a tenth of the time"
        plan.choose("data.held_out", affordable_rows(plan, plan.get("train.evaluate", 250)), about)
    return plan


def count_affordable(plan: Plan, rows: float) -> int:
    """The number of steps of this many rows that there is time for."""
    assert plan.request.machine is not None
    units = rows * rows_of(plan)[1].units
    return max(10, int(seconds_to_train(plan) / step_seconds(plan.request.machine, plan.cost, units)))


def affordable_batch(plan: Plan, rows: int) -> int:
    """Rows of a step; fewer for a language model that is large for this machine, to have enough steps."""
    while plan.request.task == "converse" and rows > SMALLEST and count_affordable(plan, rows) < FEW_STEPS:
        rows //= 2
    return rows


def affordable_rows(plan: Plan, interval: int) -> int:
    """Rows to evaluate on, which takes a third of the time of training on them."""
    assert plan.request.machine is not None
    row = step_seconds(plan.request.machine, plan.cost, rows_of(plan)[1].units)
    rows = EVALUATING * seconds_to_train(plan) * 3 / (row * (2 + plan.steps // interval))
    return int(min(HELD_OUT[1], max(HELD_OUT[0], rows)))
