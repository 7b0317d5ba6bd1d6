"""Distributed training; every function also works in a single process.

Start several processes with `torchrun --nproc-per-node N -m regard train ...`.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")
RANK = int(os.environ.get("RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))
LOCAL = int(os.environ.get("LOCAL_RANK", 0))
_groups: list[Any] = []  # all process groups that were ever joined


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the other processes, if not done yet: gloo between CPUs, NCCL between GPUs."""
    if WORLD == 1 or dist.is_initialized():
        yield
        return
    # gloo next to NCCL: the processes make small decisions on the CPU, without waiting for the GPU
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    # Never freed: DDP would be the last to let go of the group, and would wait for gloo's thread while it
    # holds the GIL, for which that thread waits where it frees a tensor.
    _groups.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


def all_sum(x: Tensor) -> Tensor:
    """Return the sum over all processes; `x` is overwritten."""
    if WORLD > 1:
        dist.all_reduce(x)
    return x


def all_max(*numbers: float) -> list[float]:
    """Return the maximum of each number over all processes, so that all make the same decision."""
    if WORLD == 1:
        return list(numbers)
    x = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x.tolist()


def broadcast(value: T) -> T:
    """Return the first process's value."""
    box = [value]
    if WORLD > 1:
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def barrier() -> None:
    """Wait until all processes have called this."""
    all_max(0)


def wrap(objective: nn.Module, blocks: list[nn.Module], how: str, device: torch.device) -> nn.Module:
    """Wrap the objective for data parallelism: a full copy per process (ddp), or sharded weights (fsdp)."""
    if WORLD == 1:
        return objective
    if how == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (WORLD,))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(objective, mesh=mesh)
        return objective
    return nn.parallel.DistributedDataParallel(
        objective, device_ids=[device.index] if device.type == "cuda" else None
    )


def gradient_sync(wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """Synchronise gradients only with the last part of an accumulated batch."""
    if isinstance(wrapped, nn.parallel.DistributedDataParallel) and not last:
        return wrapped.no_sync()
    if hasattr(wrapped, "set_requires_gradient_sync"):
        wrapped.set_requires_gradient_sync(last)  # type: ignore[operator]
    return contextlib.nullcontext()


def reshard(module: nn.Module) -> None:
    """Let go of the full weights that a forward call left, so that the next one sees what the shards have."""
    for m in module.modules():
        if hasattr(m, "reshard"):
            m.reshard()  # type: ignore[operator]


def gather_full(t: Tensor) -> Tensor:
    """Return a full tensor, which may be sharded over the processes. All must call this together."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def shard_like(t: Tensor, like: Tensor) -> Tensor:
    """Return t sharded as `like` is: the inverse of `gather_full`."""
    if not hasattr(like, "full_tensor"):
        return t.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    # every process has the full t, so nothing needs to be sent
    return distribute_tensor(t.to(like.device), like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def local_rows(rows: Any) -> Any:
    """Return this process's rows of a batch; sizes differ by at most one."""
    return rows[RANK::WORLD]
