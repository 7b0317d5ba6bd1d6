"""The film of a run: its frames are the weights of their steps, few, and no reason to stop training."""

import errno
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.errors import user_error
from helpers.runs import before, tiny
from regard.files.tensors import read_tensors
from regard.runs.film import drop_later, film_losses, film_steps, frame_path
from regard.runs.layout import FILM
from regard.runs.load import at_step, load, load_frame, steps_of
from regard.training import film
from regard.training.film import Film, thin
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick", "silent_page")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame after every step, however long it takes."""
    monkeypatch.setattr(film, "SECONDS", 0.0)
    monkeypatch.setattr(film, "SHARE", 1e9)
    monkeypatch.setattr(Film, "is_due", lambda self: True)


def test_thinning_keeps_the_ends_and_even_distances() -> None:
    steps: list[int] = []
    for step in range(1000):
        steps = sorted({*steps, step} - set(thin([*steps, step], 20)))
        assert len(steps) <= 20
        assert (steps[0], steps[-1]) == (0, step)
        assert steps[-3:] == list(range(max(0, step - 2), step + 1))[-3:]
    gaps = [b - a for a, b in itertools.pairwise(steps[:-3])]
    assert max(gaps) <= 3 * min(gaps)
    assert thin([3, 5], 20) == []


@pytest.mark.usefixtures("always")
def test_frames_are_the_weights_of_their_steps_and_few(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(film, "MAX_FRAMES", 6)
    count = []
    with before(Trainer, "train_step", lambda trainer: count.append(len(film_steps(trainer.folder)))):
        tiny(text, tmp_path / "out", steps=11, look=True, train__save=1, train__keep=100)
    assert max(count) <= 6
    steps = film_steps(tmp_path / "out")
    assert (len(steps), steps[0], steps[-1]) == (6, 0, 11)
    for step in steps[1:]:
        frame = read_tensors(frame_path(tmp_path / "out", step))
        saved = read_tensors(tmp_path / "out" / "checkpoints" / f"step-{step}" / "model.safetensors")
        assert frame.keys() == saved.keys()
        assert all(torch.equal(frame[name], saved[name]) for name in frame)
    rows = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
    assert film_losses(tmp_path / "out") == [(step, losses.get(step)) for step in steps]


@pytest.mark.parametrize("speed", [1.0, 0.2, 1.9])
def test_frames_take_a_small_share_of_the_time(
    speed: float, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long they take: by a clock on which a copy takes 0.2 s, writing 0.3 s, and steps the rest. The
    training has one core, on a busy machine a fifth of one, or nearly two."""
    now = used = 100.0

    def work(seconds: float) -> None:
        nonlocal now, used
        now += seconds
        used += seconds

    clock = SimpleNamespace(monotonic=lambda: now, thread_time=lambda: used, process_time=lambda: used)
    monkeypatch.setattr(film, "time", clock)
    run = tiny(text, tmp_path / "out", steps=2)
    one = Film(tmp_path / "out", run.model)
    merge, write = film.lora.merge, film.write_tensors
    monkeypatch.setattr(film.lora, "merge", lambda model: (work(0.2), merge(model))[1])
    monkeypatch.setattr(film, "write_tensors", lambda *args, **more: (work(0.3), write(*args, **more)))
    frames = 0
    for step in range(3000):
        if one.is_due():
            one.add(step)
            one.wait()
            frames += 1
        now += 0.1
        used += 0.1 * speed
    one.close()
    assert frames > 2
    assert 0.5 * (frames - 1) <= film.SHARE * min(now - 100.0, used - 100.0)


@pytest.mark.usefixtures("always")
def test_a_frame_is_a_model(text: str, tmp_path: Path) -> None:
    """Also of a run with low-rank updates, which are merged; and before the run has other weights."""
    tiny(text, tmp_path / "out", steps=3, look=True, train__lora=2)
    model = load(tmp_path / "out", "cpu")
    assert steps_of(model) == [0, 1, 2, 3]
    ids = torch.arange(11)[None] % model.tokenizer.vocab
    with torch.no_grad():
        late = at_step(model, 3).model(ids)
        assert torch.equal(load_frame(tmp_path / "out", 3).model(ids), late)
        torch.testing.assert_close(model.model(ids), late)
        assert not torch.equal(at_step(model, 0).model(ids), late)
    assert load_frame(tmp_path / "out", 1).step == 1
    drop_later(tmp_path / "out", 1)
    assert film_steps(tmp_path / "out") == [0, 1]
    user_error(lambda: at_step(model, 2), "step 2", "--look")


def test_weights_that_are_too_large_are_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(film, "MAX_BYTES", 1000)
    user_error(lambda: tiny(text, tmp_path / "out", steps=2, look=True), "--look", "GiB", "leave it out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("always")
def test_a_full_disk_ends_no_training(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, *_: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(film, "write_tensors", full)
    tiny(text, tmp_path / "out", steps=2, look=True)
    assert "no frame of step 1: No space left" in capsys.readouterr().err
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert film_steps(tmp_path / "out") == []


def test_a_run_without_look_has_no_film(text: str, tmp_path: Path) -> None:
    tiny(text, tmp_path / "out", steps=2)
    assert not (tmp_path / "out" / FILM).exists()
