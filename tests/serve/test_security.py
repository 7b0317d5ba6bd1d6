"""Refused requests, limits, timeouts, clients that leave, failures, metrics and the log."""

import asyncio
import base64
import http.client
import json
import re
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from helpers.looking import reader
from helpers.serving import ModelServer, serve_models
from helpers.waiting import wait_until
from regard.errors import UserError
from regard.serve import endpoint
from regard.serve.app import create_app
from regard.serve.registry import ModelRegistry, ServerLimits
from regard.serve.security import SecurityConfig
from regard.serve.server import run_in_thread

LONG = {"prompt": "the quick", "max_tokens": 4000}


@contextmanager
def serve_writer(limits=None, slow=0.0, **options):
    """A server with one model that generates text; each step takes `slow` seconds longer."""
    model = reader("write", "gpt")
    if slow:
        fast = model.model.step

        def step(*args):
            time.sleep(slow)
            return fast(*args)

        model.model.step = step
    with serve_models({"writer": model}, limits, finish=False, **options) as server:
        yield server


@pytest.fixture(scope="module")
def plain():
    with serve_writer(ServerLimits(tokens=101, body=5000, timeout=60)) as server:
        yield server


# Access


def test_other_hosts_and_pages_are_refused(plain):
    for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""):
        plain.check_error(421, "127.0.0.1", "/v1/models", headers={"Host": host})
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{plain.port}"):
        plain.check_error(403, "other pages", "/v1/completions", {"prompt": "x"}, {"Origin": origin})
    plain.check_error(403, "other pages", "/metrics", headers={"Sec-Fetch-Site": "cross-site"})
    assert plain.ask("/", headers={"Host": f"LocalHost:{plain.port}"})[0] == 200
    _, headers, _ = plain.ask("/v1/models", headers={"Origin": f"http://127.0.0.1:{plain.port}"})
    assert headers["Access-Control-Allow-Origin"] is None
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_allowed_names_and_addresses():
    config = SecurityConfig(host="0.0.0.0", names={"ai.example"})
    assert all(map(config.allows_host, ("127.0.0.1", "localhost", "ai.example", "10.1.2.3", "fe80::1")))
    assert not config.allows_host("evil.example")
    assert not SecurityConfig(host="10.1.2.3").allows_host("10.1.2.4")
    with serve_writer(names={"ai.example"}) as server:
        ours = {"Host": "ai.example", "Origin": "https://ai.example"}
        assert server.ask("/api/trace", {}, ours)[0] == 200
        server.check_error(403, "other pages", "/", headers=ours | {"Origin": "https://evil.example"})


def test_key_is_needed_everywhere_but_at_health():
    with serve_writer(key="a key, secret") as server:
        for path in ("/v1/models", "/", "/metrics", "/openapi.json", "/api/log", "/nowhere"):
            for header in ("", "Bearer ", "Bearer a key", "Bearer a key, secret2", "Digest a key, secret"):
                headers, _ = server.check_error(401, "key", path, headers={"Authorization": header})
                assert headers["WWW-Authenticate"].startswith("Bearer" if path[:3] == "/v1" else "Basic")
        assert server.ask("/v1/models", headers={"Authorization": "bearer a key, secret"})[0] == 200
        password = base64.b64encode(b"anybody:a key, secret").decode()
        assert server.ask("/", headers={"Authorization": f"Basic {password}"})[0] == 200
        server.check_error(401, "key", "/", headers={"Authorization": "Basic ???"})
        assert server.ask("/health")[0] == server.ask("/ready")[0] == 200


@pytest.mark.parametrize("key", ["schlüssel", "ключ", "a鍵"])
def test_keys_beyond_ascii(key):
    """Clients send such letters in UTF-8, or in Latin-1 if that has them."""
    with serve_writer(key=key) as server:
        encodings = [key.encode(), key.encode("latin-1")] if key == "schlüssel" else [key.encode()]
        for data in encodings:
            for value in (b"Bearer " + data, b"Basic " + base64.b64encode(b"me:" + data)):
                assert server.ask("/v1/models", headers={"Authorization": value})[0] == 200
        for data in (key.encode("ascii", "ignore"), key.encode("ascii", "replace"), key.encode("utf-16")):
            wrong = b"Basic " + base64.b64encode(b"me:" + data)
            assert server.ask("/v1/models", headers={"Authorization": wrong})[0] == 401


def test_every_response_has_an_id(plain):
    for path in ("/health", "/nowhere", "/v1/nowhere", "/v1/models"):
        assert re.fullmatch("[0-9a-f]{16}", plain.ask(path)[1]["X-Request-Id"])
    assert plain.ask("/health", headers={"X-Request-Id": "mine-7"})[1]["X-Request-Id"] == "mine-7"
    for wrong in ("a b", "x" * 65, "<script>"):
        assert plain.ask("/health", headers={"X-Request-Id": wrong})[1]["X-Request-Id"] != wrong
    body = {"prompt": "the", "max_tokens": 1}
    answer = json.loads(plain.ask("/v1/completions", body, {"X-Request-Id": "mine-8"})[2])
    assert answer["id"] == "cmpl-mine-8"


# Limits


def test_each_limit_has_its_error(plain):
    ask = "/v1/completions"
    plain.check_error(415, "JSON", ask, b"{}", {"Content-Type": "text/plain"})
    plain.check_error(400, "not JSON", ask, b"{")
    plain.check_error(400, "not JSON", ask, b'{"prompt": "x", "temperature": NaN}')
    plain.check_error(400, "one JSON object", ask, b"[1]")
    plain.check_error(413, "over 5,000 bytes", ask, {"prompt": "a" * 6000})
    for body, words in (
        ({"prompt": "fox " * 30}, "maximum context length is 23 tokens. However, your prompt resulted in 30"),
        ({"prompt": "x", "max_tokens": 102}, "from 0 to 101"),
        ({"prompt": "x", "n": 65}, "from 1 to 64"),
        ({"prompt": ["x"] * 9, "n": 9}, "up to 64 answers"),
        ({"prompt": "x", "stop": list("abcde")}, "0 to 4"),
        ({"prompt": "x", "stop": [""]}, "stop"),
        ({"prompt": "x", "logprobs": 21}, "from 0 to 20"),
        ({"prompt": "x", "temperature": -1}, "from 0 to 100"),
        ({"prompt": "x", "temperature": True}, "a number"),
        ({"prompt": "x", "presence_penalty": 2.5}, "presence_penalty"),
        ({"prompt": "x", "logit_bias": {"5": 101}}, "logit_bias"),
        ({"prompt": "x", "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": "x", "logit_bias": {"999": 1}}, "logit_bias: token 999"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "surprise": 1}, "surprise: not supported"),
        ({"prompt": "x", "stream_options": {"nothing": 1}}, "stream_options.nothing"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt[1]"),
        ({}, "prompt: this field is required"),
    ):
        plain.check_error(400, words, ask, body)
    for body, words in (
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "tools"),
        ({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}}, "response"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content"),
    ):
        plain.check_error(400, words, "/v1/chat/completions", body)
    plain.check_error(405, "", ask)
    plain.check_error(404, "", "/v1/nothing")


def test_options_without_effect_are_accepted(plain):
    harmless = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "suffix": ""}
    body = {
        "prompt": "the",
        "max_tokens": 2,
        "stop": None,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "n": None,
    }
    assert plain.ask("/v1/completions", body | harmless)[0] == 200


def test_body_that_never_comes_times_out():
    with serve_writer(ServerLimits(timeout=0.2)) as server:
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        line.putrequest("POST", "/v1/completions")
        line.putheader("Content-Type", "application/json")
        line.putheader("Content-Length", "100")
        line.endheaders(b"{")
        answer = line.getresponse()
        assert (answer.status, json.load(answer)["error"]["code"]) == (408, "timeout")
        line.close()


def test_slow_answer_times_out():
    with serve_writer(ServerLimits(timeout=0.3), slow=0.02) as server:
        server.check_error(408, "within 0.3 s", "/v1/completions", LONG)
        status, _, data = server.ask("/v1/completions", LONG | {"stream": True})
        last = (
            data if status == 408 else data.split(b"\n\n")[-2][6:]
        )  # depends on whether the stream has started
        assert json.loads(last)["error"]["code"] == "timeout"
        wait_until(lambda: server.registry.models["writer"].engine.running == 0)


def test_full_queue_is_refused_at_once():
    with serve_writer(ServerLimits(places=2, queue=1), slow=0.02) as server:
        engine = server.registry.models["writer"].engine
        lines = [send_request(server, LONG | {"stream": True}) for _ in range(3)]
        wait_until(lambda: (engine.running, engine.waiting) == (2, 1))
        headers, data = server.check_error(429, "places", "/v1/completions", LONG)
        assert (headers["Retry-After"], json.loads(data)["error"]["code"]) == ("1", "queue_full")
        assert server.ask("/health")[0] == 200
        early = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        early.putrequest("POST", "/v1/completions")
        early.putheader("Content-Length", "100")
        early.endheaders()  # it is refused before there is a body
        assert early.getresponse().status == 429
        for line in [*lines, early]:
            line.close()
        wait_until(lambda: (engine.running, engine.waiting) == (0, 0))
        assert server.ask("/v1/completions", LONG | {"max_tokens": 1})[0] == 200
        # one request with too many answers is refused as well
        server.check_error(429, "places", "/v1/completions", LONG | {"n": 4})
        assert engine.running + engine.waiting == 0
        assert "regard_queue_full_total 3" in server.ask("/metrics")[2].decode()


# Clients that leave, and failures


def send_request(server, body):
    """A connection on which a completion was requested."""
    line = socket.create_connection(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
    line.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
    return line


def test_client_that_does_not_read_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(endpoint, "LAST_EVENT_TIMEOUT", 0.01)
    registry, closed = ModelRegistry({}, ServerLimits()), []

    async def lines():
        yield b"data: 1"

    async def never(*_):
        await asyncio.Event().wait()

    async def send(message):
        if message["type"] == "http.response.body":
            await never()

    async def stuck():
        until = asyncio.get_running_loop().time() + 0.01
        await endpoint.EventStream(lines(), registry, until, lambda: closed.append(1))({}, never, send)

    asyncio.run(asyncio.wait_for(stuck(), 60))
    assert closed == [1]


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_frees_its_place(stream):
    with serve_writer(slow=0.02) as server:
        engine = server.registry.models["writer"].engine
        line = send_request(server, LONG | {"stream": stream, "n": 2})
        wait_until(lambda: engine.running == 2)
        line.close()
        wait_until(lambda: engine.running == 0)
        wait_until(lambda: "regard_clients_gone_total 1" in server.ask("/metrics")[2].decode())


@pytest.mark.filterwarnings("default")
def test_failure_is_reported_and_the_next_answer_is_right(caplog):
    model = reader("write", "gpt")
    registry, working = ModelRegistry({"writer": model}, ServerLimits()), model.model.step
    fails = threading.Event()

    def step(*args):
        if fails.is_set():
            raise RuntimeError("out of memory, for one")
        return working(*args)

    model.model.step = step
    with run_in_thread(create_app(registry, SecurityConfig())) as port:
        server = ModelServer(port, registry)
        fails.set()
        headers, data = server.check_error(503, "restarted", "/v1/completions", LONG)
        assert (headers["Retry-After"], json.loads(data)["error"]["code"]) == ("1", "crashed")
        status, _, data = server.ask("/v1/completions", LONG | {"stream": True, "n": 2})
        last = (
            data if status == 503 else data.split(b"\n\n")[-2][6:]
        )  # depends on whether the stream has started
        assert json.loads(last)["error"]["code"] == "crashed"
        fails.clear()
        answer = json.loads(server.ask("/v1/completions", {"prompt": "the quick"})[2])
        assert answer["choices"][0]["text"] == model.ask("the quick")
        metrics = server.ask("/metrics")[2].decode()  # the last two answers fail together, or one by one
        assert re.search(r'regard_restarts_total\{model="writer"\} [23]\n', metrics)
    registry.close()
    assert "out of memory" in caplog.text


def test_internal_errors_reveal_nothing(monkeypatch):
    with serve_writer() as server:
        monkeypatch.setattr(ModelRegistry, "find", lambda *_: 1 / 0)
        _, data = server.check_error(500, "log", "/v1/completions", {"prompt": "x"})
        assert b"division" not in data


# Metrics and the log


def test_metrics_count(plain):
    def value(line):
        text = plain.ask("/metrics")[2].decode()
        match = re.search(rf"^{re.escape(line)} (\S+)$", text, re.M)
        return float(match[1]) if match else 0.0

    names = (
        'regard_requests_total{route="/v1/completions",status="200"}',
        'regard_request_seconds_count{route="/v1/completions"}',
        'regard_request_seconds_bucket{route="/v1/completions",le="+Inf"}',
        'regard_tokens_total{model="writer",kind="prompt"}',
        'regard_tokens_total{model="writer",kind="completion"}',
        'regard_generated_tokens_total{model="writer"}',
        'regard_first_token_seconds_count{model="writer"}',
    )
    before = [value(name) for name in names]
    assert plain.ask("/v1/completions", {"prompt": "the quick", "max_tokens": 5})[0] == 200
    wait_until(lambda: value(names[0]) == before[0] + 1)
    assert [value(n) - b for n, b in zip(names, before, strict=True)] == [1, 1, 1, 2, 5, 5, 1]
    text = plain.ask("/metrics")[2].decode()
    for line in text.splitlines():  # Prometheus' text format
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{(\w+="[^"]*",?)+\})? [0-9.e+-]+', line), line
    assert 'regard_running{model="writer"} 0' in text


def test_log_has_a_line_for_each_request_without_its_text(capsys):
    with serve_writer(log=True) as server:
        server.ask("/v1/completions", {"prompt": "the quick", "max_tokens": 3}, {"X-Request-Id": "a.1"})
        server.ask("/api/secret-path?the=quick")
    said = capsys.readouterr().err
    first, second = map(json.loads, said.splitlines())
    assert first["ms"] >= first.pop("first_token_ms") > 0
    assert first.pop("tokens_per_second") == pytest.approx(3000 / first.pop("ms"), rel=0.1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first.pop("time"))
    about = {"id": "a.1", "method": "POST", "route": "/v1/completions", "status": 200}
    assert first == about | {"model": "writer", "prompt_tokens": 2, "completion_tokens": 3}
    assert (second["route"], second["status"]) == ("page", 404)
    assert "quick" not in said


def test_invalid_limits():
    for name in ("places", "tokens", "timeout"):
        with pytest.raises(UserError, match=f"{name}=0"):
            ServerLimits(**{name: 0})
