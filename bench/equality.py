"""Compare what is written by steps of fixed shapes with what is written plainly, for every family.

    python -m bench.equality [--prompts 200] [--new 100] [--device cuda]

Random weights, float32, prompts of unequal lengths. Greedy texts, texts of beam search (with suppressed
tokens), sampled texts, and texts of prompt-lookup decoding by the runner are compared with those of the plain
operations; and sampled texts in bfloat16, written alone, with those written among all others, bit for bit.
On a CPU the runner takes the plain operations, too. Ends with one JSON line: how many texts were equal.
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
from regard.decode.generate import generate
from regard.decode.prompts import Source
from regard.decode.sampling import Sampling
from regard.models import GPT, Captioner, CaptionerConfig, GPTConfig, Transformer, TransformerConfig
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
}


def build_models() -> Iterator[tuple[str, Any]]:
    for name, changes in GPTS.items():
        yield name, GPT(GPTConfig(**SIZES | changes))
    yield "transformer", Transformer(TransformerConfig(**SIZES))
    yield "t5", Transformer(T5Config(**SIZES))
    for name, config in CAPTIONERS.items():
        yield name, Captioner(config)


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
    if isinstance(model, GPT):
        return make_rows(count, CONTEXT // 2), None
    if isinstance(model, Transformer):
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
        result[name] = f"{sum(a == b for a, b in zip(by_runner, plainly, strict=True))}/{count}"
        if name == "greedy":
            guessed = write(model, prompts, sources, replace(greedy, prompt_lookup_num_tokens=4))
            result["lookup"] = f"{sum(a == b for a, b in zip(guessed, by_runner, strict=True))}/{count}"
    runners._entries.pop(model, None)
    runners.set_dtype(model, torch.bfloat16)
    together = write(model, prompts, sources, ways["sampled"])
    few = range(0, count, max(1, count // 20))
    alone = [write(model, [prompts[i]], sources and [sources[i]], ways["sampled"])[0] for i in few]
    equal = sum(together[i] == text for i, text in zip(few, alone, strict=True))
    return result | {"alone, bf16": f"{equal}/{len(few)}"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--new", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", help="names of families")
    o = parser.parse_args()
    results = {}
    for name, model in build_models():
        if o.only and name not in o.only:
            continue
        torch.manual_seed(0)
        model = make_noisy(model).to(o.device)
        model.device_type = torch.device(o.device).type
        try:
            results[name] = compare(model, o.prompts, o.new)
        except Exception as error:  # the others are compared all the same
            results[name] = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
        print(name, json.dumps(results[name]), flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
