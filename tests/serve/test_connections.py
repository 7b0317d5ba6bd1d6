"""Clients that send slowly, read slowly or not at all, hold connections open, or send ambiguous requests."""

import asyncio
import http.client
import io
import resource
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from helpers.looking import reader
from helpers.serving import Clock, Server, serve_models, serve_session
from helpers.waiting import wait_until
from regard.serve.admission import SMALL_BODY, AdmissionMiddleware
from regard.serve.connections import PART, ConnectionLimits, LimitedProtocol
from regard.serve.page_app import page_app
from regard.serve.registry import ServerLimits
from regard.serve.server import allow_connections, run_in_thread
from regard.viewer.session import Session

STARTED = []  # requests to /never
SENT = []  # parts of a response to /events
LARGE = 64 * PART  # more than the system's buffers hold
GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def echo(scope, receive, send):
    """An application that answers with the body, with a large response at /large, with many small parts at
    /events, and never at /never."""
    if scope["path"] == "/large":
        await PlainTextResponse("x" * LARGE)(scope, receive, send)
        return
    if scope["path"].startswith("/events"):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for n in range(3 if scope["path"] == "/events" else 9999):
            SENT.append(n)
            await send({"type": "http.response.body", "body": b"event %d " % n * 999, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"end"})
        return
    if scope["path"] == "/never":
        STARTED.append(scope)
    body, more = b"", True
    while more or scope["path"] == "/never":
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    await JSONResponse({"body": body.decode()})(scope, receive, send)


class FakeSocket:
    def __init__(self, data):
        self.data = data

    def makefile(self, mode):
        return io.BytesIO(self.data)


@contextmanager
def serve_echo(**limits):
    with run_in_thread(echo, ConnectionLimits(**limits)) as port:
        yield Server(port)


def connect(server, *data, receive_buffer=None):
    line = socket.socket()
    if receive_buffer is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    line.settimeout(20)
    line.connect(("127.0.0.1", server.port))
    for part in data:
        line.sendall(part)
    return line


def read_all(line):
    """Everything until the server closes the connection."""
    data = b""
    try:
        while more := line.recv(2**16):
            data += more
    except ConnectionResetError:
        pass
    return data


def exchange(server, data):
    with connect(server, data) as line:
        return read_all(line)


# Framing


@pytest.fixture(scope="module")
def echoing():
    with serve_echo(header_bytes=4096) as server:
        yield server


POST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
        POST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        POST + b"Content-Length: 5\r\ncontent-length: 6\r\n\r\nhello",
        POST + b"Content-Length: 5, 5\r\n\r\nhello",
        POST + b"Content-Length: 5\n" + b"Content-Length: 5\n\nhello",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: +5\r\n\r\nhello",
        POST + b"Content-Length: 0x5\r\n\r\nhello",
        POST + b"Content-Length: 5\r\nX-Folded: a\r\n b\r\n\r\nhello",
        POST + b"Content-Length: 5\r\nX-Folded: a\r\n\tb\r\n\r\nhello",
        POST + b"Content-Length : 5\r\n\r\nhello",
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
        POST + CHUNKED + b"\r\nx\r\nhello\r\n0\r\n\r\n",
        POST + CHUNKED + b"\r\n-5\r\nhello\r\n0\r\n\r\n",
        POST + CHUNKED + b"\r\n" + b"f" * 21 + b"\r\n",
        POST + CHUNKED + b"\r\n5\r\nhelloworld\r\n0\r\n\r\n",
        POST + b"X-Long: " + b"a" * 8192 + b"\r\n\r\n",
        POST + b"X-Null: a\0b\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_ambiguous_requests_are_refused(echoing, request_bytes):
    """One response, 400, and the connection is closed: what follows is not taken for a request."""
    answer = exchange(echoing, request_bytes + GET + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_valid_requests_are_read(echoing):
    chunks = b"\r\n5\r\nhello\r\n6;name=x\r\n world\r\n0\r\n\r\n"
    for data in (POST + CHUNKED + chunks, POST + b"Content-Length: 11\r\n\r\nhello world"):
        answer = exchange(echoing, data + GET + b"Connection: close\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200") == 2  # the second request came with the first
        assert b'{"body":"hello world"}' in answer


def test_bad_chunk_within_a_response_closes(echoing, caplog):
    head = b"POST /large HTTP/1.1\r\nHost: 127.0.0.1\r\n" + CHUNKED + b"\r\n"
    with connect(echoing, head, receive_buffer=4096) as line:
        assert line.recv(12) == b"HTTP/1.1 200"
        line.sendall(b"no chunk\r\n")
        assert b"400" not in read_all(line)[:LARGE]
    assert echoing.ask("/health")[0] == 200
    assert "Traceback" not in caplog.text


# Time


def test_headers_that_never_end_are_not_waited_for(monkeypatch):
    clock = Clock(monkeypatch)
    with serve_echo() as server, ExitStack() as stack:
        begun = (b"", b"G", GET, POST + b"X: 1\r\n", b"\r\n")
        lines = [stack.enter_context(connect(server, data)) for data in begun]
        later = stack.enter_context(connect(server, GET + b"\r\n"))
        assert later.recv(12) == b"HTTP/1.1 200"
        later.sendall(GET)  # a second request on the same connection
        assert server.ask("/health")[0] == 200  # after all of this has come
        clock.turn_forward(ConnectionLimits.header_seconds)
        for line in (*lines, later):
            read_all(line)


def test_headers_that_come_drop_by_drop_are_not_waited_for():
    with serve_echo(header_seconds=0.2) as server, connect(server) as line:
        line.settimeout(0.01)

        def is_closed():
            try:
                line.sendall(b"a")
                return line.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(is_closed)


def test_idle_connections_are_closed():
    with serve_echo(idle_seconds=0.1) as server, connect(server, GET + b"\r\n") as line:
        assert read_all(line).count(b"HTTP/1.1 200") == 1


def test_bodies_that_nobody_reads_are_not_waited_for(monkeypatch):
    """A request that is refused before its body has come, and whose body never ends."""
    monkeypatch.setattr("regard.serve.connections.DRAIN_SECONDS", 0.1)
    with serve_models({"writer": reader("write", "gpt")}) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000000\r\n\r\n"
        with connect(server, head) as line:
            assert read_all(line).startswith(b"HTTP/1.1 421 ")


@pytest.fixture
def protocols(monkeypatch):
    """The server's side of each connection."""
    protocols, connection_made = [], LimitedProtocol.connection_made
    monkeypatch.setattr(
        LimitedProtocol, "connection_made", lambda self, t: connection_made(self, t) or protocols.append(self)
    )
    return protocols


def test_responses_that_nobody_reads_are_not_waited_for(monkeypatch, protocols):
    monkeypatch.setattr("regard.serve.connections.MIN_RATE", 10 * LARGE)
    with serve_echo(send_seconds=0.1) as server:
        get = b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        for i, data in enumerate((get + b"\r\n", get + b"Connection: close\r\n\r\n")):
            with connect(server, data, receive_buffer=4096) as line:
                wait_until(lambda i=i: len(protocols) > i and protocols[i] not in protocols[i].connections)
                assert len(read_all(line)) < LARGE


def test_large_responses_are_complete():
    with serve_echo() as server:
        status, _, data = server.ask("/large")
        assert (status, data) == (200, b"x" * LARGE)


def test_responses_are_not_buffered(protocols):
    """Of a response that is not read, the server holds little beside the body itself."""
    with serve_echo() as server:
        get = b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with connect(server, get, receive_buffer=4096):
            wait_until(lambda: protocols and protocols[0].flow.write_paused)
            assert protocols[0].transport.get_write_buffer_size() <= 3 * PART


def test_streams_that_nobody_reads_wait(protocols):
    """The application goes no further than the system's buffers reach."""
    with serve_echo() as server:
        SENT.clear()
        get = b"GET /events/many HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with connect(server, get, receive_buffer=4096) as line:
            wait_until(lambda: protocols and protocols[0].flow.write_paused)
            sent = None
            while sent != len(SENT):  # the system may still be moving what was sent first
                sent = len(SENT)
                time.sleep(0.05)
            assert sent < 9999
            assert protocols[0].transport.get_write_buffer_size() <= 3 * PART
            while len(SENT) == sent:  # it goes on when the client does
                assert line.recv(PART)
        wait_until(lambda: not protocols[0].connections)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_streams_are_framed_as_the_client_knows(echoing, version, method):
    head = f"{method} /events HTTP/{version}\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    headers, _, body = exchange(echoing, head.encode()).partition(b"\r\n\r\n")
    text = b"".join(b"event %d " % n * 999 for n in range(3)) + b"end"
    assert headers.startswith(b"HTTP/1.1 200 ")
    if method == "HEAD":
        assert body == b""
    elif version == "1.0":
        assert body == text
    else:
        assert b"transfer-encoding: chunked" in headers.lower()
        reader = http.client.HTTPResponse(FakeSocket(headers + b"\r\n\r\n" + body))
        reader.begin()
        assert reader.read() == text


class Recorder:
    """A transport whose writes are counted."""

    def __init__(self, transport):
        self.transport, self.writes = transport, []

    def __getattr__(self, name):
        return getattr(self.transport, name)

    def write(self, data):
        self.writes.append(data)
        self.transport.write(data)


@pytest.mark.parametrize(("path", "writes"), [("/", 1), ("/events", 4)])
def test_responses_take_one_write_and_streams_one_for_each_event(protocols, path, writes):
    """Headers are written with the first part of the body, and its last part with the end."""
    with serve_echo() as server, connect(server) as line:
        wait_until(lambda: protocols)
        recorder = protocols[0].transport.transport = Recorder(protocols[0].transport.transport)
        line.sendall(b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n" % path.encode())
        answer = read_all(line)
    assert answer == b"".join(recorder.writes)
    assert len(recorder.writes) == writes


def test_answers_of_pipelined_requests_come_in_order(echoing):
    first = POST + b"Content-Length: 5\r\n\r\nhello"
    answer = exchange(echoing, first + POST + b"Content-Length: x\r\n\r\n")
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]
    assert b'{"body":"hello"}' in answer.split(b"HTTP/1.1 ")[1]


# Numbers


def test_idle_connections_make_room():
    with serve_echo(connections=8) as server, ExitStack() as stack:
        lines = [stack.enter_context(connect(server, GET + b"\r\n")) for _ in range(8)]
        for line in lines:
            assert line.recv(12) == b"HTTP/1.1 200"
        for _ in range(20):  # each finds a place
            assert server.ask("/health")[0] == 200
        assert read_all(lines[0]) != b""  # the rest of its answer, and its end


@pytest.mark.parametrize("begun", [b"", b"GET", POST + b"Content-Length: 9\r\n\r\nhalf"])
def test_many_unfinished_requests_lock_nobody_out(begun):
    with serve_echo(connections=8) as server, ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connect(server, begun))
        assert server.ask("/health")[0] == 200


def test_complete_requests_are_not_closed_for_others():
    with serve_echo(connections=4) as server, ExitStack() as stack:
        never = GET.replace(b"health", b"never") + b"\r\n"
        STARTED.clear()
        lines = [stack.enter_context(connect(server, never)) for _ in range(4)]
        wait_until(lambda: len(STARTED) == 4)
        assert exchange(server, GET + b"\r\n").startswith(b"HTTP/1.1 503 ")
        for line in lines:
            line.setblocking(False)
            with pytest.raises(BlockingIOError):  # still open, without an answer
                line.recv(1)


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [(1024, 524_288, 8192, 1024), (1024, 1024, None, 480), (8192, -1, None, 1024), (256, 512, 512, 224)],
)
def test_connections_fit_into_the_systems_limit(monkeypatch, soft, hard, raised, connections):
    calls = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: calls.append(limits))
    assert allow_connections(1024).connections == connections
    assert calls == ([] if raised is None else [(raised, hard)])


# The page and the API


def serve_writer(**options):
    return serve_models({"writer": reader("write", "gpt")}, finish=False, **options)


@pytest.mark.parametrize("path", ["/api/trace", "/v1/completions", "/api/ask"])
def test_unfinished_bodies_take_no_places(path):
    limits = ServerLimits(places=2, queue=1, page_places=2, page_queue=1, timeout=60)
    with serve_writer(limits=limits) as server, ExitStack() as stack:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        for _ in range(20):
            stack.enter_context(connect(server, head.encode() + b"Content-Length: 99\r\n\r\n{"))
        assert server.ask("/v1/completions", {"prompt": "the", "max_tokens": 1})[0] == 200
        assert server.ask("/api/trace", {})[0] == 200


def test_body_that_never_comes_gets_408_on_every_route():
    with serve_writer(limits=ServerLimits(body_seconds=0.1)) as server:
        for path in ("/api/trace", "/api/change", "/api/ask", "/v1/completions", "/v1/embeddings"):
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            with connect(server, head.encode() + b"Content-Length: 99\r\n\r\n{") as line:
                assert line.recv(12) == b"HTTP/1.1 408"


@pytest.fixture
def slow_log(monkeypatch):
    """/api/log answers when the event is set; the list has an item for each request that it works on."""
    calls, event = [], threading.Event()
    monkeypatch.setattr(Session, "log", lambda self: calls.append(1) or (event.wait(60) and []))
    return calls, event


LOG = b"GET /api/log HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_page_and_api_have_places_of_their_own(slow_log):
    calls, event = slow_log
    with serve_writer(limits=ServerLimits(page_places=1, page_queue=1)) as server, ExitStack() as stack:
        assert server.ask("/")[0] == 200
        lines = [stack.enter_context(connect(server, LOG))]
        wait_until(lambda: calls)
        lines.append(stack.enter_context(connect(server, LOG)))  # waits
        assert server.ask("/v1/completions", {"prompt": "the", "max_tokens": 1})[0] == 200
        status, headers, _ = server.ask("/")
        assert (status, headers["Retry-After"]) == (429, "1")
        event.set()
        for line in lines:
            assert line.recv(12) == b"HTTP/1.1 200"
        assert server.ask("/")[0] == 200


def test_client_that_leaves_the_queue_is_not_waited_for(slow_log):
    calls, event = slow_log
    model = reader("write", "gpt")
    with serve_session(Session(model, "the fox"), limits=ServerLimits(page_places=1)) as server:
        with connect(server, LOG) as first:
            wait_until(lambda: calls)
            connect(server, LOG).close()
            for _ in range(3):  # answered at once, after the server has seen the other client leave
                assert server.ask("/", headers={"Host": "evil.example"})[0] == 421
            event.set()
            assert first.recv(12) == b"HTTP/1.1 200"
        assert server.ask("/")[0] == 200
        assert calls == [1]


def test_unread_downloads_are_made_one_after_another(monkeypatch):
    calls = []
    monkeypatch.setattr(Session, "html", lambda self: calls.append(1) or "x" * LARGE)
    limits, model = ServerLimits(page_places=2, page_queue=50), reader("write", "gpt")
    session = Session(model, "the fox")
    with serve_session(session, limits=limits) as server, ExitStack() as stack:
        get = f"GET /api/page?trace={session.id} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        lines = [stack.enter_context(connect(server, get, receive_buffer=4096)) for _ in range(9)]
        wait_until(lambda: len(calls) == 2)
        time.sleep(0.1)
        assert len(calls) == 2
        for line in lines:
            assert line.recv(12) == b"HTTP/1.1 200"
            line.close()


# Memory


def send_bodies(limits, *bodies):
    """The statuses of requests whose bodies come one after the other; what has no end is never complete."""

    async def answer(scope, receive, send):
        size = len((await receive())["body"])
        await PlainTextResponse(str(size))(scope, receive, send)

    async def run():
        app, statuses = AdmissionMiddleware(answer, limits, lambda method, path: "api"), []
        scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": []}
        tasks = []
        for body, complete in bodies:
            messages = [{"type": "http.request", "body": body, "more_body": not complete}]

            async def receive(messages=messages):
                return messages.pop() if messages else await asyncio.Event().wait()

            async def send(message):
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])
                    again = (b"retry-after", b"1") in message["headers"]
                    assert again == (message["status"] == 503)

            tasks.append(asyncio.create_task(app(dict(scope), receive, send)))
            for _ in range(99):  # as far as it comes
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert app.memory == limits.body_memory  # all of it is given back
        return statuses

    return asyncio.run(run())


def test_large_bodies_share_a_limit_of_memory():
    limits = ServerLimits(body_memory=10**6)
    half, small = b"x" * (500_000 + SMALL_BODY), b"x" * SMALL_BODY
    assert send_bodies(limits, (half, True), (half, True), (half, True)) == [200, 200, 200]
    assert send_bodies(limits, (half, False), (half, True), (half, True)) == [200, 200]
    assert send_bodies(limits, (half, False), (half, False), (half, True), (small, True)) == [503, 200]


def test_size_of_a_body_is_limited():
    assert send_bodies(ServerLimits(body=99), (b"x" * 99, True), (b"x" * 100, False)) == [200, 413]


def test_application_of_the_page_has_the_same_limits(monkeypatch):
    clock, model = Clock(monkeypatch), reader("write", "gpt")
    app = page_app(model, Session(model, "the fox"), limits=ServerLimits(body=99))
    with run_in_thread(app) as port, connect(server := Server(port), b"GET / HTTP/1.1\r\n") as line:
        server.check_error(413, "over 99 bytes", "/api/trace", {"input": "a" * 100})
        clock.turn_forward(ConnectionLimits.header_seconds)
        assert read_all(line) == b""
