"""A training job: what is trained, on what, and the folder that it is written to."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from regard.errors import UserError
from regard.files import atomic
from regard.files.atomic import Draft
from regard.files.locks import check_unlocked, lock_folder
from regard.runs import recipe
from regard.runs.folder import discard_unsaved
from regard.runs.layout import RECIPE
from regard.training import distributed


@dataclass
class Job:
    """What is to be trained, on what, and where."""

    folder: Path
    sections: recipe.Sections  # the recipe with all changes
    data: list[str]  # files; none: the task's built-in ones
    valid: list[str]
    base: str | Path | None  # a model to start from
    resumes: bool  # whether the folder holds this run already
    draft: Draft | None = None  # of the folder of a new run, in the first process
    built_in: bool = False  # the data are the task's built-in ones
    own_kind: bool = True  # the model is of the recipe's kind
    own_warmup: bool = False  # the warm-up was chosen for the number of steps
    notes: list[str] = field(default_factory=list)  # about the data
    comments: list[str] = field(default_factory=list)  # for the recipe: why it is as it is
    teachers: list[str] = field(default_factory=list)  # models whose answers are learned


def free_folder(folder: Path) -> Path:
    """The folder, or its name with the first number that is free."""
    candidate, n = folder, 1
    while candidate.exists():
        n += 1
        candidate = folder.with_name(f"{folder.name}-{n}")
    return candidate


def check_folder(folder: Path) -> None:
    """Raise UserError if a new run can't be written here."""
    if (folder / RECIPE).is_file():
        check_unlocked(folder, "--out")
        raise UserError(f"{folder} already holds a run; continue it with --resume, or choose another --out")
    atomic.check_empty(folder, "--out")


@contextlib.contextmanager
def exclusive_folder(job: Job) -> Iterator[None]:
    """Lock the run's folder for as long as any process of this run lives.

    A new run that fails before its first weights leaves the place as it was.
    """
    folder, existed = job.folder, job.folder.is_dir()
    distributed.barrier()  # all have seen that
    with contextlib.ExitStack() as stack:
        problem: Exception | None = None
        if distributed.RANK == 0:
            try:
                if job.resumes:
                    stack.enter_context(lock_folder(folder, "--out"))
                    if atomic.is_missing(folder / RECIPE):
                        raise UserError(f"{folder} was removed by another process just now; try again")
                else:
                    job.draft = stack.enter_context(atomic.new_folder(folder, "--out"))
            except (UserError, OSError) as e:
                problem = e
        refused = distributed.all_max(problem is not None)[0]
        if problem is not None:
            raise problem
        if refused:
            raise SystemExit(2)  # the first process says why
        if distributed.RANK:
            home = atomic.draft_home(folder)
            if not existed:
                stack.callback(atomic.remove_empty, [folder, home])
            stack.enter_context(lock_folder(home, "--out", distributed.RANK, folder))
        distributed.barrier()
        try:
            yield
        except BaseException:
            if job.draft and job.draft.is_published:
                discard_unsaved(folder)
            raise
