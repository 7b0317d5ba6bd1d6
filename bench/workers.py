"""Several processes under load, one of which is killed every few seconds: is anything lost or mixed up?

    python bench/workers.py [--workers 2] [--requests 10000] [--clients 64] [--every 5] [--ray]
    python bench/workers.py --compare [--dim 512] [--depth 8] [--rounds 2] [--requests 512]

As bench/serve.py: a tiny GPT, whose answers are compared with those that it gives in this process. Half of
them are streamed. A client whose connection breaks asks again, as usual clients do. Before a worker is killed
it is stopped, and its connections are noted: those are what may break. `--every 0` kills nobody.
`--ray` is deploy/ray_serve.py with as many replicas, of which the last is not killed. Their connections are
those of Ray's proxy: there, what breaks is only counted. Ends with one JSON line.
`--compare` kills nobody: one process that uses all cores, as `regard serve` does, one with one thread, and
`--workers`, in turns; the ratio is to the faster one. The clients share these cores, so the model has to be
so large that they hardly need any; their share of a core is printed, too.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script: for bench.serve and deploy
from bench.serve import PROMPTS, SHORT, Asked, Client, make_run, prompt, summarize, unambiguous

from regard.runs.load import load

RAY = """
import sys, ray
from ray import serve
from deploy.ray_serve import build
models, count, port = sys.argv[1:]
ray.init(num_cpus=2 + int(count), include_dashboard=False, log_to_driver=False, configure_logging=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
serve.run(build({"models": models, "replicas": count}))
print(f"http://127.0.0.1:{port}/", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""


@contextlib.contextmanager
def start_server(
    folder: Path, workers: int, ray: bool = False, threads: int | None = 1
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server of a model; yields its process and its port. `threads`: of a worker, by default its share."""
    command = ["-m", "regard", "serve", str(folder), "--log", "none", "--port", "0"]
    command += ["--workers", str(workers)]
    if ray:
        command = ["-c", RAY, str(folder), str(workers), str(find_port())]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environment |= {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, *command], env=environment, **pipes)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(line for line in lines if line.startswith("http://"))  # Ray may print others
        yield process, int(address.strip().rstrip("/").rsplit(":", 1)[1])
        process.stdin.close() if ray else process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def find_workers(pid: int, ray: bool = False) -> list[int]:
    """The processes of workers below that of the server: its children, or Ray's replicas."""
    below, workers = [pid], list[int]()
    while below:
        try:
            path = Path(f"/proc/{(parent := below.pop())}")
            children = [int(n) for task in path.glob("task/*/children") for n in task.read_text().split()]
            title = (path / "cmdline").read_bytes()  # empty if it has ended
        except OSError:  # it has ended and is forgotten
            continue
        below += children if ray or parent == pid else []
        is_worker = b"resource_tracker" not in title
        if ray:  # the title of an actor ends with the method that it runs
            is_worker = title.startswith(b"ray::ServeReplica") and b"init" not in title
        if parent != pid and title and is_worker:
            workers.append(parent)
    return workers


def connected_ports(pid: int) -> set[int]:
    """The clients' ports of a process's connections."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(file).removeprefix("socket:[").rstrip("]"))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].split(":")[1], 16) for row in rows if row[9] in inodes}


class Killer:
    """Kills a worker now and then, and notes the connections that it had."""

    def __init__(self, pid: int, ray: bool = False):
        self.pid, self.ray, self.rng = pid, ray, random.Random(0)
        self.kills, self.ports = 0, set[int]()

    def kill(self) -> None:
        workers = find_workers(self.pid, self.ray)
        if len(workers) > self.ray:  # Ray needs seconds for a new one, so the last is left
            victim = self.rng.choice(workers)
            os.kill(victim, signal.SIGSTOP)
            self.ports |= connected_ports(victim)
            os.kill(victim, signal.SIGKILL)
            self.kills += 1

    async def run(self, every: float) -> None:
        while every:
            await asyncio.sleep(every)
            self.kill()


class Clients:
    """Clients that ask until all requests are answered, and again where a connection broke."""

    def __init__(self, port: int, asked: Asked, killer: Killer):
        self.port, self.asked, self.killer = port, asked, killer
        self.counts: Counter[str] = Counter()
        self.times: list[float] = []

    async def run(
        self, clients: int, requests: int, every: float, answered: Callable[[], object] = lambda: None
    ) -> float:
        """The seconds that it took; `answered` is called after each answer."""
        numbers, start = iter(range(requests)), time.perf_counter()

        async def work() -> None:
            client = Client(self.port)
            for n in numbers:
                begun = time.perf_counter()
                await self.ask(client, n)
                self.times.append(1000 * (time.perf_counter() - begun))
                answered()
            client.close()

        killing = asyncio.create_task(self.killer.run(every))
        await asyncio.gather(*(work() for _ in range(clients)))
        killing.cancel()
        return time.perf_counter() - start

    async def ask(self, client: Client, n: int) -> None:
        """Ask until there is an answer, and count how it went."""
        text, answer = self.asked[n % len(self.asked)]
        while True:
            port = -1
            try:
                if client.reader is None:
                    client.reader, client.writer = await asyncio.open_connection("127.0.0.1", self.port)
                port = client.writer.get_extra_info("sockname")[1]
                status, reply = await asyncio.wait_for(client.ask(text, SHORT, n % 2 == 0), 60)
            except (OSError, ValueError, AssertionError, asyncio.IncompleteReadError) as error:
                of_dead = port in self.killer.ports
                kind = "broken by a kill" if of_dead else f"lost: {type(error).__name__}"
                self.counts[kind] += 1
                client.close()
                continue
            if status == 200:
                self.counts["right" if reply == answer[:SHORT] else "mixed up"] += 1
                return
            self.counts[f"status {status}"] += 1
            await asyncio.sleep(0.05)


def measure(
    folder: Path, asked: Asked, workers: int, requests: int, clients: int, every: float, ray: bool
) -> dict[str, Any]:
    with start_server(folder, workers, ray) as (process, port):
        killer = Killer(process.pid, ray)
        load_clients = Clients(port, asked, killer)
        seconds = asyncio.run(load_clients.run(clients, requests, every))
        rate = round(requests / seconds, 1)
        kills = {"kills": killer.kills, "alive": len(find_workers(process.pid, ray))}
    counts = dict(sorted(load_clients.counts.items()))
    return {
        "workers": workers,
        **kills,
        **counts,
        "requests_per_second": rate,
        **summarize(load_clients.times),
    }


def compare(folder: Path, asked: Asked, workers: int, requests: int, clients: int, rounds: int) -> None:
    """Print the rates of one process, with all cores and with one, and of several; then their medians."""
    ways = {"one": (1, None), "one with one thread": (1, 1), "several": (workers, None)}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, (count, threads) in ways.items():
            with start_server(folder, count, threads=threads) as (process, port):
                load_clients = Clients(port, asked, Killer(process.pid))
                used = time.process_time()
                seconds = asyncio.run(load_clients.run(clients, requests, 0))
            rates[way].append(round(requests / seconds, 1))
            share = (time.process_time() - used) / seconds
            row = {way: rates[way][-1], "clients_share_of_a_core": round(share, 3)}
            print(row | load_clients.counts, flush=True)
    result = {way: statistics.median(measured) for way, measured in rates.items()}
    alone = max(rate for way, rate in result.items() if way != "several")
    print(json.dumps(result | {"ratio": round(result["several"] / alone, 2)}))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes: dict[str, int | None] = {"workers": 2, "requests": None, "clients": 64, "rounds": 2}
    for name, usual in (sizes | {"dim": None, "depth": None}).items():
        p.add_argument(f"--{name}", type=int, default=usual)
    p.add_argument("--every", type=float, default=5.0, metavar="S")
    p.add_argument("--ray", action="store_true")
    p.add_argument("--compare", action="store_true")
    o = p.parse_args()
    usual_dim, usual_depth, usual_requests = (512, 8, 512) if o.compare else (64, 2, 10_000)
    requests, prompts = o.requests or usual_requests, 24 if o.compare else 3 * PROMPTS
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "model"
        make_run(folder, o.dim or usual_dim, o.depth or usual_depth)
        asked = unambiguous(load(folder, "cpu"), [prompt(n) for n in range(prompts)])
        gc.collect()
        gc.freeze()
        if o.compare:
            compare(folder, asked, o.workers, requests, o.clients, o.rounds)
            return
        print(json.dumps(measure(folder, asked, o.workers, requests, o.clients, o.every, o.ray)))


if __name__ == "__main__":
    main()
