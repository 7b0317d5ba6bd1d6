"""An hour of mixed load: nothing is lost or mixed up, memory stays flat, and refusals are quick.

Streams and whole answers, embeddings, images and traces; clients that read slowly or leave; and more of them
than there are places. Every answer must equal the one to the same request alone.
"""

import asyncio
import base64
import json
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from bench import serve as bench
from regard.runs.load import load
from torture import forks
from torture.outcome import Context, Outcome, Suite
from torture.server import PLACES, QUEUE, Server, make_models, post, request

PERIOD = 1.5  # seconds of an attack
SUITE = Suite(
    count=1100,  # about an hour: an attack lasts until its slowest client is done
    short=1,
    seconds=120,
    batch=1100,
    alone=True,
    limits={"refusal ms p99": 50.0, "memory growth MiB": 64.0, "stall ms": 100.0},
)
SETTLED = 20  # attacks until the server's memory is what it will be
CLIENTS, BURST, PROBES = 12, 2 * (PLACES + QUEUE), 40
PROMPTS, TEXTS = 24, ["a bee", "two dogs", "where to go", "her", "north and south"]
HEADERS = (
    "POST {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)
STATE: dict[
    str, Any
] = {}  # of this process: the server, the answers that are expected, its memory once settled


def prepare(place: Path, is_short: bool) -> dict[str, Any]:
    make_models(place)
    model = load(place / "tiny", "cpu")
    asked = bench.unambiguous(model, [bench.prompt(n) for n in range(3 * PROMPTS)])[:PROMPTS]
    assert len(asked) > PROMPTS // 2
    return {"asked": asked}


def start(context: Context) -> None:
    """Start a server, and ask for each answer alone."""
    place, server = context.place, Server([context.place / name for name in ("tiny", "embed", "see")])
    image = next((place / "data-see").glob("*.png"))
    ask = {"model": "see", "picture": base64.b64encode(image.read_bytes()).decode()}
    alone = {
        text: post(server.port, "/v1/embeddings", {"model": "embed", "input": text})[1]["data"][0][
            "embedding"
        ]
        for text in TEXTS
    }
    traces = {text: post(server.port, "/api/trace", {"input": text})[1]["tokens"] for text in TEXTS}
    STATE.update(server=server, alone=alone, image=ask, traces=traces, attacks=0)
    STATE["label"] = post(server.port, "/api/ask", ask)[1]["output"]


def attack(context: Context, number: int) -> Outcome:
    if not STATE:
        start(context)
    server = STATE["server"]
    server.reset_stalls()
    client = Clients(server.port, context.shared["asked"], random.Random(f"{context.seed} {number}"))
    asyncio.run(client.run())
    assert server.is_alive(), f"the server died: {server.log()[-800:]}"
    wrong = {name: count for name, count in client.counts.items() if name.startswith("wrong")}
    if wrong:
        return Outcome("fault", f"{wrong}: {client.example[:600]}", counts=dict(client.counts))
    samples = {"refusal ms": client.refusals}
    return Outcome("right", peaks=measure(server), counts=dict(client.counts), samples=samples)


def measure(server: Server) -> dict[str, float]:
    peaks = server.peaks()
    STATE["attacks"] += 1
    memory = bench.memory(server.pid)
    if STATE["attacks"] == SETTLED:
        STATE["settled"] = memory
    peaks["memory growth MiB"] = round(memory - STATE.get("settled", memory), 1)
    return peaks


class Clients:
    """Clients of all kinds, for some seconds."""

    def __init__(self, port: int, asked: list[list[str]], rng: random.Random) -> None:
        self.port, self.asked, self.rng = port, asked, rng
        self.counts: Counter[str] = Counter()
        self.refusals: list[float] = []  # milliseconds
        self.example = ""
        self.until = time.monotonic() + PERIOD

    async def run(self) -> None:
        burst = self.burst() if self.rng.random() < 0.5 else asyncio.sleep(0)
        await asyncio.gather(burst, *(self.worker() for _ in range(CLIENTS)))

    async def worker(self) -> None:
        kinds = (
            self.write,
            self.write,
            self.stream,
            self.stream,
            self.embed,
            self.see,
            self.trace,
            self.slow,
            self.leave,
        )
        while time.monotonic() < self.until:
            kind = self.rng.choice(kinds)
            try:
                await asyncio.wait_for(kind(), 60)
            except (TimeoutError, ConnectionError, asyncio.IncompleteReadError) as e:
                self.note(f"wrong: {kind.__name__} lost", repr(e))

    def note(self, what: str, example: str = "") -> None:
        self.counts[what] += 1
        self.example = self.example or example

    def compare(self, what: str, status: int, value: Any, expected: Any) -> None:
        """Count an answer: right, refused since there is no place, or wrong."""
        if status in (429, 503):
            self.note(f"{what} refused")
        elif status == 200 and value == expected:
            self.note(what)
        else:
            self.note(
                f"wrong: {what}", f"status {status}: {str(value)[:200]} instead of {str(expected)[:200]}"
            )

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        client = bench.Client(self.port)
        data = json.dumps(body).encode()
        client.reader, client.writer = await asyncio.open_connection("127.0.0.1", self.port)
        client.writer.write(HEADERS.format(path, self.port, len(data)).encode() + data)
        lines = (await client.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        answer = await client.rest(headers)
        client.close()
        return int(lines[0].split()[1]), json.loads(answer) if answer[:1] == b"{" else answer.decode()

    async def write(self, stream: bool = False) -> None:
        prompt, answer = self.rng.choice(self.asked)
        length = self.rng.choice((1, bench.SHORT, bench.LONG))
        client = bench.Client(self.port)
        status, text = await client.ask(prompt, length, stream)
        client.close()
        if status in (429, 503):
            await asyncio.sleep(0.05)
        self.compare("streams" if stream else "answers", status, text, answer[:length])

    async def stream(self) -> None:
        await self.write(stream=True)

    async def embed(self) -> None:
        text = self.rng.choice(TEXTS)
        status, reply = await self.post("/v1/embeddings", {"model": "embed", "input": text})
        if status == 200:
            vector = reply["data"][0]["embedding"]
            close = max(abs(a - b) for a, b in zip(vector, STATE["alone"][text], strict=True)) < 1e-5
            self.compare("embeddings", status, close, True)
        else:
            self.compare("embeddings", status, reply, True)

    async def see(self) -> None:
        status, reply = await self.post("/api/ask", STATE["image"])
        self.compare("images", status, reply["output"] if status == 200 else reply, STATE["label"])

    async def trace(self) -> None:
        text = self.rng.choice(TEXTS)
        status, reply = await self.post("/api/trace", {"input": text})
        self.compare("traces", status, reply["tokens"] if status == 200 else reply, STATE["traces"][text])

    async def slow(self) -> None:
        """Read a long answer by and by."""
        prompt, answer = self.rng.choice(self.asked)
        client = bench.Client(self.port)
        body = {"prompt": prompt, "max_tokens": bench.LONG, "temperature": 0, "stream": True}
        status, headers = await client.send(body)
        if status == 200:
            data = b""
            while chunk := await client.chunk():
                data += chunk
                await asyncio.sleep(0.005)
            self.compare("slow readers", status, bench.answer_text(data, True), answer)
        else:
            self.compare("slow readers", status, await client.rest(headers), answer)
        client.close()

    async def leave(self) -> None:
        prompt, _ = self.rng.choice(self.asked)
        client = bench.Client(self.port)
        body = {
            "prompt": prompt,
            "max_tokens": bench.LONG,
            "temperature": 0,
            "stream": self.rng.random() < 0.5,
        }
        sending: Coroutine[Any, Any, Any] = client.send(body)
        task = asyncio.ensure_future(sending)
        await asyncio.sleep(self.rng.uniform(0, 0.02))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        client.close()
        self.note("left")

    async def burst(self) -> None:
        """More requests at once than there are places; another process measures how soon it is refused."""
        await asyncio.sleep(self.rng.uniform(0, PERIOD / 2))
        times = os.memfd_create("times")
        pid = forks.start(probe, self.port, times)
        await asyncio.gather(*(self.write(stream=n % 2 == 0) for n in range(BURST)))
        await asyncio.to_thread(forks.wait, pid, 30)
        self.refusals += json.loads(os.pread(times, 2**20, 0) or "[]")
        os.close(times)


def probe(port: int, times: int) -> None:
    """Take all places, then send requests one after another, and note the milliseconds of a refusal."""
    body = {"prompt": "a", "max_tokens": bench.LONG, "temperature": 0, "stream": True}
    data, path, refusals, held = json.dumps(body).encode(), "/v1/completions", [], []
    for _ in range(2 * (PLACES + QUEUE)):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(HEADERS.format(path, port, len(data)).encode() + data)
        held.append(connection)
    for _ in range(PROBES):
        begun = time.perf_counter()
        status, _ = request(port, "POST", path, data, {"Content-Type": "application/json"})
        if status in (429, 503):
            refusals.append(round(1000 * (time.perf_counter() - begun), 2))
    os.write(times, json.dumps(refusals).encode())
