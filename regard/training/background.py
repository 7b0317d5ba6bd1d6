"""Write checkpoints and models in the background: each process its part, from a copy of its tensors.

Threads only read and write files. Processes communicate between two steps only.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import UserError
from regard.files.tensors import Tensors
from regard.runs import checkpoints
from regard.runs.parts import Spans, part_names
from regard.training import distributed

Digests = dict[str, str]  # SHA-256 by the name of a file


class BackgroundWriter:
    """Writes one checkpoint or model at a time, which is valid once the first process has completed it."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.copies: Tensors = {}  # reused for every checkpoint, since new memory has to be cleared first
        self.first_rows: dict[str, int] = {}  # of this process, in tensors of which others have the rest
        self.reserving: Future[None] | None = None
        self.names: list[str] = []  # of the files of all parts
        self.writing: Future[Digests] | None = None  # this process's part
        self.completing: Future[list[str]] | None = None  # the rest, in the first process

    @torch.no_grad()  # a process's rows of a sharded tensor are then found sooner
    def start(
        self,
        partial: Path,
        begin: Callable[[], object],
        kinds: dict[str, Tensors],
        complete: Callable[[Digests], list[str]],
    ) -> None:
        """Copy this process's part of the tensors, and begin to write it to a folder that `begin` makes in
        the first process; then `complete` is called there. `kinds`: the model, and perhaps the optimizer
        state. All processes must call this together, after `wait`."""
        problem: Exception | None = None
        if distributed.RANK == 0:
            try:
                begin()
            except (OSError, UserError) as e:
                problem = e
        agree(problem, "the first process could not begin the checkpoint; it says why")
        part, parts = find_part([t for tensors in kinds.values() for t in tensors.values()])
        self.names = [name for kind in kinds for name in part_names(kind, parts)]
        spans: Spans = {}
        if self.reserving is not None:
            self.reserving.result()
        kinds = {kind: self.copy_own(tensors, spans) for kind, tensors in kinds.items()}
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.complete = complete
        self.writing = (
            self.thread.submit(dict)
            if part is None
            else self.thread.submit(checkpoints.write_parts, partial, kinds, spans, part, parts)
        )

    def copy_own(self, tensors: Tensors, spans: Spans) -> Tensors:
        """Return copies of the rows that this process writes, and note their places in `spans`."""
        copies: Tensors = {}
        for name, local in own_tensors(tensors):
            if local is not tensors[name]:
                spans[name] = (self.first_row(name, tensors[name]), len(tensors[name]))
            copy = self.copies.get(name)
            if copy is None or (copy.shape, copy.dtype) != (local.shape, local.dtype):
                copy = empty_copy(local)
            self.copies[name] = copies[name] = copy.copy_(local, non_blocking=True)
        return copies

    def first_row(self, name: str, t: Tensor) -> int:
        """Return the first row of a sharded tensor that this process has; finding it takes time once."""
        if name not in self.first_rows:
            self.first_rows[name] = distributed.own_rows(t).start
        return self.first_rows[name]

    @torch.no_grad()
    def reserve(self, tensors: Tensors) -> None:
        """Begin to allocate the copies, so that the first checkpoint does not wait for new memory."""
        own = dict(own_tensors(tensors))

        def allocate() -> None:
            for name, local in own.items():
                self.copies[name] = empty_copy(local).zero_()
                if local is not tensors[name]:
                    self.first_row(name, tensors[name])

        self.reserving = self.thread.submit(allocate)

    def is_writing(self) -> bool:
        return self.writing is not None and not self.writing.done()

    def advance(self) -> list[str]:
        """Complete the checkpoint whose parts are all written. Return notices for the user, in the first
        process. All must call this together, once no process `is_writing`."""
        if self.writing is not None:
            error = self.writing.exception()
            agree(error, "another process could not write its part of the checkpoint; it says why")
            digests = gather_digests(self.writing.result(), self.names)
            self.writing = None
            if distributed.RANK == 0:
                self.completing = self.thread.submit(self.complete, digests)
        if self.completing is not None and self.completing.done():
            done, self.completing = self.completing, None
            return done.result()
        return []

    def wait(self) -> list[str]:
        """Wait until everything is written; return notices. All processes must call this together."""
        lines: list[str] = []
        if self.writing is not None:
            wait([self.writing])
            lines += self.advance()
        if self.completing is not None:
            wait([self.completing])
            lines += self.advance()
        distributed.barrier()
        return lines

    def close(self) -> None:
        """Wait for this process's thread only, since other processes may have failed."""
        self.thread.shutdown()


def own_tensors(tensors: Tensors) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and rows of the tensors that this process writes, in whole or in part."""
    for name, t in tensors.items():
        if distributed.is_first_copy(t):
            local = t.to_local() if hasattr(t, "to_local") else t
            if local is t or len(local):  # a process may have no rows of a small tensor
                yield name, local


def empty_copy(t: Tensor) -> Tensor:
    return torch.empty(t.shape, dtype=t.dtype, pin_memory=t.is_cuda)


def agree(problem: BaseException | None, elsewhere: str) -> None:
    """Raise an error in all processes if any of them has one."""
    failed = distributed.all_max(problem is not None)[0]
    if problem is not None:
        raise problem
    if failed:
        raise UserError(elsewhere)


def find_part(tensors: list[Tensor]) -> tuple[int | None, int]:
    """Return the part of a checkpoint that this process writes, if any, and the number of parts."""
    sharded = next((t for t in tensors if hasattr(t, "full_tensor")), None)
    if sharded is None:
        return 0 if distributed.RANK == 0 else None, 1
    mesh = sharded.device_mesh  # type: ignore[attr-defined]
    count = mesh.size(mesh.ndim - 1)
    return distributed.RANK if distributed.RANK < count else None, count


def gather_digests(own: Digests, names: list[str]) -> Digests:
    """Return the SHA-256 of all files. All processes must call this together."""
    rows = [list(bytes.fromhex(own.get(name, "00" * 32))) for name in names]
    table = distributed.all_sum(torch.tensor(rows, dtype=torch.uint8))
    return {name: bytes(row.tolist()).hex() for name, row in zip(names, table, strict=True)}
