"""No request gets a 500: malformed JSON on every route, extreme values in every field and every query."""

import json
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import pytest
from starlette.datastructures import QueryParams
from starlette.routing import Router

from helpers.looking import every_task, noise
from helpers.page_routes import page_routes
from helpers.serving import ModelServer, Server, serve_models, serve_session
from regard.serve import page as page_module
from regard.serve import requests, schema
from regard.serve.lazy_page import LazyPage
from regard.serve.live import LiveRoutes, Training
from regard.serve.page_app import protect_page
from regard.serve.registry import ServerLimits
from regard.serve.server import run_in_thread
from regard.viewer.session import Session

TEXT = "the quick brown fox"
TOKENS = 7
MALFORMED = [
    *(b"", b" ", b"{", b"}", b"[", b"null", b"1", b'"x"', b"[]", b"[{}]", b"{}{}", b"{'a': 1}", b'{"a": }'),
    *(b'{"a" 1}', b'{"a": 1,}', b"{1: 2}", b'{"a": 01}', b'{"a": .5}', b'{"a": +1}', b'{"a": 0x1}'),
    *(
        b'{"a": tru}',
        b'{"a": "\n"}',
        b'{"a": "\\x"}',
        b'{"a": "\\ud800"',
        b'{"\\ud800": 1}',
        b'{"a": "\xff"}',
    ),
    *(b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e400}', b"\x00"),
    *(b'{"a": ' + b"9" * 5000 + b"}", b"/* */ {}", b"[" * 100_000, b'{"a":' * 100_000),
    *(b'{"a": [' + b"[]," * 600_000 + b"[]]}", b'{"input": "' + b"\\" * 9999 + b'"}'),
]
HUGE = ["1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 4299, "1e400", "-1e400", "1e308", "-1e308"]
VALUES = [
    *("5e-324", "9223372036854775807", "9223372036854775808", "18446744073709551616", "2147483648"),
    *("-1", "0", "-0.0", "1", "1.5", "null", "true", '""', '"x"', '"\\ud800"', '"\\u0000"'),
    *("[]", "{}", "[[]]", "[null]", '{"x":{}}', '["x",1]'),
]
NUMERIC = {
    *("n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"),
    *("no_repeat_ngram_size", "num_beams", "length_penalty", "logprobs", "presence_penalty"),
    *("frequency_penalty", "max_new_tokens", "num_return_sequences", "checkpoint", "dimensions"),
    *("top_logprobs", "max_completion_tokens", "max_output_tokens"),
}
ROUTES = {
    "/v1/completions": (
        schema.completion_request(TOKENS),
        {"prompt": TEXT, "max_tokens": 3, "model": "write"},
    ),
    "/v1/chat/completions": (
        schema.chat_request(TOKENS),
        {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 3, "model": "chat"},
    ),
    "/v1/responses": (
        schema.responses_request(TOKENS),
        {"input": TEXT, "max_output_tokens": 3, "model": "chat"},
    ),
    "/v1/embeddings": (schema.EMBEDDING_REQUEST, {"input": TEXT, "model": "embed"}),
    "/api/ask": (schema.ask_request(TOKENS), {"input": TEXT, "model": "translate", "max_new_tokens": 3}),
}


@pytest.fixture(scope="module")
def models():
    return every_task()


@pytest.fixture(scope="module")
def server(models):
    with serve_models(models, ServerLimits(tokens=TOKENS)) as server:
        yield server


@pytest.fixture(scope="module", params=["write", "caption"])
def page(request, models):
    model = models[request.param]
    session = Session(model, noise(12) if request.param == "caption" else TEXT)
    with serve_session(session, [models["see"], models["fill"]]) as server:
        yield server


@contextmanager
def serve_live(first):
    """The page of a session as it is while the model is trained, for clients that have its token."""
    training = Training(lambda message: None)
    page = LazyPage(lambda: None, 60.0, Router(LiveRoutes(training, first.model, first, 60.0).routes()))
    with run_in_thread(protect_page(page, ServerLimits())) as port:
        yield Steering(port, {"X-Token": training.token})


@dataclass
class Steering(Server):
    headers: dict[str, str]

    def ask(self, path, body=None, headers=None, **query):
        return super().ask(path, body, self.headers | (headers or {}), **query)


def body_with(base, field, value):
    """A JSON object in which a field has this value, which may be no valid JSON for Python."""
    return (json.dumps(base | {field: "@"}).replace('"@"', value)).encode()


def third(names, values):
    """Every name with a third of the values, another one for each name."""
    return [pair for i, pair in enumerate(product(names, values)) if (i + i // len(values)) % 3 == 0]


def check_malformed(server, path):
    for data in MALFORMED:
        status, _, answer = server.ask(path, data)
        # The page needs no field, and ignores those that it does not know.
        known = (400, 413) if path in ROUTES and isinstance(server, ModelServer) else (400, 413, 200, 410)
        assert status in known, (data[:40], answer)
        assert answer


@pytest.mark.parametrize("path", ROUTES)
def test_malformed_json(server, path):
    check_malformed(server, path)


@pytest.mark.parametrize("path", [path for path, (method, _) in page_routes().items() if method == "POST"])
def test_malformed_json_on_the_page(page, path):
    if path != "/api/training":
        check_malformed(page, path)
        return
    with serve_live(page.first) as live:
        check_malformed(live, path)


@pytest.mark.parametrize("path", ROUTES)
def test_extreme_fields(server, path):
    expected, base = ROUTES[path]
    for field, value in third([*expected["properties"], "surprise"], VALUES):
        status, _, answer = server.ask(path, body_with(base, field, value))
        assert status in (200, 400, 404), (field, value, status, answer)
    for field, value in third(sorted(NUMERIC & expected["properties"].keys()), HUGE):
        server.check_error(400, field, path, body_with(base, field, value))


def test_extreme_sampling_in_any_combination(server):
    """Values that fit the schema never fail, whatever else is asked for."""
    smallest, largest = {}, {}
    for name, field in schema.SAMPLING.items():
        limits = field["anyOf"][0]
        if "minimum" in limits:
            smallest[name], largest[name] = limits["minimum"], limits["maximum"]
    tiny = {"temperature": 5e-324, "top_p": 5e-324, "min_p": 5e-324, "repetition_penalty": 1e-3}
    single = [{name: limits[name]} for limits in (smallest, largest) for name in limits]
    for path in ("/v1/completions", "/api/ask"):
        for options in (smallest, largest, tiny, *single):
            for beams in ({}, {"num_beams": 2}, {"temperature": 1, "num_beams": 1}):
                status, _, answer = server.ask(path, ROUTES[path][1] | options | beams)
                assert status in (200, 400), (options, beams, answer)


def trace_fields(page):
    change = {"kind": "take", "part": "embed", "input": TEXT, "at": 0}
    attention = page.first.trace.attentions[0]
    silence = {"kind": "silence", "part": attention, "head": 0}
    weights = {"kind": "weights", "part": attention, "head": 0, "query": 0, "to": 0}
    hide = {"kind": "hide", "token": 0}
    bases = {"/api/trace": {}, "/api/ask": {"input": TEXT}, "/api/talk": {"turns": [TEXT]}}
    bases["/api/change"] = {"trace": page.first.id, "changes": [silence]}
    posts = {path for path, (method, _) in ROUTES_OF_THE_PAGE.items() if method == "POST"}
    assert bases.keys() == posts - {"/api/training"}  # see test_live.py
    for path, base in bases.items():
        for field in (*ROUTES_OF_THE_PAGE[path][1], "surprise"):
            yield path, base, field, lambda body: body
    for one in (change, silence, weights, hide):
        for field in (*one, "picture"):
            yield "/api/change", one, field, lambda body: {"trace": page.first.id, "changes": [body]}


def test_extreme_fields_on_the_page(page):
    for path, base, field, wrap in trace_fields(page):
        for value in (*VALUES[::2], *HUGE[::3], "[1e308, 1e308]", "[" + "1" + "0" * 400 + "]", '"even"'):
            data = json.dumps(wrap(base | {field: "@"})).replace('"@"', value).encode()
            status, _, answer = page.ask(path, data)
            assert status in (200, 400, 410), (path, base, field, value[:40], status, answer)


ROUTES_OF_THE_PAGE = page_routes()
QUERIES = {path: names for path, (method, names) in ROUTES_OF_THE_PAGE.items() if method == "GET"}
BASE = {  # what makes a route read all of its fields
    "/api/ask": {"input": TEXT},
    "/api/talk": {"turns": [TEXT]},
    "/api/change": {"changes": []},
    "/api/tensor": {"name": "logits"},
    "/api/words": {"ids": "1"},
    "/api/near": {"name": "@embed.weight"},
    "/api/training": {"pause": True},
}


class Recorded(dict):
    """A body that notes which of its fields are read."""

    def __init__(self, body, read):
        super().__init__(body)
        self.read = read

    def get(self, key, default=None):
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


def test_the_fields_of_every_route_of_the_page_are_known(models, monkeypatch):
    """Those are attacked here and by `make torture`."""
    read = set()
    parse, get, contains = requests.parse_object, QueryParams.get, QueryParams.__contains__

    def note(key):
        read.add(key)
        return key

    monkeypatch.setattr(page_module, "parse_object", lambda data: Recorded(parse(data), read))
    monkeypatch.setattr(QueryParams, "get", lambda self, key, other=None: get(self, note(key), other))
    monkeypatch.setattr(QueryParams, "__contains__", lambda self, key: contains(self, note(key)))
    with serve_live(first := Session(models["write"], TEXT)) as live:
        for path, (method, names) in ROUTES_OF_THE_PAGE.items():
            read.clear()
            traces = {name: first.id for name in ("trace", "other") if name in names}
            fields = traces | BASE.get(path, {})
            body, query = (fields, {}) if method == "POST" else (None, fields)
            status, _, answer = live.ask(path.replace("{name}", "app.js"), body, **query)
            assert status in (200, 400), (path, answer)
            assert read == set(names), path


def test_extreme_queries_on_the_page(page):
    values = [json.loads(v) if v.startswith('"') else v for v in (*HUGE[:2], *VALUES) if "ud800" not in v]
    values += ["1:2", "2:1", ":", "0:0", "999999999:999999999", "../../etc/passwd", "a" * 3000, "%00", "2"]
    values += [*list(page.first.trace)[:2], "@embed.weight", "tokens", "rollout", "beams.2.x", "~x", "logits"]
    for path, names in QUERIES.items():
        base = {"trace": page.first.id, "other": page.first.id, "name": "logits"}
        for name, value in third(names, values):
            status, _, answer = page.ask(path, **base | {name: value})
            assert status in (200, 400, 410), (path, name, value[:40], status, answer)


def test_unknown_methods_and_paths(server, page):
    for path in (
        "/",
        "/nowhere",
        "/v1/nowhere",
        "/api/trace",
        "/api/nowhere",
        "/page/",
        "/models/",
        "/v1/models/%00",
    ):
        for at in (server, page):
            assert at.ask(path)[0] in (200, 404, 405)
            assert at.ask(path, b"{}")[0] in (200, 404, 405)
