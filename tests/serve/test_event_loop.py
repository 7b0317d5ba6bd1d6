"""What takes long if a request is large happens in threads, and lets the event loop run meanwhile."""

import json
import threading

import pytest

from helpers.looking import every_task
from helpers.serving import serve_models, serve_session
from regard.serve import endpoint, openai, page, registry, requests, responses
from regard.serve.engine import Engine
from regard.serve.errors import APIError
from regard.serve.page_requests import TraceRequest
from regard.serve.requests import FAST_VALUES, MAX_KEYS, PAUSE_VALUES, parse_object
from regard.viewer.session import Session

TEXT = "the quick brown fox"
CALL = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "user", "content": TEXT},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "user", "content": TEXT},
]


@pytest.fixture(scope="module")
def models():
    return every_task()


@pytest.fixture
def threads(monkeypatch):
    """The threads in which some functions were called, by their names; every request is a large one."""
    called = {}
    for module in (registry, page):
        monkeypatch.setattr(module, "INLINE", 0)

    def note(owner, name):
        function = getattr(owner, name)

        def noted(*args, **options):
            called.setdefault(name, set()).add(threading.get_ident())
            return function(*args, **options)

        monkeypatch.setattr(owner, name, noted)

    for owner in (page, endpoint):
        note(owner, "read_body")  # in the event loop
        note(owner, "parse_object")
    for owner in (openai, responses):
        note(owner, "read_conversation")
    for owner in (registry, page):
        note(owner, "encode_parts")
    for owner, name in ((Engine, "make_request"), (page, "check_turns")):
        note(owner, name)
    monkeypatch.setattr(TraceRequest, "parse", staticmethod(TraceRequest.parse))
    note(TraceRequest, "parse")
    return called


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/v1/completions", {"model": "write", "prompt": TEXT}, {"make_request"}),
        ("/v1/chat/completions", {"model": "chat", "messages": MESSAGES}, {"read_conversation"}),
        ("/v1/responses", {"model": "chat", "input": TEXT}, {"read_conversation", "make_request"}),
        ("/v1/embeddings", {"model": "embed", "input": [TEXT, "fox"]}, {"encode_parts"}),
        ("/api/ask", {"model": "tag", "input": [TEXT, "fox"]}, {"encode_parts"}),
    ],
)
def test_large_requests_to_the_api(models, threads, path, body, where):
    with serve_models(models) as server:
        status, _, answer = server.ask(path, body)
        assert status == 200, answer
        assert {"parse_object"} | where <= threads.keys()
        (loop,) = threads.pop("read_body")
        assert all(loop not in called for called in threads.values())


def test_large_requests_to_the_page(models, threads):
    model = models["chat"]
    with serve_session(Session(model, model.task.example_input())) as server:
        assert server.ask("/api/trace", {"input": "fox"})[0] == 200
        assert server.ask("/api/talk", {"turns": ["fox", "fox", "fox"]})[0] == 200
        assert {"parse", "check_turns", "parse_object", "encode_parts"} <= threads.keys()
        (loop,) = threads.pop("read_body")
        assert all(loop not in called for called in threads.values())


# JSON


LARGE = [
    {"prompt": [list(range(7, 2 * FAST_VALUES)), [1, 2]]},
    {"a": [{"b": [{}, [], None, True, -1.5e3, 'é"\\\n\U0001f600']}] * FAST_VALUES},
    {f"key {n}": str(n) for n in range(MAX_KEYS)},
]


@pytest.mark.parametrize("value", LARGE, ids=["ids", "nested", "keys"])
def test_large_bodies_are_read_as_small_ones_are(value):
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert parse_object(json.dumps(value, ensure_ascii=False).encode(encoding)) == value


@pytest.mark.parametrize(
    "tail", ["", "]", "NaN]}", "1,]}", '"\n"]}', "1" * 5000 + "]}", "[" * 100_000, "1]} {}"]
)
def test_large_bodies_that_are_wrong(tail):
    with pytest.raises(APIError) as caught:
        parse_object(b'{"a": [' + b"1," * 2 * FAST_VALUES + tail.encode())
    assert caught.value.status_code == 400


def test_an_object_has_few_keys():
    """They are hashed at once, and no client needs many."""
    with pytest.raises(APIError) as caught:
        parse_object(json.dumps({"a": [{f"{n}": 1 for n in range(MAX_KEYS + 1)}]}).encode())
    assert (caught.value.status_code, f"{MAX_KEYS:,}" in caught.value.detail) == (413, True)


def test_the_event_loop_may_catch_up_while_a_large_body_is_read(monkeypatch):
    """The standard library's scanner in C would keep Python's lock until it is done."""
    turns = []
    monkeypatch.setattr(requests, "check_cancelled", lambda: turns.append(1))
    parse_object(json.dumps({"a": [[1, 2], {"b": 3}, 4] * FAST_VALUES}).encode())
    assert len(turns) >= 6 * FAST_VALUES // PAUSE_VALUES
