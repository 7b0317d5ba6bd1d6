"""Run as a module by `forking.Process`: a command in two processes that torchrun's agent forks, or as many as
the variable PROCESSES says; or, after --plan, a file of commands and runs (helpers/runs.py)."""

import os
import sys

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from helpers import runs
from regard import cli
from regard.training import distributed


def run(*words: str) -> None:
    """One of the processes."""
    distributed.RANK, distributed.WORLD, distributed.LOCAL = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    )
    if words[0] == "--plan":
        runs.main(words[1])
    else:
        cli.main(list(words))


if __name__ == "__main__":
    if "train.parallel=ddp" not in sys.argv:
        import torch.distributed.fsdp  # noqa: F401, once for both
    standalone = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": str(os.getpid())}
    config = LaunchConfig(
        1,
        1,
        nproc_per_node=int(os.environ.get("PROCESSES", 2)),
        start_method="fork",
        max_restarts=0,
        **standalone,
    )
    elastic_launch(config, run)(*sys.argv[1:])
