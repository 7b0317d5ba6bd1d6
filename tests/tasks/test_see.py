"""Image classification: inputs, loss, answers and training."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.errors import user_error
from helpers.runs import write_pictures
from regard.data import synthetic as shapes
from regard.decode.sampling import Sampling
from regard.models import ViT, ViTConfig
from regard.runs.ensemble import ensemble
from regard.runs.load import load
from regard.tasks import See, SeeConfig, idle, targets
from regard.tasks import metrics as scoring
from regard.tasks.loss import IGNORED
from regard.tasks.request import DataRequest, Request
from regard.tasks.see import PictureConfig
from regard.training.build import train

pytestmark = pytest.mark.usefixtures("quick")

TINY = {
    "model.dim": 8,
    "model.depth": 1,
    "model.heads": 2,
    "model.patch": 2,
    "train.device": "cpu",
    "train.batch": 9,
    "train.warmup": 2,
}
NAMES = ("0", "1", "2")
MEANS = {"size": 6, "channels": 1, "mean": (0.3,), "std": (0.2,), "labels": NAMES}


@pytest.fixture
def data(tmp_path):
    return write_pictures(tmp_path / "see-images-idx3-ubyte")


def see_task(**settings):
    return See(SeeConfig(name="see", **MEANS | settings), None, 9)


def build(task):
    """Weights large enough that answers differ."""
    model = See.add_head(
        ViT(ViTConfig(size=6, channels=1, patch=2, dim=8, depth=1, heads=2, pool="mean")), task.config
    )
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5 * torch.randn_like(p))
    return model


def read(data, **settings):
    config = SeeConfig(name="see", **settings)
    return See.read(DataRequest([data], [], PictureConfig(), config, 9)), config


# Batches


def test_what_follows_from_the_data_is_found(data):
    corpus, _ = read(data)
    assert corpus.task_settings["labels"] == list(NAMES)
    assert corpus.model_settings == {"size": 6, "channels": 1, "mels": 0}
    assert corpus.tokenizer is None
    held = [row for label in range(3) for row in range(label, 37, 3)[9::10]]  # every tenth of each class
    assert len(corpus.valid) == len(held) == 3
    assert len(corpus.train) == 34
    x = torch.stack(corpus.train.sources[:]).double() / 255
    assert corpus.task_settings["mean"] == pytest.approx([x.mean().item()])
    assert corpus.task_settings["std"] == pytest.approx([x.std().item()])
    balanced = read(data, balanced=True)[0]
    assert balanced.task_settings["weights"] == pytest.approx([34 / 3 / n for n in (12, 11, 11)])


def test_an_epoch_has_every_picture_once_and_batches_depend_on_their_rows(data):
    task, corpus = see_task(operations=2, mixup=0.5, cutmix=0.5, pad=1, erase=0.3), read(data)[0]
    samples = task.samples(corpus.train, seed=3, rows=5, tokens=None)
    first, second = (samples.at(np.arange(k, k + 34)) for k in (0, 34))
    assert sorted(first) == sorted(second) == list(range(34))
    assert list(first) != list(second)
    batch, part = task.batch(samples, samples.rows(2)), task.batch(samples, samples.rows(2)[3:4])
    for a, b in zip(batch, part, strict=True):
        assert torch.equal(a[3:4], b)
    assert batch[0].shape == (5, 2, 1, 6, 6)
    assert batch[0].dtype == torch.uint8
    pixels, other, labels = batch[0], batch[3], batch[4]
    assert torch.equal(pixels[:, 0], corpus.train.sources.read(samples.at(samples.rows(2))))
    assert torch.equal(labels, torch.from_numpy(corpus.train.labels[samples.at(samples.rows(2))]))
    assert len(other) == 5
    assert targets(batch) == 5
    assert task.samples(corpus.train, 3, 5, tokens=63).size == 7  # of nine patches each


def test_without_changes_the_loss_is_the_cross_entropy_of_pixels_made_even(data):
    task, corpus = see_task(smoothing=0.1, weights=(1.0, 2.0, 0.5)), read(data)[0]
    model = build(task)
    batch = task.batch(task.samples(corpus.train, 3, 7, None), np.arange(7))
    assert batch[0].shape[:2] == (7, 1)
    logits = model((batch[0][:, 0] / 255 - 0.3) / 0.2)
    labels, weight = batch[-1], torch.tensor([1.0, 2.0, 0.5])
    each = F.cross_entropy(logits, labels, weight, label_smoothing=0.1, reduction="sum")
    assert_close(task.loss(model, *batch), each, rtol=1e-5, atol=1e-5)
    assert task.loss(model, *idle(batch)) == 0
    measured = task.measure(model, batch[0][:, 0], labels)
    assert measured[0].item() == pytest.approx(F.cross_entropy(logits, labels, reduction="sum").item())
    assert measured[1:4].sum() == (logits.argmax(-1) == labels).sum()


def test_classes_of_a_mixed_picture_count_as_much_as_is_seen(data):
    task, corpus = see_task(cutmix=1.0, smoothing=0.2), read(data)[0]
    model = build(task)
    batch = task.batch(task.samples(corpus.train, 3, 7, None), np.arange(7))
    pixels, _, how, other, labels = batch
    x, shares = [], []
    for row in range(7):
        left, top, right, bottom = how[row, 1:].tolist()
        middle = (np.arange(6) + 0.5) / 6
        covered = np.outer((middle >= top) & (middle < bottom), (middle >= left) & (middle < right))
        x.append(np.where(covered, pixels[row, 1], pixels[row, 0]))
        shares.append(1 - covered.mean())
    logits, stays = model((torch.from_numpy(np.stack(x)) / 255 - 0.3) / 0.2), torch.tensor(shares).float()
    soft = stays[:, None] * F.one_hot(labels, 3) + (1 - stays)[:, None] * F.one_hot(other, 3)
    each = F.cross_entropy(logits, soft, label_smoothing=0.2, reduction="sum")  # torch's own soft targets
    assert 0 < stays.mean() < 1
    assert_close(task.loss(model, *batch), each, rtol=1e-5, atol=1e-5)
    assert task.loss(model, *idle(batch)) == 0
    partial = (*batch[:-1], torch.where(torch.arange(7) < 3, labels, IGNORED))
    each = F.cross_entropy(logits[:3], soft[:3], label_smoothing=0.2, reduction="sum")
    assert_close(task.loss(model, *partial), each, rtol=1e-5, atol=1e-5)


def test_all_pictures_are_measured_once(data):
    task, corpus = see_task(), read(data)[0]
    batches = list(task.evaluation_batches(corpus.train, 9 * 5))
    assert [len(labels) for _, labels in batches] == [5] * 6 + [4]
    assert torch.equal(torch.cat([x for x, _ in batches]), torch.stack(corpus.train.sources[:]))


# A run


def test_a_run_is_asked_scored_and_gone_on_from(data, tmp_path, capsys):
    out = tmp_path / "run"
    model = train(
        "see", data, valid=data, out=out, steps=60, set=TINY | {"train.lr": 0.03, "task.flip": True}
    )
    assert not (out / "tokenizer.json").exists()
    config = json.loads((out / "config.json").read_text())
    assert (config["size"], config["channels"], config["task"]["labels"]) == (6, 1, list(NAMES))
    assert "tokenizer" not in (out / "recipe.toml").read_text()

    picture = str(tmp_path / "one.png")  # of class 1, and so bright
    assert model.ask(picture) == "1"
    (best,) = model.answers(picture, num_return_sequences=5)
    assert best[0].text == "1"
    assert sum(answer.score for answer in best) == pytest.approx(1)
    assert [a.score for a in best] == sorted((a.score for a in best), reverse=True)
    pixels = torch.from_numpy(np.asarray(Image.open(picture)).copy())[None]
    with torch.no_grad():
        c = model.task.config
        p = model.model((pixels[None] / 255 - c.mean[0]) / c.std[0]).softmax(-1)[0]
    assert best[0].score == pytest.approx(p.max().item(), rel=1e-5)
    assert model.ask([picture, picture]) == ["1", "1"]

    scores = model.score(data)
    assert scores["accuracy"] > 0.9
    answers = model.ask(model.task.held_out([data]).sources[:])
    assert scores["accuracy"] == scoring.accuracy(answers, model.task.held_out([data]).targets)
    assert set(scores) == {"loss", "accuracy", "f1", "matthews"}

    more = train(
        "see", data, out=tmp_path / "more", base=out, steps=2, set={"task.size": 8, "train.device": "cpu"}
    )
    assert more.task.config.size == 8  # the model's positions stretch
    assert more.task.config.mean == model.task.config.mean
    assert more.score(data)["accuracy"] > 0.5
    user_error(
        lambda: train("see", data, out=tmp_path / "no", base=out, steps=2, set={"task.channels": 3}),
        "channels",
    )
    user_error(
        lambda: train("see", data, out=tmp_path / "no", base=out, steps=2, set={"task.size": 7}), "task.size"
    )


def test_a_model_from_elsewhere_asks_for_no_huge_images(data, tmp_path):
    """Its positions stretch to any size, so nothing in its weights limits that of config.json."""
    out = tmp_path / "out"
    train("see", data, out=out, steps=1, set=TINY | {"task.size": 6, "model.patch": 2})
    config = json.loads((out / "config.json").read_text())
    for size in (514, 10**5, 2**31):
        config["task"]["size"] = size
        (out / "config.json").write_text(json.dumps(config))
        user_error(lambda: load(out, "cpu"), out / "config.json", f"task.size={size}")
    config["task"]["size"] = 512
    (out / "config.json").write_text(json.dumps(config))
    assert load(out, "cpu").task.image_shape == (1, 512, 512)


def test_the_command_line_tells_probabilities(data, tmp_path, capsys):
    from regard.cli import main

    train("see", data, out=tmp_path / "run", steps=2, set=TINY)
    with pytest.raises(SystemExit) as left:
        main(["ask", str(tmp_path / "run"), str(tmp_path / "one.png"), "--num-return-sequences", "2"])
    assert left.value.code == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 2
    assert float(lines[0][0]) >= float(lines[1][0])
    assert {lines[0][1], lines[1][1]} < set(NAMES)
    with pytest.raises(SystemExit) as left:
        main(["ask", str(tmp_path / "run"), str(tmp_path / "two.png")])
    assert left.value.code == 2
    assert "two.png: no such image" in capsys.readouterr().err


def test_two_runs_are_asked_as_one(data, tmp_path):
    both = [
        train("see", data, out=tmp_path / str(seed), steps=4, set=TINY | {"train.seed": seed})
        for seed in (1, 2)
    ]
    pixels = both[0].task.held_out([data]).sources[:5]
    each = [
        [{a.text: a.score for a in row} for row in m.answers(pixels, num_return_sequences=3)] for m in both
    ]
    answers = ensemble(both).answers(pixels, num_return_sequences=3)
    for a, b, row in zip(*each, answers, strict=True):
        assert {x.text: x.score for x in row} == pytest.approx({k: (a[k] + b[k]) / 2 for k in a}, rel=1e-5)


def test_without_data_shapes_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.tasks.see.SHAPES", (40, 10))
    out = tmp_path / "out"
    model = train("see", out=out, steps=2, set=TINY | {"model.patch": 8})
    assert model.task.config.labels == tuple(sorted(shapes.KINDS))
    assert train("see", out=out, steps=3, resume=True).task.config == model.task.config
    images = shapes.draw_shapes(seed=5, count=1)
    assert (
        len(model.task.answers(model.model, Request([torch.from_numpy(images.pixels[0])], Sampling()))[0])
        == 1
    )


# Mistakes


def test_what_does_not_do_is_named(data, tmp_path):
    def said(*words, **settings):
        changes = TINY | {k.replace("__", "."): v for k, v in settings.items()}
        user_error(lambda: train("see", data, out=tmp_path / "no", steps=2, set=changes), *words)
        assert not (tmp_path / "no").exists()

    said("size=6 must divide by patch=4", model__patch=4)
    said("size is not a setting", model__size=8)
    said("channels=2", task__channels=2)
    said("smoothing=1.0", task__smoothing=1.0)
    said("cannot see", model__kind="gpt")
    other = write_pictures(tmp_path / "other-images-idx3-ubyte")
    beside = Path(other.replace("images-idx3", "labels-idx1"))
    beside.write_bytes(beside.read_bytes()[:-1] + b"\x07")
    user_error(
        lambda: train("see", data, valid=other, out=tmp_path / "no", steps=2, set=TINY),
        "other-images-idx3-ubyte:37",
        '"7" is not one of the classes',
    )


def test_drawn_shapes_have_their_own_size(tmp_path):
    user_error(lambda: train("see", out=tmp_path / "no", steps=2, set=TINY | {"task.size": 64}), "task.size")
