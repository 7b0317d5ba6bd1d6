"""How many tokens a second `regard serve` streams over HTTP, whatever the model.

    python bench/streams.py [--streams 1 64 128 256] [--step-ms 1 0.5] [--tokens 1500] [--chat] [--profile]

The server is that of `regard serve`, in a process of its own, but its batch computes nothing: a step waits as
for a GPU, without Python's lock, and then every running text gets the next token of a fixed text. The clients
are in this process and read as little as possible. Prints for each number of streams what the server carried:
tokens a second and their share of what the steps alone would give; time to the first token; the longest time
between two reads of a stream; events for each token; and the processor time of the event loop's thread for a
token. On a machine that others use too, only that and the events are worth comparing.
`--profile` has cProfile count what the event loop's thread does, which makes it slower.
Ends with one JSON line.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import os
import pstats
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import uvicorn

from regard.models import GPT, GPTConfig
from regard.runs.model import Model
from regard.serve import engine
from regard.serve.batch import Batch
from regard.serve.registry import ServerLimits
from regard.serve.security import SecurityConfig
from regard.serve.server import serve_models
from regard.tasks import Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer

BUILTIN = Path(__file__).parents[1] / "regard" / "builtin"
TEXTS = ("stories.txt", "write.txt", "words.txt", "translate.tsv", "it.tsv", "chat.tsv")
CONTEXT = 8192
USAGE = re.compile(rb'"completion_tokens":(\d+)')


class Stub(Batch):
    """A batch that writes a fixed text: the step of a GPU that takes `seconds`."""

    seconds = 0.001
    text: list[int]

    def remove_finished(self) -> None:
        with self.lock:
            self.running = [request for request in self.running if not request.finished]

    def step(self) -> None:
        with self.lock:
            self.running, self.admitted = self.running + self.admitted, []
        time.sleep(self.seconds)
        self.counts["steps"] += 1
        for request in self.running:
            self._append(request, self.text[len(request.ids) % len(self.text)])
        self.hand_over_outputs()


def serve(o: argparse.Namespace) -> None:
    """Serve a stub until a signal comes."""
    torch.set_num_threads(1)
    texts = [(BUILTIN / name).read_text("utf-8") for name in TEXTS]
    tokenizer = train_tokenizer("bpe", texts, 50_000, Write.specials)
    model = GPT(GPTConfig(vocab=tokenizer.vocab, dim=8, heads=1, depth=1, context=CONTEXT))
    task = Write(WriteConfig(name="write"), tokenizer, CONTEXT)
    if o.chat:
        task.converses, Write.takes_messages = True, False
        Write.conversation = lambda self, turns: turns[-1]  # type: ignore
    Stub.text, Stub.seconds = tokenizer.encode(texts[0]), o.step_ms[0] / 1000
    engine.Batch = Stub  # type: ignore[misc]
    if o.profile:
        profile_loop()
    streams = max(o.streams)
    limits = ServerLimits(places=streams, queue=0, tokens=CONTEXT)
    serve_models({"stub": Model(model, task, {})}, SecurityConfig(), limits, port=0)


def profile_loop() -> None:
    """Print what the event loop's thread does, by file and by function, when the server ends."""
    run = uvicorn.Server._serve

    async def run_profiled(self: uvicorn.Server, sockets: Any = None) -> None:
        profile = cProfile.Profile()
        profile.enable()
        await run(self, sockets)
        profile.disable()
        stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
        files: Counter[str] = Counter()
        for (file, _, name), (_, _, own, _, _) in stats.items():
            files["/".join(Path(file).parts[-2:]) if file != "~" else name] += own
        total = files.total()
        for file, seconds in files.most_common(25):
            print(f"{100 * seconds / total:6.1f} %  {file}", file=sys.stderr)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)

    uvicorn.Server._serve = run_profiled  # type: ignore[method-assign]


class Stream(asyncio.Protocol):
    """A client with one request, which counts what comes."""

    def __init__(self, request: bytes):
        self.request, self.done = request, asyncio.get_running_loop().create_future()
        self.first, self.last, self.gap, self.events, self.end = 0.0, 0.0, 0.0, 0, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.began = transport, time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now, events = time.perf_counter(), data.count(b"data: ")
        self.events += events
        if events and not self.first:
            self.first = now - self.began
        elif events:
            self.gap = max(self.gap, now - self.last)
        self.last = now
        self.end = (self.end + data)[-500:]
        if b"[DONE]" in self.end and not self.done.done():
            self.done.set_result(None)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError(self.end.decode()))

    @property
    def tokens(self) -> int:
        counted = USAGE.search(self.end)
        assert counted is not None, self.end
        return int(counted[1])


async def measure(port: int, pid: int, streams: int, tokens: int, chat: bool) -> dict[str, float]:
    """All streams at once."""
    body: dict[str, Any] = {"max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"messages": [{"role": "user", "content": "Once"}]} if chat else {"prompt": "Once"}
    data, path = json.dumps(body).encode(), "/v1/chat/completions" if chat else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
    loop, used, began = asyncio.get_running_loop(), processor_seconds(pid), time.perf_counter()
    pairs = [await loop.create_connection(lambda: Stream(request), "127.0.0.1", port) for _ in range(streams)]
    clients = [client for _, client in pairs]
    await asyncio.gather(*(client.done for client in clients))
    seconds, used = time.perf_counter() - began, processor_seconds(pid) - used
    assert all(client.tokens == tokens for client in clients)
    firsts, total = sorted(client.first for client in clients), tokens * streams
    return {
        "tokens_per_second": total / seconds,
        "first_ms_p50": 1000 * firsts[len(firsts) // 2],
        "first_ms_p99": 1000 * firsts[int(0.99 * len(firsts))],
        "gap_ms": 1000 * max(client.gap for client in clients),
        "events_per_token": (sum(client.events for client in clients) - 3 * streams) / total,
        "loop_us_per_token": 1e6 * used / total,
    }


def processor_seconds(pid: int) -> float:
    """What the first thread of a process used, which runs the event loop."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_server(o: argparse.Namespace, step: float) -> list[dict[str, float]]:
    options = ["--streams", str(max(o.streams)), "--step-ms", str(step)]
    options += ["--profile"] * o.profile + ["--chat"] * o.chat
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", *options],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    rows = []
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().strip().rstrip("/").rsplit(":", 1)[1])
        asyncio.run(measure(port, process.pid, 8, 50, o.chat))  # warm up
        for streams in o.streams:
            runs = [
                asyncio.run(measure(port, process.pid, streams, o.tokens, o.chat)) for _ in range(o.rounds)
            ]
            best = max(runs, key=lambda run: run["tokens_per_second"])
            offered = streams / (step / 1000)
            row = {"step_ms": step, "streams": streams, **best, "share": best["tokens_per_second"] / offered}
            rows.append(row)
            print(
                f"{step:8g}{streams:9}{row['tokens_per_second']:12,.0f}{100 * row['share']:8.0f} %"
                f"{row['first_ms_p50']:11.1f}{row['first_ms_p99']:7.1f}{row['gap_ms']:9.1f}"
                f"{row['events_per_token']:14.2f}{row['loop_us_per_token']:11.1f}",
                flush=True,
            )
    finally:
        process.terminate()
        process.wait(20)
    return rows


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--streams", type=int, nargs="+", default=[1, 64, 128, 256])
    p.add_argument("--step-ms", type=float, nargs="+", default=[1.0, 0.5])
    p.add_argument("--tokens", type=int, default=1500)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--chat", action="store_true", help="/v1/chat/completions")
    p.add_argument("--profile", action="store_true")
    p.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.serve:
        serve(o)
        return
    gc.freeze()
    print(" step, ms  streams    tokens/s  of steps  first p50    p99  gap, ms  events/token  loop us/token")
    print(json.dumps([row for step in o.step_ms for row in measure_server(o, step)]))


if __name__ == "__main__":
    main()
