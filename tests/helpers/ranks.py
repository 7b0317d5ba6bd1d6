"""Run as a module by `forking.Process`: a command in two processes, or as many as the variable PROCESSES
says; or, after --plan, a file of commands and runs (helpers/runs.py).

They are forked here, before there is any thread. torchrun's agent has threads: once in a while, one of them
looks up a host's name at that moment, and the fork waits for its lock for ever. So they also find each other
by a file instead of by a name and a port.
"""

import functools
import os
import signal
import sys
import tempfile

import torch.distributed as dist

from helpers import runs
from regard import cli
from regard.training import distributed


def run(rank: int, world: int, meeting: str, *words: str) -> None:
    """One of the processes."""
    distributed.RANK, distributed.WORLD, distributed.LOCAL, distributed.ON_MACHINE = rank, world, rank, world
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    how = {"init_method": f"file://{meeting}", "rank": rank, "world_size": world}
    dist.init_process_group = functools.partial(dist.init_process_group, **how)
    if words[0] == "--plan":
        runs.main(words[1])
    else:
        cli.main(list(words))


def fork(rank: int, world: int, meeting: str) -> int:
    """Start one of the processes; return its number."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        run(rank, world, meeting, *sys.argv[1:])
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Like torchrun: the signal to stop goes to all, and when one fails, the others are stopped."""
    world = int(os.environ.get("PROCESSES", 2))
    with tempfile.TemporaryDirectory() as folder:
        pids = {fork(rank, world, f"{folder}/meeting") for rank in range(world)}

        def stop(number: int, _: object = None) -> None:
            for pid in pids:
                os.kill(pid, number)

        signal.signal(signal.SIGTERM, stop)
        failed = 0
        while pids:
            pid, status = os.wait()
            pids.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if code and not failed:
                failed = code
                print(f"process {pid} ended with {code}", file=sys.stderr)
                stop(signal.SIGKILL if code < 0 else signal.SIGTERM)
    sys.exit(bool(failed))


if __name__ == "__main__":
    import torch.distributed.fsdp  # noqa: F401, once for all

    main()
