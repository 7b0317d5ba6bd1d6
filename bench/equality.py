"""Compare what is written by steps of fixed shapes with what is written plainly, for every family.

    python -m bench.equality [--prompts 200] [--new 100] [--device cuda] [--only recurrent captioner ...]

Random weights, float32, prompts of unequal lengths. Greedy texts, texts of beam search (with suppressed
tokens), sampled texts, and texts of prompt-lookup decoding by the runner are compared with those of the plain
operations; and sampled texts in bfloat16, written alone, with those written among all others, bit for bit.
Recurrent decoders have no runner: their greedy texts are compared with those of reading all of a text anew at
every step, greedy and sampled ones with a CPU's, and sampled ones written alone with those among others.
On a CPU no model has a runner. Ends with one JSON line: how many texts were equal.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from regard.decode import runners
from regard.decode.blocks import find_decoder
from regard.decode.generate import generate
from regard.decode.prompts import Source, read_rows
from regard.decode.sampling import Sampling
from regard.models import GPT, Captioner, CaptionerConfig, GPTConfig, Transformer, TransformerConfig
from regard.models.rnn import RecurrentLM, RecurrentLMConfig
from regard.models.seq2seq import GRUConfig, LSTMConfig, RNNConfig, Seq2Seq
from regard.models.t5 import T5Config
from regard.tasks.answers import search_beams

VOCAB, CONTEXT, END = 512, 256, 3
SIZES: dict[str, Any] = {"vocab": VOCAB, "context": CONTEXT, "dim": 128, "heads": 4, "depth": 3}
GPTS: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 2},
    "gpt2": {"positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True},
    "alibi": {"positions": "alibi"},
    "relative": {"positions": "relative"},
    "sliding window": {"sliding_window": 17},
    "qwen3": {"qk_norm": True, "head_dim": 64, "tied": False},
}
CAPTIONERS = {
    "captioner, cnn": CaptionerConfig(vocab=VOCAB, dim=64, decoder="transformer", decoder_depth=2),
    "captioner, vit": CaptionerConfig(vocab=VOCAB, dim=64, decoder="transformer", encoder="vit"),
    "captioner, lstm": CaptionerConfig(vocab=VOCAB, dim=64),
    "captioner, lstm, hard": CaptionerConfig(vocab=VOCAB, dim=64, attention="hard", decoder_depth=2),
}
RECURRENT: dict[str, Any] = {"vocab": VOCAB, "context": CONTEXT, "dim": 128, "depth": 2}


def build_models() -> Iterator[tuple[str, Any]]:
    for name, changes in GPTS.items():
        yield name, GPT(GPTConfig(**SIZES | changes))
    yield "transformer", Transformer(TransformerConfig(**SIZES))
    yield "t5", Transformer(T5Config(**SIZES))
    for name, config in CAPTIONERS.items():
        yield name, Captioner(config)
    for cell in ("rnn", "gru", "lstm"):
        yield f"recurrent, {cell}", RecurrentLM(RecurrentLMConfig(cell=cell, **RECURRENT))
    yield "recurrent pairs, rnn", Seq2Seq(RNNConfig(attention="none", **RECURRENT))
    yield "recurrent pairs, gru", Seq2Seq(GRUConfig(**RECURRENT))
    yield "recurrent pairs, lstm", Seq2Seq(LSTMConfig(attention="general", **RECURRENT))


def make_noisy(model: Any, scale: float = 0.15) -> Any:
    """Weights with which answers differ and end at different lengths."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(scale * torch.randn(p.shape, generator=generator))
    return model.eval()


def make_rows(count: int, longest: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(8, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def make_inputs(model: Any, count: int) -> tuple[list[list[int]], Sequence[Source] | None]:
    """Prompts and, for an encoder, sources."""
    if isinstance(model, GPT | RecurrentLM):
        return make_rows(count, CONTEXT // 2), None
    if isinstance(model, Transformer | Seq2Seq):
        return [[1]] * count, make_rows(count, CONTEXT // 2)
    side = model.config.size
    images = torch.randint(256, (count, 3, side, side), generator=torch.Generator().manual_seed(2))
    return [[1]] * count, list(images.to(torch.uint8))


@contextmanager
def written_plainly() -> Iterator[None]:
    """No model has a runner."""
    names = "regard.decode.generate.borrow_runner", "regard.tasks.answers.borrow_runner"
    with patch(names[0], lambda *args: nullcontext()), patch(names[1], lambda *args: nullcontext()):
        yield


def write(model: Any, prompts: list[list[int]], sources: Any, sampling: Sampling) -> list[list[int]]:
    if sampling.num_beams > 1:
        best = search_beams(model, prompts, sampling, END, 1, sources)
        return [hypotheses[0].tokens for hypotheses in best]
    rows: list[list[int]] = [[] for _ in prompts]
    for tokens in generate(model, prompts, sampling, sources=sources, end=END):
        for row, token in zip(rows, tokens, strict=True):
            row += [] if token is None else [token]
    return rows


@torch.inference_mode()
def write_anew(model: Any, prompts: list[list[int]], sources: Any, new: int) -> list[list[int]]:
    """Greedy texts, without a state between the steps."""
    texts, live = [list(prompt) for prompt in prompts], list(range(len(prompts)))
    for _ in range(new):
        rows = [texts[row] for row in live]
        logits, _ = read_rows(model, rows, sources and [sources[row] for row in live])
        chosen = dict(zip(live, logits.argmax(-1).tolist(), strict=True))
        live = [row for row in live if chosen[row] != END]
        for row in live:
            texts[row].append(chosen[row])
        if not live:
            break
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def count_equal(texts: Sequence[list[int]], again: Sequence[list[int]]) -> str:
    return f"{sum(a == b for a, b in zip(texts, again, strict=True))}/{len(texts)}"


def compare_alone(model: Any, prompts: list[list[int]], sources: Any, sampling: Sampling) -> str:
    """How many of some twenty texts are the same alone and among all others."""
    together, few = (
        write(model, prompts, sources, sampling),
        range(0, len(prompts), max(1, len(prompts) // 20)),
    )
    alone = [write(model, [prompts[i]], sources and [sources[i]], sampling)[0] for i in few]
    return count_equal([together[i] for i in few], alone)


def compare_plain(model: Any, count: int, new: int) -> dict[str, str]:
    """How many texts were equal, of a model that is written plainly everywhere."""
    prompts, sources = make_inputs(model, count)
    new = min(new, model.config.context - max(map(len, prompts)))
    greedy, sampled = Sampling(max_new_tokens=new, temperature=0), Sampling(max_new_tokens=new, seed=3)
    texts = write(model, prompts, sources, greedy), write(model, prompts, sources, sampled)
    result = {
        "greedy, read anew": count_equal(texts[0], write_anew(model, prompts, sources, new)),
        "different greedy texts": str(len({tuple(text) for text in texts[0]})),
        "alone": compare_alone(model, prompts, sources, sampled),
    }
    if model.device_type == "cuda":
        model.to("cpu")
        result["greedy, on a CPU"] = count_equal(texts[0], write(model, prompts, sources, greedy))
        result["sampled, on a CPU"] = count_equal(texts[1], write(model, prompts, sources, sampled))
    return result


def compare(model: Any, count: int, new: int) -> dict[str, str]:
    """How many texts were equal, for each way of writing."""
    prompts, sources = make_inputs(model, count)
    new = min(new, model.config.context - 1)
    greedy = Sampling(max_new_tokens=new, temperature=0)
    ways = {
        "greedy": greedy,
        "sampled": Sampling(max_new_tokens=new, seed=3),
        "suppressed": Sampling(max_new_tokens=new, seed=3, suppress_tokens=(END, 9, 12)),
        "filtered": Sampling(max_new_tokens=new, top_k=40, top_p=0.9, seed=3),
        "beams": Sampling(max_new_tokens=min(new, 24), num_beams=4),
        "beams, suppressed": Sampling(max_new_tokens=min(new, 24), num_beams=4, suppress_tokens=(END, 9)),
    }
    result: dict[str, str] = {}
    runners.set_dtype(model, torch.float32)
    for name, sampling in ways.items():
        by_runner = write(model, prompts, sources, sampling)
        if model.device_type == "cuda" and model not in runners._entries:
            result[name] = "not written by a runner"
            continue
        with written_plainly():
            plainly = write(model, prompts, sources, sampling)
        result[name] = count_equal(by_runner, plainly)
        if name == "greedy":
            guessed = write(model, prompts, sources, replace(greedy, prompt_lookup_num_tokens=4))
            result["lookup"] = count_equal(guessed, by_runner)
    runners._entries.pop(model, None)
    runners.set_dtype(model, torch.bfloat16)
    return result | {"alone, bf16": compare_alone(model, prompts, sources, ways["sampled"])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--new", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", help="families whose names begin so")
    o = parser.parse_args()
    results = {}
    for name, model in build_models():
        if o.only and not name.startswith(tuple(o.only)):
            continue
        torch.manual_seed(0)
        recurrent = isinstance(model, RecurrentLM | Seq2Seq)  # with more noise, rounding grows at every step
        model = make_noisy(model, 0.08 if recurrent else 0.15).to(o.device)
        model.device_type = torch.device(o.device).type
        try:
            by_runner = find_decoder(model) is not None
            results[name] = (compare if by_runner else compare_plain)(model, o.prompts, o.new)
        except Exception as error:  # the others are compared all the same
            results[name] = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
        print(name, json.dumps(results[name]), flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
