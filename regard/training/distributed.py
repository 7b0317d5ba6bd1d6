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

from regard.errors import UserError

T = TypeVar("T")
RANK = int(os.environ.get("RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))
LOCAL = int(os.environ.get("LOCAL_RANK", 0))
ON_MACHINE = int(os.environ.get("LOCAL_WORLD_SIZE", WORLD))  # processes of this machine
_groups: list[Any] = []  # all process groups that were ever joined


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the other processes, if not done yet: gloo between CPUs, NCCL between GPUs."""
    if WORLD == 1 or dist.is_initialized():
        yield
        return
    # gloo next to NCCL: small decisions are made on the CPU, without waiting for the GPU
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    # Never freed: DDP would release the group last, and would wait for gloo's thread while it
    # holds the GIL, which that thread needs to free a tensor.
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


def wrap(
    objective: nn.Module, blocks: list[nn.Module], how: str, device: torch.device, shard: int | None = None
) -> nn.Module:
    """Wrap the objective for data parallelism: a full copy per process (ddp), sharded weights (fsdp), or
    both (hybrid): groups of `shard` processes, by default those of a machine, share a copy."""
    if WORLD == 1:
        return objective
    if how != "ddp":
        shard_module(
            objective, blocks, make_mesh(device.type, shard or ON_MACHINE if how == "hybrid" else WORLD)
        )
        return objective
    return nn.parallel.DistributedDataParallel(
        objective, device_ids=[device.index] if device.type == "cuda" else None
    )


def shard_module(module: nn.Module, blocks: list[nn.Module], mesh: Any) -> None:
    """Shard the weights of a module over the processes of a mesh; blocks are gathered one at a time."""
    from torch.distributed.fsdp import fully_shard

    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def make_mesh(device: str, shard: int) -> Any:
    """Return a mesh of all processes: of groups of `shard` neighbours, if there is more than one."""
    from torch.distributed.device_mesh import init_device_mesh

    world = dist.get_world_size()
    if world % shard:
        raise UserError(f"train.shard={shard} does not divide the {world} processes evenly")
    if shard == world:
        return init_device_mesh(device, (world,))
    mesh = init_device_mesh(device, (world // shard, shard), mesh_dim_names=("replicate", "shard"))
    _groups.extend(mesh.get_all_groups())  # lives as long as the group of all processes
    return mesh


def gradient_sync(wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """Synchronise gradients only with the last part of an accumulated batch."""
    if isinstance(wrapped, nn.parallel.DistributedDataParallel) and not last:
        return wrapped.no_sync()
    if hasattr(wrapped, "set_requires_gradient_sync"):
        wrapped.set_requires_gradient_sync(last)  # type: ignore[operator]
    return contextlib.nullcontext()


def reshard(module: nn.Module) -> None:
    """Free the full weights that a forward call left, so that the next one uses the shards."""
    for m in module.modules():
        if hasattr(m, "reshard"):
            m.reshard()  # type: ignore[operator]


def gather_full(t: Tensor) -> Tensor:
    """Return a full tensor, which may be sharded over the processes. All must call this together."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def shard_like(t: Tensor, like: Tensor) -> Tensor:
    """Return t sharded like `like`: the inverse of `gather_full`."""
    if hasattr(t, "full_tensor"):
        return t
    if not hasattr(like, "full_tensor"):
        return t.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    # every process has the full t, so nothing needs to be sent
    return distribute_tensor(t.to(like.device), like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def own_rows(t: Tensor) -> slice:
    """Return the range of a tensor's rows that this process has, which may be empty."""
    if not hasattr(t, "full_tensor"):
        return slice(0, len(t) if t.ndim else 0)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(t.shape, t.device_mesh, t.placements)  # type: ignore[attr-defined]
    return slice(offset[0], offset[0] + shape[0])


def join_shards(local: Tensor, like: Tensor) -> Tensor:
    """Return a tensor, sharded like `like`, of which this process has these rows. Nothing is sent."""
    if not hasattr(like, "full_tensor"):
        return local.to(like.device)
    from torch.distributed.tensor import DTensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    local = local.to(like.device)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def is_first_copy(t: Tensor) -> bool:
    """Return whether this process is the first one with its rows of a tensor."""
    if not hasattr(t, "full_tensor"):
        return RANK == 0
    where = zip(t.device_mesh.get_coordinate(), t.placements, strict=True)  # type: ignore[attr-defined]
    return all(index == 0 for index, placement in where if placement.is_replicate())


def local_rows(rows: Any) -> Any:
    """Return this process's rows of a batch; sizes differ by at most one."""
    return rows[RANK::WORLD]
