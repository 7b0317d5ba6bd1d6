"""Decide what is compiled, or replayed as CUDA graphs."""

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.core.layers import Block
from regard.tasks import Task, loss
from regard.training import distributed, joint
from regard.training.config import TrainConfig

GRAPHED = 200_000_000  # parameters; the kernels of larger models take longer than their launch


def should_compile(task: Task, c: TrainConfig, device: torch.device, graphs: bool) -> bool:
    """Return whether the recipe asks for torch.compile, or the run is so long that compiling likely pays off.

    With graphs, the run must be longer: a minute of compiling saves only milliseconds a step. For rows of
    several lengths it takes up to two minutes, seen on a busy machine. If the number of steps is known,
    the time limit is ignored, since the steps may be done long before.
    """
    if c.steps:
        long = c.steps >= (1000 if not graphs else 5000 if task.static_shapes else 50_000)
    else:
        long = (c.minutes or 0) >= (3 if task.static_shapes else 15)
    has_fixed_shapes = (task.static_shapes or graphs) and (device.type == "cuda" or c.precision == "bf16")
    return c.compile == "on" or (c.compile == "auto" and long and has_fixed_shapes)


def use_graphs(model: nn.Module, task: Task, c: TrainConfig, flops: float, device: torch.device) -> bool:
    """Return whether steps are replayed as CUDA graphs: if their shapes are few and known before."""
    return (
        device.type == "cuda"
        and c.compile != "off"
        and distributed.WORLD == 1
        and not c.micro
        and not c.recompute  # it reads the state of the random number generator
        and (task.static_shapes or task.few_shapes)
        and task.reads != "audio"  # tried on a GPU, its steps could not be replayed; to be tried again
        and not math.isnan(flops)
        and not any(isinstance(m, nn.RNNBase) for m in model.modules())
        and sum(p.numel() for p in model.parameters()) <= GRAPHED
    )


def check_kernels(device: torch.device, report: Callable[[str, Exception], None]) -> None:
    """Disable Triton kernels whose results differ from their reference implementations."""
    if device.type != "cuda":
        return
    for what, module, flag, agree in (
        ("the fused loss", loss, "FUSED", loss.fused_agrees),
        ("the kernel for short rows", joint, "SHORT_ROWS", joint.short_rows_agree),
        ("the kernels that split heads", joint, "SPLIT_HEADS", joint.split_heads_agree),
    ):
        if not getattr(module, flag):
            continue
        try:
            if not agree(device):
                raise ArithmeticError("its results are not those of the plain one")
        except Exception as error:  # any error: the reference is used instead
            setattr(module, flag, False)
            report(what, error)


def compile_where_it_pays(
    module: nn.Module,
    task: Task,
    c: TrainConfig,
    device: torch.device,
    graphs: bool,
    few_shapes: bool,
    report: Callable[[str, Exception], None],
) -> nn.Module:
    """Return the compiled module, if the recipe asks for it or it likely pays off; else the module."""
    if not should_compile(task, c, device, graphs):
        return module
    if device.type == "cuda":
        keep_compiled()
    try:
        return CompiledBlocks(module) if few_shapes else torch.compile(module)  # type: ignore[return-value]
    except Exception as error:  # torch.compile does not support every platform
        report("torch.compile", error)
        return module


class CompiledBlocks(nn.Module):
    """A module whose blocks are compiled, each by itself and for all shapes.

    Equal blocks are compiled once; compiling all of them together for dynamic shapes takes minutes.
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        blocks = [m for m in module.modules() if isinstance(m, Block)]
        self.calls = [(block, torch.compile(block._call_impl, dynamic=True)) for block in blocks]

    def forward(self, *batch: Tensor) -> Tensor:
        try:
            for block, call in self.calls:
                block._compiled_call_impl = call
            loss: Tensor = self.module(*batch)
            return loss
        finally:
            for block, _ in self.calls:
                block._compiled_call_impl = None


def has_gradient(model: nn.Module) -> bool:
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return float(distributed.gather_full(nn.utils.get_total_norm(grads))) != 0


def keep_compiled() -> None:
    """Keep compiled code in the user's cache, so that the next run starts with it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "regard" / "compiled"
    with contextlib.suppress(OSError):  # then torch's own temporary folder is used
        cache.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))


def notice(what: str, problem: object) -> str:
    """Print in one line what failed and why."""
    lines = str(problem).strip().splitlines() or [""]
    name = f"{type(problem).__name__}: " if isinstance(problem, Exception) else ""
    return f"{what} failed ({name}{lines[0]}); continuing without {what}"
