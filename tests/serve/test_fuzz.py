"""No request gets a 500: malformed JSON on every route, extreme values in every field and every query."""

import json
from itertools import product

import pytest

from helpers.looking import every_task, noise
from helpers.serving import ModelServer, serve_models, serve_session
from regard.serve import schema
from regard.serve.page import PageRoutes
from regard.serve.registry import ServerLimits
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


@pytest.mark.parametrize("path", ["/api/trace", "/api/ask", "/api/change"])
def test_malformed_json_on_the_page(page, path):
    check_malformed(page, path)


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
    for field in ("input", "answer", "layers", "picture", "checkpoint", "model", "trace", "surprise"):
        yield "/api/trace", {}, field, lambda body: body
    for field in ("input", "checkpoint"):
        yield "/api/ask", {"input": TEXT}, field, lambda body: body
    for field in ("trace", "row", "changes"):
        yield "/api/change", {"trace": page.first.id, "changes": [silence]}, field, lambda body: body
    for one in (change, silence, weights, hide):
        for field in (*one, "picture"):
            yield "/api/change", one, field, lambda body: {"trace": page.first.id, "changes": [body]}


def test_extreme_fields_on_the_page(page):
    for path, base, field, wrap in trace_fields(page):
        for value in (*VALUES[::2], *HUGE[::3], "[1e308, 1e308]", "[" + "1" + "0" * 400 + "]", '"even"'):
            data = json.dumps(wrap(base | {field: "@"})).replace('"@"', value).encode()
            status, _, answer = page.ask(path, data)
            assert status in (200, 400, 410), (path, base, field, value[:40], status, answer)


QUERIES = {
    "/": (),
    "/page/{name}": (),
    "/api/tensor": ("trace", "name", "head", "rows", "columns", "most", "as"),
    "/api/words": ("trace", "ids"),
    "/api/tree": ("trace", "beams"),
    "/api/lens": ("trace", "row"),
    "/api/attribution": ("trace", "row", "token"),
    "/api/heads": ("trace",),
    "/api/models": (),
    "/api/space": ("trace", "name"),
    "/api/near": ("trace", "name", "row", "text", "distance"),
    "/api/effects": ("trace",),
    "/api/versus": ("trace", "other", "row", "other_row"),
    "/api/log": ("trace",),
    "/api/progress": ("trace",),
    "/api/page": ("trace",),
}


def test_extreme_queries_on_the_page(page):
    values = [json.loads(v) if v.startswith('"') else v for v in (*HUGE[:2], *VALUES) if "ud800" not in v]
    values += ["1:2", "2:1", ":", "0:0", "999999999:999999999", "../../etc/passwd", "a" * 3000, "%00", "2"]
    values += [*list(page.first.trace)[:2], "@embed.weight", "tokens", "rollout", "beams.2.x", "~x", "logits"]
    routes = PageRoutes(page.first.model, page.first).routes()
    assert {route.path for route in routes if "GET" in route.methods} == QUERIES.keys()
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
