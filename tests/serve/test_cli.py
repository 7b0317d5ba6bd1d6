"""`regard serve`: the process starts, answers, finishes running answers at a signal and exits."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import torch

import regard
from helpers.forking import Process
from helpers.looking import reader
from helpers.waiting import wait_until
from regard import cli
from regard.errors import UserError
from regard.files.tensors import write_tensors
from regard.runs import recipe
from regard.runs.folder import begin
from regard.runs.layout import GENERATION, WEIGHTS
from regard.serve.server import bind_socket


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of an untrained model."""
    folder = tmp_path_factory.mktemp("serve") / "tiny"
    torch.manual_seed(0)
    model = reader("write", "gpt")
    begin(folder, model.model, model.task, recipe.read("write"))
    write_tensors(folder / WEIGHTS, dict(model.model.state_dict()))
    return folder


# An answer that takes minutes; and a log whose last lines are not written yet when the last answer ends.
SLOW_STEPS = """
import sys, time
from regard import cli
from regard.models import GPT
step = GPT.step
GPT.step = lambda *args: time.sleep(0.1) or step(*args)
cli.main(["serve", *sys.argv[1:]])
"""
SLOW_LOG = """
import sys, time
from regard import cli
from regard.serve import log
write = log.write_error
log.write_error = lambda text: time.sleep(0.1) or write(text)
cli.main(["serve", *sys.argv[1:]])
"""

STUCK = """
import sys, time
from regard import cli
from regard.serve import registry, server
if "engine" in sys.argv:
    from regard.models import GPT
    GPT.step = lambda *_: time.sleep(600)
else:  # the main thread, when it has the request
    server.DRAIN = 0.5
    registry.ServedModel.encode = lambda *_: print("stuck", flush=True) or time.sleep(600)
cli.main(["serve", *sys.argv[2:]])
"""


@contextmanager
def process(script, *more, **env):
    server = Process("-c", script, *more, env=os.environ | {"OMP_NUM_THREADS": "1"} | env)
    try:
        server.address = server.stdout.readline().strip()
        yield server
    finally:
        server.kill()
        server.communicate()


def line(server):
    return http.client.HTTPConnection(server.address.removeprefix("http://").rstrip("/"), timeout=60)


def post(server, body, headers=None):
    it = line(server)
    it.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"} | (headers or {})
    )
    return it, it.getresponse()


def is_refused(server):
    """Whether the server accepts no connection any more: it has seen the signal."""
    it = line(server)
    try:
        it.connect()
    except ConnectionRefusedError:
        return True
    it.close()
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_lets_running_answers_finish(run, number):
    body = {"prompt": "the fox", "max_tokens": 300, "temperature": 0}
    want = regard.load(run).ask("the fox", max_new_tokens=300, temperature=0)
    texts = []

    def read_all(answer):
        texts.append(
            "".join(json.loads(row[6:])["choices"][0]["text"] for row in answer if row[:7] == b"data: {")
        )

    more = ("--port", "0", "--places", "3", "--queue", "2")
    with process(SLOW_LOG, run, *more) as server:
        assert server.address.startswith("http://127.0.0.1:")
        lines = [post(server, body | {"stream": True}) for _ in range(3)]  # each has started
        waiting = line(server)
        waiting.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        readers = [threading.Thread(target=read_all, args=(answer,)) for _, answer in lines]
        health = line(server)  # answered after the last request was accepted
        health.request("GET", "/health")
        assert health.getresponse().read() == b'{"status":"ok"}'
        server.send_signal(number)
        for reader in readers:
            reader.start()
        texts.append(json.load(waiting.getresponse())["choices"][0]["text"])
        for reader in readers:
            reader.join()
        out, errors = server.communicate(timeout=60)
    assert texts == [want] * 4
    assert (server.returncode, out) == (128 + number, "")
    first, *log = errors.splitlines()
    assert first == "Ctrl-C ends it"
    assert sorted(json.loads(row)["route"] for row in log) == ["/health", *["/v1/completions"] * 4]
    for it in (health, waiting, *(it for it, _ in lines)):
        it.close()


def test_second_signal_ends_at_once(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "endless")
    end = json.loads((folder / GENERATION).read_text())["eos_token_id"]
    (folder / GENERATION).write_text(json.dumps({"suppress_tokens": [end]}))  # or the answer ends by itself
    more = ("--port", "0", "--log", "none", "--name", "ai.Example.org")
    with process(SLOW_STEPS, folder, *more, REGARD_API_KEY="sesame") as server:
        body = {"prompt": "the fox", "max_tokens": 4096, "stream": True}
        # The key of the environment is needed; other host names than its own and --name are refused.
        for headers, status in (({}, 401), ({"Host": "AI.example.org"}, 401), ({"Host": "example.org"}, 421)):
            it, answer = post(server, body, headers)
            assert answer.status == status
            it.close()
        it, answer = post(server, body, {"Authorization": "Bearer sesame"})
        assert answer.status == 200
        server.send_signal(signal.SIGINT)
        wait_until(lambda: is_refused(server))  # or the two signals could be seen as one
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
        it.close()
    assert (server.returncode, errors.splitlines()) == (130, ["Ctrl-C ends it"])


@pytest.mark.parametrize(("stuck", "timeout"), [("engine", 0.5), ("main", 2)])
def test_signal_ends_a_stuck_server_within_its_bound(run, stuck, timeout):
    more = ("--port", "0", "--log", "none", "--timeout", str(timeout))
    with process(STUCK, stuck, run, *more) as server:
        it = line(server)
        # The first token comes without a step; the text must not end with it.
        body = json.dumps({"prompt": "the fox", "max_tokens": 9, "ignore_eos": True})
        it.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        if stuck == "engine":
            assert it.getresponse().status in (408, 503)
            it.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        else:
            assert server.stdout.readline() == "stuck\n"
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
        it.close()
    ended = [row for row in errors.splitlines() if "not shut down within 2.5 s" in row]
    assert (server.returncode, len(ended)) == (143, stuck == "main")
    assert "Traceback" not in errors


def error_line(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        cli.main(["serve", *arguments])
    said = capsys.readouterr().err
    assert (left.value.code, said.count("\n")) == (2, 1)
    return said


def test_errors_are_one_line(run, capsys):
    for words, arguments in (
        ("no such model folder", ["nowhere"]),
        ("places=0", [str(run), "--places", "0"]),
        ("timeout=-1", [str(run), "--timeout", "-1"]),
        ("--host no.such.host.invalid", [str(run), "--host", "no.such.host.invalid", "--api-key", "x"]),
    ):
        assert words in error_line(capsys, *arguments)
    with bind_socket(0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"--port {port}" in error_line(capsys, str(run), "--port", port)


# Keys and ports


@pytest.mark.parametrize("key", ["", " ", "\t", " key", "key\n", "a\x00b", "\udcff"])
def test_keys_that_protect_nothing_are_refused(run, capsys, monkeypatch, key):
    assert "API key" in error_line(capsys, str(run), "--api-key", key)
    if "\0" not in key:
        monkeypatch.setenv("REGARD_API_KEY", key)
        assert "API key" in error_line(capsys, str(run))


def test_ports_are_exact(run, capsys):
    """Two servers never have one port, not even while both start; a port that is asked for stays."""
    with bind_socket(0) as taken:  # it listens at once
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}"):
            bind_socket(port, exact=True)
        with bind_socket(port) as other:
            assert other.getsockname()[1] != port
        assert f"port {port} is in use" in capsys.readouterr().err
    for port in (-1, 65536, 10**400):
        assert f"--port {port}: give a number" in error_line(capsys, str(run), "--port", str(port))
    for value in ("nan", "inf", "-inf"):
        assert f"timeout={value}" in error_line(capsys, str(run), f"--timeout={value}")


def test_closed_standard_streams():
    """No socket or file of the server can get the number of standard error."""
    code = "import os, sys; from regard import cli; cli.open_closed_streams(); "
    code += "print([os.readlink(f'/proc/self/fd/{n}') for n in (0, 2)]); print('unseen', file=sys.stderr)"
    command = ["bash", "-c", f'exec "{sys.executable}" -c "{code}" <&- 2>&-']
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == f"{[os.devnull] * 2}\n"
