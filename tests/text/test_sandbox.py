"""The child process: limits, threads, restarts, and an end with its parent."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from helpers.waiting import wait_until
from regard.cancel import Cancelled, cancelled_by
from regard.text import sandbox
from regard.text.sandbox import Sandbox, SandboxError

LOOP = "{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}"
ECHO = "{{ messages }}{% if messages == 'loop' %}" + LOOP + "{% endif %}"


def start(text: str = ECHO, memory: int = 2**28) -> Sandbox:
    return Sandbox("template", text.encode(), 1.0, memory, specials={"r": list(range(9999))})


def ask(child: Sandbox, word: str, seconds: float = 1.0) -> str:
    return child.call(seconds, variables=[{"messages": word}], longest=2**20)[1].decode()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not is_running(pid))


def test_limits_of_the_child():
    child = start(memory=2**27)
    lines = Path(f"/proc/{child.process.pid}/limits").read_text().splitlines()
    limits = {line[:26].strip(): line[26:].split()[:2] for line in lines}
    assert limits["Max address space"] == [str(2**27)] * 2
    assert limits["Max file size"] == limits["Max core file size"] == limits["Max processes"] == ["0", "0"]
    assert int(limits["Max open files"][0]) == len(os.listdir(f"/proc/{child.process.pid}/fd"))


def test_it_imports_and_inherits_little(monkeypatch):
    monkeypatch.setenv("REGARD_API_KEY", "secret")
    child = start()
    folder = Path(f"/proc/{child.process.pid}")
    assert b"secret" not in (folder / "environ").read_bytes()
    maps = (folder / "maps").read_text()
    assert not any(name in maps for name in ("torch", "numpy"))


def test_a_missing_package(monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    with pytest.raises(SandboxError, match="jinja2"):
        start()


def test_many_threads():
    child, answers = start(), {}

    def run(n: int) -> None:
        answers[n] = ask(child, f"{n} " * 1000 * n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: f"{n} " * 1000 * n for n in range(9)}


def test_callers_do_not_wait_for_ever(monkeypatch):
    child = start()
    monkeypatch.setattr(sandbox, "MAX_WAIT", 0.01)
    with child.lock, pytest.raises(SandboxError) as caught:
        ask(child, "a")
    assert caught.value.kind == "busy"
    assert ask(child, "a") == "a"


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSEGV])
def test_a_dead_child_is_started_again(sign):
    child = start()
    pid = child.process.pid
    os.kill(pid, sign)
    wait_for_end(pid)
    assert ask(child, "a") == "a"
    assert child.process.pid != pid


def test_a_child_that_hangs(monkeypatch):
    """A stopped one takes no processor time, but is not waited for."""
    child = start()
    monkeypatch.setattr(sandbox, "PATIENCE", 0.1)
    os.kill(child.process.pid, signal.SIGSTOP)
    with pytest.raises(SandboxError) as caught:
        ask(child, "a" * 2**20)  # more than a pipe holds
    assert caught.value.kind == "time"
    monkeypatch.undo()
    assert ask(child, "a") == "a"


def test_a_call_is_cancelled():
    """Long before its own limit; the next call gets a new child."""
    child, event = start(), threading.Event()
    pid = child.process.pid
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)  # until it has stopped
    threading.Thread(target=lambda: wait_until(child.lock.locked) or event.set()).start()
    with cancelled_by(event):
        for word in ("a", "a" * 2**20):  # while it reads the reply; and before it begins
            with pytest.raises(Cancelled):
                ask(child, word, 9.0)
        with child.lock, pytest.raises(Cancelled):
            ask(child, "a")
    assert not is_running(pid)
    assert ask(child, "a") == "a"


def test_an_interrupt_leaves_no_old_reply(monkeypatch):
    def interrupt(*_: object) -> bytes:
        raise KeyboardInterrupt

    child = start()
    monkeypatch.setattr(sandbox, "read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ask(child, "old")
    monkeypatch.undo()
    assert ask(child, "new") == "new"


def test_the_child_ends_with_its_owner():
    child = start()
    pid = child.process.pid
    del child
    wait_for_end(pid)


SCRIPT = f"""
import os, sys
from regard.text.sandbox import Sandbox
child = Sandbox("template", {ECHO!r}.encode(), 1.0, 2**28, specials={{"r": list(range(9999))}})
def ask(word):
    return child.call(0.5, variables=[{{"messages": word}}], longest=99)[1].decode()
pid = child.process.pid
"""


@pytest.mark.parametrize("word", ["a", "loop"])
def test_the_child_ends_with_a_killed_parent(word):
    """It reads the end of its pipe, or its time is over."""
    script = SCRIPT + f"print(pid, flush=True); ask({word!r}); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_for_end(pid)


def test_a_fork_gets_a_child_of_its_own():
    script = SCRIPT + (
        "if (fork := os.fork()) == 0:\n"
        "    print(ask('b'), child.process.pid != pid, flush=True)\n"
        "else:\n"
        "    os.waitpid(fork, 0)\n"
        "    print(ask('c'), child.process.pid == pid)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("b True\nc True\n", "")
