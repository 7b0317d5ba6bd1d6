"""From a job to its plan, and from the plan to the job's settings."""

import sys
from typing import Any

import torch

from regard.data.files import read_together
from regard.models import MODELS
from regard.runs.model import Model
from regard.tasks import TASKS
from regard.training import distributed
from regard.training.job import Job
from regard.training.plan.built_in import BUILT_IN
from regard.training.plan.facts import read_facts
from regard.training.plan.plan import Plan, Request, make_plan
from regard.training.plan.report import comments, describe
from regard.training.plan.speed import Machine, this_machine


def follow_plan(job: Job, kind: str, parent: Model | None, device: torch.device) -> None:
    """Fill what the job's recipe leaves open; all processes follow the first one's plan.

    The recipe of a run that was written before leaves nothing open.
    """
    if "version" in job.sections["data"]:
        return
    plan, problem = None, None
    if distributed.RANK == 0:
        try:
            knows_length = bool(job.sections["train"].get("steps"))
            plan = plan_job(job, kind, parent, None if knows_length else this_machine(device))
        except Exception as e:  # the others wait for the plan
            problem = e
    settings = distributed.broadcast(None if plan is None else plan.settings)
    if problem is not None:
        raise problem
    if settings is None:
        raise SystemExit(2)  # the first process says why
    for key, value in settings.items():
        section, _, name = key.partition(".")
        job.sections[section][name] = value
    if plan is not None:
        job.comments = comments(plan)
        if plan.request.machine is not None:  # it has decided more than rates
            print("\n".join(describe(plan)), file=sys.stderr)


def plan_job(job: Job, kind: str, parent: Model | None, machine: Machine | None) -> Plan:
    """The plan for a job, on a machine; None where the steps are given, so that its speed does not matter."""
    sections = job.sections
    by_hand = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    task, chosen = sections["task"]["name"], {"model.kind", "task.name"}
    by_hand = {key: value for key, value in by_hand.items() if key not in chosen and value is not None}
    preset = MODELS[kind][2].get(sections["model"].get("preset", ""), {})
    by_hand = {f"model.{name}": value for name, value in preset.items()} | by_hand
    with read_together():  # notes about the data are for those who read all of them
        facts = read_facts(task, job.data, job.built_in, sections["task"].get("turns"))
    if not job.valid and not job.built_in:
        default: Any = TASKS[task][0].data_config.__dataclass_fields__["holdout"].default
        facts = facts.training_part(1 - sections["data"].get("holdout", default))
    request = Request(task, kind, by_hand, facts, machine, job.own_kind)
    if parent is not None:
        return plan_from_base(request)
    return make_plan(request)


def plan_from_base(request: Request) -> Plan:
    """The plan for a model that is trained further: its sizes and tokenizers are known."""
    plan = Plan(request)
    for key, value in BUILT_IN[request.task].items():
        if key.startswith("train.") and not (key == "train.steps" and request.minutes):
            plan.choose(key, value, "as measured for the built-in data")
    plan.steps = int(plan.get("train.steps") or 0)
    return plan
