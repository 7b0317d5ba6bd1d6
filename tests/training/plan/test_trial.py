"""A plan follows the time of real steps."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.training.plan import trial
from regard.training.plan.facts import Facts, Side
from regard.training.plan.plan import Plan, make_plan
from regard.training.plan.report import describe
from regard.training.plan.sizes import Request
from regard.training.plan.speed import known_machine
from regard.training.plan.trial import Trial
from regard.training.throughput import Stopwatch

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
    assert trial.time_steps(make_plan(request(task)), 2)[0] > 0
    assert torch.equal(torch.random.get_rng_state(), state)  # training does not depend on it


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_steps_of_recurrent_models_are_timed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "REPEATS", 1)
    assert trial.time_steps(make_plan(request("translate", kind)), 2)[0] > 0


@pytest.mark.parametrize("times", [0.25, 1.0, 5.0])
def test_a_plan_follows_the_time_of_its_steps(times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer or more steps, so that the run takes as long as it may."""
    paces: list[float] = []

    def measure_pace(plan: Plan) -> Trial:
        paces.append(times)
        return Trial(times, busy=False)

    def make(trial: Trial) -> Plan:
        return make_plan(request("translate", pace=trial.pace))

    monkeypatch.setattr(trial, "measure_pace", measure_pace)
    before = make(Trial(1.0, busy=False))
    plan = trial.adjust(before, make)
    assert plan.request.machine is not None
    assert plan.request.machine.pace == times
    assert len(paces) <= 2
    assert plan.seconds() == pytest.approx(before.seconds(), rel=0.3)
    assert (plan.steps > before.steps, plan.steps < before.steps) == (times < 1, times > 1)


def measured(plan: Plan, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> list[float]:
    """The paces by trials that take so long."""
    times = iter(seconds)
    monkeypatch.setattr(trial, "time_steps", lambda *_: (next(times), False))
    trials = [trial.measure_pace(plan) for _ in seconds]
    return [t.pace for t in trials if t is not None]


def test_a_pace_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A little less or more is chance, and would change plans between runs."""
    plan = make_plan(request("write"))
    paces = measured(plan, monkeypatch, 0.1, 0.102, 0.3, 0.05, 0.1)
    first, same, busy, faster, again = paces
    assert first == same == busy
    assert faster == again == pytest.approx(first / 2, rel=0.05)


def test_a_disturbed_trial_does_not_ruin_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(request("write"))
    assert measured(plan, monkeypatch, 50.0, 1e-6) == [trial.SLOWEST, 1 / trial.SLOWEST]


def test_threads_that_wait_for_each_other_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, one thread is, which has half of the speed of two."""
    plan, threads = make_plan(request("write")), torch.get_num_threads()
    counts = [2]
    monkeypatch.setattr(trial, "remembered", lambda _, seconds: seconds)
    monkeypatch.setattr(torch, "get_num_threads", lambda: counts[-1])
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    monkeypatch.setattr(trial, "time_steps", lambda *_: (9.0 if counts[-1] == 2 else 0.05, True))
    busy = trial.measure_pace(plan)
    assert counts == [2, 1, 2]
    monkeypatch.setattr(trial, "time_steps", lambda *_: (0.05, False))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    quiet = trial.measure_pace(plan)
    assert busy is not None
    assert quiet is not None
    assert busy.busy
    assert 0.4 * quiet.pace < busy.pace < quiet.pace


@pytest.mark.parametrize(
    ("wall", "thread", "process", "expected"),
    [
        (1.0, 1.0, 2.0, 1.0),  # both threads work
        (9.0, 1.0, 2.0, 1.0),  # so they do, but other programs run in between
        (1.0, 0.1, 2.0, 1.0),  # threads of another library work for this one
        (1.0, 1.0, 4.0, 1.0),  # also threads that have nothing to do with it
    ],
)
def test_other_programs_are_not_timed(
    wall: float, thread: float, process: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = iter([(5.0, 3.0, 4.0), (5.0 + wall, 3.0 + thread, 4.0 + process)])
    monkeypatch.setattr(Stopwatch, "clocks", staticmethod(lambda: next(clocks)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    watch = Stopwatch(torch.device("cpu"))
    assert watch.seconds() == pytest.approx(expected)
    assert watch.wall == pytest.approx(wall)


def test_a_busy_machine_is_named() -> None:
    """Its plan is that of the machine by itself."""
    plans = [
        make_plan(replace(request("write"), machine=replace(known_machine("cpu2"), busy=busy)))
        for busy in (False, True)
    ]
    assert plans[0].settings == plans[1].settings
    assert ["other programs" in describe(plan)[-1] for plan in plans] == [False, True]


def test_what_is_not_timed() -> None:
    assert trial.measure_pace(make_plan(request("words", "words"))) is None
    large = {"model.dim": 1024, "model.depth": 6, "train.minutes": 5}
    assert trial.measure_pace(make_plan(replace(request("write"), by_hand=large))) is None
