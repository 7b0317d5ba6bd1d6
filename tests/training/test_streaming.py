"""Training on a stream: resumed bit for bit, also by another number of processes."""

import gzip
import json
import os
import shutil
import signal

import pytest

from helpers.errors import user_error
from helpers.forking import Process
from helpers.runs import TINY, assert_rows_close, at_step, checkpoints, rows, same, stopped, tiny
from regard.data import text_stream
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")

STEPS = 12
SETTINGS = {
    "data__stream": True,
    "data__parts": 2,
    "data__buffer": 9 * 11,
    "train__evaluate": 4,
    "train__save": 5,
    "model__dropout": 0.1,
    "steps": STEPS,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    for file in range(3):
        texts = [f"Text {n} of {file}: " + "the quick brown fox " * (n % 7 + 1) for n in range(20)]
        (folder / f"{file}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(folder)


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory, quick):
    out = tmp_path_factory.mktemp("straight") / "out"
    tiny(data, out, **SETTINGS)
    return out


def test_the_run_says_how_it_reads(straight):
    recipe = (straight / "recipe.toml").read_text()
    assert "stream = true" in recipe
    assert "parts = 2" in recipe
    state = json.loads((straight / "checkpoints" / f"step-{STEPS}" / "state.json").read_text())
    assert [len(place) for place in state["stream"]] == [6, 6]
    assert all(block > 0 for block, *_ in state["stream"])
    assert any("valid_loss" in row for row in rows(straight))


def test_stopped_and_resumed(straight, data, tmp_path, monkeypatch):
    """From the places in the checkpoint: the blocks between the first one and them are not read."""
    out = tmp_path / "out"
    with stopped(Trainer, "train_step", at_step(7)):
        tiny(data, out, **SETTINGS)
    first = json.loads((out / "checkpoints" / "step-7" / "state.json").read_text())["stream"][0][0]
    read = []
    true = text_stream._Part._read
    monkeypatch.setattr(text_stream._Part, "_read", lambda part, n: read.append(n) or true(part, n))
    tiny(data, out, **SETTINGS, resume=True)
    same(straight, out)
    assert next(block for block in read if block) == first > 1


def web_archive(path, number):
    """A file of a crawl: of texts if its name says so, or of pages."""
    kind, before, after = "conversion", "", ""
    if ".wet" not in path.name:
        kind, before, after = "response", "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>", "</p>"
    records = []
    for n in range(20):
        body = f"{before}Page {n} of {number}: {'the quick brown fox ' * (n % 7 + 1)}{after}".encode()
        head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        records.append(gzip.compress(head.encode() + body + b"\r\n\r\n"))
    path.write_bytes(b"".join(records))


def test_web_archives_are_resumed_where_they_were(tmp_path):
    folder = tmp_path / "crawl"
    folder.mkdir()
    for number, name in enumerate(("a.warc.wet.gz", "b.warc.gz")):
        web_archive(folder / name, number)
    tiny(str(folder), tmp_path / "whole", **SETTINGS)
    with stopped(Trainer, "train_step", at_step(7)):
        tiny(str(folder), tmp_path / "out", **SETTINGS)
    tiny(str(folder), tmp_path / "out", **SETTINGS, resume=True)
    same(tmp_path / "whole", tmp_path / "out")


def test_killed_and_resumed_without_the_places(straight, data, tmp_path):
    """A copy of an earlier moment, as a kill leaves it; its place in the stream is counted again."""
    out = tmp_path / "out"
    with stopped(Trainer, "train_step", at_step(10)):
        tiny(data, out, **SETTINGS)
    shutil.rmtree(out / "checkpoints" / "step-10")
    assert checkpoints(out) == ["step-5"]
    tiny(data, out, **SETTINGS, resume=True)
    same(straight, out)


KILLED = """
import json, os, signal, sys
from pathlib import Path
import pytest, torch
from helpers.runs import before, tiny, unmeasured
from regard.data import text_stream
from regard.training.trainer import Trainer

torch.set_num_threads(1)
unmeasured(pytest.MonkeyPatch())
data, out, settings, owner, name, count = json.loads(sys.argv[1])
calls = []

def kill(*_):
    calls.append(None)
    if len(calls) == count:
        os.kill(os.getpid(), signal.SIGKILL)

with before({"Trainer": Trainer, "_Part": text_stream._Part}[owner], name, kill):
    tiny(data, Path(out), **settings, resume=True)
"""


def test_killed_by_the_system_and_resumed(straight, data, tmp_path):
    """SIGKILL in a step, while a block is read, and where a step would be saved."""
    out = tmp_path / "out"
    for moment in (("Trainer", "train_step", 8), ("_Part", "_read", 3), ("Trainer", "save", 1)):
        words = json.dumps([data, str(out), SETTINGS, *moment])
        with Process("-c", KILLED, words) as process:
            answer, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, answer + errors
    assert checkpoints(out) == ["step-5"]
    tiny(data, out, **SETTINGS, resume=True)
    same(straight, out)


@pytest.mark.parametrize("case", ["fill-bert", "restore-t5"])
def test_other_tasks_on_running_text(case, data, tmp_path):
    settings = {k: v for k, v in SETTINGS.items() if k != "model__dropout"} | {"case": case, "steps": 3}
    settings |= {"task__next": False} if case == "fill-bert" else {}
    tiny(data, tmp_path / "out", **settings)
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_two_processes_each_read_their_part_and_train_as_one(straight, data, tmp_path):
    out = tmp_path / "out"
    settings = SETTINGS | {"model__dropout": 0.0}
    tiny(data, tmp_path / "one", **settings)
    options = TINY | {k.replace("__", "."): v for k, v in settings.items() if k != "steps"}
    del options["data.parts"]  # by default one for each process
    words = ["train", "write", data, "--out", str(out)]
    for key, value in (options | {"train.steps": STEPS}).items():
        words += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    with Process("-m", "helpers.ranks", *words, env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"}) as process:
        answer, errors = process.communicate()
    assert process.returncode == 0, answer + errors
    assert_rows_close(rows(out), rows(tmp_path / "one"), rel=1e-5)
    places = [
        json.loads((folder / "checkpoints" / f"step-{STEPS}" / "state.json").read_text())["stream"]
        for folder in (out, tmp_path / "one")
    ]
    assert places[0] == places[1]


def test_folds_need_all_data(data, tmp_path):
    user_error(lambda: tiny(data, tmp_path / "out", **SETTINGS, train__folds=3), "train.folds", "data.stream")
