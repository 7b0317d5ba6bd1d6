"""Plans for many processes, in one that has none of them."""

import argparse
import json
import os
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.errors import user_error
from helpers.forking import Process
from helpers.runs import write_data
from helpers.slow import slow_after
from regard import cli
from regard.models import MODELS
from regard.tasks import TASKS
from regard.training.plan.cluster import (
    Shares,
    count_sent,
    describe_cluster,
    fake_processes,
    largest_sum,
    plan_cluster,
    share_model,
    state_memory,
)
from regard.training.plan.facts import Facts, Side
from regard.training.plan.plan import Plan, make_plan
from regard.training.plan.sizes import Request
from regard.training.plan.speed import find_machine, known_machine, make_empty

DIFFERENT = {"gpt", "transformer", "vit", "captioner", "lstm"}  # others are sharded as one of these
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"train.parallel": "fsdp"},
    "hybrid": {"train.parallel": "hybrid", "train.shard": 16},
}
TEXT = Side(characters=50_000, words=10_000, alphabet=80, vocabulary=3000, longest=130)
FACTS = Facts(rows=500, source=TEXT, target=TEXT, classes=3, size=32, channels=3)


def plan_for(kind: str, machine: str, **by_hand: Any) -> Plan:
    """The plan of the first task that suits a kind of model."""
    like = getattr(MODELS[kind][0], "like", kind)
    task = next(name for name, (task, _) in TASKS.items() if like in task.kinds)
    return make_plan(Request(task, kind, {"train.steps": 9} | by_hand, FACTS, known_machine(machine)))


@pytest.mark.parametrize("kind", slow_after(5, sorted(MODELS, key=lambda kind: kind not in DIFFERENT)))
def test_every_family_is_sharded_over_64_processes(kind: str) -> None:
    plans = {way: plan_cluster(plan_for(kind, "64xh200", **settings)) for way, settings in WAYS.items()}
    assert not torch.distributed.is_initialized()
    shares = {way: plan.shares for way, plan in plans.items()}
    total = shares["ddp"].total
    assert shares["ddp"].own == total == shares["fsdp"].total == shares["hybrid"].total > 0
    for way, size in (("fsdp", 64), ("hybrid", 16)):
        assert shares[way].shard == size
        assert total / size <= shares[way].own  # the first process has the most
        assert plans[way].memory["weights"] == 4 * shares[way].own
    assert shares["fsdp"].own < shares["hybrid"].own < total
    assert plans["ddp"].sent == {"all-reduce": pytest.approx(2 * 4 * total * 63 / 64)}
    assert plans["hybrid"].sent.keys() == {"all-gather", "reduce-scatter", "all-reduce"}
    assert all(plan.step > 0 for plan in plans.values())
    assert len(describe_cluster(plan_for(kind, "64xh200"))) == 5


def test_what_a_process_has_and_sends() -> None:
    """By hand: 20 processes in groups of 5; a model of 100 weights, 80 of them in two blocks."""
    s = Shares(processes=20, shard=5, total=100, blocks=16, rest=4, largest=40, outside=20)
    assert count_sent(s, parts=1) == {
        "all-gather": 4 * 4 * (2 * 16 + 4),
        "reduce-scatter": 4 * 4 * 20,
        "all-reduce": 4 * 2 * 20 * 3 / 4,
    }
    assert count_sent(s, parts=1, gpu=False)["reduce-scatter"] == 2 * 4 * 4 * 20, "gloo's is an all-reduce"
    assert count_sent(s, parts=3)["all-gather"] == 3 * 4 * 4 * (2 * 16 + 4)
    memory = state_memory(s, parts=1, muon=False, ema=True)
    assert memory == {
        "weights": 80,
        "gradients": 80,
        "optimizer": 3 * 80,
        "gathered layers": 4 * (20 + 2 * 40),
        "messages": 4 * 2 * 40,
    }
    assert (
        state_memory(s, parts=2, muon=False, ema=False)["gradients"] == 400
    )  # added up before they are shared


def test_what_a_process_has_at_the_same_time() -> None:
    """By hand: the forward pass ends, the last block has its gradients, the backward pass ends, Muon."""
    own = {"weights": 10.0, "optimizer": 20.0, "gathered layers": 5.0, "gradients": 40.0, "messages": 8.0}
    sharded = Shares(processes=4, shard=4, total=100, blocks=16, rest=4, largest=40, outside=20)
    copied = replace(sharded, shard=1)
    for activations, logits, muon, expected in (
        (100.0, 30.0, 0.0, 35 + 100 + 30),
        (40.0, 1.0, 0.0, 35 + 40 * 3 / 4 + 40 / 4 + 8),
        (4.0, 1.0, 0.0, 35 + 40 + 8),
        (4.0, 1.0, 60.0, 35 + 40 + 60),
    ):
        memory = own | {"kept for the backward pass": activations, "logits": logits, "Muon's matrices": muon}
        assert largest_sum(memory, sharded, 1, 4) == expected
    memory = own | {"kept for the backward pass": 100.0, "logits": 1.0}
    assert largest_sum(memory, sharded, 3, 4) == 35 + 40 + 101, "gradients of earlier parts"
    assert largest_sum(memory, copied, 1, 4) == 35 + 8 + 101, "DDP's buckets"


def test_blocks_that_are_computed_twice_keep_less() -> None:
    plain, recomputed = (
        plan_cluster(plan_for("gpt", "64xh200", **{"train.recompute": recompute}))
        for recompute in (False, True)
    )
    name = "kept for the backward pass"
    assert recomputed.memory[name] < plain.memory[name] / 2
    assert recomputed.computing > plain.computing


def test_the_copy_for_checkpoints_is_in_the_memory_of_the_cpu() -> None:
    gpu = plan_for("gpt", "4xh200", **WAYS["fsdp"])
    cpu = replace(gpu, request=replace(gpu.request, machine=replace(known_machine("cpu2"), processes=4)))
    own, has = plan_cluster(gpu).memory, plan_cluster(cpu)
    assert "copy for checkpoints" not in own
    copied = own["weights"] + own["optimizer"]
    assert has.memory["copy for checkpoints"] == copied
    assert has.largest >= 2 * copied


def test_messages_take_the_time_of_cpus() -> None:
    gpu = plan_cluster(plan_for("gpt", "4xh200", **WAYS["fsdp"]))
    assert gpu.step == max(gpu.computing, gpu.sending) > 0
    cpu = replace(gpu, machine=replace(known_machine("cpu1"), processes=4))
    assert cpu.step == cpu.computing + cpu.sending > gpu.step


def test_machines_by_name_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vars(known_machine("32xh200")) | {"name": ""} == vars(known_machine("h200x32")) | {"name": ""}
    this = known_machine("cpu2")
    monkeypatch.setattr("regard.training.plan.speed.this_machine", lambda device: this)
    cpu = torch.device("cpu")
    assert find_machine("64", cpu).processes == 64
    assert find_machine("64", cpu).peak == this.peak
    assert find_machine(None, cpu) is this
    for name in ("0", "0xh200", "x8", "8x", "8xabacus"):
        user_error(lambda name=name: find_machine(name, cpu), name)


def test_the_command_prints_it(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "train",
        "write",
        write_data("write", tmp_path),
        "--dry-run",
        "--for",
        "256xh100",
        "--steps",
        "9",
    ]
    with pytest.raises(SystemExit):
        cli.main([*words, "--set", "train.parallel=hybrid", "--set", "train.shard=8"])
    said = capsys.readouterr().out
    for fact in ("256 processes", "groups of 8", "all-gather", "reduce-scatter", "all-reduce", "optimizer"):
        assert fact in said


def test_a_plan_needs_no_other_processes() -> None:
    with fake_processes(4):
        model = make_empty("gpt", {"dim": 8, "depth": 1, "heads": 2, "context": 7}, {"vocab": 11})
        user_error(lambda: share_model(model, 64, "fsdp", None), "--for")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fsdp", "hybrid"])
def test_what_is_planned_is_measured(tmp_path: Any, way: str) -> None:
    """Weights, optimizer state and messages of a real process are within a tenth of what its plan says."""
    data, steps, sizes = write_data("write", tmp_path), 3, {"dim": 48, "depth": 3, "heads": 2, "context": 16}
    settings = {f"model__{name}": value for name, value in sizes.items()}
    settings |= {"train__parallel": way, "train__batch": 4, "train__evaluate": 9, "train__save": 9}
    settings |= {"train__shard": 2, "steps": steps, "measured": str(tmp_path / "measured.json")}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"commands": {}, "runs": [[data, str(tmp_path / "out"), settings]]}))
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PROCESSES": "4"}
    process = Process("-m", "helpers.ranks", "--plan", plan, env=environment)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    measured = json.loads((tmp_path / "measured.json").read_text())
    vocab = json.loads((tmp_path / "out/config.json").read_text())["vocab"]
    empty = make_empty("gpt", sizes | {"dropout": 0.0}, {"vocab": vocab})
    shares = share_model(empty, 4, way, 2)
    memory, sent = state_memory(shares, parts=1, muon=False, ema=False), count_sent(shares, parts=1)
    wide = 2  # bytes of float64, in which the tests compute, for each of float32
    for name in ("weights", "optimizer"):
        assert measured["memory"][name] == pytest.approx(wide * memory[name], rel=0.1)
    for name, n in sent.items():
        assert measured["sent"][name] / steps == pytest.approx(wide * n, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "processes"), [("ddp", 2), ("fsdp", 2), ("fsdp", 4), ("hybrid", 4)])
def test_all_memory_is_planned(way: str, processes: int) -> None:
    """The most bytes of tensors at a time, of each real process, are within a tenth of what its plan says."""
    bench = runpy.run_path(str(Path(__file__).parents[3] / "bench" / "cluster.py"))
    sizes = argparse.Namespace(dim=512, depth=8, batch=16, time=False)  # of smaller ones, messages weigh more
    planned = bench["planned"](way, processes, sizes)
    for measured in bench["measure"](way, processes, sizes):
        assert measured == pytest.approx(planned, rel=0.1)
