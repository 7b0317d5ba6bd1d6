"""Rows of writing: GPT-2's size through `Model.ask`, and over HTTP."""

from collections.abc import Callable
from functools import partial

import torch

import regard
from regard.bench import peers
from regard.bench.folders import gpt_run
from regard.bench.measure import Job, Options, Row, repeated
from regard.bench.serving import Server
from regard.models import GPTConfig

VOCAB = 50257


def write_row(streams: int, options: Options) -> Row:
    """256 new tokens after 32, greedy; a random model writes as fast as a trained one."""
    size, vocab, length, new = options.size(("gpt2", VOCAB, 32, 256), ("pico", 97, 5, 6))
    shape = GPTConfig.PRESETS["gpt2"] | GPTConfig.PRESETS[size]
    row = Row("tokens", {}, note="gpt-fast: a Llama of the same sizes, sampling from the 200 likeliest")

    def ours() -> Job:
        folder, text = gpt_run(options.scratch / "gpt", size, vocab)
        model = regard.load(folder)
        prompts = [text[i * 7 : i * 7 + length] for i in range(streams)]
        row.bytes = sum(p.nbytes for p in model.model.parameters()) / streams  # once a step

        def write() -> float:
            answers = model.ask(prompts, temperature=0, max_new_tokens=new)
            assert all(len(answer) == new for answer in answers)
            return float(streams * new)

        return repeated(write, options)

    row.contenders = {"regard": ours}
    if options.gptfast:
        row.contenders["gpt-fast"] = lambda: repeated(
            peers.gptfast_write(shape, vocab, streams, length, new, options), options
        )
    ids = torch.randint(vocab, (streams, length), device=options.device)
    row.contenders["transformers static, compiled"] = lambda: repeated(
        peers.hf_write(shape, vocab, ids, new, options), options
    )
    return row


def serve_row(streams: int, options: Options) -> Row:
    """Streamed answers of 128 tokens; the rate is that of all streams together."""
    new = options.size(128, 6)

    def ours() -> Job:
        folder, text = gpt_run(options.scratch / "served", *options.size(("gpt2", VOCAB), ("pico", 97)))
        server = Server(folder, text[: options.size(32, 5)], places=128)
        return lambda: server.ask(streams, new)

    return Row("tokens", {"regard serve": ours}, note="over HTTP, streamed")


ROWS: dict[str, Callable[[Options], Row]] = {
    "write-1": partial(write_row, 1),
    "write-64": partial(write_row, 64),
    "serve-1": partial(serve_row, 1),
    "serve-64": partial(serve_row, 64),
    "serve-128": partial(serve_row, 128),
}
