"""Every route of `regard serve` with valid and invalid requests: no 500, and the event loop never stalls.

Bodies follow the OpenAPI document, or break it in one or two places; queries of the page's routes take names
of a real trace, or anything. After each attack the server still gives the same answer as before.
"""

import base64
import json
import random
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from helpers.hostile import ODD_VALUES, mutate
from helpers.page_routes import page_routes
from regard.serve.openapi import openapi_document
from torture.outcome import Context, Outcome, Suite
from torture.server import Server, make_models, post, request, send_raw

REQUESTS = 50  # of one attack
SUITE = Suite(count=0, short=3, seconds=300, batch=60, alone=True, limits={"stall ms": 100.0})
TOKENS = 7
LARGEST = 0.02  # share of requests that are as large as they may be, or larger, of which several come at once
AT_ONCE = 4
MOST_ITEMS = 400_000  # of such a request
API = openapi_document(TOKENS, False)["paths"]
# The page's routes: a method, and names of a query or a body. /api/ask is that of the API, and
# /api/training is there while a model is trained.
PAGE = {path: about for path, about in page_routes().items() if path not in (*API, "/api/training")}
PAGE["/nowhere"] = ("GET", ())
OPERATIONS = [*API, *PAGE, "raw"]
TEXTS = (
    "",
    "a",
    "abc, def.",
    "\n",
    "é中\U0001f600",
    "\ud800",
    "\0",
    "x" * 3000,
    "<|endoftext|>",
    "../../etc/passwd",
)
QUERIES = (
    *("0", "1", "-1", "999999999", "1e9", "", "0:3", "3:1", "0:999999999", ":", "a", "٣", "%00"),
    *("cosine", "uint8"),
)
VERBS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "get")
SERVERS: dict[str, Any] = {}  # of this process: the server, what a trace consists of, and an answer


def prepare(place: Path, is_short: bool) -> dict[str, Any]:
    make_models(place)
    return {"count": 1000 // REQUESTS * len(OPERATIONS)}


def start(place: Path) -> dict[str, Any]:
    server = Server([place / name for name in ("tiny", "embed", "see")], "--max-tokens", TOKENS)
    status, manifest = post(server.port, "/api/trace", {"input": "abc"})
    assert status == 200, manifest
    return {
        "server": server,
        "trace": manifest["id"],
        "names": list(manifest["tensors"]),
        "answer": answer(server),
    }


def answer(server: Server) -> Any:
    body = {"model": "tiny", "prompt": "abc, def", "max_tokens": 5, "temperature": 0}
    status, reply = post(server.port, "/v1/completions", body)
    return reply["choices"] if status == 200 else (status, reply)


def attack(context: Context, number: int) -> Outcome:
    if not SERVERS:
        SERVERS.update(start(context.place))
    server, rng = SERVERS["server"], random.Random(f"{context.seed} {number}")
    path = OPERATIONS[number % len(OPERATIONS)]
    server.reset_stalls()
    counts: dict[str, int] = {}
    for _ in range(REQUESTS):
        if is_largest := rng.random() < LARGEST:
            results = send_largest(rng, server.port, path)
        else:
            results = [send_one(rng, server.port, path)]
        for status, response in results:
            kind = "large" if is_largest else f"{status // 100}xx" if status else "closed"
            counts[kind] = counts.get(kind, 0) + 1
            if problem := complaint(path, status, response, server):
                SERVERS.clear()
                return Outcome("fault", f"{path}: {problem}"[:1500], counts=counts)
    if (now := answer(server)) != SERVERS["answer"]:
        return Outcome("fault", f"{path}: afterwards the server answers {now}", counts=counts)
    return Outcome("answered", peaks=server.peaks(), counts=counts)


def complaint(path: str, status: int, response: tuple[Any, bytes], server: Server) -> str:
    """What is wrong with a response, if anything."""
    sent, data = response
    if not server.is_alive():
        return f"the server died after {sent}: {server.log()[-800:]}"
    if status >= 500 and status != 503:
        return f"status {status} after {sent}: {data[:200]!r} {server.log()[-600:]}"
    if path.startswith("/v1/") and status >= 400 and sent[0] != "HEAD":
        try:
            if not json.loads(data)["error"]["message"]:
                return f"no message after {sent}"
        except (ValueError, KeyError, TypeError):
            return f"no JSON error after {sent}: {data[:200]!r}"
    return ""


def send_one(rng: random.Random, port: int, path: str) -> tuple[int, tuple[Any, bytes]]:
    """Send a request; return the status, and what was sent and came back."""
    if path == "raw":
        sent = raw_request(rng, port)
        data = send_raw(port, sent)
        first = data.split(b" ", 2)
        return (int(first[1]) if len(first) > 1 and first[1].isdigit() else 0), (("raw", sent[:300]), data)
    method, target, body, kind = make_request(rng, path)
    headers = {} if body is None else {"Content-Type": kind}
    try:
        status, data = request(port, method, target, body, headers)
    except (ValueError, UnicodeError) as e:  # what http.client refuses to send
        return 400, ((method, target[:100], str(e)), b'{"error": {"message": "not sent"}}')
    return status, ((method, target[:300], (body or b"")[:300]), data)


def send_largest(rng: random.Random, port: int, path: str) -> list[tuple[int, tuple[Any, bytes]]]:
    """Send the same large request several times at once, if the route takes a body."""
    if path in PAGE:
        method, names = PAGE[path]
        body: Any = {name: rng.choice(LARGE_VALUES)() if rng.random() < 0.5 else 1 for name in names}
    else:
        schema = request_schema(API[path]) if path in API else None
        method, body = "GET" if schema is None else "POST", schema and fill_largest(rng, schema, [MOST_ITEMS])
    if method == "GET":
        return [send_one(rng, port, path)]
    data, sent = json.dumps(body).encode(), ("POST", path, f"{len(json.dumps(body)):,} bytes")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        headers = {"Content-Type": "application/json"}
        replies = [threads.submit(request, port, "POST", path, data, headers, 120.0) for _ in range(AT_ONCE)]
        return [(status, (sent, reply)) for status, reply in (one.result() for one in replies)]


LARGE_VALUES: tuple[Callable[[], Any], ...] = (
    lambda: "é" * 99_999,
    lambda: [1] * 99_999,
    lambda: ["é" * 99_999] * 40,
    lambda: [{}] * 99_999,
    lambda: {f"{n:x}": n for n in range(99_999)},
    lambda: "\n" * 4_000_000,
    lambda: [[[]] * 9_999] * 9,
)


def fill_largest(rng: random.Random, schema: Any, left: list[int], name: str = "") -> Any:
    """A value of the largest size that fits a schema, in all of a request up to so many items."""
    if name == "model":
        return rng.choice(("tiny", "embed", "see"))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return fill_largest(rng, rng.choice(options), left)
    kind = schema.get("type", "null")
    if "enum" in schema or kind not in ("object", "array", "string"):
        return fill(rng, schema, 0.0)
    if kind == "string":
        size = min(schema.get("maxLength", 100), 100_000, max(0, left[0]))
        left[0] -= size // 100 + 1
        return rng.choice(("a", "é", "{", '"', "1,"))[:1] * size
    if kind == "array":
        items: list[Any] = []
        while len(items) < schema.get("maxItems", 99) and left[0] > 0:
            left[0] -= 1
            items.append(fill_largest(rng, schema.get("items", {}), left))
        return items or [fill(rng, schema.get("items", {}), 0.0)]
    required, properties = schema.get("required", []), schema.get("properties", {})
    names = [n for n in properties if n in required or (left[0] > 0 and rng.random() < 0.2)]
    if not properties:  # any keys
        return LARGE_VALUES[4]()
    return {n: fill_largest(rng, properties[n], left, n) for n in names}


def request_schema(path: Any) -> Any:
    """The schema of the JSON that a path of the OpenAPI document takes, if it takes any."""
    ((_, about),) = path.items()
    return about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")


def make_request(rng: random.Random, path: str) -> tuple[str, str, bytes | None, str]:
    kind = (
        "application/json"
        if rng.random() < 0.95
        else rng.choice(("text/plain", "image/png", "", "application/xml"))
    )
    if path in PAGE:
        method, names = PAGE[path]
        target = path.replace(
            "{name}", rng.choice(("app.js", "style.css", "..%2f..%2fapp.py", quote(rng.choice(TEXTS[:5]))))
        )
        values = {name: page_value(rng, name, method) for name in names if rng.random() < 0.8}
        if method == "GET":
            query = "&".join(
                f"{name}={quote(str(value), errors='replace')}" for name, value in values.items()
            )
            target, body = f"{target}?{query}", None
        else:
            body = encode(rng, values)
    else:
        (method,) = map(str.upper, API[path])
        target = path.replace(
            "{model}", rng.choice(("tiny", "embed", quote(rng.choice(TEXTS), errors="replace")))
        )
        schema = request_schema(API[path])
        body = None if schema is None else encode(rng, fill(rng, schema, 0.0 if rng.random() < 0.5 else 0.15))
    if rng.random() < 0.03:
        method = rng.choice(VERBS)
    return method, target, body, kind


def encode(rng: random.Random, value: Any) -> bytes:
    data = json.dumps(value).encode()
    return mutate(rng, data) if rng.random() < 0.1 else data


def page_value(rng: random.Random, name: str, method: str) -> Any:
    known: dict[str, Any] = {
        "trace": SERVERS["trace"],
        "other": SERVERS["trace"],
        "name": rng.choice(SERVERS["names"]),
    }
    if name in known and rng.random() < 0.85:
        return known[name]
    if method == "GET":
        return rng.choice((*QUERIES, *TEXTS, str(rng.randrange(12))))
    if name == "changes" and rng.random() < 0.9:
        return [change(rng) for _ in range(rng.choice((0, 1, 1, 2, 30)))]
    if name == "picture" and rng.random() < 0.5:
        return base64.b64encode(picture(rng)).decode()
    return rng.choice((*TEXTS[:4], *ODD_VALUES, "abc", None, [0], [0, 1], 0, 1))


def change(rng: random.Random) -> dict[str, Any]:
    keys = (
        "kind",
        "name",
        "input",
        "head",
        "layer",
        "row",
        "column",
        "value",
        "scale",
        "token",
        "rows",
        "columns",
    )
    values = (*ODD_VALUES, *SERVERS["names"][:9], "zero", "ablate", "replace", "mean", 0, 1, 0.5, "abc")
    return {key: rng.choice(values) for key in keys if rng.random() < 0.4}


def picture(rng: random.Random) -> bytes:
    """Something like a PNG file."""
    header = b"\x89PNG\r\n\x1a\n" + struct.pack(
        ">I4sIIBBBBB", 13, b"IHDR", rng.choice((1, 6, 9999, 2**31)), 6, 8, 2, 0, 0, 0
    )
    return mutate(rng, header + rng.randbytes(rng.choice((0, 9, 999))))


def fill(rng: random.Random, schema: Any, wrong: float, name: str = "") -> Any:
    """A value that fits a schema, or with some probability, at each place, one that may not."""
    if rng.random() < wrong:
        return rng.choice((*ODD_VALUES, *TEXTS))
    if name == "model" and rng.random() < 0.9:
        return rng.choice(("tiny", "embed", "see"))
    if "anyOf" in schema or "oneOf" in schema:
        return fill(rng, rng.choice(schema.get("anyOf") or schema["oneOf"]), wrong)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kinds = schema.get("type", "null")
    kind = rng.choice(kinds) if isinstance(kinds, list) else kinds
    if kind == "object":
        return fill_object(rng, schema, wrong)
    if kind == "array":
        low, high = schema.get("minItems", 0), min(schema.get("maxItems", 4), 4)
        return [fill(rng, schema.get("items", {}), wrong) for _ in range(rng.randint(low, max(low, high)))]
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", -3), schema.get("maximum", schema.get("minimum", -3) + 9)
        return rng.randint(int(low), int(high)) if kind == "integer" else rng.uniform(low, high)
    return {"string": rng.choice(TEXTS[:5]), "boolean": rng.random() < 0.5, "null": None}[kind]


def fill_object(rng: random.Random, schema: Any, wrong: float) -> dict[str, Any]:
    required = schema.get("required", [])
    names = [n for n in schema.get("properties", {}) if rng.random() < (0.97 if n in required else 0.25)]
    value = {name: fill(rng, schema["properties"][name], wrong, name) for name in names}
    if rng.random() < wrong:
        value[rng.choice(("mine", "", "__proto__"))] = 1
    return value


def raw_request(rng: random.Random, port: int) -> bytes:
    """Bytes that are almost HTTP."""
    body = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    lengths = (len(body), len(body) + 3, 0, -1, 10**20, "x", f"{len(body)}, {len(body)}", "+5")
    head += (
        f"Content-Length: {rng.choice(lengths)}\r\n"
        if rng.random() < 0.8
        else "Transfer-Encoding: chunked\r\n"
    )
    head += rng.choice(
        (
            "",
            "",
            "Transfer-Encoding: chunked\r\n",
            "X: " + "y" * 70_000 + "\r\n",
            " folded\r\n",
            "Expect: 100-continue\r\n",
        )
    )
    data = head.encode() + b"Connection: close\r\n\r\n" + body
    return mutate(rng, data) if rng.random() < 0.6 else data * rng.choice((1, 1, 3))
