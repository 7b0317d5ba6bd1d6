"""An operation of the page hangs: it and those who wait get 503, and the page goes on with fresh modules."""

import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from helpers.looking import reader
from helpers.serving import serve_models, serve_session
from helpers.waiting import wait_until
from regard import cancel
from regard.cancel import CancellableLock, Cancelled, check_cancelled
from regard.serve import threads
from regard.serve.lazy_page import LazyPage
from regard.serve.registry import ServerLimits
from regard.viewer.session import Session

WORDS = "the quick brown fox"


class Hang:
    """Hangs in one call of a module after it is armed; it is not noticed before `lasts`."""

    def __init__(self, model):
        self.armed, self.entered, self.comes_back = (threading.Event() for _ in range(3))
        self.threads, self.lock = [], None
        model.model.register_forward_pre_hook(self.wait)

    def wait(self, *_):
        if self.armed.is_set():
            self.armed.clear()
            self.threads.append(threading.current_thread())
            self.lock = cancel._lock.get()
            self.entered.set()
            assert self.comes_back.wait(60)

    def lasts(self):
        """As if it had hung for hours: no limit is so short that other work could exceed it."""
        self.lock.last_progress = -math.inf

    def __deepcopy__(self, memo):
        return self


@contextmanager
def serve(model, how):
    if how == "look":
        with serve_session(Session(model, WORDS)) as server:
            yield server
    else:
        with serve_models({"one": model}) as server:
            yield server


@pytest.fixture(autouse=True)
def watched_often(monkeypatch):
    monkeypatch.setattr(threads, "WATCH_INTERVAL", 0.01)


def trace(server, **body):
    status, _, data = server.ask("/api/trace", body)
    assert status == 200, data
    return json.loads(data)["id"]


@pytest.mark.parametrize("how", ["look", "serve"])
def test_the_page_goes_on(how, caplog, monkeypatch):
    model, calls, enter = reader("write", "gpt"), [], CancellableLock.__enter__
    monkeypatch.setattr(CancellableLock, "__enter__", lambda lock: calls.append(lock) or enter(lock))
    hang = Hang(model)
    with serve(model, how) as server, ThreadPoolExecutor() as clients:
        id = trace(server)
        hang.armed.set()
        hung = clients.submit(server.ask, "/api/trace", {"input": "the dog"})
        assert hang.entered.wait(60)
        waits = [clients.submit(server.ask, "/api/effects", trace=id) for _ in range(3)]
        wait_until(lambda: calls.count(hang.lock) == 5)  # the first trace and the hung one came before
        hang.lasts()
        assert {reply.result(60)[0] for reply in waits} == {503}
        status, headers, data = hung.result(60)
        assert (status, headers["Retry-After"]) == (503, "1")
        assert b"reload" in data
        server.check_error(410, "reload", "/api/effects", trace=id)
        assert trace(server) != id
        assert server.ask("/api/effects", trace=trace(server, input="the dog"))[0] == 200
        hang.comes_back.set()  # the old thread ends at its next call of a module
        hang.threads[0].join(60)
        assert not hang.threads[0].is_alive()
        trace(server, input="a fox")
    (record,) = [record for record in caplog.records if record.name == threads.__name__]
    assert f"{ServerLimits.timeout:g} s" in record.message


def test_a_page_that_hangs_while_it_is_built(monkeypatch):
    model, calls, wait = reader("write", "gpt"), [], LazyPage.wait_for_router
    monkeypatch.setattr(LazyPage, "wait_for_router", lambda page: calls.append(page) or wait(page))
    hang = Hang(model)
    hang.armed.set()
    with serve_models({"one": model}) as server, ThreadPoolExecutor() as clients:
        replies = [clients.submit(server.ask, "/") for _ in range(3)]
        wait_until(lambda: len(calls) == 3 and hang.entered.is_set())
        hang.lasts()
        assert [reply.result(60)[0] for reply in replies] == [503] * 3
        assert server.ask("/")[0] == 200
        trace(server)
        hang.comes_back.set()


def test_a_call_of_a_module_is_progress(monkeypatch):
    lock, now = CancellableLock(), 100.0
    monkeypatch.setattr(cancel.time, "monotonic", lambda: now)
    assert lock.idle < 0
    with lock:
        now = 103.0
        assert lock.idle == 3
        check_cancelled()
        assert lock.idle == 0
        lock.give_up()
        with pytest.raises(Cancelled):
            check_cancelled()
    assert lock.idle < 0
    check_cancelled()  # whoever has left is not cancelled


def test_those_who_wait_for_a_lock_that_is_given_up_are_cancelled():
    lock, ends = CancellableLock(), []

    def wait():
        with pytest.raises(Cancelled), lock:
            pass
        ends.append(time.monotonic())

    with lock:
        thread = threading.Thread(target=wait)
        thread.start()
        lock.give_up()
        thread.join(60)
        assert ends
