"""Run an experiment: `python -m experiments NAME [--seeds 5] [--steps N] [--document]`; NAME may be `all`.

Prints a table of what was measured, the mean and the standard deviation over the seeds, and ends with one
JSON line of all values. --document writes the table into docs/experiments.md.
"""

import argparse
import contextlib
import importlib
import json
import sys
import time

import torch

from experiments.document import Values, table, write_document
from experiments.training import Result

NAMES = (
    *("order", "heads", "pronouns", "masks", "pretraining"),
    *("vectors", "temperature", "distance", "memory"),
)


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)  # the models are small, and results don't depend on the machine's cores
    results = {}
    for name in NAMES if options.name == "all" else (options.name,):
        results[name] = repeat(name, options.seeds, options.steps)
        print(table(name, results[name]), flush=True)
        if options.document:
            write_document(name, results[name])
    print(json.dumps(results))


def parse_options() -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="python -m experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("name", choices=(*NAMES, "all"), metavar="NAME", help=", ".join((*NAMES, "all")))
    p.add_argument("--seeds", type=int, default=5, metavar="N", help="how many, from 0 (default: 5)")
    p.add_argument("--steps", type=int, metavar="N", help="of training, instead of the experiment's own")
    p.add_argument("--document", action="store_true", help="write the table into docs/experiments.md")
    return p.parse_args()


def repeat(name: str, seeds: int, steps: int | None = None) -> Values:
    """The values of every variant and measure, one for each seed."""
    experiment = importlib.import_module(f"experiments.{name}")
    values: Values = {}
    for seed in range(seeds):
        begin = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):  # what training prints
            result: Result = experiment.run(seed, steps or experiment.STEPS)
        for variant, measures in result.items():
            for measure, value in measures.items():
                values.setdefault(variant, {}).setdefault(measure, []).append(round(value, 3))
        print(f"{name}: seed {seed}, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    return values


if __name__ == "__main__":
    main()
