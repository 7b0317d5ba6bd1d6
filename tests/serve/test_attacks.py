"""Attacks at their real size: everybody else is answered, and memory stays bounded."""

import base64
import http.client
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.slow
HOST = b"Host: 127.0.0.1\r\n"


SERVE = """
from helpers.looking import reader, seer
from regard.serve.registry import ServerLimits
from regard.serve.security import SecurityConfig
from regard.serve.server import serve_models
models = {"write": reader("write", "gpt"), "see": seer()}
serve_models({name: models[name] for name in NAMES}, SecurityConfig(), ServerLimits(), 0, log=True)
"""


class Process:
    def __init__(self, process):
        self.process = process
        self.port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    def connect(self, data=b"", receive_buffer=None):
        line = socket.socket()
        if receive_buffer:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        line.settimeout(20)
        line.connect(("127.0.0.1", self.port))
        line.sendall(data)
        return line

    def post(self, path, body, timeout=60):
        it = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        it.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = it.getresponse()
        data = answer.read()
        it.close()
        return answer.status, data

    def works(self):
        assert self.post("/v1/completions", {"prompt": "the fox", "max_tokens": 2})[0] == 200

    def megabytes(self, name="VmRSS"):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{name}:")[1].split()[0]) // 1024


@contextmanager
def serve(*names, stderr=subprocess.DEVNULL):
    """A process that serves these models as `regard serve` does."""
    command = [sys.executable, "-c", f"NAMES = {names}{SERVE}"]
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, str(Path(tests).parent), os.environ.get("PYTHONPATH", "")])
    options = {"stdout": subprocess.PIPE, "stderr": stderr, "env": os.environ | {"PYTHONPATH": path}}
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield Process(process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_unfinished_bodies_do_not_switch_the_api_off():
    with serve("write") as server, ExitStack() as stack:
        for path in (b"/api/trace", b"/v1/completions"):
            head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
            for _ in range(200):
                stack.enter_context(server.connect(head + b"Content-Length: 999\r\n\r\n{"))
        server.works()
        assert server.post("/api/trace", {})[0] == 200


def test_idle_connections_lock_nobody_out():
    with serve("write") as server, ExitStack() as stack:
        for _ in range(2500):
            stack.enter_context(server.connect())
        for _ in range(5):
            server.works()


def test_unread_pages_take_no_memory():
    with serve("write") as server, ExitStack() as stack:
        id = json.loads(server.post("/api/trace", {})[1])["id"].encode()
        before = server.megabytes()
        for _ in range(300):
            get = b"GET /api/page?trace=" + id + b" HTTP/1.1\r\n" + HOST + b"\r\n"
            stack.enter_context(server.connect(get, 4096))
        time.sleep(5)
        server.works()
        assert server.megabytes() < before + 300


def test_large_pictures_take_little_memory():
    file = io.BytesIO()
    Image.new("RGBA", (4096, 4096)).save(file, "PNG")
    picture = base64.b64encode(file.getvalue()).decode()
    with serve("see", "write") as server:
        assert server.post("/api/trace", {})[0] == 200
        before, statuses = server.megabytes(), []
        paths = ["/api/ask", "/api/trace"] * 20
        threads = [
            threading.Thread(target=lambda p=p: statuses.append(server.post(p, {"picture": picture}, 300)[0]))
            for p in paths
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 40
        assert server.megabytes("VmHWM") < before + 1000


def test_log_that_nobody_reads_stops_nothing():
    reading, writing = os.pipe()
    with serve("write", stderr=writing) as server:
        for _ in range(1500):
            with server.connect(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n") as line:
                assert line.recv(12) == b"HTTP/1.1 200"
        server.works()
    os.close(reading)
    os.close(writing)
