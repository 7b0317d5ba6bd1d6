"""Measure every row of the table of speeds, ours and the peer in turns, on a GPU that is used alone.

    python -m bench.gpu [ROW ...] [--repeat 3] [--data FOLDER] [--nanogpt DIR] [--gptfast DIR] [--out DIR]
                        [--together 4] [--document] [--profile ROW] [--small]

FOLDER has multi30k/ and tinyshakespeare/. Each row runs in a process of its own, with a limit of time, so
that no row can spoil another. A few of them compile and warm up together; then they are measured one after
the other, while the rest of them wait. The median of the repetitions counts. Writes DIR/gpu.json and gpu.md.
--profile ROW writes a table of where the time of our first contender goes instead. --small takes sizes for a
CPU, to try the script. Ends with one JSON line.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch
from bench.rows import ROWS
from bench.rows.document import document

from regard.bench.measure import Job, Options, measure, measure_peaks
from regard.training.machine import choose_device
from regard.training.throughput import synchronize


def run_row(name: str, options: Options) -> dict[str, Any]:
    """Measure a row when the other process says so."""

    def wait() -> None:
        print("ready", flush=True)
        sys.stdin.readline()
        measure_peaks(options.device)

    row = ROWS[name](options)
    device = torch.cuda.get_device_name() if options.device.type == "cuda" else "cpu"
    about = {"row": name, "device": device, "torch": torch.__version__}
    result = measure(row, options, traceback.print_exc, wait)
    return about | {"peaks": measure_peaks(options.device)} | result


def profile_row(name: str, options: Options, out: Path) -> dict[str, Any]:
    """Write tables of kernels and operations of one run of our first contender."""
    from torch.profiler import ProfilerActivity, profile

    options.seconds = 0.3
    build: Any = next(iter(ROWS[name](options).contenders.values()))
    job: Job = build()
    job()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities) as result:
        job()
        synchronize(options.device)
    rows, path = result.key_averages(), out / f"profile-{name}.txt"
    orders = ["self_cpu_time_total"]
    if options.device.type == "cuda":
        orders.insert(0, "self_cuda_time_total")
    path.write_text(
        "\n".join(rows.table(sort_by=order, row_limit=50, max_name_column_width=90) for order in orders)
    )
    return {"row": name, "profile": str(path)}


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table with a line for each contender."""
    lines = [
        "| row | who | rate | of the peer | memory | of peak FLOP/s | of bandwidth | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        results, unit = row.get("results", {}), str(row.get("unit", "")).replace("_", " ")
        peers = [r["rate"] for name, r in results.items() if not name.startswith("regard")]
        for name, r in results.items():
            rate = f"{1000 / r['rate']:.2f} ms a step" if unit == "steps" else f"{r['rate']:,.0f} {unit}/s"
            ours = name.startswith("regard") and peers
            cells = [row["row"], name, rate, f"{r['rate'] / max(peers):.2f} x" if ours else ""]
            cells.append(f"{r['GiB']:.1f} GiB" if "GiB" in r else "")
            cells += [f"{r[key]:.0%}" if key in r else "" for key in ("flops_share", "bandwidth_share")]
            notes = [f"first token after {r['ms_to_first_token']:.0f} ms"] if "ms_to_first_token" in r else []
            notes += [f"ready after {r['start_s']:.0f} s"] if "start_s" in r else []
            lines.append(f"| {' | '.join([*cells, ', '.join(notes)])} |")
        for name, problem in (row.get("failed") or {}).items():
            lines.append(f"| {row['row']} | {name} | failed: {problem.replace('|', '/')} | | | | | |")
        if "error" in row:
            lines.append(f"| {row['row']} | | failed: {row['error'].replace('|', '/')} | | | | | |")
    return "\n".join(lines) + "\n"


class Apart:
    """A row in another process, whose messages go to a file."""

    def __init__(self, name: str, arguments: list[str], log: Path):
        self.name, self.log, self.late = name, log, False
        command = [sys.executable, "-m", "bench.gpu", name, "--here", *arguments]
        with log.open("w") as messages:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                start_new_session=True,  # so that all of them can be ended
            )
        self.lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        """Pass on the lines that are ours; libraries may print others."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line == "ready\n" or line.startswith('{"row"'):
                    self.lines.put(line)
        self.lines.put("")

    def read_line(self, end: float) -> str:
        """The next line, or none at the end or when the time is over."""
        try:
            return self.lines.get(timeout=max(0.0, end - time.monotonic()))
        except Empty:
            return ""

    def finish(self, end: float) -> dict[str, Any]:
        """Let the row be measured, and return its figures."""
        line = ""
        if self.process.poll() is None and self.process.stdin is not None:
            with suppress(OSError):  # it may end just now
                self.process.stdin.write("go\n")
                self.process.stdin.flush()
            line = self.read_line(end)
        self.stop(20 if line else 0)  # one that is done ends what it has started
        if line.startswith("{"):
            figures: dict[str, Any] = json.loads(line)
            return figures
        last = (self.log.read_text().strip().splitlines() or ["it ended"])[-1]
        return {"row": self.name, "error": "took too long" if self.late else last[:300]}

    def stop(self, seconds: float) -> None:
        """Wait so long for the process, then end it and those that it has started."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.late = True
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


def run_group(names: list[str], arguments: list[str], o: argparse.Namespace) -> list[dict[str, Any]]:
    """Warm rows up together, then measure one after the other."""
    rows = [Apart(name, arguments, o.out / f"{name}.log") for name in names]
    end = time.monotonic() + o.limit
    ready = [row.read_line(end) == "ready\n" for row in rows]
    for row, is_ready in zip(rows, ready, strict=True):
        if not is_ready:
            row.stop(0.2)
    return [row.finish(time.monotonic() + o.limit) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.5, help="of a repetition of a contender")
    parser.add_argument("--limit", type=float, default=200, help="seconds to warm up, and for each row after")
    parser.add_argument("--together", type=int, default=4, help="rows that warm up at once")
    for name in ("data", "nanogpt", "gptfast"):
        parser.add_argument(f"--{name}", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("."), metavar="DIR")
    parser.add_argument("--profile", metavar="ROW", choices=ROWS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--document", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if unknown := [name for name in o.rows if name not in ROWS]:
        parser.error(f"no row {unknown[0]}; there are {', '.join(ROWS)}")
    if o.here or o.profile:
        options = Options(choose_device("auto"), o.data, o.nanogpt, o.gptfast, o.repeat, o.seconds, o.small)
        result = profile_row(o.profile, options, o.out) if o.profile else run_row(o.rows[0], options)
        print(json.dumps(result))
        return
    arguments = [f"--repeat={o.repeat}", f"--seconds={o.seconds}", *(["--small"] if o.small else [])]
    for name in ("data", "nanogpt", "gptfast"):
        if value := getattr(o, name):
            arguments += [f"--{name}", str(value)]
    results: list[dict[str, Any]] = []
    o.out.mkdir(parents=True, exist_ok=True)
    names = list(o.rows or ROWS)
    for first in range(0, len(names), o.together):
        group = run_group(names[first : first + o.together], arguments, o)
        results += group
        print(*markdown(group).splitlines()[2:], sep="\n", flush=True)
        (o.out / "gpu.json").write_text(json.dumps(results, indent=1))  # at once: nothing is lost
        (o.out / "gpu.md").write_text(markdown(results))
    if o.document:
        about = {f"{row['device']}, torch {row['torch']}" for row in results if "device" in row}
        document("speeds", "; ".join(sorted(about)) + "\n\n" + markdown(results))
    print(
        json.dumps({row["row"]: {k: v["rate"] for k, v in row.get("results", {}).items()} for row in results})
    )


if __name__ == "__main__":
    main()
