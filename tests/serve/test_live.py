"""The page of a training: its film, its controls, and who may use them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.browsing import WORDS, trained
from helpers.errors import user_error
from helpers.serving import Server, serve_session
from regard.files.tensors import write_tensors
from regard.runs.film import frame_path
from regard.runs.layout import FILM, WEIGHTS
from regard.runs.load import at_step, load
from regard.serve import live
from regard.serve.live import Follower, Training, live_app, newest_model
from regard.serve.server import run_in_thread
from regard.tracing import trace
from regard.viewer.session import Session


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filmed(trained(tmp_path_factory.mktemp("live") / "run"))


def filmed(folder: Path) -> Path:
    """The run with frames at the steps 0, 4 and 9, which have different weights."""
    (folder / FILM).mkdir()
    for step in (0, 4, 9):
        weights = {name: t * (step + 1) / 7 for name, t in load(folder, "cpu").model.state_dict().items()}
        write_tensors(frame_path(folder, step), weights)
    return folder


def test_the_page_shows_the_newest_frame_and_at_the_end_the_final_model(folder: Path) -> None:
    training = Training(lambda message: None)
    with run_in_thread(live_app(folder, WORDS, training)) as port:
        server = Server(port)
        manifest = json.loads(server.ask("/api/trace", {})[2])
        assert (manifest["step"], manifest["steps"]) == (9, [0, 3, 4, 7, 9])
        assert manifest["film"] == [[0, None], [4, 3.0 - 4 / 5], [9, 3.0 - 9 / 5]]  # as log.jsonl has it
        assert manifest["control"] == {"paused": False, "rate": 1.0, "ended": False}
        early = json.loads(server.ask("/api/trace", {"checkpoint": 4})[2])
        _, _, data = server.ask("/api/tensor", trace=early["id"], name="logits")
        shown = torch.frombuffer(bytearray(data), dtype=torch.float32)
        model = load(folder, "cpu")
        torch.testing.assert_close(shown, trace(at_step(model, 4), WORDS)["logits"].flatten())
        training.follow([b'{"paused": false, "rate": 0.5, "ended": true}\n'])  # type: ignore[arg-type]
        progress = json.loads(server.ask("/api/progress", trace=early["id"])[2])
        assert progress["control"] == {"paused": False, "rate": 0.5, "ended": True}
        server.check_error(409, "has ended", "/api/training", {"pause": True}, {"X-Token": training.token})
        final = json.loads(server.ask("/api/trace", {})[2])
        assert final["step"] is None
        _, _, data = server.ask("/api/tensor", trace=final["id"], name="logits")
        shown = torch.frombuffer(bytearray(data), dtype=torch.float32)
        torch.testing.assert_close(shown, trace(model, WORDS)["logits"].flatten())


class Clock:
    """A clock on which time passes, and work is done, only when it is said."""

    def __init__(self) -> None:
        self.now = self.used = 100.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.used

    def pass_time(self, seconds: float, work: float = 0.0) -> None:
        self.now += seconds
        self.used += work


@pytest.mark.parametrize("load", [7.0, 16.0])
def test_pages_that_follow_use_a_small_share_of_the_time(
    load: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each frame that is shown takes 0.3 s of work, each look at the log 0.01 s; frames come each second."""
    clock = Clock()
    monkeypatch.setattr(live, "time", clock)
    monkeypatch.setattr(live.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(live.os, "cpu_count", lambda: 8)
    share = live.IDLE_SHARE if load == 7.0 else live.SHARE
    looks: list[float] = []

    class Run:
        model = SimpleNamespace(step=0)

        def progress(self) -> dict[str, Any]:
            looks.append(clock.now)
            clock.pass_time(0.01, work=0.01)
            return {"film": [[step, None] for step in range(int(clock.now) - 99)]}

    follower, shown, last = Follower(), [], None
    for _ in range(1000):
        newest = follower.look(Run(), is_training=True)["newest"]  # type: ignore[arg-type]
        if newest != last:
            shown.append(newest)
            clock.pass_time(0.3, work=0.3)
        last = newest
        clock.pass_time(1.0)
    seconds = clock.now - 100
    assert len(shown) > 0.5 * share * seconds / 0.3  # and yet they follow
    assert shown == sorted(shown)
    assert clock.used - 100 <= (share + live.LOOK_SHARE) * seconds + 0.31
    assert len(looks) * 0.01 <= live.LOOK_SHARE * seconds + 0.01
    for _ in range(3):  # a training that waits, or is over, is followed at once
        clock.pass_time(1.0, work=1.0)
        assert follower.look(Run(), is_training=False)["newest"] == int(clock.now - 0.005) - 100  # type: ignore[arg-type]


def test_only_who_has_the_address_controls_the_training(folder: Path) -> None:
    asked: list[Any] = []
    training = Training(asked.append)
    assert training.token != Training(asked.append).token
    with run_in_thread(live_app(folder, WORDS, training)) as port:
        server, key, path = Server(port), {"X-Token": training.token}, "/api/training"
        for body in ({"pause": True}, {"rate": 2}, {"pause": False, "rate": 0.5}):
            assert server.ask(path, body, key)[0] == 200
        assert asked == [{"pause": True}, {"rate": 2.0}, {"pause": False, "rate": 0.5}]
        for wrong in (0, -1, 101, True, "2", [1], {}):
            server.check_error(400, "rate", path, {"rate": wrong}, key)
        server.check_error(400, "rate", path, b'{"rate": 1e400}', key)
        for wrong in (1, "yes", [True]):
            server.check_error(400, "pause", path, {"pause": wrong}, key)
        server.check_error(400, "give pause or rate", path, {"path": "/etc/passwd"}, key)
        assert server.ask(path)[0] == 405  # a link or an image can't do it
        pause = {"pause": True}
        server.check_error(421, "only", path, pause, {"Host": "evil.example"} | key)
        server.check_error(403, "other pages", path, pause, {"Origin": "http://evil.example"} | key)
        server.check_error(403, "other pages", path, pause, {"Sec-Fetch-Site": "cross-site"} | key)
        for token in ("", "wrong", "\xe9", training.token[:-1], f"{training.token}x"):
            _, message = server.check_error(403, "token", path, pause, {"X-Token": token})
            assert message.count(b"\n") <= 1
        server.check_error(403, "token", path, pause)
        pages = [server.ask(at)[2] for at in ("/", "/api/progress", "/page/film.js")]
        assert not any(training.token.encode() in page for page in pages)
        assert len(asked) == 3


def test_a_page_that_no_training_started_controls_none(folder: Path) -> None:
    with serve_session(Session(load(folder, "cpu"), WORDS)) as server:
        assert server.ask("/api/training", {"pause": True})[0] == 404
        progress = json.loads(server.ask("/api/progress")[2])
        assert [step for step, _ in progress["film"]] == [0, 4, 9]
        assert "control" not in progress


def test_a_run_without_weights_is_shown_from_its_film(tmp_path: Path) -> None:
    run = filmed(trained(tmp_path / "run"))
    (run / WEIGHTS).unlink()
    training = Training(lambda message: None)
    assert newest_model(run, training).step == 9
    training.state["ended"] = True
    assert newest_model(run, training).step == 9
    for step in (0, 4, 9):
        frame_path(run, step).unlink()
    user_error(lambda: newest_model(run, training, 0.0), run, "no frame")
