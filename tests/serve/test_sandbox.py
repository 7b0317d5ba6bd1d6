"""Chat templates and unusual tokenizers run outside of the event loop, and exceed no limit."""

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch

from helpers.looking import reader
from helpers.serving import ModelServer, serve_models
from helpers.waiting import wait_until
from regard.text import chat_template
from regard.text.chat_template import Template

TEMPLATE = (
    "{% for m in messages %}{{ m.content }} {% endfor %}"
    "{% if messages|length > 1 %}{{ 9 ** (9 ** (messages|length + 7)) }}{% endif %}"
)
CHAT = {"messages": [{"role": "user", "content": "the quick fox"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    torch.manual_seed(0)
    talker = reader("write", "gpt")
    talker.task.use_template(Template(TEMPLATE, where="w"))
    with serve_models({"talker": talker, "writer": reader("write", "gpt")}) as server:
        yield server


class Gate:
    """Calls of a function wait here until the gate is opened; with `late`, none did in time."""

    def __init__(self, inner):
        self.inner, self.entered, self.opened, self.late = inner, threading.Event(), threading.Event(), False

    def __call__(self, *args, **options):
        self.entered.set()
        self.late |= not self.opened.wait(60)
        return self.inner(*args, **options)


def check_others_are_served(server: ModelServer, gate: Gate, path: str, body: dict) -> None:
    answers = []
    client = threading.Thread(target=lambda: answers.append(server.ask(path, body)))
    client.start()
    assert gate.entered.wait(60)
    assert server.ask("/health")[0] == 200
    gate.opened.set()
    client.join()
    assert not gate.late
    assert answers[0][0] == 200, answers


def test_others_are_served_while_a_template_renders(server, monkeypatch):
    template = server.registry.models["talker"].model.task.template
    gate = Gate(template.render)
    monkeypatch.setattr(template, "render", gate)
    check_others_are_served(server, gate, "/v1/chat/completions", CHAT | {"model": "talker"})


@pytest.mark.parametrize("path", ["/v1/completions", "/api/ask"])
def test_others_are_served_while_a_tokenizer_runs(server, monkeypatch, path):
    tokenizer = server.registry.models["writer"].model.tokenizer
    gate = Gate(lambda texts, **_: [(ids, None) for ids in encoded[0 : len(texts)]])
    encoded = tokenizer.encode_batch(["the quick fox"])
    monkeypatch.setattr(tokenizer, "sandbox", type("Sandbox", (), {"encode": staticmethod(gate)}))
    body = {"prompt": "the quick fox", "max_tokens": 2} if "v1" in path else {"input": "the quick fox"}
    check_others_are_served(server, gate, path, body | {"model": "writer"})


def test_the_call_ends_when_its_client_leaves(server, monkeypatch):
    """Long before its own limit, also if the child does not react."""
    monkeypatch.setattr(chat_template, "SECONDS", 9.0)
    registry = server.registry
    sandbox = registry.models["talker"].model.task.template._sandbox
    child = sandbox.process
    os.kill(child.pid, signal.SIGSTOP)
    client = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps(CHAT | {"model": "talker"})
    client.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    wait_until(sandbox.lock.locked)  # the call has begun
    client.close()
    wait_until(lambda: registry.sandbox_work.running == 0)
    assert child.returncode is not None
    monkeypatch.undo()
    assert server.ask("/v1/chat/completions", CHAT | {"model": "talker"})[0] == 200


def test_a_template_that_takes_too_long(server, monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)
    long = CHAT | {"model": "talker", "messages": CHAT["messages"] * 3}
    status, _, data = server.ask("/v1/chat/completions", long)
    assert status == 400
    assert "w: the chat template takes more than 0.2 s" in json.loads(data)["error"]["message"]
    assert server.ask("/v1/chat/completions", CHAT | {"model": "talker"})[0] == 200
