"""SECURITY.md and docs/serving.md state the limits that the code has, and name tests that exist."""

import re
from pathlib import Path

from regard.decode import grammar
from regard.serve import connections, log, page, registry, requests, sessions
from regard.serve.connections import ConnectionLimits
from regard.serve.places import MAX_PLACES, PLACES
from regard.serve.registry import ServerLimits
from regard.text import chat_template
from regard.tracing import limits

ROOT = Path(__file__).parents[2]
KIB, MIB, GIB = 2**10, 2**20, 2**30
LIMITS = {  # the beginning of a row, and the numbers in its second column
    "connections": [ConnectionLimits.connections],
    "bytes of the request line": [ConnectionLimits.header_bytes // KIB],
    "seconds until the headers": [ConnectionLimits.header_seconds],
    "seconds between": [ConnectionLimits.idle_seconds],
    "bytes of a body": [ServerLimits.body // MIB],
    "seconds until a body": [ServerLimits.body_seconds],
    "bytes of all bodies": [ServerLimits.body_memory // MIB],
    "values": [requests.MAX_VALUES],
    "seconds for a client to read": [ConnectionLimits.send_seconds, connections.MIN_RATE // KIB],
    "requests to the API": [PLACES, ServerLimits.queue, MAX_PLACES],
    "requests of the page": [ServerLimits.page_places, ServerLimits.page_queue],
    "seconds for a whole answer": [ServerLimits.timeout],
    "characters of a schema": [
        grammar.MAX_GRAMMAR,
        grammar.SECONDS,
        grammar.MEMORY // GIB,
        grammar.MAX_ROW_SECONDS,
    ],
    "pixels": [requests.MAX_PIXELS],
    "pictures decoded": [registry.WORKERS, page.HEAVY],
    "bytes of a tensor": [page.MAX_TENSOR_BYTES // MIB],
    "traces": [sessions.MAX_SESSIONS, sessions.MAX_SESSION_BYTES // GIB],
    "numbers of one trace": [limits.MAX_NUMBERS, 4 * limits.MAX_NUMBERS // GIB],
    "lines of the log": [log.MAX_LINES],
}


def rows(file, title):
    """The cells of the table below a title."""
    table = (ROOT / file).read_text("utf-8").split(f"{title}\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def numbers(text):
    return [
        float(number.replace(",", ""))
        for number in re.findall(r"\d[\d,]*", text.replace("64 KiB of each", ""))
    ]


def test_limits_are_those_of_the_code():
    found = rows("SECURITY.md", "### Limits")
    assert len(found) == len(LIMITS)
    for (what, default, *_), (begins, want) in zip(found, LIMITS.items(), strict=True):
        assert what.startswith(begins)
        assert numbers(default) == want, what
    serving = {row[0]: numbers(row[1]) for row in rows("docs/serving.md", "## Limits")}
    for begins, want in (
        ("answers generated", [PLACES, MAX_PLACES, ServerLimits.queue]),
        ("requests of the page", LIMITS["requests of the page"]),
        ("tokens of an answer", [ServerLimits.tokens]),
        ("seconds for a whole answer", [ServerLimits.timeout]),
        ("bytes of a request", [ServerLimits.body // MIB, ServerLimits.body_seconds]),
        ("bytes of all large requests", LIMITS["bytes of all bodies"]),
        ("pixels", LIMITS["pixels"]),
    ):
        assert [value for what, value in serving.items() if what.startswith(begins)] == [want]


def test_limits_of_templates_are_those_of_the_code():
    seconds, megabytes = chat_template.SECONDS, chat_template.MEMORY // MIB
    stated = f"{seconds:g} s of processor time for a conversation and {megabytes} MiB"
    assert stated in (ROOT / "SECURITY.md").read_text("utf-8")


def test_named_tests_exist():
    names = set(re.findall(r"`(?:tests/(\w+)/)?(test_\w+\.py)`", (ROOT / "SECURITY.md").read_text("utf-8")))
    assert len(names) > 8
    for folder, name in names:
        assert (ROOT / "tests" / (folder or "serve") / name).is_file()
