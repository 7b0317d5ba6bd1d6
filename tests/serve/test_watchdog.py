"""An engine whose thread dies or hangs goes on with another, and /ready says whether engines work."""

import threading

import pytest

from helpers.looking import reader
from helpers.serving import own_records, serve_models
from regard.decode.generate import Sampling, generate
from regard.models import GPT, GPTConfig
from regard.serve import engine as engines
from regard.serve import registry as registries
from regard.serve.batch import Batch, EngineError
from regard.serve.engine import Engine
from regard.serve.registry import ServerLimits

GREEDY = Sampling(temperature=0, max_new_tokens=5)


class Outputs:
    """The outputs of a request."""

    def __init__(self, engine, prompt):
        self.all, self.over = [], threading.Event()
        engine.submit(prompt, GREEDY, self.receive)

    def receive(self, output):
        self.all.append(output)
        if not isinstance(output, int):
            self.over.set()

    def wait(self):
        assert self.over.wait(60)
        return self.all[:-1], self.all[-1]


def answer(model, prompt):
    return [row[0] for row in generate(model, [prompt], GREEDY)], "length"


@pytest.fixture(autouse=True)
def watched_often(monkeypatch):
    monkeypatch.setattr(engines, "WATCH_INTERVAL", 0.01)


def build():
    return GPT(GPTConfig(vocab=31, context=13, dim=24, depth=2, heads=2)).eval()


def test_thread_that_hangs_is_replaced(caplog):
    model, hangs, comes_back = build(), threading.Event(), threading.Event()
    want, true = answer(model, [1, 2]), model.step
    hung = []

    def step(*args):
        if not hangs.is_set():
            hangs.set()
            hung.append(threading.current_thread())
            assert comes_back.wait(60)
        return true(*args)

    model.step = step
    engine = Engine(model, places=2, step_timeout=600)
    with engine._changed:  # so that the thread finds all of them
        lost = [Outputs(engine, [1, 2]) for _ in range(2)]
        waits = Outputs(engine, [1, 2])  # for a place
    assert hangs.wait(60)
    engine._batch.step_began -= 600  # no other step takes as long, however busy the machine is
    for outputs in lost:
        assert isinstance(outputs.wait()[1], EngineError)
    assert waits.wait() == want
    assert (engine.running, engine.waiting, engine.restarts) == (0, 0, 1)
    comes_back.set()  # what the old thread still computes reaches nobody
    hung[0].join(60)
    assert not hung[0].is_alive()
    assert all(outputs.all[-1] is outputs.wait()[1] for outputs in lost)
    assert Outputs(engine, [1, 2]).wait() == want
    assert [record.message for record in own_records(caplog)] == [
        "the engine restarts: a step takes more than 600 s"
    ]
    engine.close()


def test_engine_with_a_hung_thread_can_be_closed(caplog):
    model, comes_back = build(), threading.Event()
    model.start = lambda *_: comes_back.wait(60)
    engine = Engine(model, step_timeout=0.5)
    outputs = Outputs(engine, [1])
    engine.close(finish=False)
    assert isinstance(outputs.wait()[1], EngineError)
    comes_back.set()


def test_thread_that_dies_is_replaced(caplog, monkeypatch):
    model, true = build(), Batch.step

    def dies(batch):
        monkeypatch.setattr(Batch, "step", true)
        raise SystemExit("somebody's\nmistake")  # no Exception

    monkeypatch.setattr(Batch, "step", dies)
    engine = Engine(model)
    ids, end = Outputs(engine, [1, 2]).wait()
    assert (ids, str(end)) == ([], "SystemExit: somebody's mistake")
    assert Outputs(engine, [1, 2]).wait() == answer(model, [1, 2])
    assert engine.restarts == 1
    assert [record.message for record in own_records(caplog)] == [
        "the engine restarts: SystemExit: somebody's mistake"
    ]
    engine.close()


def test_failure_without_running_requests_does_not_repeat(caplog, monkeypatch):
    """A step that fails for requests that are to be read fails once, not for ever."""
    model = build()
    engine = Engine(model)
    monkeypatch.setattr(Batch, "_select_prefills", lambda batch: 1 / 0)
    assert isinstance(Outputs(engine, [1]).wait()[1], EngineError)
    monkeypatch.undo()
    assert Outputs(engine, [1]).wait() == answer(model, [1])
    assert engine.restarts == 1
    engine.close()


def test_dropped_request_is_logged_in_one_line(caplog):
    model = build()
    engine, over = Engine(model), threading.Event()

    def fail(output):
        over.set()
        raise RuntimeError("the loop\nis closed")

    engine.submit([1], GREEDY, fail)
    assert over.wait(60)
    assert Outputs(engine, [1]).wait() == answer(model, [1])
    (record,) = own_records(caplog)
    assert "RuntimeError: the loop is closed" in record.getMessage()
    assert record.exc_info is None
    engine.close()


def test_readiness_passes_through_the_engines(monkeypatch):
    model, stuck, goes_on = reader("write", "gpt"), threading.Event(), threading.Event()
    other, true = reader("embed", "bert"), model.model.step

    def step(*args):
        stuck.set()
        assert goes_on.wait(60)
        return true(*args)

    with serve_models({"other": other, "writer": model}, ServerLimits(timeout=60)) as server:
        assert server.ask("/ready")[::2] == (200, b'{"status":"ok"}')
        model.model.step = step
        line = threading.Thread(
            target=server.ask, args=("/v1/completions", {"model": "writer", "prompt": "the"})
        )
        line.start()
        assert stuck.wait(60)
        with monkeypatch.context() as patch:
            patch.setattr(registries, "READY_TIMEOUT", 0.05)
            server.check_error(503, "writer", "/ready")
        assert server.ask("/health")[0] == 200
        goes_on.set()
        line.join(60)
        assert server.ask("/ready")[0] == 200
