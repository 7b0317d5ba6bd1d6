"""Measure the kernels of a step of generation on a GPU, with the shapes of GPT-2 124M.

    python bench/kernels.py [--rows 1 64] [--tokens 512] [--dtype bfloat16] [--bandwidth 4.0]

Each kernel runs many times in a CUDA graph, with other weights or pages each time, so that none are in the
cache. Prints microseconds per kernel, next to the time that reading its bytes takes at the bandwidth (TB/s),
and that of cuBLAS for the product alone; then those of all kernels of a token. Ends with one JSON line.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decode.kernels import Norm, for_device

D, H, HIDDEN, VOCAB, DEPTH, PAGE = 768, 12, 3072, 50257, 12, 32
CACHE = 150e6  # bytes of weights or pages that the calls of one graph go through: three times the cache
Call = Callable[[], object]


def time_graph(calls: Sequence[Call], replays: int = 5) -> float:
    """Microseconds per call: the best of some replays of a graph with all of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls[0]()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        times = []
        for _ in range(replays):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1000 * begin.elapsed_time(end) / len(calls))
    return min(times)


def make_norm(width: int, dtype: torch.dtype) -> Norm:
    weight = torch.ones(width, device="cuda", dtype=dtype)
    return Norm(weight, torch.zeros_like(weight), 1e-5, True)


def time_product(
    ops: ModuleType, R: int, M: int, K: int, dtype: torch.dtype, kind: str
) -> tuple[float, float, int]:
    """Microseconds of the kernel and of cuBLAS, and the bytes of the weights."""
    size = M * K * dtype.itemsize
    weights = [torch.randn(M, K, device="cuda").to(dtype) / K**0.5 for _ in range(max(2, int(CACHE / size)))]
    calls = weights * max(1, 64 // len(weights))
    bias = torch.zeros(M, device="cuda", dtype=dtype)
    x = torch.randn(R, K, device="cuda")
    half = x.to(dtype)
    norm = Norm(
        torch.ones(K, device="cuda", dtype=dtype), torch.zeros(K, device="cuda", dtype=dtype), 1e-5, True
    )
    if kind == "residual":
        residual = torch.randn(R, M, device="cuda")
        own = [partial(ops.linear_residual, half, w, bias, residual) for w in calls]
    elif kind == "output":
        own = [partial(ops.norm_linear, x, norm, w, out_dtype=torch.float32) for w in calls]
    else:
        own = [
            partial(ops.norm_linear, x, norm, w, bias, "gelu_tanh" if kind == "up" else None) for w in calls
        ]
    return time_graph(own), time_graph([partial(F.linear, half, w) for w in calls]), size


def make_pages(R: int, tokens: int, dtype: torch.dtype) -> tuple[list[tuple[Tensor, ...]], Tensor, Tensor]:
    """Pages of some layers, the tables (R, 32), and the lengths (R,)."""
    N, used = max(32, -(-tokens // PAGE)), -(-tokens // PAGE)
    layers = max(2, int(CACHE / (2 * R * tokens * D * dtype.itemsize)))
    shape = 2, R * used, H, PAGE, D // H
    pages = [tuple(torch.randn(shape, device="cuda", dtype=dtype)) for _ in range(min(layers, 64))]
    tables = torch.zeros(R, N, dtype=torch.int32, device="cuda")
    tables[:, :used] = torch.randperm(R * used, device="cuda").view(R, used)
    return pages, tables, torch.full((R,), tokens, dtype=torch.int32, device="cuda")


def time_attention(ops: ModuleType, R: int, tokens: int, dtype: torch.dtype) -> tuple[list[float], int]:
    """Microseconds of paged_attention, write_pages and write_and_attend; the bytes of keys and values."""
    pages, tables, lengths = make_pages(R, tokens, dtype)
    qkv = torch.randn(R, 3 * D, device="cuda").to(dtype)
    q = qkv[:, :D].unflatten(-1, (H, -1)).contiguous()
    calls = pages * max(1, 64 // len(pages))
    attend = [partial(ops.paged_attention, q, k, v, tables, lengths) for k, v in calls]
    positions = lengths - 1
    write = [partial(ops.write_pages, qkv, k, v, tables, positions) for k, v in calls]
    both = [partial(ops.write_and_attend, qkv, k, v, tables, positions) for k, v in calls]
    return [time_graph(each) for each in (attend, write, both)], 2 * R * tokens * D * dtype.itemsize


def time_sampling(ops: ModuleType, R: int) -> float:
    logits = [torch.randn(R, VOCAB, device="cuda") for _ in range(min(64, int(CACHE / (4 * VOCAB * R))))]
    temperature, uniform = torch.ones(R, device="cuda"), torch.rand(R, 3, device="cuda")
    return time_graph([partial(ops.sample, t, temperature, uniform) for t in logits * (64 // len(logits))])


def time_token(ops: ModuleType, R: int, tokens: int, dtype: torch.dtype) -> tuple[float, int]:
    """Microseconds of all kernels of a step of GPT-2, and the bytes of the weights, keys and values."""
    shapes = {"qkv": (3 * D, D), "out": (D, D), "up": (HIDDEN, D), "down": (D, HIDDEN)}
    layers = [
        {name: torch.randn(s, device="cuda").to(dtype) / s[1] ** 0.5 for name, s in shapes.items()}
        for _ in range(DEPTH)
    ]
    output = torch.randn(VOCAB, D, device="cuda").to(dtype) / D**0.5
    pages, tables, lengths = make_pages(R, tokens, dtype)
    norm = Norm(
        torch.ones(D, device="cuda", dtype=dtype), torch.zeros(D, device="cuda", dtype=dtype), 1e-5, True
    )
    x, positions = torch.randn(R, D, device="cuda"), lengths - 1

    def step() -> Tensor:
        t = x
        for i, w in enumerate(layers):
            k, v = pages[i % len(pages)]
            qkv = ops.norm_linear(t, norm, w["qkv"])
            heads = ops.write_and_attend(qkv, k, v, tables, positions)
            t = ops.linear_residual(heads.flatten(1), w["out"], None, t)
            hidden = ops.norm_linear(t, norm, w["up"], activation="gelu_tanh")
            t = ops.linear_residual(hidden, w["down"], None, t)
        return ops.norm_linear(t, norm, output, out_dtype=torch.float32)

    weights = DEPTH * sum(a * b for a, b in shapes.values()) + VOCAB * D
    return time_graph([step] * 4), dtype.itemsize * (weights + 2 * R * tokens * D * DEPTH)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--bandwidth", type=float, default=4.0, help="of the GPU's memory, TB/s")
    args = parser.parse_args()
    ops, dtype = for_device(torch.device("cuda")), getattr(torch, args.dtype)
    torch.manual_seed(0)
    results: dict[str, dict[str, float]] = {}

    def show(name: str, us: float, size: int, cublas: float | None = None) -> None:
        bound = size / args.bandwidth / 1e6
        results[name] = {"us": us, "bytes_us": bound} | ({} if cublas is None else {"cublas_us": cublas})
        note = "" if cublas is None else f"  cuBLAS {cublas:7.2f}"
        print(f"{name:28s} {us:7.2f} us  bytes {bound:7.2f}{note}", flush=True)

    for R in args.rows:
        for name, M, K, kind in (
            ("qkv", 3 * D, D, "norm"), ("attention.out", D, D, "residual"), ("up", HIDDEN, D, "up"),
            ("down", D, HIDDEN, "residual"), ("output", VOCAB, D, "output"),
        ):  # fmt: skip
            us, cublas, size = time_product(ops, R, M, K, dtype, kind)
            show(f"{name} x {R}", us, size, cublas)
        (attend, write, both), size = time_attention(ops, R, args.tokens, dtype)
        show(f"paged_attention x {R}", attend, size)
        show(f"write_pages x {R}", write, 0)
        show(f"write_and_attend x {R}", both, size)
        show(f"sample x {R}", time_sampling(ops, R), 4 * R * VOCAB)
        us, size = time_token(ops, R, args.tokens, dtype)
        show(f"token x {R}", us, size)
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "dtype": args.dtype, "kernels": results}))


if __name__ == "__main__":
    main()
