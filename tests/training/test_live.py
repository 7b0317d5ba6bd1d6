"""A training that is watched: the same to the last bit, and steered from its page."""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.commands import PICO, train_model
from helpers.errors import user_error
from helpers.runs import before, notices, rows, same, stopped, tiny
from helpers.waiting import wait_until
from regard.runs.film import film_steps
from regard.training import build, distributed, live
from regard.training.film import Film
from regard.training.live import LivePage
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")
SETTINGS = {"train__save": 4, "train__evaluate": 4}


def asking(step: int, *requests: dict[str, Any]) -> Any:
    """Ask for something on the page at a step."""

    def ask(page: LivePage, trainer: Trainer) -> None:
        if trainer.step == step:
            for request in requests:
                page.requests.put(request)

    return before(LivePage, "between_steps", ask)


def states_sent(page: Any) -> list[dict[str, Any]]:
    """What the page was told of the training."""
    return [json.loads(line) for line in page.stdin.getvalue().splitlines()]


def test_training_is_the_same_to_the_last_bit(
    text: str, tmp_path: Path, silent_page: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Film, "is_due", lambda self: True)
    for name, look in (("plain", False), ("watched", "the fox")):
        tiny(text, tmp_path / name, steps=8, look=look, **SETTINGS, model__dropout=0.1)
    same(tmp_path / "plain", tmp_path / "watched")
    assert notices(tmp_path / "watched") == []
    assert film_steps(tmp_path / "watched") == list(range(9))
    (page,) = silent_page
    assert page.command[-2:] == [str(tmp_path / "watched"), "the fox"]
    assert states_sent(page)[-1] == {"paused": False, "rate": 1.0, "ended": True}


@contextlib.contextmanager
def page_process(program: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Another program instead of the page's process."""
    start, begun = subprocess.Popen, []

    def begin(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
        begun.append(start([command[0], "-c", program], **more))
        return begun[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "_pages", [])
        patch.setattr(live, "subprocess", SimpleNamespace(Popen=begin, PIPE=subprocess.PIPE))
        yield begun
    for process in begun:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(60)


WAITS = "import sys; sys.stdin.read()"


def test_the_page_begins_with_the_data_and_yields_to_the_steps(text: str, tmp_path: Path) -> None:
    """Its imports take two seconds, for which the steps would otherwise share a core."""
    priorities: list[int] = []
    own = os.getpriority(os.PRIO_PROCESS, 0)

    def note(*_: Any) -> None:
        priorities.append(os.getpriority(os.PRIO_PROCESS, begun[0].pid))

    with page_process(WAITS) as begun, before(build, "assemble", note), before(Trainer, "train_step", note):
        tiny(text, tmp_path / "out", steps=2, look=True, **SETTINGS)
    assert priorities == [own, 19, 19]


def test_without_a_run_there_is_no_page(tmp_path: Path) -> None:
    with page_process(WAITS) as begun:
        user_error(
            lambda: tiny(str(tmp_path / "missing.txt"), tmp_path / "out", steps=2, look=True), "missing"
        )
        assert begun[0].returncode is not None
        assert live._pages == []


def test_the_learning_rate_changes_from_a_step_on_and_is_logged(
    text: str, tmp_path: Path, silent_page: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(text, tmp_path / "plain", steps=6, **SETTINGS)
    with asking(3, {"rate": 0.25}):
        tiny(text, tmp_path / "out", steps=6, look=True, **SETTINGS)
    plain, steered = (
        [row["lr"] for row in rows(tmp_path / name) if "lr" in row] for name in ("plain", "out")
    )
    ratios = [new / old if old else None for new, old in zip(steered, plain, strict=True)]
    assert ratios == pytest.approx([1, 1, 1, 0.25, 0.25, 0.25])
    (line,) = notices(tmp_path / "out")
    assert "0.25 times" in line
    assert line in capsys.readouterr().err
    assert list(dict.fromkeys(state["rate"] for state in states_sent(silent_page[0]))) == [1.0, 0.25]


@pytest.mark.usefixtures("silent_page")
def test_a_pause_takes_no_time_of_the_budget(text: str, tmp_path: Path) -> None:
    waited: list[float] = []

    def go_on(seconds: float) -> None:
        waited.append(seconds)
        time.sleep(0.001)
        if len(waited) == 5:
            pages[0].requests.put({"pause": False})

    pages: list[LivePage] = []
    with pytest.MonkeyPatch.context() as patch, before(LivePage, "start", lambda page, _: pages.append(page)):
        clock = iter(range(0, 10**9, 100))  # every look at it takes 100 s
        times = {"sleep": go_on, "monotonic": lambda: next(clock)}
        patch.setattr(live, "time", type("time", (), {k: staticmethod(v) for k, v in times.items()}))
        with asking(2, {"pause": True}):
            tiny(text, tmp_path / "out", steps=4, look=True, **SETTINGS)
    assert len(waited) == 5
    (line,) = notices(tmp_path / "out")
    assert "paused at step 2 for 100.0 s" in line
    log = [json.loads(row) for row in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log if "loss" in row] == [1, 2, 3, 4]
    assert max(row["elapsed"] for row in log if "loss" in row) < 100


@pytest.mark.usefixtures("silent_page")
def test_a_paused_training_still_saves_at_a_signal(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "WAKE", 0.0123)  # that of no other who sleeps
    with (
        asking(5, {"pause": True}),
        stopped(live.time, "sleep", lambda seconds: seconds == live.WAKE, signal.SIGTERM),
    ):
        tiny(text, tmp_path / "out", steps=9, look=True, **SETTINGS)
    assert rows(tmp_path / "out")[-1]["step"] == 5


@pytest.mark.usefixtures("silent_page")
def test_a_resumed_run_keeps_its_rate_and_a_true_log(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at step 7, after a checkpoint at 4 and a change of the rate after it, which is forgotten."""
    monkeypatch.setattr(Film, "is_due", lambda self: True)
    with asking(2, {"rate": 0.5}):
        tiny(text, tmp_path / "whole", steps=9, look=True, **SETTINGS)
    with (
        asking(2, {"rate": 0.5}),
        asking(4, {"rate": 3.0}),
        before(Trainer, "train_step", lambda trainer: 1 / (trainer.step - 7)),
        pytest.raises(ZeroDivisionError),
    ):
        tiny(text, tmp_path / "cut", steps=9, look=True, **SETTINGS)
    assert film_steps(tmp_path / "cut")[-1] > 4
    tiny(text, tmp_path / "cut", steps=9, resume=True, **SETTINGS)  # nobody watches any more
    assert film_steps(tmp_path / "cut") == [0, 1, 2, 3, 4]
    assert [row["lr"] for row in rows(tmp_path / "cut") if "lr" in row] == [
        row["lr"] for row in rows(tmp_path / "whole") if "lr" in row
    ]
    early, restored = notices(tmp_path / "cut")
    assert [early] == notices(tmp_path / "whole")
    assert "0.5 times the schedule's after step 4" in restored
    same(tmp_path / "cut", tmp_path / "whole")


def test_several_processes_are_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "WORLD", 4)
    user_error(lambda: tiny(text, tmp_path / "out", steps=2, look=True), "--look", "not 4", "regard look RUN")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('before\\nno such module')", "no such module"),
        ("import os; os._exit(3)", "its process ended with status 3"),
        ('print(\'{"problem": "no frame"}\'); 1 / 0', "no frame"),
    ],
)
def test_a_page_that_ends_at_once_says_why(
    program: str, reason: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it has an address; the training goes on."""
    with page_process(program), before(LivePage, "finish", lambda page, _: page.receiver.join(60)):
        tiny(text, tmp_path / "out", steps=2, look=True, **SETTINGS)
    said = [line for line in capsys.readouterr().err.splitlines() if "the page can't be shown" in line]
    assert len(said) == 1
    assert reason in said[0]
    assert rows(tmp_path / "out")[-1]["step"] == 2


def test_the_page_of_a_training(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The process itself: it shows the run, pauses it, and ends with its standard input."""
    steered: list[str] = []
    pages: list[LivePage] = []

    def steer(page: LivePage, trainer: Trainer) -> None:
        if trainer.step != 3 or steered:
            return
        wait_until(lambda: page.url is not None, 120)
        assert page.url is not None
        url, _, token = page.url.partition("#follow=1&control=")
        steered.extend([url, token])
        post(*steered, {"rate": 0.5, "pause": True})
        wait_until(lambda: not page.requests.empty())

    with (
        before(LivePage, "pause", lambda *_: post(*steered, {"pause": False})),
        before(LivePage, "between_steps", steer),
        before(LivePage, "start", lambda page, _: pages.append(page)),
    ):
        tiny(text, tmp_path / "out", steps=5, look=True, **SETTINGS)
    assert [line.split()[0] for line in notices(tmp_path / "out")] == ["the", "paused"]
    assert f"watch it learn: {steered[0]}#follow=1&control={steered[1]}\n" in capsys.readouterr().err
    (page,) = pages
    with urllib.request.urlopen(steered[0] + "api/log", timeout=60) as answer:
        shown = json.load(answer)
    logged = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    figures = ("step", "loss", "valid_loss", "notice")
    wanted = [{k: row[k] for k in figures if k in row} for row in logged]
    assert sorted(shown, key=str) == sorted(wanted, key=str)
    assert page.process.stdin is not None
    page.process.stdin.close()
    assert page.process.wait(60) == 0
    live._pages.clear()


def post(url: str, token: str, body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json", "X-Token": token}
    request = urllib.request.Request(f"{url}api/training", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def test_the_command(text: str, tmp_path: Path, silent_page: list[Any]) -> None:
    train_model(tmp_path / "out", "write", text, "--look", "--steps", "2", *PICO)  # and prints its folder
    assert film_steps(tmp_path / "out")[0] == 0
    assert len(silent_page) == 1


def test_it_stays_open_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stayed: list[Any] = []
    page = type("Page", (), {"stay": lambda self: stayed.append(self)})()
    monkeypatch.setattr(live, "_pages", [page])
    for is_terminal in (False, True):
        monkeypatch.setattr(live.sys, "stdin", type("Stream", (), {"isatty": lambda _, t=is_terminal: t})())
        live.stay_open()
        assert len(stayed) == is_terminal
