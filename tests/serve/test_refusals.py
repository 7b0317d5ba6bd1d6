"""Requests for which there is no place: what refuses them, and that threads let the event loop do it."""

import asyncio
import http.client
import json
import re
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from helpers.looking import reader
from helpers.serving import serve_models
from regard.serve import loop as serving_loop
from regard.serve.connections import StrictConnection
from regard.serve.loop import ServingLoop
from regard.serve.refusals import parse_headers
from regard.serve.registry import ServerLimits
from regard.serve.threads import WorkerThreads

BODY = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
LINE = b"POST /v1/completions HTTP/1.1\r\n"
HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\nX-Request-Id: mine\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@contextmanager
def connect(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        yield connection


def read_response(connection):
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, dict(response.getheaders()), response.read()


@pytest.fixture
def parsed(monkeypatch):
    """The connections that h11 parsed something of."""
    connections, parse = set(), StrictConnection.next_event

    def next_event(self):
        connections.add(self)
        return parse(self)

    monkeypatch.setattr(StrictConnection, "next_event", next_event)
    return connections


@pytest.fixture(scope="module")
def server():
    with serve_models({"w": reader("write", "gpt")}, ServerLimits(places=2, queue=1), key="secret") as server:
        yield server


@pytest.fixture
def full(server, monkeypatch):
    monkeypatch.setattr(ServingLoop, "is_flooded", lambda self: True)
    monkeypatch.setattr(server.registry, "engines_full", lambda: True)
    return server


KEY = b"Authorization: Bearer secret\r\n"


def test_a_refusal_is_the_same_with_and_without_h11(full, parsed):
    responses = []
    for end in (LENGTH + BODY, CHUNKED):
        with connect(full) as connection:
            connection.sendall(LINE + HEAD + KEY + end)
            status, headers, body = read_response(connection)
        headers.pop("date")
        responses.append((status, headers, body, bool(parsed)))
    (*quick, without), (*usual, with_h11) = responses
    assert quick == usual
    assert (without, with_h11, quick[0], quick[1]["x-request-id"]) == (False, True, 429, "mine")
    counted = 'regard_requests_total{route="/v1/completions",status="429"} 2'
    assert counted in full.ask("/metrics", headers={"Authorization": "Bearer secret"})[2].decode()


def test_a_body_that_comes_after_its_refusal_is_skipped(full, parsed):
    with connect(full) as connection:
        for _ in range(2):
            connection.sendall(LINE + HEAD + KEY + LENGTH)
            assert read_response(connection)[0] == 429
            connection.sendall(BODY[:5])
            connection.sendall(BODY[5:])
        assert not parsed
        connection.sendall(LINE + HEAD + KEY + LENGTH + BODY + HEALTH)  # two requests in one piece
        data = b""  # the second response follows the first without a new line
        while len(statuses := re.findall(rb"HTTP/1.1 (\d+)", data)) < 2:
            part = connection.recv(2**16)
            assert part, data
            data += part
        assert (statuses, bool(parsed)) == ([b"429", b"200"], True)


def test_who_may_not_ask_does_not_learn_that_the_server_is_full(full):
    with connect(full) as connection:
        connection.sendall(LINE + HEAD + LENGTH + BODY)
        assert read_response(connection)[0] == 401
        connection.sendall(LINE + HEAD + KEY + LENGTH + BODY)
        assert read_response(connection)[0] == 429
        connection.sendall(LINE + HEAD.replace(b"127.0.0.1", b"elsewhere") + KEY + LENGTH + BODY)
        assert read_response(connection)[0] == 421


def test_requests_that_come_at_once_get_as_many_places_as_there_are(server, parsed):
    """The event loop reads all of them before the first one takes its place."""
    key = {"Authorization": "Bearer secret"}
    assert server.ask("/v1/completions", json.loads(BODY), key)[0] == 200
    goes_on, loop_waits = threading.Event(), threading.Event()
    server.registry.models["w"].engine.probe(goes_on.wait)  # the engine's thread stands still
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(9)]
        server.ask("/health")  # all of them are accepted
        parsed.clear()
        server.registry.bridge.loop.call_soon_threadsafe(loop_waits.wait, 20)
        for connection in connections:
            connection.sendall(LINE + HEAD + KEY + LENGTH + BODY)
        loop_waits.set()
        statuses = [read_response(connection)[0] for connection in connections[3:]]
        goes_on.set()
        assert (statuses, len(parsed)) == ([429] * 6, 3)
        assert [read_response(connection)[0] for connection in connections[:3]] == [200] * 3


@pytest.mark.parametrize(
    "head",
    [
        b"Host: a\r\n",  # no length
        b"Host: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n",
        b"Host: a\r\nHost: a\r\nContent-Length: 3\r\n",
        b"Host: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Host: a\r\nContent-Length: +3\r\n",
        b"Host: a\r\nContent-Length: 3, 3\r\n",
        b"Host: a\r\nContent-Length : 3\r\n",
        b"Host: a\r\nContent-Length: 3\r\n folded\r\n",
        b"Host: a\r\nX: \x00\r\nContent-Length: 3\r\n",
        b"Host: a\nContent-Length: 3\r\n",
        b"Host: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n",
        b"Host: a\r\nContent-Length: 3\r\nConnection: close\r\n",
        b"Host: a\r\nContent-Length: 3\r\nConnection: keep-alive\r\nConnection: Upgrade\r\n",
        b"Host: a\r\nContent-Length: 3",  # not complete
    ],
)
def test_what_is_not_plain_is_left_to_h11(head):
    assert parse_headers(LINE + head + b"\r\n", len(LINE)) is None


def test_plain_headers():
    data = LINE + b"HOST:a \r\nContent-Length: 3\r\nConnection: Keep-Alive\r\nX:\r\n\r\nabcd"
    headers = [(b"host", b"a"), (b"content-length", b"3"), (b"connection", b"Keep-Alive"), (b"x", b"")]
    assert parse_headers(data, len(LINE)) == (headers, len(data) - 1)


# Threads that let the event loop catch up


def test_threads_wait_for_a_loop_that_is_behind_but_not_for_ever(monkeypatch):
    naps, now = [], [100.0]

    def sleep(seconds):
        naps.append(seconds)
        now[0] += seconds

    loop = ServingLoop()
    loop.close()
    monkeypatch.setattr(serving_loop.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(serving_loop.time, "sleep", sleep)
    loop.watched.busy_since = None
    loop.let_catch_up()
    loop.watched.busy_since = now[0]
    loop.let_catch_up()
    assert not naps  # it waits for events, or has just begun
    now[0] += 2 * serving_loop.BEHIND
    loop.let_catch_up()
    assert sum(naps) == pytest.approx(serving_loop.MAX_PAUSE, rel=0.1)
    naps.clear()
    loop.let_catch_up()
    assert not naps  # now the thread has its turn
    now[0] += 2 * serving_loop.TURN
    loop.let_catch_up()
    assert naps


def test_the_loop_knows_when_it_is_busy():
    loop = ServingLoop()
    states = []

    async def work():
        await asyncio.sleep(0.001)
        states.append(loop.watched.busy_since)
        await asyncio.sleep(0)
        states.append(loop.watched.busy_since)
        await WorkerThreads(1, 9.0).run(wait_until_idle)

    def wait_until_idle():
        while loop.watched.busy_since is not None:
            time.sleep(0.001)
        states.append(None)

    try:
        loop.run_until_complete(work())
    finally:
        loop.close()
    assert states[0] is not None
    assert states == [states[0], states[0], None]  # still at the same work; then it waits for the thread


def test_engines_and_work_in_threads_pause(server, monkeypatch):
    paused = set()
    monkeypatch.setattr(ServingLoop, "let_catch_up", lambda self: paused.add(threading.current_thread().name))
    key = {"Authorization": "Bearer secret"}
    assert server.ask("/v1/completions", json.loads(BODY), key)[0] == 200
    assert "engine" in paused
    assert server.ask("/api/trace", {"input": "a b"}, key)[0] == 200
    assert "worker" in paused
