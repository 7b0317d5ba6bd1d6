"""Attack Regard: `python -m torture [--only NAME] [--scale 0.01] [--seed 0] [--out FOLDER]`.

Prints a table and writes FOLDER/outcome.json. A run that was killed goes on where it was, unless the code
has changed meanwhile. Ends with status 1 if there was any fault.
"""

import argparse
import hashlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from torture import ROOT, syscalls
from torture.document import table, write_document
from torture.driver import run_suite

SUITES = ("faults", "kills", "power", "races", "folders", "models", "templates", "routes", "load")


def main() -> None:
    options = parse_options()
    options.out.mkdir(parents=True, exist_ok=True)
    preload_syscalls(options.out)
    from torture import commands

    commands.load_libraries(exporters=not options.short)  # once, for all forks
    file, code = options.out / "outcome.json", source_digest()
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    faults = 0
    for name in options.only or SUITES:
        scale = None if options.short else options.scale
        result = run_suite(name, scale, options.seed, options.jobs, options.out, code, options.minutes)
        results[name], faults = result, faults + len(result["faults"])
        file.write_text(json.dumps(results, indent=1) + "\n")
        for fault in result["faults"][:20]:
            print(f"{name} {fault}", file=sys.stderr, flush=True)
        print(table({name: result}, heading=name == (options.only or SUITES)[0]), flush=True)
    if options.document:
        write_document(results)
    sys.exit(bool(faults))


def parse_options() -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="python -m torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--only", action="append", choices=SUITES, metavar="NAME", help="one suite (repeatable)")
    p.add_argument("--scale", type=float, default=1.0, metavar="X", help="this share of the attacks")
    p.add_argument("--minutes", type=float, default=math.inf, metavar="M", help="for each suite, at most")
    p.add_argument("--short", action="store_true", help="as few attacks as in the test suite")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="for other attacks (default: 0)")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="attacks at once")
    p.add_argument("--out", type=Path, default=ROOT / "build" / "torture", metavar="FOLDER")
    p.add_argument("--document", action="store_true", help="write the outcomes to docs/reliability.md")
    return p.parse_args()


def preload_syscalls(folder: Path) -> None:
    """Start this process again with syscalls.c in it, where there is a C compiler."""
    if syscalls.is_loaded() or (library := syscalls.build(folder)) is None:
        return
    variables = {"LD_PRELOAD": str(library.resolve()), "PYTHONPATH": os.pathsep.join(sys.path)}
    variables |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.execve(sys.executable, [sys.executable, "-m", "torture", *sys.argv[1:]], os.environ | variables)


def source_digest() -> str:
    """Return a digest of the code that is attacked, and of the attacks."""
    digest = hashlib.sha256()
    for folder in ("regard", "torture", "tests/helpers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
