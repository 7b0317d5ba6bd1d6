"""Rows of writing: GPT-2's size through `Model.ask`, and over HTTP."""

import atexit
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from bench.rows import peers
from bench.rows.folders import gpt_run
from bench.rows.harness import Job, Options, Row

import regard
from regard.models import GPTConfig

VOCAB = 50257


def write_row(streams: int, options: Options) -> Row:
    """New tokens after 32, greedy; a random model writes as fast as a trained one."""
    size, vocab, new = options.size(("gpt2", VOCAB, 256), ("pico", 97, 6))
    shape = GPTConfig.PRESETS["gpt2"] | GPTConfig.PRESETS[size]
    row = Row("tokens", {}, note="gpt-fast: a Llama of the same sizes")

    def ours() -> Job:
        folder, text = gpt_run(options.scratch / "gpt", size, vocab)
        model, length = regard.load(folder), options.size(32, 5)
        prompts = [text[i * 7 : i * 7 + length] for i in range(streams)]
        row.bytes = 2 * sum(p.numel() for p in model.model.parameters()) / streams  # in bf16, once a step

        def write() -> dict[str, float]:
            answers = model.ask(prompts, temperature=0, max_new_tokens=new)
            assert all(len(answer) == new for answer in answers)
            return {"count": float(streams * new)}

        return write

    row.contenders = {"regard": ours}
    if options.gptfast:
        row.contenders["gpt-fast"] = partial(peers.gptfast_write, shape, vocab, streams, new, options)
    row.contenders["transformers static, compiled"] = partial(
        peers.hf_write, shape, vocab, streams, new, options
    )
    return row


class Server:
    """`regard serve`, and processes with its clients, which are faster than the server together."""

    def __init__(self, options: Options):
        size, vocab = options.size(("gpt2", VOCAB), ("pico", 97))
        folder, text = gpt_run(options.scratch / "served", size, vocab)
        self.prompt = text[: options.size(32, 5)]
        command = [sys.executable, "-m", "regard", "serve", str(folder), "--log", "none", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--places", "128", "--queue", "256"], stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.close)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rstrip("/").rsplit(":", 1)[1])

    def ask(self, streams: int, new: int) -> dict[str, float]:
        """All streams at once, one answer each. Clients start together, when all are connected."""
        groups = min(streams, max(1, (os.cpu_count() or 1) // 2), 8)
        counts = [streams // groups + (n < streams % groups) for n in range(groups)]
        clients = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "bench.rows.client",
                    str(self.port),
                    str(count),
                    str(new),
                    self.prompt,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for count in counts
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


def serve_row(streams: int, options: Options) -> Row:
    """Streamed answers of 128 tokens; the rate is that of all streams together."""
    new = options.size(128, 6)

    def ours() -> Job:
        server = Server(options)
        return lambda: server.ask(streams, new)

    return Row("tokens", {"regard serve": ours}, note="over HTTP, streamed")


ROWS: dict[str, Callable[[Options], Row]] = {
    "write-1": partial(write_row, 1),
    "write-64": partial(write_row, 64),
    "serve-1": partial(serve_row, 1),
    "serve-64": partial(serve_row, 64),
    "serve-128": partial(serve_row, 128),
}
