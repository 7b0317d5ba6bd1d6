"""A run that goes wrong: what the guard notices, and what comes of it."""

import itertools
import math
import signal
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.errors import user_error
from helpers.runs import before, checkpoints, guard_of, losses, notices, rows, same, stopped, tiny
from regard.tasks import Guess
from regard.tasks.guessing import EACH, guess_targets
from regard.tasks.heads import remark_on_classes
from regard.tasks.loss import IGNORED
from regard.training.config import TrainConfig
from regard.training.guard import MAX_ROLLBACKS, Guard, GuardState, Rollback
from regard.training.step import TrainStep
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")

STEPS = 1000
LEVEL = Guess(3.3, 3.3, 0.1)


def make(metric: str | None = None, guess: Guess | None = LEVEL, **settings: Any) -> tuple[Guard, list[str]]:
    said: list[str] = []
    config = TrainConfig(**{"steps": STEPS, "warmup": 100, "lr": 1.0} | settings)
    return Guard(config, GuardState(), metric, lambda: guess, said.append), said


def noise(seed: int, scale: float) -> Callable[[], float]:
    rng = np.random.default_rng(seed)
    return lambda: float(rng.normal(0, scale))


def watch(guard: Guard, loss: Callable[[float], float], start: int = 0) -> Rollback | None:
    """The first rollback of a run with these losses by the share of the steps that is done."""
    for step in range(start + 10, STEPS + 1, 10):
        if rollback := guard.see_loss(step, loss(step / STEPS), step / STEPS):
            return rollback
        if step % 250 == 0:
            guard.see_checkpoint(step)
    return None


def falling(done: float, start: float = 4.2, end: float = 1.2) -> float:
    return end + (start - end) * math.exp(-5 * done)


# Runs that are well


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("loss", "level"),
    [
        (falling, 3.3),
        (lambda done: falling(done, 0.69, 0.3), 0.69),
        (lambda done: falling(done, 10.8, 3.0), 6.8),
        (lambda done: falling(done, 3.5, 3.2), 6.8),  # fine-tuned: it begins low
        (lambda done: falling(done) + (1.0 if 0.5 < done < 0.52 else 0.0), 3.3),  # a bump
        (lambda done: max(0.001, 0.7 - 3 * done), 0.69),  # learnt by heart
        (lambda done: 3.35 if done < 0.2 else 2.0, 3.3),  # a plateau
    ],
)
def test_nothing_is_said_about_a_run_that_is_well(loss, level, seed):
    guard, said = make(guess=Guess(level, level, 0.5))
    jitter = noise(seed, 0.2 * loss(0.3))
    assert watch(guard, lambda done: loss(done) + jitter()) is None
    assert not said
    assert guard.factor(500) == 1.0
    assert guard.state.good == 750  # the last but one


# Divergence


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("high", [2.9, 4.0, 30.0])
def test_a_loss_that_rises_and_stays_high(high, seed):
    """It goes back to the last checkpoint before that, with half the rate."""
    guard, said = make()
    jitter = noise(seed, 0.2)
    rollback = watch(guard, lambda done: (falling(done) if done < 0.65 else high) + jitter())
    assert rollback is not None
    assert rollback.to == 500
    assert "0.5 instead of 1" in rollback.line
    assert guard.state.back_from <= 900
    assert guard.factor(500) < guard.factor(599) == guard.factor(900) == 0.5
    assert watch(guard, falling, start=500) is None
    assert not said


def test_a_loss_that_rises_before_the_first_checkpoint():
    guard, _ = make()
    rollback = watch(guard, lambda done: falling(done) if done < 0.1 else 6.0)
    assert rollback is not None
    assert rollback.to == 0
    assert guard.state.scale == 0.25
    assert guard.factor(0) < guard.factor(50) < guard.factor(99) == 0.25


def test_a_gradient_that_is_not_finite_leads_back_a_few_times():
    guard, _ = make()
    for n in range(1, 1 + MAX_ROLLBACKS):
        rollback = guard.see_gradient(7, math.nan, 0.1)
        assert rollback is not None
        assert rollback.to == 0
        assert "nan" in rollback.line
        assert "step 7" in rollback.line
        assert guard.state.scale == 0.25**n
    error = user_error(lambda: guard.see_gradient(7, math.inf, 0.1))
    assert "train.lr" in error
    assert f"{0.25**MAX_ROLLBACKS:.3g};" in error
    assert "now 1.0" in error
    assert guard.see_gradient(7, 1e30, 0.1) is None


def test_the_guard_can_be_turned_off():
    guard, said = make(guard=False)
    assert watch(guard, lambda done: 3.3 + 9 * done) is None
    assert "lower train.lr (now 1.0)" in user_error(lambda: guard.see_gradient(7, math.nan, 0.1))
    evaluate(guard, [1.5, 2.5, 3.5])
    guard.sum_up({"step": 5, "valid_loss": 9.0}, 10_000)
    assert not said
    assert not guard.state.has_stopped
    assert guard.state.good == 0


# Guessing


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_stays_at_the_level_of_guessing(seed):
    """It begins again with lower rates; then it says what to do, and goes on with the first one."""
    guard, said = make()
    jitter = noise(seed, 0.05)
    for n in (1, 2):
        rollback = watch(guard, lambda done: 3.3 + (0.9 if done < 0.05 else 0.0) + jitter())
        assert rollback is not None
        assert rollback.to == 0
        assert "3.3" in rollback.line
        assert not said
        assert guard.state.scale == 0.125**n
        assert 250 <= guard.state.back_from <= 400
    assert watch(guard, lambda done: 3.3 + jitter()) is None
    assert len(said) == 1
    assert "belongs to its input" in said[0]
    assert "train.lr=1" in said[0]
    assert guard.state.scale == 1.0


def test_many_words_take_longer():
    """Masked words are long at the level of their frequencies: to begin again would lose what was learned."""

    def loss(done: float) -> float:
        return 3.3 if done < 0.6 else 3.3 - 2 * (done - 0.6)

    assert watch(make()[0], loss) is not None
    guard, said = make(guess=Guess(3.3, 3.3, 0.1, steps=700))
    assert watch(guard, loss) is None
    assert not said


def test_steps_until_each_word_was_a_target_often():
    """Two steps with three targets each, of four words: one and a half of each, on average."""
    batches = [(torch.tensor([0, 1, 2, IGNORED]),), (torch.tensor([3, 3, 1]),)]
    assert guess_targets(batches, 4).steps == pytest.approx(EACH * 2 / 1.5)
    assert guess_targets([(torch.tensor([0.5, 1.5]),)], 0).steps == 0


def test_a_loss_that_falls_slowly_is_not_stuck():
    guard, said = make()
    assert watch(guard, lambda done: 6.0 - 3.5 * done) is None
    assert not said


def test_time_that_is_gone_does_not_count():
    """With a budget in minutes, a restart has a quarter of what is left."""
    guard, _ = make(steps=None, minutes=1.0)
    done, mends = 0.0, []
    for step in range(10, 100_000, 10):
        done += 0.001
        if guard.see_loss(step - guard.state.back_to, 3.3, done):
            mends.append(done)
    assert mends == pytest.approx([0.25, 0.25 + 0.75 / 4], abs=0.02)


# Memorising


def evaluate(
    guard: Guard, valid: Iterable[float], rows: int = 100_000, train: Callable[[float], float] = falling
) -> int | None:
    """Evaluate a run with these validation losses, evenly spread; return at which it stops."""
    valid = list(valid)
    best = None
    for n, loss in enumerate(valid, 1):
        done = n / len(valid)
        for i in range(25):
            guard.see_loss(25 * n + i, train(done - (1 - i / 25) / len(valid)), done)
        metrics = {"step": n, "valid_loss": loss, "valid_accuracy": -loss}
        best = metrics if best is None or loss < best["valid_loss"] else best
        guard.see_evaluation(metrics, best, rows, done, left=60.0)
        if guard.state.has_stopped:
            return n
    return None


@pytest.mark.parametrize(
    ("valid", "stops"),
    [
        ([1.50, 1.95, 2.70, 3.13], 2),  # Shakespeare without dropout
        ([2.0, 1.6, 1.5, 1.55, 1.62, 1.7, 1.8, 1.9, 2.0, 2.1], 7),
        ([2.0, 1.6, 1.5, *(1.5 + 0.012 * i for i in range(1, 18))], 10),  # slowly
    ],
)
def test_a_run_that_only_memorises_stops(valid, stops):
    guard, said = make()
    n = evaluate(guard, valid)
    assert n is not None
    assert abs(n - stops) <= 1
    assert len(said) == 1
    assert f"step {valid.index(min(valid)) + 1} " in said[0]
    assert f"step {n}," in said[0]
    assert "60 s" in said[0]
    assert "train.guard" in said[0]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["falls", "noisy", "flat, then falls", "small", "bump", "training rises"])
def test_a_run_that_may_get_better_does_not_stop(kind, seed):
    """Noise; a rate that is high until the end; few rows to evaluate on; a bump in both losses."""
    jitter, rows, train = noise(seed, 0.01), 100_000, falling
    valid = [falling(n / 20, 4.0, 1.4) * (1 + jitter()) for n in range(1, 21)]
    if kind == "noisy":
        jitter = noise(seed, 0.03)
        valid = [v * (1 + jitter()) for v in valid]
    if kind == "flat, then falls":
        valid = [max(v, 2.0) * (1 + jitter()) if n < 14 else v - 0.3 for n, v in enumerate(valid)]
    if kind == "small":
        jitter, rows = noise(seed, 0.15), 30
        valid = [v * max(0.6, 1 + jitter()) for v in valid]
    if kind in ("bump", "training rises"):
        valid[10:13] = [2.2, 2.3, 2.0]
        train = lambda done: falling(done) + (0.8 if 0.48 < done < 0.68 else 0.0)  # noqa: E731
    guard, said = make()
    assert evaluate(guard, valid, rows, train) is None
    assert not said


def test_a_metric_may_improve_though_the_loss_rises():
    guard, _ = make(metric="accuracy")
    for n in range(1, 21):
        for i in range(10):
            guard.see_loss(10 * n + i, falling(n / 20, 0.7, 0.0), n / 20)
        metrics = {"step": n, "valid_loss": 0.4 + 0.05 * n, "valid_accuracy": 0.7 + 0.01 * n}
        guard.see_evaluation(metrics, metrics, 10_000, n / 20, 1.0)
    assert not guard.state.has_stopped


def test_patience_by_hand_is_all_that_counts():
    guard, said = make(patience=10)
    assert evaluate(guard, [1.50, 1.95, 2.70, 3.13]) is None
    assert not said


# At the end


@pytest.mark.parametrize(
    ("best", "is_guessing"),
    [
        ({"valid_loss": 3.29}, True),
        ({"valid_loss": 3.1}, False),
        ({"valid_loss": 4.0, "valid_accuracy": 0.55}, True),  # of 100 rows, 0.5 by chance
        ({"valid_loss": 4.0, "valid_accuracy": 0.7}, False),
        ({"valid_loss": 2.5, "valid_accuracy": 0.55}, False),
    ],
)
def test_what_is_said_about_a_model_that_guesses(best, is_guessing):
    guard, said = make(guess=Guess(3.3, 3.3, 0.5))
    watch(guard, falling)
    guard.sum_up({"step": 1} | best, 100)
    assert len(said) == is_guessing
    assert all("belongs to its input" in line for line in said)


def test_a_remark_is_made_once():
    guard, said = make()
    for done in (0.1, 0.3, 0.5):
        guard.see_remark("'rare' is never predicted", done)
    assert not said
    for remark in (
        None,
        "'rare' is never predicted",
        "'rare' is never predicted",
        "'rare' is never predicted",
    ):
        guard.see_remark(remark, 0.7)
    assert said == ["'rare' is never predicted"]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([[5, 5, 0], [8, 8, 0], [8, 8, 0]], None),
        ([[5, 5, 0], [9, 9, 0], [8, 8, 2]], None),  # too few to say
        ([[5, 5, 0], [9, 9, 0], [7, 7, 4]], ["'c' (4 of 18 rows)", "task.balanced"]),
        ([[9, 0, 0], [18, 0, 0], [9, 5, 4]], ["'b' (5 of 18 rows), 'c' (4", "every prediction is 'a'"]),
    ],
)
def test_classes_that_are_never_predicted(counts, words):
    remark = remark_on_classes(["a", "b", "c"], [n for row in counts for n in row], balanced=False)
    assert (remark is None) == (words is None)
    assert all(word in (remark or "") for word in words or ())


# Real runs

PLAIN = {"train__ema": 0.0, "model__dropout": 0.0}
SHORT = PLAIN | {"train__evaluate": 20, "train__save": 20, "steps": 80}
LONG = PLAIN | {"train__evaluate": 50, "train__save": 50, "steps": 200, "model__dropout": 0.1}
HOT = LONG | {"train__lr": 1.0}


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory, text: str, quick: None) -> Path:
    """A run whose rate is 100 times too high."""
    tiny(text, out := tmp_path_factory.mktemp("hot") / "out", **HOT)
    return out


def test_a_rate_far_too_high_ends_with_a_good_model(hot, text, tmp_path):
    tiny(text, tmp_path / "out", **LONG)
    assert not notices(tmp_path / "out")
    assert all("train.lr" in line for line in notices(hot))
    assert 1 <= len(notices(hot)) <= MAX_ROLLBACKS
    lowest = [
        min(row["valid_loss"] for row in rows(out) if "valid_loss" in row) for out in (hot, tmp_path / "out")
    ]
    assert lowest[0] < 1.2 * lowest[1]
    steps = [row["step"] for row in rows(hot) if "loss" in row]
    assert steps == list(range(1, 201))  # of those that led to nothing, none is left


@pytest.mark.parametrize(
    ("steps", "how"), [([30, 50, 50, 90], signal.SIGTERM), ([70, 180, 20], None)], ids=["signal", "crash"]
)
def test_a_run_that_is_stopped_while_it_goes_back(hot, text, tmp_path, steps, how):
    """At the n-th step that is taken each time: before going back, soon after it, and in the second half."""

    class Died(Exception):
        pass

    out = tmp_path / "out"
    for n in steps:
        taken = itertools.count()
        if how is not None:
            with stopped(Trainer, "train_step", lambda *_: next(taken) == n, how):  # noqa: B023
                tiny(text, out, **HOT, resume=True)
            continue

        def die(_: Trainer) -> None:
            if next(taken) == n:  # noqa: B023
                raise Died

        with before(Trainer, "train_step", die), pytest.raises(Died):
            tiny(text, out, **HOT, resume=True)
    tiny(text, out, **HOT, resume=True)
    same(hot, out)
    assert guard_of(hot) == guard_of(out)


def test_it_goes_back_to_a_checkpoint(text, tmp_path, monkeypatch):
    """A gradient that is not finite once, late: the steps since then are the same again, at half the rate."""
    update, failed = TrainStep.update, []

    def fail_once(step: TrainStep) -> None:
        update(step)
        if step.step == 69 and not failed:
            failed.append(1)
            step.norm = torch.tensor(math.nan)
            with torch.no_grad():
                next(step.model.parameters()).fill_(math.nan)

    monkeypatch.setattr(TrainStep, "update", fail_once)
    tiny(text, out := tmp_path / "out", **SHORT)
    (line,) = notices(out)
    assert "nan at step 70" in line
    assert "step 40" in line  # after 60 it was too early to say
    assert rows(out)[-1]["step"] == 80
    assert checkpoints(out)[-2:] == ["step-60", "step-80"]
    for path in out.rglob("*.safetensors"):
        assert all(t.isfinite().all() for t in load_file(path).values()), path


def test_a_run_that_cannot_be_rescued_keeps_its_checkpoints(text, tmp_path, monkeypatch):
    """Each time that it went back to the start, it failed before anything was saved again."""
    short = SHORT | {"steps": 6, "train__save": 2, "train__evaluate": 3}
    tiny(text, out := tmp_path / "out", **short)
    before = {p: p.read_bytes() for p in (out / "checkpoints").rglob("*.*") if p.is_file()}
    update = TrainStep.update

    def fail(step: TrainStep) -> None:
        update(step)
        step.norm = torch.tensor(math.nan)

    monkeypatch.setattr(TrainStep, "update", fail)
    message = user_error(lambda: tiny(text, out, **short | {"steps": 12}, resume=True), "train.lr")
    assert f"{MAX_ROLLBACKS} attempts" in message
    assert before == {p: p.read_bytes() for p in (out / "checkpoints").rglob("*.*") if p.is_file()}


def test_a_run_that_memorises_stops_early_and_stays_so(text, tmp_path, monkeypatch):
    losses(monkeypatch, 1.5, 3.0, 9.0, 9.0)
    settings = SHORT | {"data__holdout": 0.5}
    tiny(text, out := tmp_path / "out", **settings)
    assert [row["step"] for row in rows(out) if "valid_loss" in row] == [20, 40]
    assert "step 20" in notices(out)[0]
    tiny(text, out, **settings, resume=True)
    assert checkpoints(out)[-1] == "step-40"
    tiny(text, out, **settings, train__guard=False, resume=True)
    assert checkpoints(out)[-1] == "step-80"


def write_classes(path: Path, label: Callable[[int, bool], str]) -> str:
    rng = np.random.default_rng(0)
    rows = ["text\tlabel"]
    for n in range(120):
        good = bool(rng.integers(2))
        rows.append(f"a {'good' if good else 'bad'} film {n}\t{label(int(rng.integers(2)), good)}")
    path.write_text("\n".join(rows) + "\n")
    return str(path)


CLASSES = {
    "case": "classify-bert",
    "steps": 60,
    "train__evaluate": 20,
    "train__save": 30,
    "task__balanced": False,
}


def test_labels_that_do_not_belong_to_their_texts(tmp_path):
    data = write_classes(tmp_path / "data.tsv", lambda throw, _: "yn"[throw])
    tiny(data, tmp_path / "out", **CLASSES)
    assert any("belongs to its input" in line for line in notices(tmp_path / "out"))
    data = write_classes(tmp_path / "true.tsv", lambda _, good: "yn"[good])
    tiny(data, tmp_path / "true", **CLASSES)
    assert not notices(tmp_path / "true")


def test_one_class_or_score_is_refused(tmp_path):
    data = write_classes(tmp_path / "data.tsv", lambda *_: "same")
    user_error(lambda: tiny(data, tmp_path / "out", **CLASSES), '"same"', "two or more classes")
    Path(data).write_text(Path(data).read_text().replace("label", "score").replace("same", "3"))
    user_error(lambda: tiny(data, tmp_path / "out", **CLASSES), "every score is 3")
    assert not (tmp_path / "out").exists()


# The state


def test_the_state_is_read_as_it_was_written():
    guard, _ = make()
    watch(guard, lambda done: falling(done) if done < 0.6 else 9.0)
    content = asdict(guard.state)
    assert GuardState.read(content) == guard.state
    assert GuardState.read({}) == GuardState()  # of an earlier version


@pytest.mark.parametrize("name", [*vars(GuardState()), "unknown"])
@pytest.mark.parametrize("value", ["x", -1.5e300, math.nan, [], {}, 10**30])
def test_a_state_that_cannot_be(name, value):
    assert GuardState.read({name: value}) is None
