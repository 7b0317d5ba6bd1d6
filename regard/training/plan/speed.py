"""The speed of a machine and the cost of a model: the time and the memory of a step."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from regard.convert.huggingface.family import EmptyWeights
from regard.core.layers import Block
from regard.errors import UserError, suggest
from regard.files import atomic
from regard.files.untrusted import parse_json
from regard.models import MODELS
from regard.runs import recipe
from regard.training import distributed
from regard.training.throughput import peak

# Machines

PROCESS, READING = 0.36e9, 0.08e9  # bytes of Python with torch; and to encode millions of characters
KERNELS = 0.25e9  # bytes of oneDNN's products in bf16, which are made for each shape, if shapes vary
IMPORTED = 0.09e9  # bytes of what torch imports after the speed was measured


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The speed of a machine. A model of width w runs at peak * w / (w + half) operations
    a second, after a pause for each layer and step in which kernels are launched."""

    name: str
    kind: str = "cuda"  # of the device
    peak: float  # operations per second of a large matrix product, in the precision of training
    memory: float  # bytes that a model and its step may take
    half: float = 640.0  # the width that runs at half of the peak, compiled
    plain_half: float = 1450.0  # and not compiled
    # the share of the peak where convolutions read each channel by itself: from steps of 64 pictures of 224
    # pixels by EfficientNet-lite0, 55 - 60 ms on an H200 of which another run had half
    convolving: float = 0.009
    layer_seconds: float = 3.2e-4  # seconds of forward, backward and update of a layer, however small
    step_seconds: float = 5e-4
    processes: int = 1
    inside: float = 350e9  # bytes per second from one process to another of the same machine (NVLink)
    between: float = 45e9  # and to one of another machine (400 Gbit/s)
    bf16: bool = False  # a CPU that multiplies bf16 much faster, as all GPUs do
    here: bool = False  # this machine, on which steps can be timed
    process: float = PROCESS  # bytes of a process without a model, on a CPU
    pace: float = 1.0  # the time of a step that was timed, relative to what the other numbers say
    busy: bool = False  # other programs use it, too

    @property
    def gpu(self) -> bool:
        return self.kind != "cpu"


GLOO = 0.75e9  # bytes a second that a process sends to others on a CPU, with copying and waiting for them


def cpu(name: str, peak: float, memory: float) -> Machine:
    """Measured on two cores of an EPYC: a GPT of width 128 runs at 0.55 of the peak; on one,
    EfficientNet-lite0 at 0.21 of it with 224 pixels, at 0.24 with 112, and steps of a few tokens with Muon
    take 11 ms with two layers and 34 ms with eight."""
    return Machine(
        name=name,
        kind="cpu",
        peak=peak,
        memory=memory,
        half=105,
        plain_half=105,
        convolving=0.2,
        layer_seconds=4e-3,
        step_seconds=3.5e-3,
        inside=GLOO,
        between=GLOO,
    )


SLOW: Any = {"inside": 20e9, "between": 11e9}  # PCIe, and 100 Gbit/s
# bf16 products without sparsity: measured on the H200, nine tenths of the data sheet of the others.
MACHINES = {
    "h200": Machine(name="h200", peak=774e12, memory=139 * 2**30),
    "h100": Machine(name="h100", peak=740e12, memory=79 * 2**30),
    "a100": Machine(
        name="a100", peak=280e12, memory=79 * 2**30, half=400, plain_half=880, inside=230e9, between=22e9
    ),
    "l4": Machine(name="l4", peak=110e12, memory=22 * 2**30, half=300, plain_half=660, **SLOW),
    "rtx4090": Machine(name="rtx4090", peak=150e12, memory=23 * 2**30, half=300, plain_half=660, **SLOW),
    "t4": Machine(name="t4", peak=40e12, memory=15 * 2**30, half=200, plain_half=440, **SLOW),
}
WORD = 2e5  # operations for a word of word2vec, from its speed on two cores
FASTER_NOW = 1.15  # times the remembered speed; less is chance, and would change plans between runs
FASTER = 2.0  # products of large matrices in bf16, relative to float32, on a CPU that should use it
CORE = 97.5e9  # float32 operations per second of a core, of which `cpu2` has two


def find_machine(name: str | None, device: torch.device) -> Machine:
    """Find a machine by its name, or make one of a number of processes with this machine's device each."""
    if name is not None and not (name.isdecimal() and int(name)):
        return known_machine(name)
    machine = this_machine(device)
    return machine if name is None else replace(machine, processes=int(name))


def known_machine(name: str) -> Machine:
    """A machine by its name: h200, h200x8 or 8xh200 (as many GPUs), cpu2 (as many cores)."""
    match = re.fullmatch(r"(?:cpu(\d+)|(\w+?)(?:x(\d+))?)", re.sub(r"^(\d+)x(\w+)$", r"\2x\1", name))
    if match and match[1] and int(match[1]):
        return cpu(name, CORE * int(match[1]), 4e9 * int(match[1]))
    if not match or match[2] not in MACHINES or match[3] == "0":
        raise UserError(
            f"--for {name}: not a machine; {suggest(name, [*MACHINES, 'cpu2'])} "
            "(h200x8: eight of them; 8: as many as this one)"
        )
    return replace(MACHINES[match[2]], name=name, processes=int(match[3] or 1))


def this_machine(device: torch.device) -> Machine:
    """This machine, with its best speed: measured now, or before, when nothing else slowed it down."""
    bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if device.type == "cuda":
        name, memory = (
            torch.cuda.get_device_name(device),
            float(torch.cuda.get_device_properties(device).total_memory),
        )
    else:
        name, memory = f"{device.type}{torch.get_num_threads()}", free_memory()
    path, key = remembered_path(), f"{name} torch {torch.__version__}"
    known = read_remembered(path)
    speed, now = known.get(key, 0.0), float(f"{peak(device, bf16):.2g}")
    if now > FASTER_NOW * speed:
        speed = now
        remember(path, known | {key: speed})
    machine = Machine(name=name, peak=speed, memory=memory)
    if device.type == "cpu":
        process = max(PROCESS, resident_memory() + IMPORTED)
        machine = replace(cpu(name, speed, memory), bf16=has_bf16(device), process=process)
    return replace(machine, kind=device.type, processes=distributed.WORLD, here=True)


def has_bf16(device: torch.device) -> bool:
    """Return whether this is a CPU that multiplies bf16 much faster than float32, measured now or before."""
    checks = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
    if device.type != "cpu" or not any(check is not None and check() for check in checks):
        return False
    path, key = remembered_path(), f"bf16 cpu{torch.get_num_threads()} torch {torch.__version__}"
    known = read_remembered(path)
    if known.get(key, 0.0) < FASTER:
        known[key] = float(f"{peak(device, True) / peak(device, False):.2g}")
        remember(path, known)
    return known[key] >= FASTER


def free_memory() -> float:
    """Bytes of memory of this machine that are free or can be freed."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")) + cached_memory()
    except (ValueError, OSError, AttributeError):  # another system
        return 8e9


def resident_memory() -> float:
    """Bytes of memory that this process has now; torch built for CUDA takes more."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return float(os.sysconf("SC_PAGE_SIZE") * pages)
    except (ValueError, OSError, AttributeError):  # another system
        return 0.0


def cached_memory() -> float:
    try:
        rows = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return 0.0
    sizes = {row.split(":")[0]: float(row.split()[1]) * 1024 for row in rows if len(row.split()) > 1}
    return sizes.get("Cached", 0.0)


def remembered_path() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "regard" / "machines.json"


def read_remembered(path: Path) -> dict[str, float]:
    """Read earlier measurements; nothing if the file is missing, or another program wrote it."""
    try:
        known = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return (
        {k: float(v) for k, v in known.items() if isinstance(v, int | float) and v > 0}
        if isinstance(known, dict)
        else {}
    )


def remember(path: Path, known: dict[str, float]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, json.dumps(known, indent=2) + "\n")
    except OSError:  # the home can't be written to: it is measured again next time
        return


# Models


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a model for each unit: a token, a picture."""

    weights: int  # all of them
    blocks: int  # without embeddings
    body: float  # operations of forward and backward, for a unit, without the output layer
    output: float
    muon: float  # operations of Muon's update
    layers: int
    width: int
    activations: float  # bytes that are kept for the backward pass, for a unit, in float32
    convolved: float = 0.0  # operations of slow convolutions, for a unit, which are not in `body`
    convolutions: int = 0

    @property
    def flops(self) -> float:
        return self.body + self.output + self.convolved


@dataclass(frozen=True)
class Row:
    """A typical row of the data."""

    units: float
    shapes: list[tuple[int, ...]]  # of the model's inputs
    predicted: float  # tokens whose probabilities are computed


def make_empty(kind: str, settings: dict[str, Any], sizes: dict[str, Any]) -> Any:
    """A model on the meta device, which takes no memory."""
    model_class, model_config, _ = MODELS[kind]
    try:
        with EmptyWeights():
            return model_class(recipe.fill("model", settings, model_config, **sizes)).to("meta")
    except ValueError as e:
        raise UserError(f"model: {e}") from None


def cost_of(
    kind: str,
    settings: dict[str, Any],
    sizes: dict[str, Any],
    row: Row,
    muon: bool,
    frozen: bool = False,
) -> Cost:
    """The cost of a model, from a pass over one row on the meta device. `frozen`: its convolutions don't
    learn, so that there is no pass back through them."""
    model = make_empty(kind, settings, sizes)
    weights = sum(p.numel() for p in model.parameters())
    embedded = sum(p.numel() for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters())
    blocks = [m for m in model.modules() if isinstance(m, Block)]
    matrices = [p.shape for b in blocks for p in b.parameters() if p.ndim == 2] if muon else []
    width = model.config.dim
    try:
        flops, convolved, saved_bytes = pass_over(model, row.shapes)
    except NotImplementedError:  # packed sequences
        convolved, flops, saved_bytes = 0.0, 2.0 * (weights - embedded) * row.units, 160.0 * row.units * width
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    if all(m.groups == 1 for m in convolutions):  # as large products
        flops, convolved = flops + convolved, 0.0
    if kind == "words":  # a few vectors of each window, outside of the model's own pass
        flops = WORD * row.units / 3
    return Cost(
        weights=weights,
        blocks=max(1, weights - embedded),
        body=3 * flops / row.units,
        output=6.0 * row.predicted * sizes.get("vocab", 0) * width / row.units,
        muon=float(sum(5 * (4 * min(s) ** 2 * max(s) + 2 * min(s) ** 3) for s in matrices)),
        layers=max(1, len(blocks)),
        width=width,
        activations=saved_bytes / row.units,
        convolved=(1 if frozen else 3) * convolved / row.units,
        convolutions=len(convolutions),
    )


def pass_over(model: nn.Module, row: Sequence[tuple[int, ...]]) -> tuple[float, float, float]:
    """The operations of a forward pass over inputs of these shapes, without those of convolutions, these, and
    the bytes that it keeps."""
    inputs = [
        torch.empty(shape, device="meta", dtype=torch.float32 if len(shape) > 2 else torch.long)
        for shape in row
    ]
    if len(row) == 2 and len(row[0]) == 2:  # a source with its mask
        inputs.append(torch.empty(row[0], device="meta", dtype=torch.bool))
    own = {p.untyped_storage()._cdata for p in [*model.parameters(), *model.buffers()]}
    saved_bytes: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        saved_bytes[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
        return t

    forward: Any = model.hidden if hasattr(model, "hidden") else model
    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda t: t):
        result = forward(*inputs)  # noqa: F841  keeps the graph, and so what it saved, alive
    counts = counter.get_flop_counts().get("Global", {})
    convolved = sum(n for operation, n in counts.items() if "convolution" in str(operation))
    activations = sum(n for key, n in saved_bytes.items() if key not in own)
    return float(counter.get_total_flops() - convolved), float(convolved), float(activations)


# Time and memory


def step_seconds(machine: Machine, cost: Cost, units: float, compiled: bool = True) -> float:
    """The time of a step that reads this many units."""
    wait = machine.step_seconds + machine.layer_seconds * (cost.layers + cost.convolutions // 3)
    update = cost.muon / working_speed(machine, cost, compiled)
    wait *= 1 if machine.processes == 1 else 1.2
    return work_seconds(machine, cost, units, compiled) + machine.pace * (update + wait)


def free_units(machine: Machine, cost: Cost) -> float:
    """The number of units whose work takes as long as the rest of a step."""
    return step_seconds(machine, cost, 0) / (work_seconds(machine, cost, 1, True) or 1.0)


def work_seconds(machine: Machine, cost: Cost, units: float, compiled: bool) -> float:
    """The time of the operations of a pass forward and back."""
    seconds = (cost.body + cost.output) / working_speed(machine, cost, compiled)
    seconds += cost.convolved / (machine.convolving * machine.peak)
    return machine.pace * units / machine.processes * seconds


def working_speed(machine: Machine, cost: Cost, compiled: bool) -> float:
    """Operations per second of a model of this width."""
    return machine.peak * cost.width / (cost.width + (machine.half if compiled else machine.plain_half))


def memory_of(machine: Machine, cost: Cost, units: float, vocab: int, muon: bool) -> float:
    """The bytes of weights, gradients, optimizer state and saved activations; on a CPU, of the process."""
    by_muon = cost.blocks if muon else 0
    state = 4 * (2 * cost.weights + by_muon + 2 * (cost.weights - by_muon))
    units /= machine.processes
    return (
        state
        + saved_of(machine, cost, units)
        + logits_of(units, vocab)
        + (0.2e9 if machine.gpu else machine.process)
    )


def overhead(characters: int, steps: int) -> float:
    """The bytes to encode texts, and of products for this many steps in bf16 whose shapes vary. SST-2 at
    dim 64 takes 0.47 GB in float32 and 0.78 in bf16; `write`, of one shape, 0.41 in bf16."""
    return READING * min(1.0, characters / 3e6) + KERNELS * min(1.0, steps / 100)


def saved_of(machine: Machine, cost: Cost, units: float, recompute: bool = False) -> float:
    """The bytes that a process keeps for the backward pass of this many units; with `recompute`, the input of
    each block, and all activations of one."""
    # measured on the H200: bf16 takes 0.43 of what is kept in float32
    saved_bytes = cost.activations * units * (0.43 if machine.gpu else 1.0)
    return 4.0 * cost.width * cost.layers * units + saved_bytes / cost.layers if recompute else saved_bytes


def logits_of(units: float, vocab: int) -> float:
    """The bytes of logits, which are computed in parts."""
    return 8.0 * min(units, 8192) * vocab
