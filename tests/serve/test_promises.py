"""SECURITY.md and docs/serving.md state the limits that the code has, and name tests that exist."""

import re
from pathlib import Path

import pytest

from helpers.looking import reader
from helpers.serving import serve_models
from regard.data import files, sounds
from regard.data.encoding import DataConfig
from regard.decode import grammar
from regard.serve import (
    admission,
    connections,
    log,
    loop,
    page,
    registry,
    requests,
    schema,
    server,
    sessions,
    threads,
    workers,
)
from regard.serve.connections import ConnectionLimits
from regard.serve.places import MAX_PLACES, PLACES
from regard.serve.registry import ServerLimits
from regard.text import chat_template, tokenizer_limits, tokenizer_sandbox
from regard.tracing import limits
from regard.training import compilation, guard, objective
from regard.training.config import WARMUP_SHARE
from regard.training.plan.rules import DEFAULT_MINUTES
from regard.vision import decoding

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
    "values": [requests.MAX_VALUES, requests.MAX_KEYS],
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
    "pixels": [requests.MAX_PIXELS, decoding.MAX_SIDE],
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
    documented = rows("SECURITY.md", "### Limits")
    assert len(documented) == len(LIMITS)
    for (what, default, *_), (begins, want) in zip(documented, LIMITS.items(), strict=True):
        assert what.startswith(begins)
        assert numbers(default) == want, what
    serving = {row[0]: numbers(row[1]) for row in rows("docs/serving.md", "## Limits")}
    known = [
        ("answers generated", [PLACES, MAX_PLACES, ServerLimits.queue]),
        ("requests of the page", LIMITS["requests of the page"]),
        ("tokens of an answer", [ServerLimits.tokens]),
        ("seconds for a whole answer", [ServerLimits.timeout]),
        ("bytes of a request", [ServerLimits.body // MIB, ServerLimits.body_seconds]),
        ("bytes of all large requests", LIMITS["bytes of all bodies"]),
        ("pixels", LIMITS["pixels"]),
        ("length of a recording", [sounds.MAX_SECONDS]),
        ("answers in a request", [schema.MAX_CHOICES]),
        (
            "texts to embed",
            [schema.MAX_EMBEDDINGS, schema.MAX_STOPS, schema.MAX_TOP_LOGPROBS, schema.MAX_TOOLS],
        ),
        ("log-probabilities", [schema.MAX_LOGPROBS]),
        ("characters of a text", [schema.MAX_TEXT, schema.MAX_MESSAGES]),
        ("characters of a schema", [schema.MAX_SCHEMA]),
    ]
    for begins, want in known:
        assert [value for what, value in serving.items() if what.startswith(begins)] == [want]
    assert len(serving) == len(known) + 1  # the tokens of a prompt are those of the model


NUMBERS = {"half": 0.5, "quarter": 0.25, "eighth": 0.125, "tenth": 0.1}
NUMBERS |= {name: n for n, name in enumerate(["one", "two", "three", "four", "five", "six"], 1)}
SECONDS, MEMORY = f"{chat_template.SECONDS:g} s", f"{chat_template.MEMORY // MIB} MiB"
SENTENCES = {  # what a page says, with the numbers of the code
    "SECURITY.md": [
        f"{SECONDS} of processor time for a conversation and {MEMORY}",
        f"beyond the first {admission.SMALL_BODY // KIB} KiB of each",
    ],
    "docs/serving.md": [
        f"http://127.0.0.1:{server.PORT}/, for this machine only",
        f"if {server.PORT} is in use",
        f"at the latest {server.DRAIN} seconds after `--timeout`",
        f"from -10^15 to 10^15{'' if grammar.MAX_NUMBER == 10**15 else '?'}",
        f"It has up to {grammar.MAX_GRAMMAR:,} characters",
        f"a child process with {grammar.SECONDS:g} s of processor time and {grammar.MEMORY // GIB} GiB",
        f"all steps of an answer together {grammar.MAX_ROW_SECONDS:g} s of processor time",
        f"more than half a millisecond{'' if threads.MIN_REST == 0.0005 else '?'}",
        f"({threads.MAX_REST * 1000:g} ms at most)",
        f"up to {loop.MAX_PAUSE:g} s at a time",
        f"503 if one does not answer within {registry.READY_TIMEOUT:g} seconds",
        f"older than {server.KEPT_SECONDS:g} seconds",
        f"for half a minute{'' if workers.PING * workers.MAX_MISSED == 30 else '?'}",
        f"{SECONDS} of processor time and {MEMORY} of memory",
        f"{tokenizer_sandbox.SECONDS:g} s and {tokenizer_sandbox.CHARACTER_SECONDS * 1e6:g} µs more for each",
        f"up to {tokenizer_sandbox.MAX_SECONDS:g} s",
        f"{tokenizer_sandbox.MEMORY // GIB} GiB and {tokenizer_sandbox.MEMORY_FACTOR} times the file's size",
        f"more than {tokenizer_limits.MAX_GROWTH:,} times as long",
        f"tokens of more than {tokenizer_limits.MAX_TOKEN:,} characters",
    ],
    "docs/training.md": [
        f"{files.SMALL // MIB} MiB, if that is more",
        f"temperature {objective.TEMPERATURE:g}",
        f"up to {compilation.GRAPHED // 10**6} M parameters",
    ],
}
WORDS = {  # what a page says, with a number as a word, and the number of the code
    "docs/serving.md": [(r"later after (\w+) tries", workers.MAX_FAILURES)],
    "docs/training.md": [
        (r"up to a (hundred) times their size", files.MAX_EXPANSION),
        (r"Otherwise a (\w+) is held out", DataConfig.holdout),
        (r"Warm-up takes at most a (\w+) of a run", WARMUP_SHARE),
        (r"\(`--minutes`, by default (\w+)\)", DEFAULT_MINUTES),
        (r"with (\w+) \(a quarter\) of the rate", guard.FROM_CHECKPOINT),
        (r"with half \(a (\w+)\) of the rate", guard.FROM_START),
        (r"at most (\w+) times \|", guard.MAX_ROLLBACKS),
        (r"with an (\w+) of the rate, twice", guard.RESTARTED),
        (r"after a (\w+) of the run, the loss is still", guard.BUDGET),
        (r"or (\w+) of what was gained is lost", guard.LOST),
        (r"by a (\w+) at once", guard.MEMORISES[0][0]),
        (r"by a (\w+) twice", guard.MEMORISES[1][0]),
    ],
}


@pytest.mark.parametrize("file", SENTENCES)
def test_sentences_have_the_numbers_of_the_code(file):
    text = " ".join((ROOT / file).read_text("utf-8").split())
    assert [sentence for sentence in SENTENCES[file] if sentence not in text] == []
    for pattern, number in WORDS.get(file, ()):
        (word,) = re.findall(pattern, text)
        assert {**NUMBERS, "hundred": 100}[word] == number, pattern


def test_metrics_are_those_of_the_server():
    section = (ROOT / "docs/serving.md").read_text("utf-8").split("## Metrics\n")[1].split("\n## ")[0]
    stated = set(re.findall(r"`(regard_\w+)", section))
    with serve_models({"writer": reader("write", "gpt")}) as server:
        assert server.ask("/v1/completions", {"prompt": "the", "max_tokens": 1})[0] == 200
        metrics = server.ask("/metrics")[2].decode()
    assert stated == set(re.findall(r"# TYPE (\w+) ", metrics))


def test_named_tests_exist():
    names = set(re.findall(r"`(?:tests/(\w+)/)?(test_\w+\.py)`", (ROOT / "SECURITY.md").read_text("utf-8")))
    assert len(names) > 8
    for folder, name in names:
        assert (ROOT / "tests" / (folder or "serve") / name).is_file()
