"""Work ends when its client leaves or its time is up, and only then its place is free."""

import asyncio
import base64
import io
import json
import socket
import threading
from contextlib import contextmanager

import pytest
from PIL import Image

from helpers.looking import captioner, noise, reader, seer
from helpers.serving import Clock, own_records, serve_models, serve_session
from helpers.waiting import wait_until
from regard.cancel import CancellableLock, Cancelled, cancelled_by, check_cancelled, make_cancellable
from regard.serve import endpoint
from regard.serve.registry import ServerLimits
from regard.serve.threads import WorkerThreads
from regard.viewer.session import Session

WORDS = "the quick brown fox"


def picture(side):
    file = io.BytesIO()
    Image.fromarray(noise(side).permute(1, 2, 0).numpy()).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


class Gate:
    """Holds up the calls of a model's modules, once it is closed."""

    def __init__(self, model):
        self.entered, self.open, self.calls = threading.Event(), threading.Event(), 0
        self.open.set()
        for module in model.model.modules():
            module.register_forward_pre_hook(self.wait)

    def close(self):
        self.open.clear()
        self.entered.clear()
        self.calls = 0

    def wait(self, *_):
        self.calls += 1
        self.entered.set()
        assert self.open.wait(60)

    def __deepcopy__(self, memo):
        return self


def send(server, path, body=None):
    """A connection on which something was requested."""
    line = socket.create_connection(("127.0.0.1", server.port))
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    line.sendall(head.encode() + data)
    return line


def translator():
    return reader("translate", "transformer")


WORK = {  # beams, rankings, scores, embeddings, captions
    "beams": (translator, "/v1/completions", {"prompt": WORDS, "num_beams": 3}),
    "beams as a stream": (translator, "/v1/completions", {"prompt": WORDS, "num_beams": 3, "stream": True}),
    "beams asked": (translator, "/api/ask", {"input": [WORDS, "the dog"], "num_beams": 3}),
    "beams of a writer": (
        lambda: reader("write", "gpt"),
        "/v1/completions",
        {"prompt": WORDS, "num_beams": 2},
    ),
    "embeddings": (lambda: reader("embed", "bert"), "/v1/embeddings", {"input": [WORDS] * 9}),
    "ranking": (lambda: reader("fill", "bert"), "/api/ask", {"input": "the [MASK] fox"}),
    "scores": (lambda: reader("classify", "bert", task_labels=("a", "b")), "/api/ask", {"input": WORDS}),
    "tags": (lambda: reader("tag", "bert", task_labels=("O", "B-X")), "/api/ask", {"input": WORDS}),
    "recurrent": (lambda: reader("translate", "lstm"), "/api/ask", {"input": WORDS, "num_beams": 2}),
    "image": (seer, "/api/ask", {"picture": picture(6)}),
    "caption": (captioner, "/api/ask", {"picture": picture(12), "num_beams": 3}),
}


@pytest.mark.parametrize(
    ("name", "leaves"), [*((name, True) for name in WORK), ("beams", False), ("embeddings", False)]
)
def test_work_in_a_thread_ends(name, leaves, monkeypatch):
    build, path, body = WORK[name]
    model, clock = build(), Clock(monkeypatch)
    gate = Gate(model)
    with serve_models({"one": model}) as server:
        registry = server.registry
        assert server.ask(path, body)[0] == 200
        gate.close()
        line = send(server, path, body)
        assert gate.entered.wait(60)
        if leaves:
            line.close()
            wait_until(lambda: registry.metrics.clients_gone == 1)
        else:
            clock.turn_forward(ServerLimits.timeout)
            assert b" 408 " in line.recv(99)
            line.close()
        assert registry.long_work.running == 1  # nobody else gets the place
        gate.open.set()
        wait_until(lambda: registry.long_work.running == 0)
        assert gate.calls == 1


PAGE = {
    "trace": ("/api/trace", {"input": WORDS}),
    "ask": ("/api/ask", {"input": WORDS}),
    "tree": ("/api/tree?trace={id}&beams=2", None),
    "effects": ("/api/effects?trace={id}", None),
    "change": ("/api/change", {"trace": "{id}", "changes": []}),
}


@contextmanager
def page(model, looks):
    """The page of `regard look`, or of `regard serve`."""
    if looks:
        with serve_session(Session(model, WORDS)) as server:
            yield server
    else:
        with serve_models({"one": model}) as server:
            yield server


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "look") for name in PAGE), ("trace", "serve"), ("trace", "timeout")],
)
def test_work_of_the_page_ends(name, how, monkeypatch):
    model, left = translator(), threading.Event()
    gate, clock, true = Gate(model), Clock(monkeypatch), endpoint.wait_for_disconnect

    async def wait_for_disconnect(receive):
        await true(receive)
        left.set()

    with page(model, how == "look") as server:
        id = json.loads(server.ask("/api/trace", {})[2])["id"]
        gate.close()
        left.clear()
        monkeypatch.setattr(endpoint, "wait_for_disconnect", wait_for_disconnect)
        path, body = PAGE[name]
        body = body and {k: v.replace("{id}", id) if isinstance(v, str) else v for k, v in body.items()}
        line = send(server, path.replace("{id}", id), body)
        assert gate.entered.wait(60)
        waiting = send(server, f"/api/effects?trace={id}")  # for the same lock
        if how == "timeout":
            assert server.ask("/health")[0] == 200  # after both have begun to wait
            clock.turn_forward(ServerLimits.timeout)
            assert b" 408 " in waiting.recv(99)
            gate.open.set()
            assert b" 408 " in line.recv(99)
            line.close()
        else:
            line.close()
            assert left.wait(60)
            gate.open.set()
            assert b" 200 " in waiting.recv(99)
        waiting.close()
        assert server.ask("/api/trace", {"input": "the dog"})[0] == 200  # the lock is free


# The parts


def test_check_cancelled():
    event, model = threading.Event(), reader("write", "gpt")
    make_cancellable(model.model)
    check_cancelled()
    with cancelled_by(event):
        answer = model.ask(WORDS)
        event.set()
        with pytest.raises(Cancelled):
            check_cancelled()
        with pytest.raises(Cancelled):
            model.ask(WORDS)
        with pytest.raises(Cancelled), CancellableLock():
            pass
    assert model.ask(WORDS) == answer


def test_work_that_hangs_gives_its_place_back_after_a_while(caplog):
    async def main():
        threads, stuck = WorkerThreads(1, patience=0.01), threading.Event()
        task = asyncio.create_task(threads.run(lambda: stuck.wait(60)))
        while not threads.running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(threads.run(lambda: 7), 60) == 7
        stuck.set()
        with pytest.raises(KeyError):
            await threads.run(lambda: {}[1])
        assert await threads.run(lambda: threads.running) == 1  # the hung one is not counted twice
        assert threads.running == 0

    asyncio.run(main())
    (record,) = own_records(caplog)
    assert "0.01 s" in record.message


def test_work_cancelled_before_its_turn_never_runs():
    async def main():
        threads, held, ran = WorkerThreads(1, patience=30), threading.Event(), []
        first = asyncio.create_task(threads.run(lambda: held.wait(60)))
        second = asyncio.create_task(threads.run(lambda: ran.append(1)))
        await asyncio.sleep(0.01)
        second.cancel()
        held.set()
        assert await first is True
        assert second.cancelled()
        assert ran == []

    asyncio.run(main())
