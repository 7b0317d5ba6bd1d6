"""A plan follows the time of real steps."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.training.plan import trial
from regard.training.plan.facts import Facts, Side
from regard.training.plan.plan import Plan, make_plan
from regard.training.plan.sizes import Request
from regard.training.plan.speed import known_machine

TEXTS = Side(characters=400_000, words=80_000, alphabet=60, vocabulary=6000, longest=60)
FACTS = Facts(rows=5000, source=TEXTS, target=TEXTS, classes=3, size=28, channels=1)
KINDS = {
    "write": "gpt",
    "translate": "transformer",
    "classify": "bert",
    "fill": "bert",
    "restore": "t5",
    "tag": "bert",
    "see": "vit",
}


def request(task: str, kind: str | None = None, pace: float = 1.0) -> Request:
    machine = replace(known_machine("cpu2"), here=True, pace=pace)
    return Request(task, kind or KINDS[task], {"train.minutes": 0.1}, FACTS, machine)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("task", KINDS)
def test_steps_of_all_kinds_are_timed(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "REPEATS", 1)
    state = torch.random.get_rng_state()
    assert trial.time_steps(make_plan(request(task)), 2) > 0
    assert torch.equal(torch.random.get_rng_state(), state)  # training does not depend on it


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_steps_of_recurrent_models_are_timed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "REPEATS", 1)
    assert trial.time_steps(make_plan(request("translate", kind)), 2) > 0


@pytest.mark.parametrize("times", [0.25, 1.0, 5.0])
def test_a_plan_follows_the_time_of_its_steps(times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer or more steps, so that the run takes as long as it may."""
    paces: list[float] = []

    def pace_of(plan: Plan) -> float:
        paces.append(times)
        return times

    def make(pace: float) -> Plan:
        return make_plan(request("translate", pace=pace))

    monkeypatch.setattr(trial, "pace_of", pace_of)
    before = make(1.0)
    plan = trial.adjust(before, make)
    assert plan.request.machine is not None
    assert plan.request.machine.pace == times
    assert len(paces) <= 2
    assert plan.seconds() == pytest.approx(before.seconds(), rel=0.3)
    assert (plan.steps > before.steps, plan.steps < before.steps) == (times < 1, times > 1)


def test_a_pace_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A little less or more is chance, and would change plans between runs."""
    plan = make_plan(request("write"))
    measured = iter([0.1, 0.102, 0.3, 0.05, 0.1])
    monkeypatch.setattr(trial, "time_steps", lambda *_: next(measured))
    first, same, busy, faster, again = (trial.pace_of(plan) for _ in range(5))
    assert first == same == busy
    assert faster == again == pytest.approx((first or 0) / 2, rel=0.05)


def test_what_is_not_timed() -> None:
    assert trial.pace_of(make_plan(request("words", "words"))) is None
    large = {"model.dim": 1024, "model.depth": 24, "train.minutes": 5}
    assert trial.pace_of(make_plan(replace(request("write"), by_hand=large))) is None
