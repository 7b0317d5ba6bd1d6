"""`make torture` in short: a few attacks of each suite, none of which finds a fault."""

import asyncio
import json
import mmap
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torture import syscalls
from torture.__main__ import SUITES
from torture.document import DOCUMENT, OUTCOMES, with_table
from torture.driver import StateFile, load_suite
from torture.outcome import Outcome
from torture.power import Disk
from torture.routes import SUITE
from torture.server import watch_loop
from torture.syscalls import Effect

ROOT = Path(__file__).parents[1]


def run_torture(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torture", "--jobs", "1", "--out", str(out), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("torture")
    run = run_torture(out, "--short")
    assert (out / "outcome.json").exists(), run.stderr
    return out, run.stdout + run.stderr


@pytest.mark.parametrize("name", SUITES)
def test_a_few_attacks_find_no_fault(short, name):
    result = json.loads((short[0] / "outcome.json").read_text())[name]
    if load_suite(name).SUITE.needs_syscalls and syscalls.build(short[0]) is None:
        pytest.skip("no C compiler")
    assert result["attacks"] == load_suite(name).SUITE.short
    limits = load_suite(name).SUITE.limits
    times = tuple(f"{limit}: " for limit in limits if " ms" in limit)  # which a busy machine exceeds
    faults = [fault for fault in result["faults"] if not fault.startswith(times)]
    assert not faults, short[1]


@pytest.mark.slow
def test_a_few_attacks_of_all_commands_find_no_fault(short, tmp_path):
    run = run_torture(tmp_path, "--only", "faults", "--only", "power", "--scale", "0.003")
    results = json.loads((tmp_path / "outcome.json").read_text())
    if syscalls.build(tmp_path) is None:
        pytest.skip("no C compiler")
    assert not any(result["faults"] for result in results.values()), run.stderr


def test_a_loop_that_waits_in_a_call_of_the_system_is_stalled():
    stalls = mmap.mmap(-1, 16)

    async def serve():
        watch = asyncio.create_task(watch_loop(stalls))
        for _ in range(20):  # while other work has the processor, a stall is not seen
            await asyncio.sleep(0)
            reading, writing = os.pipe()
            threading.Timer(1.0, os.write, (writing, b"x")).start()
            os.read(reading, 1)  # as from a child process
            await asyncio.sleep(0.1)
            if stall() > SUITE.limits["stall ms"] / 1000:
                break
        watch.cancel()

    def stall():
        return struct.unpack("dd", stalls[:])[0]

    asyncio.run(serve())
    assert stall() > SUITE.limits["stall ms"] / 1000


WRITERS = """
import os, sys, threading
from pathlib import Path
from torture.syscalls import Watch

def write(letter):
    handle = os.open(folder / letter, os.O_WRONLY | os.O_CREAT)
    for _ in range(3000):
        os.write(handle, letter.encode() * 200)

folder = Path(sys.argv[1])
watch = Watch(folder)
watch.arm()
threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
record = watch.read()
writes = [effect for effect in record.effects if effect.name == "write"]
assert len(writes) == 12_000 and all(w.data == w.path[-1:].encode() * 200 for w in writes)
assert sum(name == "write" for name, _ in record.calls) == 12_000
"""


def test_records_of_several_threads_do_not_mix(tmp_path):
    library = syscalls.build(tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    (folder := tmp_path / "watched").mkdir()
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", WRITERS, str(folder)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_a_run_that_was_ended_goes_on(short, tmp_path):
    """The attacks that its file has are not made again; those of other code are."""
    path, header = tmp_path / "power.jsonl", {"code": "1", "seed": 0, "total": 9}
    StateFile(path, header).add(3, Outcome("fine", counts={"kills": 2}), 0.5)
    path.write_text(path.read_text() + "[4, {")  # killed here
    state = StateFile(path, header)
    assert state.outcomes == {3: Outcome("fine", counts={"kills": 2})}
    assert StateFile(path, header | {"code": "2"}).outcomes == {}


def test_a_disk_loses_what_was_not_flushed(tmp_path):
    """A file that is written and renamed without fsync may be empty, or still have its old name."""
    effects = [
        Effect("create", 7, path="/top/.a.partial"),
        Effect("write", 7, 0, "/top/.a.partial", data=b"text"),
        Effect("rename", path="/top/.a.partial", other="/top/a"),
    ]
    flush_file, flush_folder = Effect("fsync", 7, path="/top/.a.partial"), Effect("fsync", path="/top")

    def left(*changes: Effect) -> set[tuple[str, ...]]:
        """What may be there afterwards, in all luck that there is."""
        import random

        ends = set()
        for seed in range(200):
            disk, folder = Disk("/top"), tmp_path / f"{len(os.listdir(tmp_path))}"
            for change in changes:
                disk.replay(change)
            disk.cut(folder, random.Random(seed), "by chance")
            ends.add(tuple(f"{p.name}={p.read_text()}" for p in sorted(folder.iterdir())))
        return ends

    careless = left(*effects)
    assert {(), ("a=",), ("a=text",), (".a.partial=text",), ("a=te",)} <= careless
    careful = left(*effects[:2], flush_file, effects[2])
    assert careful == {(), (".a.partial=text",), ("a=text",)}
    assert left(*effects[:2], flush_file, effects[2], flush_folder) == {("a=text",)}


def test_the_document_has_the_outcomes() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert with_table(text, json.loads(OUTCOMES.read_text())) == text, "run: python -m torture --document"
    for name in SUITES:
        assert f"**{name}**" in text, "each suite is described"
