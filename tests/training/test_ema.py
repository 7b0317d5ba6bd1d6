"""The moving average of the weights: its formula, what is published, and resumed bit for bit."""

import math

import pytest
import torch
from safetensors.torch import load_file

from helpers.runs import at_step, rows, same, stopped, tiny
from regard.training.config import TrainConfig
from regard.training.ema import KEY, MovingAverage, measure_better
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")

SETTINGS = {"steps": 12, "train__evaluate": 4, "train__save": 5, "model__dropout": 0.1}


def averaged(share, values):
    """A weight that takes these values step by step, its optimizer and its average."""
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.zeros(3)
    optimizer = torch.optim.AdamW([p], lr=0.0)
    optimizer.step()
    ema = MovingAverage(torch.nn.Identity(), [optimizer], share)
    for step, value in enumerate(values, 1):
        p.data.fill_(value)
        ema.update(step)
    return p, optimizer, ema


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_the_last_share_of_the_steps_counts_for_half(share):
    for steps in (100, 1000):  # at any time of a run
        values = [float(step > steps * (1 - share)) for step in range(1, steps + 1)]
        p, optimizer, _ = averaged(share, values)
        assert float(optimizer.state[p][KEY][0]) == pytest.approx(0.5, abs=0.02)


def test_the_beginning_is_forgotten_and_a_constant_stays():
    p, optimizer, _ = averaged(0.1, [1e6] + [2.0] * 500)
    assert float(optimizer.state[p][KEY][0]) == pytest.approx(2.0, abs=1e-3)


def test_weights_without_a_gradient_have_no_average():
    """An optimizer begins its state with the first gradient, which must find none."""
    _, optimizer, ema = averaged(0.2, [1.0, 2.0])
    late = torch.nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [late]})
    assert optimizer.state[late] == {}  # as loading a checkpoint leaves it
    ema.update(3)
    assert optimizer.state[late] == {}
    late.grad = torch.ones(3)
    optimizer.step()
    ema.update(4)
    assert torch.equal(optimizer.state[late][KEY], late)
    assert len(ema.tensors()[0]) == 2


def test_swapped_is_exact_and_stays_in_place():
    p, _, ema = averaged(0.2, [1.0, 2.0, 4.0])
    weights, place = p.detach().clone(), p.data_ptr()
    average = ema.tensors()[1][0].clone()
    with ema.swapped():
        assert torch.equal(p, average)
        assert p.data_ptr() == place
    assert torch.equal(p, weights)
    assert torch.equal(ema.tensors()[1][0], average)


@pytest.mark.parametrize(("losses", "wins"), [((3.0, 2.0), 1.0), ((2.0, 3.0), 0.0), ((2.0, 2.0), 0.0)])
def test_the_better_of_both_is_taken(losses, wins):
    p, _, ema = averaged(0.2, [1.0, 2.0, 4.0])
    now, answers = p.detach().clone(), iter(losses)
    metrics, better = measure_better(
        ema, lambda: {"valid_loss": next(answers)}, lambda m: (-m["valid_loss"],)
    )
    assert metrics == {"valid_loss": min(losses), "ema": wins, "valid_loss_other": max(losses)}
    with better:
        assert torch.equal(p, now) == (not wins)
    assert torch.equal(p, now)
    interrupted = iter([{"valid_loss": 1.0}, None])
    assert measure_better(ema, lambda: next(interrupted), lambda m: (0.0,)) is None
    assert torch.equal(p, now)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resumed_bit_for_bit(text, tmp_path, optimizer):
    """Stopped before a step, and right before an evaluation."""
    settings = SETTINGS | {"train__ema": 0.3, "train__optimizer": optimizer}
    tiny(text, tmp_path / "straight", **settings)
    for step in (3, 4, 9):
        with stopped(Trainer, "train_step", at_step(step)):
            tiny(text, tmp_path / "out", **settings, resume=True)
    tiny(text, tmp_path / "out", **settings, resume=True)
    same(tmp_path / "straight", tmp_path / "out")


def test_the_average_is_published_where_it_is_better(text, tmp_path):
    """A rate far too high: the weights jump about, and their average is better."""
    settings = {"steps": 8, "train__evaluate": 8, "train__ema": 0.5, "train__lr": 0.3, "train__warmup": 0}
    tiny(text, tmp_path / "out", **settings)
    (evaluation,) = (row for row in rows(tmp_path / "out") if "valid_loss" in row)  # one for both
    assert evaluation["ema"] == 1
    assert evaluation["valid_loss"] < evaluation["valid_loss_other"]
    checkpoint = tmp_path / "out" / "checkpoints" / "step-8"
    files = (tmp_path / "out", "model"), (checkpoint, "model"), (checkpoint, "optimizer")
    published, saved, state = (load_file(folder / f"{name}.safetensors") for folder, name in files)
    for name, t in published.items():
        assert torch.equal(t, state[f"{name}/{KEY}"])
        assert not torch.equal(t, saved[name])


def test_training_itself_is_as_without_it(text, tmp_path):
    tiny(text, tmp_path / "without", **SETTINGS)
    tiny(text, tmp_path / "with", **SETTINGS, train__ema=0.2)
    checkpoints = [
        tmp_path / name / "checkpoints" / "step-12" / "model.safetensors" for name in ("without", "with")
    ]
    first, second = map(load_file, checkpoints)
    assert all(torch.equal(t, second[name]) for name, t in first.items())
    losses = [[row["loss"] for row in rows(tmp_path / name) if "loss" in row] for name in ("without", "with")]
    assert losses[0] == losses[1]


def test_settings_are_checked():
    assert TrainConfig(steps=1).ema == 0
    for wrong in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="ema"):
            TrainConfig(steps=1, ema=wrong)
