"""`regard serve --workers`: several processes at one address, of which any may die."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
from collections import Counter
from pathlib import Path

import pytest
import torch
from bench.serve import LONG, make_run, prompt, unambiguous
from bench.workers import Clients, Killer, find_workers

from helpers.forking import Process
from helpers.waiting import wait_until
from regard import cli
from regard.runs.load import load
from regard.serve import workers
from regard.serve.peers import merge_metrics
from regard.serve.registry import ServerLimits
from regard.serve.security import SecurityConfig

# Steps that take a while, so that answers are under way when a signal comes
SLOW = """
import sys, time
from regard import cli
from regard.models import GPT
step = GPT.step
GPT.step = lambda *args: time.sleep(0.01) or step(*args)
cli.main(["serve", *sys.argv[1:]])
"""
# Workers that end before they are ready, while there is a file of this name
CRASHING = """
import os, sys
from regard import cli
from regard.serve import workers
open_server, marker, workers.MAX_FAILURES = workers.open_server, sys.argv.pop(1), 3
workers.open_server = lambda *args: os._exit(7) if os.path.exists(marker) else open_server(*args)
cli.main(["serve", *sys.argv[1:]])
"""
# Workers that count as hung soon, and whose event loop hangs for ever at one request
HANGING = """
import sys, time
from regard import cli
from regard.serve import workers
from regard.serve.openai import OpenAIRoutes
workers.MAX_MISSED = 4
async def hang(self, request):
    time.sleep(600)
OpenAIRoutes.retrieve_model = hang
cli.main(["serve", *sys.argv[1:]])
"""
# Workers as they are with GPUs: new processes, which load the models themselves
SPAWNED = """
import sys, torch
from regard import cli
from regard.serve import workers
workers.best_device = lambda: torch.device("mps")
cli.main(["serve", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers") / "tiny"
    make_run(folder)
    return folder


@pytest.fixture(scope="module")
def asked(run):
    pairs = unambiguous(load(run, "cpu"), [prompt(n) for n in range(24)])
    assert len(pairs) > 6
    return pairs


@contextlib.contextmanager
def serve(*words, script=None):
    """A server with two workers; yields its process, whose port is that of the address."""
    command = ("-m", "regard", "serve") if script is None else ("-c", script)
    server = Process(*command, *words, "--workers", 2, "--port", 0, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        address = server.stdout.readline().strip()
        server.port = int(address.rstrip("/").rsplit(":", 1)[1]) if address else None
        yield server
    finally:
        server.kill()
        server.communicate()


def fetch(server, path, body=None, method=None):
    """The status, headers and body of a response, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {} if body is None else {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body)
    connection.request(method or ("GET" if body is None else "POST"), path, data, headers)
    response = connection.getresponse()
    with contextlib.closing(connection):
        return response.status, response.headers, response.read()


def count_requests(server, route):
    """How many requests to a route each worker has counted."""
    text = fetch(server, "/metrics")[2].decode()
    counts = re.findall(rf'regard_requests_total{{worker="(\d)",route="{route}",status="200"}} (\d+)', text)
    return {int(worker): int(count) for worker, count in counts}


def test_killed_workers_lose_only_what_they_had_begun(run, asked):
    """120 requests and two kills: every answer is right, and only connections of the dead were broken."""
    with serve(run, "--log", "none") as server:
        killer, answers = Killer(server.pid), Counter()

        def answered():
            answers["all"] += 1
            if answers["all"] in (40, 80):
                wait_until(lambda: len(find_workers(server.pid)) == 2)
                killer.kill()

        clients = Clients(server.port, asked, killer)
        asyncio.run(clients.run(8, 120, 0, answered))
        assert fetch(server, "/ready")[0] == 200
        wait_until(lambda: len(find_workers(server.pid)) == 2)
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
    assert killer.kills == 2
    assert clients.counts.pop("right") == 120
    assert clients.counts.keys() <= {"broken by a kill"}  # none lost, mixed up or refused
    assert server.returncode == 143
    assert len(re.findall(r"worker \d \(process \d+\) was ended by signal 9", errors)) == 2


@pytest.mark.slow
def test_workers_that_hang_are_replaced(run):
    """One that is stopped, and one whose event loop hangs; connections that wait for them break."""
    with serve(run, "--log", "none", script=HANGING) as server:
        first = set(find_workers(server.pid))
        stopped = min(first)
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: stopped not in find_workers(server.pid))
        wait_until(lambda: len(find_workers(server.pid)) == 2)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            fetch(server, "/v1/models/tiny")
        wait_until(lambda: len(find_workers(server.pid)) == 2)
        assert fetch(server, "/ready")[0] == 200
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
    assert len(re.findall(r"was ended by signal 9; another takes its place", errors)) >= 2


def test_any_worker_answers_for_all(run):
    """A page finds its traces, and metrics are of all workers, whichever of them is asked."""
    with serve(run) as server:
        trace = json.loads(fetch(server, "/api/trace", {"input": "the fox"})[2])
        asked, name = 1, next(iter(trace["tensors"]))
        first = fetch(server, f"/api/tensor?trace={trace['id']}&name={name}")
        assert first[0] == 200
        while len(count_requests(server, "page")) < 2:  # until each worker has had a request of the page
            assert fetch(server, f"/api/tensor?trace={trace['id']}&name={name}")[0::2] == first[0::2]
            asked += 1
            assert asked < 1000
        assert sum(count_requests(server, "page").values()) == asked + 1
        assert fetch(server, "/api/tensor?trace=unknown")[0] == 410
        assert fetch(server, "/page/none.js")[0] == 404
        status, headers, page = fetch(server, "/")
        assert (status, b"<html" in page) == (200, True)
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert fetch(server, "/ready")[0] == 200
        pids = set(find_workers(server.pid))
        server.send_signal(signal.SIGHUP)
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 129
    assert {json.loads(line)["pid"] for line in errors.splitlines()[1:]} == pids


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_signal_lets_all_workers_finish(run, asked, number):
    """Every process gets it: from Ctrl-C in a terminal, or from systemd."""
    with serve(run, "--log", "none", script=SLOW) as server:
        connections = []
        for text, _ in asked[:6]:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            body = {"prompt": text, "max_tokens": LONG, "temperature": 0, "stream": True}
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            connections.append((connection, connection.getresponse()))  # it has begun
        for pid in (*find_workers(server.pid), server.pid):
            os.kill(pid, number)
        for (connection, response), (_, answer) in zip(connections, asked, strict=False):
            events = [line[6:] for line in response if line.startswith(b"data: {")]
            assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == answer
            connection.close()
        _, errors = server.communicate(timeout=60)
    assert (server.returncode, errors.splitlines()) == (128 + number, ["Ctrl-C ends it"])


def test_second_signal_ends_all_workers_at_once(run):
    with serve(run, "--log", "none", script=SLOW.replace("0.01", "60")) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = json.dumps({"prompt": "a", "max_tokens": 9, "stream": True})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        pids = find_workers(server.pid)
        wait_until(lambda: count_running(server) == 1)
        server.send_signal(signal.SIGTERM)
        wait_until(lambda: is_refused(server))
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
        connection.close()
    assert (server.returncode, errors.splitlines()) == (143, ["Ctrl-C ends it"])
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def count_running(server):
    text = fetch(server, "/metrics")[2].decode()
    return sum(int(n) for n in re.findall(r"regard_running{.*} (\d+)", text))


def is_refused(server):
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=60).close()
    except ConnectionError:
        return True
    return False


def is_running(pid):
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes() != b""
        )  # or it has ended, and nobody has waited for it
    except OSError:
        return False


def test_workers_end_with_their_parent(run):
    with serve(run, "--log", "none") as server:
        pids = find_workers(server.pid)
        assert len(pids) == 2
        server.kill()
        wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_workers_that_cannot_start(run, tmp_path):
    """One line and the end, at once or after some that should have taken the place of another."""
    marker = tmp_path / "marker"
    marker.touch()
    with serve(marker, run, script=CRASHING) as server:
        out, errors = server.communicate(timeout=60)
    assert (server.returncode, out, server.port) == (1, "", None)
    assert re.fullmatch(
        r"regard: worker \d \(process \d+\) ended with status 7 before it was ready\n", errors
    )
    marker.unlink()
    with serve(marker, run, script=CRASHING) as server:
        marker.touch()
        Killer(server.pid).kill()
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 1
    *replaced, last = errors.splitlines()[1:]
    ends = [("signal 9" in line, "status 7" in line) for line in replaced]
    assert ends == [(True, False), (False, True), (False, True)]  # the third in a row is the last
    assert "before it was ready" in last


def test_wrong_numbers_of_workers(run, capsys, monkeypatch):
    def error_line(*words):
        with pytest.raises(SystemExit) as left:
            cli.main(["serve", str(run), *words])
        said = capsys.readouterr().err
        assert (left.value.code, said.count("\n")) == (2, 1)
        return said

    assert "--workers 0" in error_line("--workers", "0")
    monkeypatch.setattr(workers, "best_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "2 GPUs" in error_line("--workers", "3")


def test_limits_of_a_worker():
    """Memory and the page's places are shared; a body of the largest size still fits."""
    setup = workers.WorkerSetup({}, "auto", SecurityConfig(), ServerLimits(places=4), False, 100)
    limits = setup.worker_limits
    assert (limits.places, limits.queue, limits.page_places) == (4, ServerLimits.queue, 1)
    assert limits.body_memory == limits.body == ServerLimits.body


def test_metrics_of_workers_are_merged():
    text = '# HELP a_total Words.\n# TYPE a_total counter\na_total 3\na_total{b="} c"} 4\n'
    assert merge_metrics({0: text, 2: text}).splitlines() == [
        *text.splitlines()[:2],
        'a_total{worker="0"} 3',
        'a_total{worker="0",b="} c"} 4',
        'a_total{worker="2"} 3',
        'a_total{worker="2",b="} c"} 4',
    ]


@pytest.mark.slow
def test_workers_that_load_models_themselves(run, asked, tmp_path):
    """As with GPUs."""
    with serve(run, "--log", "none", script=SPAWNED) as server:
        killer = Killer(server.pid)
        clients = Clients(server.port, asked, killer)
        asyncio.run(clients.run(8, 50, 0))
        killer.kill()
        asyncio.run(clients.run(8, 50, 0))
        wait_until(lambda: len(find_workers(server.pid)) == 2)
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert (server.returncode, clients.counts["right"]) == (143, 100)
    assert clients.counts.keys() <= {"right", "broken by a kill"}
    with serve(tmp_path / "nowhere", script=SPAWNED) as server:
        out, errors = server.communicate(timeout=60)
    assert (server.returncode, out, errors.count("\n")) == (2, "", 1)
    assert "nowhere" in errors
