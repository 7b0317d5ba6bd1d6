"""The loop: parts of a batch, evaluations, the best and the last, budgets, signals, and what goes wrong."""

import json
import math
import signal
import threading
from pathlib import Path

import pytest
import torch
from mistakes import mistake
from runs import at_step, before, checkpoints, rows, same, stopped, tiny, unmeasured, write_text
from safetensors.torch import load_file

from regard import run
from regard.tasks import Write, targets
from regard.trainer import TrainConfig, Trainer


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    unmeasured(monkeypatch)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture
def exact():
    """Numbers so fine that the order of a sum does not show."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def losses(monkeypatch, *values):
    """Have evaluations find these, one after another."""
    found = iter(values)
    monkeypatch.setattr(Write, "metrics", lambda *_: {"loss": next(found)})


def close(a: Path, b: Path, **tolerance):
    first, second = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], **tolerance)


# --------------------------------------------------------------------------------------- parts of a batch


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("micro", [3, 5, 1])
def test_parts_of_a_batch_are_the_batch(text, tmp_path, exact, micro, optimizer):
    """5 of 12 leaves an uneven last part."""
    settings = {"steps": 4, "train__batch": 12, "train__optimizer": optimizer}
    sizes = []
    tiny(text, tmp_path / "whole", **settings)
    with before(Trainer, "forward", lambda trainer, ids, _: sizes.append(len(ids))):
        tiny(text, tmp_path / "parts", **settings, train__micro=micro)
    assert sizes[: -(-12 // micro)] == {3: [3] * 4, 5: [5, 5, 2], 1: [1] * 12}[micro]
    close(tmp_path / "whole", tmp_path / "parts", rtol=1e-9, atol=1e-12)
    for a, b in zip(rows(tmp_path / "whole"), rows(tmp_path / "parts"), strict=True):
        assert b == pytest.approx(a, rel=1e-9)


def test_a_part_larger_than_the_batch_is_the_batch(text, tmp_path):
    tiny(text, tmp_path / "whole", steps=3)
    tiny(text, tmp_path / "part", steps=3, train__micro=100)
    close(tmp_path / "whole", tmp_path / "part", rtol=0, atol=0)


def test_the_loss_is_the_mean_of_the_batch_and_falls(text, tmp_path):
    tiny(text, tmp_path / "out", steps=40)
    found = [row["loss"] for row in rows(tmp_path / "out") if "loss" in row]
    vocab = run.load(tmp_path / "out").tokenizer.vocab
    assert found[0] == pytest.approx(math.log(vocab), rel=0.1)  # knows nothing yet
    assert found[-1] < 0.8 * found[0]


# -------------------------------------------------------------------------------------------- evaluations


@pytest.mark.parametrize("micro", [None, 1, 5])
def test_an_evaluation_covers_all_that_is_held_out(text, tmp_path, micro):
    valid = write_text(tmp_path / "valid.txt", lines=9)
    asked = []
    with before(Write, "metrics", lambda task, loss, count, stream: asked.append((count, len(stream)))):
        model = tiny(text, tmp_path / "out", steps=2, valid=valid, train__micro=micro, model__dropout=0.5)
    assert asked == [(len(Path(valid).read_text()) - 1, len(Path(valid).read_text()))]
    scored = model.score(valid)
    for name in ("loss", "perplexity", "bits_per_byte"):
        assert rows(tmp_path / "out")[-1][f"valid_{name}"] == pytest.approx(scored[name], rel=1e-5)


def test_measuring_does_not_change_training(text, tmp_path):
    """Nor does saving, logging or the size of a part."""
    tiny(text, tmp_path / "a", steps=6, model__dropout=0.3)
    tiny(text, tmp_path / "b", steps=6, model__dropout=0.3, train__evaluate=1, train__save=1, train__log=4)
    same_weights = [(tmp_path / x / "checkpoints/step-6/model.safetensors").read_bytes() for x in "ab"]
    assert same_weights[0] == same_weights[1]


def test_the_best_is_the_model_and_the_last_is_for_going_on(text, tmp_path, monkeypatch, capsys):
    losses(monkeypatch, 5.0, 3.0, 4.0, 3.5)
    out = tmp_path / "out"
    tiny(text, out, steps=8, train__evaluate=2, train__save=2, train__keep=9)
    assert checkpoints(out) == ["step-2", "step-4", "step-6", "step-8"]
    top = (out / "model.safetensors").read_bytes()
    at = {n: (out / "checkpoints" / f"step-{n}" / "model.safetensors").read_bytes() for n in (2, 4, 6, 8)}
    assert [n for n in at if at[n] == top] == [4]
    assert "best valid 3.0000 at step 4" in capsys.readouterr().err
    assert "at step 4" in (out / "README.md").read_text()


def test_early_stopping(text, tmp_path, monkeypatch):
    settings = {"steps": 100, "train__evaluate": 2, "train__patience": 2}
    out = tmp_path / "out"
    losses(monkeypatch, 5.0, 6.0, 4.0, 4.5, 4.0)
    tiny(text, out, **settings)
    assert checkpoints(out) == ["step-10"]
    tiny(text, out, **settings, resume=True)  # stays over
    assert checkpoints(out) == ["step-10"]
    losses(monkeypatch, 5.0, 6.0)
    tiny(text, out, **settings | {"train__patience": 3}, resume=True)
    assert checkpoints(out) == ["step-10", "step-12"]


def test_patience_is_counted_across_sittings(text, tmp_path, monkeypatch):
    settings = {"steps": 100, "train__evaluate": 2, "train__patience": 3}
    losses(monkeypatch, 5.0, 6.0, 7.0, 8.0)
    with stopped(Trainer, "train_step", at_step(7)):
        tiny(text, tmp_path / "out", **settings)
    tiny(text, tmp_path / "out", **settings, resume=True)
    assert checkpoints(tmp_path / "out")[-1] == "step-8"


def test_old_checkpoints_go(text, tmp_path):
    tiny(text, tmp_path / "out", steps=7, train__save=1, train__keep=3)
    assert checkpoints(tmp_path / "out") == ["step-5", "step-6", "step-7"]


def test_a_step_is_logged_now_and_then_with_the_first_and_the_last(text, tmp_path):
    tiny(text, tmp_path / "out", steps=11, train__log=4)
    found = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in found if "loss" in row] == [1, 4, 8, 11]
    assert set(found[0]) == {"step", "loss", "lr", "grad_norm", "elapsed", "tokens_per_second", "mfu"}
    assert set(found[-1]) == {"step", "valid_loss", "valid_perplexity", "valid_bits_per_byte"}


# ------------------------------------------------------------------------------------------------- budgets


def test_minutes_are_enough(text, tmp_path):
    out = tmp_path / "out"
    tiny(text, out, minutes=0.005, train__schedule="linear", train__warmup=0)
    (last,) = checkpoints(out)
    about = json.loads((out / "checkpoints" / last / "state.json").read_text())
    assert about["elapsed"] >= 0.3
    rates = [row["lr"] for row in rows(out) if "lr" in row]
    assert rates == sorted(rates, reverse=True)  # falls with the clock
    tiny(text, out, minutes=0.005, resume=True, train__schedule="linear", train__warmup=0)  # are used up
    assert checkpoints(out) == [last]


def test_the_first_budget_that_is_used_up_counts(text, tmp_path):
    tiny(text, tmp_path / "out", minutes=5, steps=2)
    assert checkpoints(tmp_path / "out") == ["step-2"]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, "train.steps"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 1, "lr": -0.1}, "lr=-0.1"),
        ({"steps": 1, "lr": float("nan")}, "lr=nan"),
        ({"steps": 1, "batch": 0}, "batch=0"),
        ({"steps": 1, "micro": 0}, "micro=0"),
        ({"steps": 1, "seed": -1}, "seed=-1"),
        ({"minutes": 0.0}, "minutes=0"),
    ],
)
def test_settings_that_make_no_sense(settings, word):
    with pytest.raises(ValueError, match=word):
        TrainConfig(**settings)


# ------------------------------------------------------------------------------------------------- signals


def test_signals_are_given_back(text, tmp_path):
    before_it = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    tiny(text, tmp_path / "out", steps=1)
    with stopped(Trainer, "train_step", at_step(1), signal.SIGINT):
        tiny(text, tmp_path / "stopped", steps=3)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before_it


def test_a_second_ctrl_c_does_not_wait_for_the_save(text, tmp_path):
    def twice(trainer):
        if trainer.step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with before(Trainer, "train_step", twice), pytest.raises(KeyboardInterrupt):
        tiny(text, tmp_path / "out", steps=5, train__save=2)
    assert checkpoints(tmp_path / "out") == ["step-2"]


def test_training_in_a_thread(text, tmp_path):
    """Where signals cannot be caught."""
    thread = threading.Thread(target=tiny, args=(text, tmp_path / "out"), kwargs={"steps": 2})
    thread.start()
    thread.join()
    tiny(text, tmp_path / "here", steps=2)
    same(tmp_path / "out", tmp_path / "here")


# -------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("log", [1, 1000])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_rate_far_too_high_is_told_and_nothing_spoilt_is_kept(text, tmp_path, log, optimizer):
    """Also at steps that are not logged."""
    out = tmp_path / "out"
    settings = {"train__evaluate": 3, "train__save": 1, "train__log": log, "train__warmup": 0}
    mistake(
        lambda: tiny(text, out, steps=50, train__lr=1e20, train__optimizer=optimizer, **settings),
        "train.lr",
        "1e+20",
    )
    for path in out.rglob("*.safetensors"):
        assert all(t.isfinite().all() for t in load_file(path).values()), path


def test_a_compiler_that_gives_up_is_done_without(text, tmp_path, monkeypatch):
    def compiler(module):
        def call(*_):
            raise RuntimeError("no C++ compiler")

        return call

    monkeypatch.setattr(torch, "compile", compiler)
    tiny(text, tmp_path / "a", steps=3, train__compile="on")
    tiny(text, tmp_path / "b", steps=3, train__compile="off")
    same(tmp_path / "a", tmp_path / "b")


def test_a_device_that_is_not_there(text, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("it is there")
    mistake(lambda: tiny(text, tmp_path / "out", steps=1, train__device="cuda"), "train.device=cuda")
    assert list(tmp_path.iterdir()) == []


def test_targets_are_counted_without_those_left_out():
    assert targets((torch.zeros(2, 3), torch.tensor([[1, 2, -100], [3, -100, -100]]))) == 3


# ------------------------------------------------------------------------------------------------ compiling


def test_a_compiler_that_fails_is_done_without(text, tmp_path, monkeypatch):
    def broken(module):
        def call(*batch):
            raise RuntimeError("no compiler here")

        return call

    tiny(text, tmp_path / "plain", steps=3)
    monkeypatch.setattr("regard.trainer.torch.compile", broken)
    tiny(text, tmp_path / "broken", steps=3, train__compile="on")
    close(tmp_path / "plain", tmp_path / "broken", rtol=0, atol=0)
    with stopped(Trainer, "train_step", at_step(2)):  # also where a run is taken up again
        tiny(text, tmp_path / "again", steps=3, train__compile="on")
    tiny(text, tmp_path / "again", steps=3, train__compile="on", resume=True)
    close(tmp_path / "plain", tmp_path / "again", rtol=0, atol=0)
