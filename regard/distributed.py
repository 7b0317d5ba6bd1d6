"""One process or many: the same few questions, with simple answers when there is one.

Start many with `torchrun --nproc-per-node N -m regard train ...`.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

RANK = int(os.environ.get("RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))
LOCAL = int(os.environ.get("LOCAL_RANK", 0))


@contextlib.contextmanager
def together(device: torch.device) -> Iterator[None]:
    """Join the other processes for a while: gloo between CPUs, NCCL between GPUs."""
    if WORLD == 1:
        yield
        return
    # gloo as well where there is NCCL: small decisions are made on the CPU, without waiting for the GPU
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def total(x: Tensor) -> Tensor:
    """The sum over all processes."""
    if WORLD > 1:
        dist.all_reduce(x)
    return x


def most(*numbers: float) -> list[float]:
    """The largest of each number over all processes, so that all decide alike."""
    if WORLD == 1:
        return list(numbers)
    x = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x.tolist()


def spread(objective: nn.Module, blocks: list[nn.Module], how: str, device: torch.device) -> nn.Module:
    """The objective over all processes: whole on each (ddp), or a share of the weights on each (fsdp)."""
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


def waiting(spread: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Gradients travel only with the last part of an accumulated batch."""
    if isinstance(spread, nn.parallel.DistributedDataParallel) and not last:
        return spread.no_sync()
    if hasattr(spread, "set_requires_gradient_sync"):
        spread.set_requires_gradient_sync(last)  # type: ignore[operator]
    return contextlib.nullcontext()


def whole(t: Tensor) -> Tensor:
    """A tensor of which every process may hold a share, as one. All processes must ask together."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def shared_like(t: Tensor, like: Tensor) -> Tensor:
    """The reverse of `whole`: t spread as `like` is."""
    if not hasattr(like, "full_tensor"):
        return t.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    # every process has all of t: none needs to hear from another
    return distribute_tensor(t.to(like.device), like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def share(rows: Any) -> Any:
    """This process's rows of a batch: as many as another's, or one fewer."""
    return rows[RANK::WORLD]
