"""The mean of checkpoints: when it is the model, and that stops do not change it."""

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.runs import at_step, before, checkpoints, losses, rows, same, stopped, tiny, write_text
from helpers.slow import slow_after
from regard.runs import checkpoints as checkpoint
from regard.runs.load import load
from regard.training.evaluation import Evaluation
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")
MEAN = {"steps": 8, "train__save": 2, "train__evaluate": 100, "train__average": 3}


def weights(out: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / f"step-{step}" / "model.safetensors")


@pytest.mark.parametrize(("last", "mean"), [(4.0, 3.0), (3.0, 4.0), (3.0, 3.0)])
def test_the_mean_is_the_model_if_it_is_better(text, tmp_path, monkeypatch, capsys, last, mean):
    losses(monkeypatch, last, mean, 5.0)
    out = tmp_path / "out"
    tiny(text, out, **MEAN, train__keep=9)
    by_hand = {
        name: torch.stack([weights(out, step)[name].double() for step in (4, 6, 8)]).mean(0).float()
        for name in weights(out, 8)
    }
    top = load_file(out / "model.safetensors")
    for name, expected in by_hand.items() if mean < last else weights(out, 8).items():
        assert torch.equal(top[name], expected), name
    assert rows(out)[-2:] == [
        {"step": 8, "valid_loss": last, "best": "loss"},
        {"step": 8, "averaged": 3, "valid_loss": mean} | ({"best": "loss"} if mean < last else {}),
    ]
    assert "the last 3 checkpoints" in capsys.readouterr().err
    tiny(text, tmp_path / "plain", **MEAN | {"train__average": 1})  # training is as without it
    last = "checkpoints/step-8/model.safetensors"
    assert (out / last).read_bytes() == (tmp_path / "plain" / last).read_bytes()


def test_the_mean_is_measured_and_not_only_the_last(text, tmp_path):
    valid = write_text(tmp_path / "valid.txt", lines=9)
    tiny(text, tmp_path / "out", **MEAN, valid=valid)
    *_, last, mean = rows(tmp_path / "out")
    model = load(tmp_path / "out")
    scored = model.score(valid)["loss"]
    assert scored == pytest.approx(min(last["valid_loss"], mean["valid_loss"]), rel=1e-5)
    files = [tmp_path / "out" / "checkpoints" / f"step-{n}" / "model.safetensors" for n in (4, 6, 8)]
    model.model.load_state_dict(checkpoint.average(map(load_file, files)))
    assert model.score(valid)["loss"] == pytest.approx(mean["valid_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("average", "keep", "left"),
    [(3, 1, [4, 6, 7]), (3, 2, [4, 6, 7]), (2, 1, [6, 7]), (2, 4, [2, 4, 6, 7]), (1, 1, [7])],
)
def test_checkpoints_are_kept_for_their_mean(text, tmp_path, average, keep, left):
    """7 is the last step, and not a multiple of 2."""
    settings = MEAN | {"steps": 7, "train__average": average, "train__keep": keep}
    tiny(text, tmp_path / "out", **settings)
    assert checkpoints(tmp_path / "out") == [f"step-{n}" for n in left]
    assert rows(tmp_path / "out")[-1].get("averaged", 1) == average


def test_the_mean_of_fewer_than_were_asked_for(text, tmp_path):
    tiny(text, tmp_path / "out", **MEAN | {"steps": 3})
    assert rows(tmp_path / "out")[-1]["averaged"] == 2
    tiny(text, tmp_path / "short", **MEAN | {"steps": 2})  # there is but the last
    assert "averaged" not in rows(tmp_path / "short")[-1]
    tiny(text, tmp_path / "unmeasured", **MEAN, data__holdout=0.0)  # nothing says which is better
    top, last = ((tmp_path / "unmeasured" / p / "model.safetensors") for p in ("", "checkpoints/step-8"))
    assert top.read_bytes() == last.read_bytes()


class Died(BaseException):
    pass


@pytest.mark.parametrize("steps", slow_after(2, [[3, 5, 7], [4, 6], [3], [1, 2, 3, 4, 5, 6, 7]]))
@pytest.mark.parametrize("how", [signal.SIGTERM, None])
def test_the_mean_does_not_know_of_stops(text, tmp_path, steps, how):
    """The settings of saving, and kills, do not matter."""
    settings = MEAN | {"model__dropout": 0.1, "train__keep": 1}
    tiny(text, tmp_path / "whole", **settings)

    def die(trainer):
        if trainer.step == step:
            raise Died

    for step in steps:
        if how is not None:
            with stopped(Trainer, "train_step", at_step(step), how):
                tiny(text, tmp_path / "out", **settings, resume=True)
        else:
            with before(Trainer, "train_step", die), pytest.raises(Died):
                tiny(text, tmp_path / "out", **settings, resume=True)
    tiny(text, tmp_path / "out", **settings, resume=True)
    same(tmp_path / "whole", tmp_path / "out")
    tiny(text, tmp_path / "out", **settings, resume=True)  # it is over, and stays as it is
    same(tmp_path / "whole", tmp_path / "out")


@pytest.mark.parametrize("name", ["try_average", "measure"])
def test_stopped_while_the_mean_is_tried(text, tmp_path, name):
    """Also during the last evaluation: then evaluation and saving are left to the next start."""
    settings = MEAN | {"train__keep": 1}
    tiny(text, tmp_path / "whole", **settings)
    with stopped(Evaluation, name, lambda *_: True):
        tiny(text, tmp_path / "out", **settings)
    assert not any("averaged" in row for row in rows(tmp_path / "out"))
    for _ in range(2):
        tiny(text, tmp_path / "out", **settings, resume=True)
        same(tmp_path / "whole", tmp_path / "out", state=False)


def test_a_damaged_checkpoint_is_left_out_of_the_mean(text, tmp_path):
    def damage(evaluation, _):
        (evaluation.checkpointer.checkpoints / "step-4" / "model.safetensors").write_bytes(b"no")

    with before(Evaluation, "try_average", damage):
        tiny(text, tmp_path / "out", **MEAN)
    assert rows(tmp_path / "out")[-1]["averaged"] == 2
