"""The log never stops the server: a pipe that nobody reads, a full disk, a closed standard error."""

import json
import logging
import os
import sys
import threading
import warnings

import pytest

from helpers.looking import reader
from helpers.serving import ModelServer
from regard.serve.app import create_app
from regard.serve.log import LogWriter, log_in_background
from regard.serve.registry import ModelRegistry, ServerLimits
from regard.serve.security import SecurityConfig
from regard.serve.server import run_in_thread

LINE = "x" * 4000


class Stream:
    """Standard error as a file of the system."""

    def __init__(self, number):
        self.number = number

    def fileno(self):
        return self.number


@pytest.fixture
def pipe(monkeypatch):
    """A function that makes a pipe standard error, and returns the end to read from."""
    ends = os.pipe()

    def use():  # in the test itself: before it, pytest sets standard error
        monkeypatch.setattr(sys, "stderr", Stream(ends[1]))
        return ends[0]

    yield use
    for end in ends:
        os.close(end)


def test_full_pipe_drops_lines_and_counts_them(pipe):
    reading, writer = pipe(), LogWriter(max_lines=10)
    for _ in range(200):  # many times what the pipe holds
        writer.write(LINE)
    assert writer.dropped > 0
    data = bytearray()
    while data.count(LINE.encode()) < 200 - writer.dropped:
        data += os.read(reading, 2**16)
    writer.close()
    assert not writer.thread.is_alive()
    lines = data.decode().splitlines()
    notices = [json.loads(line)["log_lines_dropped"] for line in lines if line != LINE]
    assert sum(notices) == writer.dropped
    assert lines.count(LINE) == 200 - writer.dropped


def test_server_goes_on_when_nobody_reads_its_log(pipe):
    reading, registry = pipe(), ModelRegistry({"writer": reader("write", "gpt")}, ServerLimits())
    with log_in_background() as writer:
        writer.lines.maxsize = 3
        with run_in_thread(create_app(registry, SecurityConfig(), writer)) as port:
            server, filler = ModelServer(port, registry), logging.getLogger("regard")
            for _ in range(30):
                filler.warning(LINE)
            for _ in range(5):
                assert server.ask("/v1/completions", {"prompt": "the", "max_tokens": 1})[0] == 200
                assert server.ask("/health", headers={"Host": "evil.example"})[0] == 421
            assert writer.dropped > 0
        os.read(reading, 2**16)  # let the thread end
    registry.close()


@pytest.mark.parametrize("kind", ["closed", "full disk", "no reader", "none"])
def test_log_that_cannot_be_written_breaks_nothing(monkeypatch, kind):
    if kind == "none":
        monkeypatch.setattr(sys, "stderr", None)
    else:
        file = os.open("/dev/full" if kind == "full disk" else os.devnull, os.O_WRONLY)
        if kind == "no reader":
            reading, file = os.pipe()
            os.close(reading)
        if kind == "closed":
            os.close(file)
        monkeypatch.setattr(sys, "stderr", Stream(file))
    writer = LogWriter()
    for _ in range(5):
        writer.write(LINE)
    writer.close()
    assert (writer.dropped, writer.thread.is_alive()) == (5, False)


def test_logs_and_warnings_go_through_the_thread(pipe):
    reading, threads = pipe(), []
    with log_in_background() as writer:
        write = writer.write
        writer.write = lambda line: threads.append(threading.current_thread()) or write(line)
        logging.getLogger("uvicorn.error").error("an error")
        write("half a pair: \ud800")  # not through a logger: pytest would keep it
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a warning", stacklevel=1)
    assert len(threads) == 2
    text = os.read(reading, 2**16).decode()
    assert "ERROR uvicorn.error: an error\n" in text
    assert "half a pair: \\ud800\n" in text
    assert "a warning" in text
