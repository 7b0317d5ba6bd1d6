"""Measure time and peak memory of one layer on long texts, with full and with windowed attention.

    python bench/window.py [--lengths 1024 2048 4096 8192] [--window 128] [--globals 1] [--dim 256]
                           [--heads 4] [--dropout 0.1] [--precision bf16] [--padded] [--rounds 3]

Each case runs in a process of its own, to measure its peak; the peak for 16 tokens is subtracted. Times are
the best of all rounds, in turns, on a GPU if there is one. Prints one JSON line at the end.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from regard.core.attention import Attention, padding_mask
from regard.core.layers import Block, FeedForward
from regard.training.machine import choose_device
from regard.training.throughput import synchronize

KINDS = ["full", "windowed"]


def peak(device: torch.device) -> int:
    """Return the peak memory so far, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * int(re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[0])


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Measure one case in this process."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    device = choose_device("auto")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
    window = options.window if options.kind == "windowed" else None
    attention = Attention(
        options.dim, options.heads, dropout=options.dropout, window=window, globals=options.globals
    )
    layer = Block(options.dim, attention, FeedForward(options.dim)).to(device, dtype)
    (length,) = options.lengths

    def run(T: int) -> float:
        x = torch.randn(
            2 if options.padded else 1, T, options.dim, device=device, dtype=dtype, requires_grad=True
        )
        mask = padding_mask(torch.tensor([T, T // 2], device=device), T) if options.padded else None
        synchronize(device)
        start = time.perf_counter()
        layer(x, mask=mask).sum().backward()
        synchronize(device)
        return time.perf_counter() - start

    run(16)
    before = peak(device)
    first = run(length)  # once, because memory that is freed late would add up
    after = peak(device)
    return {"seconds": min(first, run(length)), "bytes": after - before}


def measure_in_process(length: int, kind: str) -> dict[str, Any]:
    command = [sys.executable, __file__, *sys.argv[1:], "--lengths", str(length), "--kind", kind]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--globals", type=int, default=1)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0, help="of attention weights")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--padded", action="store_true", help="two texts, one half as long")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind:
        print(json.dumps(measure(options)))
        return
    result: dict[str, Any] = {
        "window": options.window,
        "globals": options.globals,
        "dim": options.dim,
        "lengths": {},
    }
    print(f"{'tokens':>8}", *(f"{kind + ' ' + unit:>14}" for unit in ("s", "MB") for kind in KINDS), end="")
    print(f"{'times faster':>14}{'times smaller':>15}")
    for length in options.lengths:
        rounds = [{kind: measure_in_process(length, kind) for kind in KINDS} for _ in range(options.rounds)]
        best = {
            kind: {unit: min(r[kind][unit] for r in rounds) for unit in ("seconds", "bytes")}
            for kind in KINDS
        }
        full, windowed_attention = (best[kind] for kind in KINDS)
        faster, smaller = (full[unit] / max(windowed_attention[unit], 1e-9) for unit in ("seconds", "bytes"))
        result["lengths"][length] = {**best, "faster": faster, "smaller": smaller}
        times = "".join(f"{best[kind]['seconds']:15.3f}" for kind in KINDS)
        sizes = "".join(f"{best[kind]['bytes'] / 1e6:15.1f}" for kind in KINDS)
        print(f"{length:8}{times}{sizes}{faster:14.2f}{smaller:15.2f}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
