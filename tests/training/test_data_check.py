"""A resumed run has the data it began with: all of them, checked in the background, named if they changed."""

import gzip
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from helpers.errors import user_error
from helpers.images import noise, save
from helpers.runs import before, checkpoints, rows, tiny, unmeasured, write_data, write_text
from regard.data import DataConfig, Stream, digests, images, prepare
from regard.data.image_readers import read_image_classes
from regard.training import checkpointer
from regard.training.data_check import DataCheck
from regard.training.trainer import Trainer


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    unmeasured(monkeypatch)


def state(out: Path) -> dict:
    return json.loads((out / "checkpoints" / checkpoints(out)[-1] / "state.json").read_text())


def files(out: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def flip(path: Path, where: int) -> None:
    """Change one bit in the middle of a file; size and time stay as they were."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# What is covered


def test_every_token_counts():
    """Also one between the samples of earlier versions."""
    ids = np.arange(2_000_000) % 251
    first = Stream([ids], 1)
    ids = ids.copy()
    ids[4101] += 1
    other = Stream([ids], 1)
    assert first.sampled_fingerprint() == other.sampled_fingerprint()
    assert first.fingerprint() != other.fingerprint()


def test_every_image_counts(tmp_path, monkeypatch):
    pixels = [noise() for _ in range(9)]
    monkeypatch.setattr(
        images.ImageDataset, "_sample_rows", lambda self: np.array([0, 8]), raising=True
    )  # as if they were thousands
    for n, image in enumerate(pixels):
        save(tmp_path / "ab"[n % 2] / f"{n}.png", image)
    first = read_image_classes([str(tmp_path)])[0]
    before = first.fingerprint(), first.sampled_fingerprint()
    pixels[3][2, 2] ^= 1
    save(tmp_path / "b" / "3.png", pixels[3])
    second = read_image_classes([str(tmp_path)])[0]
    assert second.sampled_fingerprint() == before[1]
    assert second.fingerprint() != before[0]
    monkeypatch.setattr(images, "MAX_MEMORY", 1)
    assert read_image_classes([str(tmp_path)])[0].fingerprint() == second.fingerprint()


# Changed data


@pytest.mark.parametrize(
    "case", ["write", "chat-gru", "classify-bert", "fill-bert", "see-vit", "caption-soft"]
)
def test_the_file_that_changed_is_named(tmp_path, case):
    data = Path(write_data(case, tmp_path))
    tiny(str(data), tmp_path / "out", case, steps=2)
    earlier = files(tmp_path / "out")
    changed = {"see-vit": data, "caption-soft": tmp_path / "caption" / "3.png"}.get(case, data)
    if case == "caption-soft":
        save(changed, noise(9, 9, 3))
    elif case == "see-vit":
        flip(changed, -40)
    else:
        changed.write_text(changed.read_text().replace("7", "4", 1))
    user_error(
        lambda: tiny(str(data), tmp_path / "out", case, steps=4, resume=True),
        changed,
        "changed",
        tmp_path / "out",
    )
    assert files(tmp_path / "out") == earlier


def test_a_changed_shard_is_named(tmp_path):
    text = write_text(tmp_path / "a.txt")
    prepare([text], tmp_path / "shards", DataConfig(), ["<|endoftext|>"], shard=500)
    tiny(str(tmp_path / "shards"), tmp_path / "out", steps=2)
    shutil.rmtree(tmp_path / "shards")
    Path(text).write_text(Path(text).read_text().replace("aged 20", "aged 21"))
    prepare([text], tmp_path / "shards", DataConfig(), ["<|endoftext|>"], shard=500)
    user_error(
        lambda: tiny(str(tmp_path / "shards"), tmp_path / "out", steps=4, resume=True),
        tmp_path / "shards" / "train-0000",
        "changed",
    )


def test_files_that_come_and_go_are_named(tmp_path):
    folder, out = tmp_path / "data", tmp_path / "out"
    folder.mkdir()
    for n in range(3):
        (folder / f"{n}.txt").write_text(Path(write_text(tmp_path / "x", 9 + n)).read_text() + str(n))
    tiny(str(folder), out, steps=2)
    resume = lambda: tiny(str(folder), out, steps=4, resume=True)  # noqa: E731
    (folder / "new.txt").write_text("new" * 50)
    user_error(resume, folder / "new.txt", "not among")
    os.remove(folder / "new.txt")
    os.rename(folder / "1.txt", tmp_path / "1.txt")
    user_error(resume, folder / "1.txt", "missing")
    os.rename(tmp_path / "1.txt", folder / "z.txt")  # all are there, in another order
    user_error(resume, "order")
    os.rename(folder / "z.txt", folder / "1.txt")
    resume()


def test_the_same_content_in_other_files_is_the_same(tmp_path):
    text = write_text(tmp_path / "a.txt")
    tiny(text, tmp_path / "out", steps=2)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(Path(text).read_bytes()))
    os.remove(text)
    tiny(str(tmp_path / "b.txt.gz"), tmp_path / "out", steps=3, resume=True)
    assert "b.txt.gz" in (tmp_path / "out" / "fingerprints.json").read_text()


def test_data_may_go_once_they_are_in_memory(tmp_path):
    text = write_text(tmp_path / "a.txt")
    with before(DataCheck, "_run", lambda check: os.remove(text)):
        tiny(text, tmp_path / "out", steps=2)
    assert not (tmp_path / "out" / "fingerprints.json").exists()


# Earlier versions


def test_a_run_of_an_earlier_version(tmp_path):
    """It is compared as it was then, and has the new fingerprint from now on."""
    text, out = write_text(tmp_path / "a.txt"), tmp_path / "out"
    tiny(text, out, steps=2)
    path = out / "checkpoints" / "step-2"
    new = state(out)["data"]
    old = []
    with before(DataCheck, "_run", lambda check: old.append(check.corpus.train.sampled_fingerprint())):
        tiny(text, tmp_path / "again", steps=2, data__holdout=0)
    tiny(text, out, steps=2, data__holdout=0.1, resume=True)
    about = json.loads((path / "state.json").read_text())

    def pretend(data):
        (path / "state.json").write_text(json.dumps(about | {"data": data}))
        (path / "manifest.json").write_text(checkpointer.checkpoints.manifest(path))
        (out / "fingerprints.json").unlink(missing_ok=True)

    pretend(old)
    user_error(lambda: tiny(text, out, steps=3, resume=True), out, "data")
    sides = []
    with before(
        DataCheck,
        "_run",
        lambda check: sides.extend(
            side.sampled_fingerprint() for side in (check.corpus.train, check.corpus.valid)
        ),
    ):
        tiny(text, tmp_path / "third", steps=1)
    pretend(sides)
    tiny(text, out, steps=3, resume=True)
    assert state(out)["data"] == new
    assert new.keys() == {"train", "valid"}


# In the background


@pytest.fixture
def slow(monkeypatch):
    """Fingerprints take until the event is set."""
    event, true = threading.Event(), Stream.fingerprint
    monkeypatch.setattr(Stream, "fingerprint", lambda self: event.wait(60) and true(self))
    monkeypatch.setattr(checkpointer, "GRACE", 0.0)
    return event


def test_steps_do_not_wait_but_a_checkpoint_does(tmp_path, slow):
    text, out = write_text(tmp_path / "a.txt"), tmp_path / "out"
    steps = []

    def step(trainer):
        steps.append(trainer.step)
        assert not (out / "checkpoints").exists()
        if trainer.step == 4:
            slow.set()

    with before(Trainer, "train_step", step):
        tiny(text, out, steps=5, train__evaluate=5)
    assert steps == list(range(5))
    assert set(state(out)["data"]) == {"train", "valid"}


@pytest.mark.parametrize("written", ["save", "evaluate"])
def test_other_data_stop_before_anything_is_written(tmp_path, slow, written):
    """Found out late, while steps are taken: what the run had stays."""
    text, out = write_text(tmp_path / "a.txt"), tmp_path / "out"
    slow.set()
    tiny(text, out, steps=2)
    (out / "log.jsonl").write_bytes((out / "log.jsonl").read_bytes() + b"damaged\n")
    shutil.copytree(out / "checkpoints" / "step-2", out / "checkpoints" / "step-3")
    flip(out / "checkpoints" / "step-3" / "model.safetensors", -1)
    (out / "film").mkdir()
    (out / "film" / "step-5.safetensors").touch()
    earlier = files(out)
    slow.clear()
    Path(text).write_text(Path(text).read_text().replace("aged 20", "aged 21"))
    release = lambda trainer, *_: slow.set()  # noqa: E731
    with before(Trainer, written, release):
        user_error(lambda: tiny(text, out, steps=9, resume=True, **{f"train__{written}": 4}), text, "changed")
    assert files(out) == earlier


def test_what_changes_once_the_data_are_known(tmp_path, slow):
    """While they are read, steps are taken and nothing in the folder changes; then all of it does."""
    text, out = write_text(tmp_path / "a.txt"), tmp_path / "out"
    slow.set()
    tiny(text, out, steps=2)
    (out / "film").mkdir()
    (out / "film" / "step-5.safetensors").touch()
    log = (out / "log.jsonl").read_bytes()
    (out / "log.jsonl").write_bytes(log + b'{"step": 7, "loss": 1.0}\n')
    earlier = files(out)
    slow.clear()
    listings = []

    def look(trainer):
        listings.append(files(out))
        if trainer.step == 4:
            slow.set()
            trainer.checkpointer.data.wait()

    with before(Trainer, "train_step", look):
        tiny(text, out, steps=8, resume=True)
    without_lock = [{k: v for k, v in each.items() if not k.endswith(".lock")} for each in listings]
    assert without_lock[:3] == [earlier] * 3
    assert [row["step"] for row in rows(out) if "loss" in row] == list(range(1, 9))
    assert checkpoints(out) == ["step-2", "step-8"]
    assert not list((out / "film").iterdir())


def test_unchanged_files_are_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "FRESH", -1)
    text, out = write_text(tmp_path / "a.txt"), tmp_path / "out"
    prepare([text], tmp_path / "shards", DataConfig(), ["<|endoftext|>"])
    tiny(str(tmp_path / "shards"), out, steps=2)
    monkeypatch.setattr(digests, "_known", {})  # as in another process
    read = []
    true = digests.hashlib.file_digest

    def digest(file, kind):
        if str(file.name).endswith(".npy"):
            read.append(file.name)
        return true(file, kind)

    monkeypatch.setattr(digests.hashlib, "file_digest", digest)
    tiny(str(tmp_path / "shards"), out, steps=3, resume=True)
    assert read == []
    os.utime(tmp_path / "shards" / "train-00000.npy")
    tiny(str(tmp_path / "shards"), out, steps=4, resume=True)
    assert [os.path.basename(name) for name in read] == ["train-00000.npy"]
