"""`regard serve` under load: no lost or mixed-up answers, quick refusals, clients that leave, shutdown.

    python bench/serve.py [--requests 10000] [--streams 64] [--disconnects 1000] [--seconds 10]

A tiny GPT with random weights, whose greedy answers differ from prompt to prompt, runs in another process.
Every answer is compared with the one that the model gives in this process.
load: many requests at once, half of them streamed. overload: ten times as many clients as there are places;
those that are refused try again after a second (Retry-After). disconnects: clients that leave after the first
chunk; then the time of the next answer. end: SIGTERM while many answers are being generated.
Ends with one JSON line.
"""

import argparse
import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from regard.files.tensors import write_tensors
from regard.models import GPT, GPTConfig
from regard.runs import recipe
from regard.runs.folder import begin
from regard.runs.layout import GENERATION, WEIGHTS
from regard.runs.load import load
from regard.tasks import Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz ,.\n"
PROMPTS = 257
Asked = list[tuple[str, str]]  # prompts and their expected answers
SHORT, LONG = 16, 90  # tokens of an answer
MIN_MARGIN = 1e-4  # between the two largest logits, so that rounding does not decide


def make_run(folder: Path, dim: int = 64, depth: int = 2) -> None:
    """A run folder with an untrained model, whose numbers are as large whatever its width."""
    tokenizer = train_tokenizer("char", [LETTERS], 64, Write.specials)
    torch.manual_seed(7)
    model = GPT(GPTConfig(vocab=tokenizer.vocab, dim=dim, heads=dim // 16, depth=depth, context=128))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(3.2 / dim**0.5 * torch.randn_like(p))
    begin(folder, model, Write(WriteConfig(name="write"), tokenizer, 128), recipe.read("write"))
    write_tensors(folder / WEIGHTS, dict(model.state_dict()))
    never = [
        tokenizer.id(name) for name in (*Write.specials, "<unk>")
    ]  # so that all answers have the same length
    (folder / GENERATION).write_text(json.dumps({"suppress_tokens": never}))


def prompt(n: int) -> str:
    return (
        "".join(LETTERS[(n * 7 + i * (n % 11 + 1)) % len(LETTERS)] for i in range(3 + n % 29))
        + LETTERS[n % 26]
    )


def unambiguous(model: Any, prompts: list[str]) -> list[tuple[str, str]]:
    """Prompts whose greedy answer does not depend on rounding, with their long answers."""
    pairs = []
    for text, answer in zip(prompts, model.ask(prompts, temperature=0, max_new_tokens=LONG), strict=True):
        before, ids = len(model.tokenizer.encode(text)), model.tokenizer.encode(text + answer)
        with torch.no_grad():
            first, second = model.model(torch.tensor([ids]))[0, before - 1 : -1].topk(2).values.T
        if len(ids) == before + LONG and (first - second).min() > MIN_MARGIN:
            pairs.append((text, answer))
    return pairs[:PROMPTS]


class Client:
    """A client with one persistent connection."""

    def __init__(self, port: int):
        self.port = port
        self.reader: asyncio.StreamReader | None = None

    async def send(self, body: dict[str, Any]) -> tuple[int, dict[str, str]]:
        """The status and headers of the answer."""
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Length: {len(data)}\r\n"
        )
        self.writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def rest(self, headers: dict[str, str]) -> bytes:
        assert self.reader is not None
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        data = b""
        while chunk := await self.chunk():
            data += chunk
        return data

    async def chunk(self) -> bytes:
        """The next chunk of the body; empty at the end."""
        assert self.reader is not None
        size = int(await self.reader.readline(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def ask(self, prompt: str, tokens: int, stream: bool) -> tuple[int, str]:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream}
        status, headers = await self.send(body)
        data = await self.rest(headers)
        if headers.get("connection") == "close":
            self.close()
        return status, answer_text(data, stream) if status == 200 else data.decode()

    def close(self) -> None:
        if self.reader is not None:
            self.writer.close()
            self.reader = None


def answer_text(data: bytes, stream: bool) -> str:
    if not stream:
        return json.loads(data)["choices"][0]["text"]
    events = data.decode().split("\n\n")
    assert events[-2] == "data: [DONE]", events[-2:]
    return "".join(json.loads(event[6:])["choices"][0]["text"] for event in events[:-2])


def memory(pid: int) -> float:
    """Resident, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def quantile(share: float, values: list[float]) -> float:
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 2) if values else 0.0


def summarize(values: list[float]) -> dict[str, float]:
    return {"p50_ms": quantile(0.5, values), "p99_ms": quantile(0.99, values), "most_ms": quantile(1, values)}


async def measure_load(port: int, asked: Asked, streams: int, requests: int) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    times: list[float] = []
    numbers = iter(range(requests))

    async def worker() -> None:
        client = Client(port)
        for i in numbers:
            n, start = i % len(asked), time.perf_counter()
            status, text = await client.ask(asked[n][0], SHORT, i % 2 == 0)
            times.append(1000 * (time.perf_counter() - start))
            counts[
                str(status) if status != 200 else "right" if text == asked[n][1][:SHORT] else "mixed up"
            ] += 1
        client.close()

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(streams)))
    seconds = time.perf_counter() - start
    rates = {
        "requests_per_second": round(requests / seconds, 1),
        "tokens_per_second": round(requests * SHORT / seconds),
    }
    return {"asked": requests, **counts, **rates, **summarize(times)}


async def measure_overload(port: int, pid: int, asked: Asked, clients: int, seconds: float) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    refusals: list[float] = []
    until, before = time.perf_counter() + seconds, memory(pid)

    async def worker(i: int) -> None:
        client = Client(port)
        await asyncio.sleep(i / clients)  # they do not all start in one instant
        while time.perf_counter() < until:
            n = i % len(asked)
            body = {"prompt": asked[n][0], "max_tokens": SHORT, "temperature": 0}
            start = time.perf_counter()
            status, headers = await client.send(body)
            if status == 429:
                refusals.append(1000 * (time.perf_counter() - start))
            data = await client.rest(headers)
            if status == 200:
                counts["right" if answer_text(data, False) == asked[n][1][:SHORT] else "mixed up"] += 1
            else:
                counts[str(status)] += 1
                await asyncio.sleep(float(headers["retry-after"]))
        client.close()

    middle: list[float] = []

    async def watch_memory() -> None:
        await asyncio.sleep(seconds / 2)
        middle.append(memory(pid))

    await asyncio.gather(watch_memory(), *(worker(i) for i in range(clients)))
    rss = {
        "rss_before_mb": round(before, 1),
        "rss_middle_mb": round(middle[0], 1),
        "rss_after_mb": round(memory(pid), 1),
    }
    return {"clients": clients, **counts, **summarize(refusals), **rss}


async def measure_disconnects(port: int, asked: Asked, streams: int, disconnects: int) -> dict[str, Any]:
    numbers = iter(range(disconnects))

    async def worker() -> None:
        for i in numbers:
            client = Client(port)
            body = {
                "prompt": asked[i % len(asked)][0],
                "max_tokens": LONG,
                "temperature": 0,
                "stream": i % 3 > 0,
            }
            if i % 3:
                while (sent := await client.send(body))[
                    0
                ] == 429:  # the server has not noticed yet that others have left
                    await client.rest(sent[1])
                    await asyncio.sleep(0.02)
                assert sent[0] == 200, sent
                await client.chunk()
            else:  # before there is any answer
                sending = asyncio.ensure_future(client.send(body))
                await asyncio.sleep(0.005)
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            client.close()

    await asyncio.gather(*(worker() for _ in range(streams)))
    start = time.perf_counter()
    status, text = await Client(port).ask(asked[3][0], SHORT, False)
    assert (status, text) == (200, asked[3][1][:SHORT])
    return {"left": disconnects, "next_answer_ms": round(1000 * (time.perf_counter() - start), 1)}


async def measure_shutdown(
    port: int, process: subprocess.Popen, asked: Asked, streams: int
) -> dict[str, Any]:
    begun, counts = asyncio.Semaphore(0), Counter[str]()

    async def worker(i: int) -> None:
        client = Client(port)
        body = {"prompt": asked[i][0], "max_tokens": LONG, "temperature": 0, "stream": True}
        status, headers = await client.send(body)
        data = await client.chunk()
        begun.release()
        data += await client.rest(headers)
        counts["right" if status == 200 and answer_text(data, True) == asked[i][1] else "wrong"] += 1

    async def stop() -> None:
        for _ in range(min(streams, 32)):  # as many as are generated at once; the others wait
            await begun.acquire()
        process.send_signal(signal.SIGTERM)

    start = time.perf_counter()
    await asyncio.gather(stop(), *(worker(i) for i in range(streams)))
    status = process.wait(30)
    return {
        "under_way": streams,
        **counts,
        "status": status,
        "seconds": round(time.perf_counter() - start, 2),
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("requests", 10_000), ("streams", 64), ("disconnects", 1000), ("seconds", 10)):
        p.add_argument(f"--{name}", type=int, default=usual)
    o = p.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "tiny"
        make_run(folder)
        model = load(folder, "cpu")
        asked = unambiguous(model, [prompt(n) for n in range(3 * PROMPTS)])
        print(f"{len({answer[:SHORT] for _, answer in asked})} different answers to {len(asked)} prompts")
        command = [sys.executable, "-m", "regard", "serve", str(folder), "--log", "none", "--port", "0"]
        command += ["--places", "32", "--queue", str(max(0, o.streams - 32))]
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().strip().rstrip("/").rsplit(":", 1)[1])
            results: dict[str, Any] = {"start_seconds": round(time.perf_counter() - start, 2)}

            async def measure_all() -> None:
                results["load"] = await measure_load(port, asked, o.streams, o.requests)
                print("load", results["load"], flush=True)
                places = 32 + max(0, o.streams - 32)
                results["overload"] = await measure_overload(port, process.pid, asked, 10 * places, o.seconds)
                print("overload", results["overload"], flush=True)
                results["disconnects"] = await measure_disconnects(port, asked, o.streams, o.disconnects)
                print("disconnects", results["disconnects"], flush=True)
                results["end"] = await measure_shutdown(port, process, asked, o.streams)
                print("end", results["end"], flush=True)

            gc.collect()
            gc.freeze()  # otherwise pauses of this process would be measured
            asyncio.run(measure_all())
        finally:
            process.kill()
            process.wait()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
