"""Long texts: time and peak memory of one layer, forward and backward, full against windowed attention.

    python bench/window.py [--lengths 1024 2048 4096 8192] [--window 128] [--globals 1] [--dim 256]
                           [--heads 4] [--dropout 0.1] [--precision bf16] [--padded] [--rounds 3]

Every case is a process of its own, so that its peak is its own; what a few tokens need is taken off. Times
are the best of all rounds, in turns. On a GPU where there is one. Ends with one JSON line.
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

from regard.attention import Attention, padding_mask
from regard.layers import Block, FeedForward
from regard.meter import wait
from regard.train import choose_device

KINDS = ["full", "windowed"]


def peak(device: torch.device) -> int:
    """Bytes, the most so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * int(re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[0])


def measure(o: argparse.Namespace) -> dict[str, float]:
    """One case, here and now."""
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    device = choose_device("auto")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[o.precision]
    window = o.window if o.kind == "windowed" else None
    attention = Attention(o.dim, o.heads, dropout=o.dropout, window=window, globals=o.globals)
    layer = Block(o.dim, attention, FeedForward(o.dim)).to(device, dtype)
    (length,) = o.lengths

    def run(T: int) -> float:
        x = torch.randn(2 if o.padded else 1, T, o.dim, device=device, dtype=dtype, requires_grad=True)
        mask = padding_mask(torch.tensor([T, T // 2], device=device), T) if o.padded else None
        wait(device)
        start = time.perf_counter()
        layer(x, mask=mask).sum().backward()
        wait(device)
        return time.perf_counter() - start

    run(16)
    before = peak(device)
    first = run(length)  # the peak is that of one run: memory that is given back late does not add up
    after = peak(device)
    return {"seconds": min(first, run(length)), "bytes": after - before}


def apart(length: int, kind: str) -> dict[str, Any]:
    command = [sys.executable, __file__, *sys.argv[1:], "--lengths", str(length), "--kind", kind]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    p.add_argument("--window", type=int, default=128)
    p.add_argument("--globals", type=int, default=1)
    p.add_argument("--dim", type=int, default=256)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--dropout", type=float, default=0.0, help="of attention weights")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--padded", action="store_true", help="two texts, one half as long")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.kind:
        print(json.dumps(measure(o)))
        return
    found: dict[str, Any] = {"window": o.window, "globals": o.globals, "dim": o.dim, "lengths": {}}
    print(f"{'tokens':>8}", *(f"{kind + ' ' + unit:>14}" for unit in ("s", "MB") for kind in KINDS), end="")
    print(f"{'times faster':>14}{'times smaller':>15}")
    for length in o.lengths:
        rounds = [{kind: apart(length, kind) for kind in KINDS} for _ in range(o.rounds)]
        best = {
            kind: {unit: min(r[kind][unit] for r in rounds) for unit in ("seconds", "bytes")}
            for kind in KINDS
        }
        full, windowed = (best[kind] for kind in KINDS)
        faster, smaller = (full[unit] / max(windowed[unit], 1e-9) for unit in ("seconds", "bytes"))
        found["lengths"][length] = {**best, "faster": faster, "smaller": smaller}
        times = "".join(f"{best[kind]['seconds']:15.3f}" for kind in KINDS)
        sizes = "".join(f"{best[kind]['bytes'] / 1e6:15.1f}" for kind in KINDS)
        print(f"{length:8}{times}{sizes}{faster:14.2f}{smaller:15.2f}", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
