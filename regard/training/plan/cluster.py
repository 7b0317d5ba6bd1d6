"""The cost of a step in each of many processes: memory, communication and time, from shapes alone.

The model is built without memory (the meta device) and sharded in a process group that only pretends to have
the other processes. So a laptop can plan for a thousand GPUs.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn

from regard.errors import UserError
from regard.training import distributed
from regard.training.plan.plan import Plan, rows_of, vocab_of
from regard.training.plan.report import UNITS, count, duration, machine_words
from regard.training.plan.sizes import SHARE
from regard.training.plan.speed import Machine, logits_of, make_empty, saved_of, step_seconds

NUMBER = 4  # bytes of a weight, of its gradient and of each number of its optimizer: float32
PER_MACHINE = 8  # GPUs of a machine


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The number of weights that a process has, and that it gathers at a time."""

    processes: int
    shard: int  # processes that share a copy of the weights
    total: int  # weights of the model
    blocks: int  # weights of the blocks in the first process; no other has more
    rest: int  # and of everything else
    largest: int  # weights of the largest block
    outside: int  # weights outside of the blocks

    @property
    def own(self) -> int:
        return self.blocks + self.rest


@contextlib.contextmanager
def fake_processes(count: int) -> Iterator[None]:
    """Act as the first of `count` processes, although the others do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise UserError("--for plans in one process; leave torchrun out")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def share_model(model: nn.Module, processes: int, parallel: str, shard: int | None) -> Shares:
    """Shard a model without memory over this many processes, and count the weights of the first."""
    blocks = list(model.blocks)  # type: ignore[arg-type]
    inside = {p for block in blocks for p in block.parameters()}
    sizes = {"total": sum(p.numel() for p in model.parameters())}
    sizes["largest"] = max((sum(p.numel() for p in b.parameters()) for b in blocks), default=0)
    sizes["outside"] = sizes["total"] - sum(p.numel() for p in inside)
    if parallel == "ddp" or processes == 1:
        own = {"blocks": sizes["total"] - sizes["outside"], "rest": sizes["outside"]}
        return Shares(processes=processes, shard=1, **sizes, **own)
    names = {name for name, p in model.named_parameters() if p in inside}
    size = processes if parallel == "fsdp" else min(processes, shard or PER_MACHINE)
    with fake_processes(processes):
        distributed.shard_module(model, blocks, distributed.make_mesh("cpu", size))
        local = {name: p.to_local().numel() for name, p in model.named_parameters()}  # type: ignore[attr-defined]
    own = {"blocks": sum(n for name, n in local.items() if name in names)}
    own["rest"] = sum(local.values()) - own["blocks"]
    return Shares(processes=processes, shard=size, **sizes, **own)


@dataclass(frozen=True)
class Cluster:
    """The cost of a step in each process."""

    machine: Machine
    shares: Shares
    memory: dict[str, float]  # bytes, by purpose; not all of it at the same time
    largest: float  # bytes at the same time
    sent: dict[str, float]  # bytes that each process sends in a step, by kind of communication
    computing: float  # seconds of a step
    sending: float  # seconds

    @property
    def step(self) -> float:
        """A GPU sends while it computes; between CPUs, the cores that compute also copy and add messages."""
        return max(self.computing, self.sending) if self.machine.gpu else self.computing + self.sending


def plan_cluster(plan: Plan) -> Cluster:
    """The cost of a step of the plan in each process of its machine."""
    machine, get = plan.request.machine, plan.get
    assert machine is not None
    model = make_empty(plan.request.kind, plan.model_settings(), rows_of(plan)[2])
    shares = share_model(model, machine.processes, get("train.parallel", "ddp"), get("train.shard"))
    rows = plan.batch / rows_of(plan)[1].units / machine.processes
    parts = max(1, math.ceil(rows / get("train.micro"))) if get("train.micro") else 1
    units = plan.batch / machine.processes / parts
    recompute = bool(get("train.recompute"))
    memory = state_memory(shares, parts, plan.by_muon, bool(get("train.ema")))
    memory["kept for the backward pass"] = saved_of(machine, plan.cost, units, recompute)
    memory["logits"] = logits_of(units, vocab_of(plan))
    if not machine.gpu:  # of a GPU, it is in the memory of the CPU
        memory["copy for checkpoints"] = memory["weights"] + memory["optimizer"]
    sent = count_sent(shares, parts, machine.gpu)
    computing = step_seconds(machine, plan.cost, plan.batch, plan.is_compiled())
    computing *= 4 / 3 if recompute else 1  # a second forward pass
    largest = largest_sum(memory, shares, parts, plan.cost.layers)
    return Cluster(machine, shares, memory, largest, sent, computing, seconds_to_send(machine, shares, sent))


def state_memory(shares: Shares, parts: int, muon: bool, ema: bool) -> dict[str, float]:
    """The bytes that don't depend on the batch, by purpose."""
    s, sharded = shares, shares.shard > 1
    matrices = s.blocks if muon else 0  # nearly all weights of the blocks
    memory = {
        "weights": s.own,
        # gradients of a batch's parts are added up before they are reduced
        "gradients": s.total if sharded and parts > 1 else s.own,
        "optimizer": 2 * s.own - matrices + (s.own if ema else 0),
        # the next block is gathered during one's computation; weights outside of blocks stay gathered
        "gathered layers": s.outside + 2 * s.largest if sharded else 0,
        "messages": 2 * s.largest if sharded else s.total if s.processes > 1 else 0,
        "Muon's matrices": 3 * (s.total - s.outside) if muon and sharded else 0,
    }
    return {name: float(NUMBER * n) for name, n in memory.items() if n}


def largest_sum(memory: dict[str, float], shares: Shares, parts: int, layers: int) -> float:
    """The bytes that a process has at the same time: when the forward pass ends, when the last block has its
    gradients, when the backward pass ends, or while the optimizer works. What is kept for the backward pass
    is freed as gradients come."""

    def total(*names: str) -> float:
        return sum(memory.get(name, 0.0) for name in names)

    activations, gradients, messages = "kept for the backward pass", "gradients", "messages"
    always = total("weights", "optimizer", "gathered layers", "copy for checkpoints")
    if shares.shard == 1:  # DDP's buckets stay
        always, messages = always + total(messages), ""
    if parts > 1:  # gradients of the parts before
        always, gradients = always + total(gradients), ""
    return always + max(
        total(activations, "logits"),
        total(activations) * (1 - 1 / layers) + total(gradients) / layers + total(messages),
        total(gradients, messages),
        total(gradients, "Muon's matrices"),
    )


def count_sent(shares: Shares, parts: int, gpu: bool = True) -> dict[str, float]:
    """The bytes that a process sends in a step, by kind of communication (rings)."""
    reduced = 1 if gpu else 2  # gloo reduces everything for all, of which each keeps its share
    s, copies = shares, shares.processes // shares.shard
    sent = {
        # before the forward and the backward pass of each part; between them, weights outside of blocks stay
        "all-gather": (s.shard - 1) * (2 * s.blocks + s.rest) * parts,
        "reduce-scatter": (s.shard - 1) * s.own * reduced,
        "all-reduce": 2 * s.own * (copies - 1) / copies,
    }
    return {name: float(NUMBER * n) for name, n in sent.items() if n}


def seconds_to_send(machine: Machine, shares: Shares, sent: dict[str, float]) -> float:
    """The time of all messages of a step; messages between machines are slower."""
    inside = shares.shard <= PER_MACHINE
    rate = machine.inside if inside else machine.between
    group = sent.get("all-gather", 0.0) + sent.get("reduce-scatter", 0.0)
    between = machine.inside if shares.processes <= PER_MACHINE else machine.between
    return group / rate + sent.get("all-reduce", 0.0) / between


def describe_cluster(plan: Plan) -> list[str]:
    """The lines of a plan for several processes."""
    c, get = plan_cluster(plan), plan.get
    s, total = c.shares, c.largest
    way = {"ddp": "each has all weights", "fsdp": "all share the weights"}.get(
        get("train.parallel", "ddp"), f"groups of {s.shard} share the weights"
    )
    parts = ", ".join(f"{name} {gigabytes(n)}" for name, n in c.memory.items())
    start = gigabytes(NUMBER * s.total)
    fits = "" if total <= c.machine.memory else f"; only {gigabytes(c.machine.memory)} are there"
    sent = ", ".join(f"{name} {gigabytes(n)}" for name, n in c.sent.items()) or "nothing"
    rate, unit = plan.batch / c.step, UNITS.get(plan.request.task, "tokens")
    seconds = plan.steps * c.step / SHARE
    used = plan.cost.flops * plan.batch / c.step / (c.machine.peak * c.machine.processes)
    beside = "beside the messages" if c.machine.gpu else "and then the messages"
    return [
        f"  {s.processes} processes, {way}: each has {count(s.own)} of {count(s.total)} weights",
        f"  memory of a process: {gigabytes(total)} at a time{fits} ({parts}); at the start {start}",
        f"  sent by a process in a step: {gigabytes(sum(c.sent.values()))} ({sent}), {c.sending:.3g} s",
        f"  a step: {c.computing:.3g} s of computing, {beside}; {count(rate)} {unit}/s, "
        f"{used:.0%} of the peak",
        f"  about {duration(seconds) if seconds < 7200 else f'{seconds / 3600:.1f} hours'} "
        f"on {machine_words(c.machine)}",
    ]


def gigabytes(n: float) -> str:
    return f"{n / 1e9:.3g} GB" if n >= 1e8 else f"{n / 1e6:.3g} MB"
