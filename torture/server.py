"""`regard serve` in a fork of this process, whose event loop is watched, and a client."""

import asyncio
import contextlib
import http.client
import json
import mmap
import os
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

from bench import serve as bench
from helpers.hostile import make_ours
from regard import cli
from torture import forks

STARTING = 60.0  # seconds
INTERVAL = 0.005  # between two looks at the event loop
PLACES, QUEUE = 8, 24


def make_models(place: Path) -> dict[str, Path]:
    """Model folders: one that writes, one that embeds texts, one that classifies images."""
    bench.make_run(place / "tiny")
    for name, case in (("embed", "embed-bert"), ("see", "see-vit")):
        make_ours(place / name, case, place / f"data-{name}")
    return {name: place / name for name in ("tiny", "embed", "see")}


class Server:
    """A server in a fork; it ends with this process."""

    def __init__(self, folders: list[Path], *options: object) -> None:
        self.stalls = mmap.mmap(-1, 16)  # the longest stall in processor time, and in time
        reading, writing = os.pipe()
        self.errors = os.memfd_create("errors")
        words = [
            "serve",
            *folders,
            "--port",
            0,
            "--log",
            "none",
            "--places",
            PLACES,
            "--queue",
            QUEUE,
            *options,
        ]
        self.pid = forks.start(self.run, list(map(str, words)), output=writing, errors=self.errors)
        os.close(writing)
        with open(reading, encoding="utf-8") as output:
            line = output.readline()
        if not line:
            forks.kill(self.pid)
            raise AssertionError(f"the server did not start: {self.log()[-2000:]}")
        self.port = int(line.strip().rstrip("/").rsplit(":", 1)[1])

    def run(self, words: list[str]) -> None:
        import uvicorn

        server_class: Any = uvicorn.Server
        startup, stalls = server_class.startup, self.stalls

        async def watched(server: Any, *args: Any, **options: Any) -> None:
            await startup(server, *args, **options)
            server.watchdog = asyncio.create_task(watch_loop(stalls))  # kept, or it would be collected

        server_class.startup = watched
        cli.main(words)

    def log(self) -> str:
        return os.pread(self.errors, 2**20, 0).decode(errors="replace")

    def reset_stalls(self) -> None:
        self.stalls[:] = bytes(16)

    def peaks(self) -> dict[str, float]:
        stall, wait = struct.unpack("dd", self.stalls[:])
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        memory = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        return {"stall ms": round(1000 * stall, 1), "stall with waiting ms": round(1000 * wait, 1),
                "MiB": memory >> 10}  # fmt: skip

    def is_alive(self) -> bool:
        return not forks.has_ended(self.pid)

    def stop(self) -> None:
        forks.kill(self.pid)
        os.waitpid(self.pid, 0)


class Heartbeat:
    """A thread that only sleeps: how late it wakes up is what the machine, and other threads, make of it."""

    def __init__(self) -> None:
        self.late = 0.0  # seconds, all together
        threading.Thread(target=self.beat, name="heartbeat", daemon=True).start()

    def beat(self) -> None:
        while True:
            begun = time.monotonic()
            time.sleep(INTERVAL)
            self.late += max(0.0, time.monotonic() - begun - INTERVAL)


def waited_for_processor() -> float:
    """Seconds that this thread could have run and did not, as other work had the processor."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


async def watch_loop(stalls: mmap.mmap) -> None:
    """Note for how long the event loop did nothing else.

    A loop that waits for a processor, on a machine with other work, is not stalled by the server. What counts
    is the processor time of this process meanwhile; or, where the loop waits in a call of the system, such as
    reading a pipe, that it comes later than a thread which only sleeps, and than other work explains.
    """
    heart = Heartbeat()
    while True:
        begun, cpu = time.monotonic(), time.process_time()
        excuse = heart.late + waited_for_processor()
        await asyncio.sleep(INTERVAL)
        late = max(0.0, time.monotonic() - begun - INTERVAL)
        busy = min(late, time.process_time() - cpu)
        blocked = late - (heart.late + waited_for_processor() - excuse)
        longest, waited = struct.unpack("dd", stalls[:])
        stalls[:] = struct.pack("dd", max(longest, busy, blocked), max(waited, late))


def request(
    port: int, method: str, path: str, body: bytes | None, headers: dict[str, str], seconds: float = 30.0
) -> tuple[int, bytes]:
    """Return the status and the body of the response; status 0 if the server closed the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (http.client.BadStatusLine, ConnectionError):
        return 0, b""
    finally:
        connection.close()


def post(port: int, path: str, body: Any) -> tuple[int, Any]:
    status, data = request(
        port, "POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return status, json.loads(data) if data[:1] in b"{[" else data.decode(errors="replace")


def send_raw(port: int, data: bytes, seconds: float = 30.0) -> bytes:
    """Send bytes as they are; return the beginning of what comes back until the server closes."""
    answer = b""
    connection = socket.create_connection(("127.0.0.1", port), timeout=seconds)
    with connection, contextlib.suppress(ConnectionError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while chunk := connection.recv(2**16):
            answer += chunk[: max(0, 2**20 - len(answer))]
    return answer
