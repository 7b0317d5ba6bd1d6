"""Measure how fast images of a set larger than memory are read, without a model.

    python -m bench.images [--side 224] [--count 1024] [--processes N] [--seconds 5]

JPEGs whose sides are SIDE to 1.33 times as long, read as batches of 256 by two threads, as for training: by
decoders that also resize, and, where there is a GPU, by decoders that leave that to it. Ends with one JSON
line: images a second, and the processor time of an image in this process and in the decoders.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from regard.bench.data import make_jpegs
from regard.data import images, resizing
from regard.data.decoders import Decoders, processors
from regard.data.images import ImageDataset, load_images
from regard.vision.decoding import ImageSource

BATCH = 256
TICKS = os.sysconf("SC_CLK_TCK")


def decoder_seconds(pids: list[int]) -> float:
    """The processor time of other processes so far."""
    times = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(fields[11]) + int(fields[12]) for fields in times) / TICKS


def own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(data: ImageDataset, pids: list[int], seconds: float) -> dict[str, float]:
    """Read batches by two threads for some seconds."""
    rows = [np.arange(start, start + BATCH) % len(data) for start in range(0, len(data), BATCH)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(data.read, rows[:4]))
        began, own, decoders, count = time.monotonic(), own_seconds(), decoder_seconds(pids), 0
        while time.monotonic() - began < seconds:
            count += sum(len(pixels) for pixels in threads.map(data.read, rows))
    passed = time.monotonic() - began
    return {
        "images_per_second": round(count / passed),
        "us_here": round((own_seconds() - own) / count * 1e6),
        "us_in_decoders": round((decoder_seconds(pids) - decoders) / count * 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--count", type=int, default=1024)
    parser.add_argument("--processes", type=int, default=max(1, processors() - 1))
    parser.add_argument("--seconds", type=float, default=5)
    o = parser.parse_args()
    pool = Decoders(o.processes)
    workers = [pool.idle.get() for _ in range(o.processes)]
    pids = [worker.process.pid for worker in workers]
    for worker in workers:
        pool.idle.put(worker)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(images, "MANY", 1),
        patch.object(images, "decoders", lambda: pool),
    ):
        paths = sorted(map(str, make_jpegs(Path(folder), o.count, o.side).rglob("*.jpg")))
        data = load_images([ImageSource(path, path) for path in paths], 224, 3, memory=0)
        results = {"decoded and resized": measure(data, pids, o.seconds)}
        if torch.cuda.is_available():
            rows = np.arange(min(BATCH, o.count))
            plain = data.read(rows)
            torch.cuda.init()
            print("the GPU resizes as Pillow does:", resizing.resizing_device() is not None)
            print("equal pixels:", torch.equal(data.read(rows), plain))
            results["resized on the GPU"] = measure(data, pids, o.seconds)
    print(json.dumps(results))
    pool.close()


if __name__ == "__main__":
    main()
