"""Measure `regard serve` from outside: the server and its clients run in separate processes."""

import atexit
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CLIENT = str(Path(__file__).with_name("client.py"))


class Server:
    """`regard serve`, and processes with its clients, which are faster than the server together."""

    def __init__(self, folder: Path, prompt: str, places: int):
        self.prompt = prompt
        command = [sys.executable, "-m", "regard", "serve", str(folder), "--log", "none", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--places", str(places), "--queue", "256"],
            stdout=subprocess.PIPE,
            stderr=(errors := tempfile.TemporaryFile("w+")),  # noqa: SIM115
            text=True,
        )
        atexit.register(self.close)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            status = self.process.wait()
            errors.seek(0)
            last = (errors.read().strip().splitlines() or [f"it ended with status {status}"])[-1]
            raise RuntimeError(f"`{' '.join(command)}`: {last}")
        self.port = int(line.rstrip("/").rsplit(":", 1)[1])

    def ask(self, streams: int, new: int) -> dict[str, float]:
        """All streams at once, one answer each. Clients start together, when all are connected."""
        groups = min(streams, max(1, (os.cpu_count() or 1) // 2), 8)
        counts = [streams // groups + (n < streams % groups) for n in range(groups)]
        clients = [
            subprocess.Popen(
                [sys.executable, CLIENT, str(self.port), f"{first}:{first + count}", str(new), self.prompt],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for first, count in zip(itertools.accumulate(counts, initial=0), counts, strict=False)
        ]
        for client in clients:
            assert client.stdout is not None
            client.stdout.readline()
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        return merge([json.loads(client.communicate()[0]) for client in clients], streams, new)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def merge(reports: list[dict[str, list[float]]], streams: int, new: int) -> dict[str, float]:
    firsts = [seconds for report in reports for seconds in report["first"]]
    begin, end = (pick(x for r in reports for x in r[key]) for key, pick in (("begin", min), ("end", max)))
    assert len(firsts) == streams
    return {
        "count": float(streams * new),
        "seconds": end - begin,
        "ms_to_first_token": 1000 * statistics.median(firsts),
        "ms_to_first_token_worst": 1000 * max(firsts),
    }
