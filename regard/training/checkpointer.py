"""Save and restore a training run, and publish its model.

A step's result depends only on the weights, the optimizer state, the seed and the step number, so a
checkpoint of these is enough to resume bit for bit.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.convert.huggingface.peft import adapter_tensors
from regard.data import Corpus
from regard.errors import UserError
from regard.files.atomic import is_missing
from regard.files.tensors import Tensors, write_tensors
from regard.runs import checkpoints, lora, recipe
from regard.runs import layout as run_folder
from regard.runs.layout import read_log
from regard.runs.load import check_weights
from regard.runs.parts import Parts
from regard.training import distributed, ema
from regard.training.background import BackgroundWriter, agree
from regard.training.config import TrainConfig
from regard.training.data_check import DataCheck
from regard.training.optimizers import Muon
from regard.training.state import TrainState, read_state

GRACE = 2.0  # seconds that a resumed run waits for the fingerprint of its data before the first step


STATE_OF = {torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"}, Muon: {"momentum"}}  # of a parameter


class Checkpointer:
    """Keeps the checkpoints and the published weights of a run."""

    def __init__(
        self,
        folder: Path,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        corpus: Corpus,
        config: TrainConfig,
        task_config: Any,
        data: DataCheck,
    ):
        self.folder, self.checkpoints = folder, folder / run_folder.CHECKPOINTS
        self.model, self.optimizers, self.corpus, self.config = model, optimizers, corpus, config
        settings: Any = {"model": model.config, "task": task_config}
        self.settings = {  # must be the same in a checkpoint
            name: {"class": type(c).__name__} | json.loads(json.dumps(asdict(c)))
            for name, c in settings.items()
        }
        state = model.state_dict()
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        self.names = [name for name in state if name in trained or not config.adapter]  # to save
        self.saved_step: int | None = None
        self.stay: list[Path] = []  # old checkpoints that could not be removed
        self.damaged: list[Path] = []  # checkpoints after the one that was restored
        self.abandoned: set[int] = set()  # checkpoints after the one that the run went back to
        self.data, self.data_is_checked = data, False
        self.background = BackgroundWriter() if distributed.WORLD > 1 else None
        self.unreported: list[str] = []  # notices of checkpoints that training waited for

    def check_data(self, seconds: float | None = None) -> None:
        """Raise UserError if the data are damaged or not those of the checkpoint, as far as that is known
        after this many seconds; None: wait for the check. All processes must call this together."""
        if self.data_is_checked:
            return
        self.data.wait(seconds)
        problem = self.data.problem()
        wrong, running = distributed.all_max(problem is not None, not self.data.is_done())
        if wrong:
            raise problem or UserError("another process found that the data changed; it names the file")
        self.data_is_checked = not running

    def check_old_data(self, expected: list[str]) -> None:
        """Compare with the fingerprints of earlier versions, which sampled large data."""
        sides = [data for data in (self.corpus.train, self.corpus.valid) if data is not None]
        if expected != [getattr(data, "sampled_fingerprint", data.fingerprint)() for data in sides]:
            raise UserError(f"the data differ from those that {self.folder} began with; give the same files")

    def weights(self) -> Tensors:
        """Return the weights, which may be sharded; for an adapter, only the trained ones."""
        state = self.model.state_dict()
        return {name: state[name] for name in self.names}

    def load_weights(self, weights: Tensors) -> None:
        state = self.model.state_dict()
        for name in self.names:
            state[name].copy_(distributed.shard_like(weights[name], state[name]))

    def read_weights(self, parts: Parts) -> Tensors:
        """Return this process's rows of a checkpoint's weights."""
        return {name: read_shard(parts, name, t) for name, t in self.weights().items()}

    def read_optimizer(self, parts: Parts) -> Tensors:
        """Return this process's rows of a checkpoint's optimizer state."""
        owners = dict(self.model.named_parameters())
        return {key: read_shard(parts, key, owners[key.rpartition("/")[0]]) for key in parts.shapes}

    def optimizer_state(self) -> Tensors:
        """Return the optimizer state, which may be sharded, as `parameter/key`."""
        return {
            f"{name}/{key}": value
            for name, p in self.model.named_parameters()
            for optimizer in self.optimizers
            for key, value in optimizer.state.get(p, {}).items()
        }

    def load_optimizer_state(self, state: Tensors) -> None:
        """Load the optimizer state; missing parts start from zero."""
        owners = {p: o for o in self.optimizers for group in o.param_groups for p in group["params"]}
        for name, p in self.model.named_parameters():
            if p not in owners:  # not trained
                continue
            current = owners[p].state[p]
            new = {
                key.removeprefix(f"{name}/"): distributed.shard_like(v, p) if v.ndim else v.to(p.device)
                for key, v in state.items()
                if key.startswith(f"{name}/")
            }
            for key, t in current.items():  # in place, since CUDA graphs refer to them
                new[key] = t.copy_(new[key]) if key in new else t.zero_()
            current |= new

    def publish(self, weights: Tensors) -> None:
        """Make these weights the model of the run; of several processes, each writes its part, in the
        background. All processes must call this together."""
        if self.background is None:
            self.write_published(weights)
            return
        self.unreported = self.wait()
        folder = self.checkpoints / checkpoints.PUBLISHING

        def complete(_: dict[str, str]) -> list[str]:
            self.write_published(checkpoints.open_part(folder, "model"))
            checkpoints.remove_leftover(folder)
            return []

        begin = partial(checkpoints.make_partial, folder)
        self.background.start(folder, begin, {"model": weights}, complete)

    def write_published(self, weights: Mapping[str, Tensor]) -> None:
        if self.config.adapter:
            weights = adapter_tensors(self.model, lora.matrices(self.model, weights))
        elif self.config.lora:
            weights = lora.Merged(self.model, weights)
        write_tensors(run_folder.published(self.folder), weights)

    def save(self, state: TrainState, flush_log: Callable[[], None] = lambda: None) -> list[str]:
        """Write a checkpoint and remove old ones; several processes each write a part, in the background.
        `flush_log` is called before the checkpoint is completed. Return notices for the user, in the first
        process.

        The data must be checked before. All processes must call this together.
        """
        notices = self.wait()
        weights, optimizer = self.weights(), self.optimizer_state()
        self.saved_step = state.step
        has_model = distributed.RANK == 0 and not is_missing(run_folder.published(self.folder))
        publishes = self.corpus.valid is None or not distributed.all_max(has_model)[0]
        about = asdict(state) | {"seed": self.config.seed, "data": self.data.fingerprint} | self.settings
        first = min(self.steps_to_average(state.step), default=state.step)
        needed = {first, state.guard.good, state.guard.saved}

        folder = checkpoints.partial_path(self.checkpoints, state.step)

        def complete(digests: dict[str, str]) -> list[str]:
            if publishes:  # from the files: the first process may not have all weights
                self.write_published(checkpoints.open_part(folder, "model"))
            self.data.save()
            flush_log()
            return self.remove_old(checkpoints.commit(folder, about, digests), first, needed)

        replace = state.step in self.abandoned
        if self.background is not None:
            begin = partial(checkpoints.begin, self.checkpoints, state.step, replace)
            self.background.start(folder, begin, {"model": weights, "optimizer": optimizer}, complete)
            return notices
        if publishes:
            self.write_published(weights)
        self.data.save()
        flush_log()
        path = checkpoints.save(self.checkpoints, state.step, weights, optimizer, about, replace)
        return self.remove_old(path, first, needed)

    def remove_old(self, path: Path, first: int, needed: set[int]) -> list[str]:
        """Remove checkpoints that a new one makes unnecessary; `first` is the first to average.
        Return notices for the user."""
        checkpoints.remove(self.checkpoints, self.abandoned - {self.saved_step})
        self.abandoned.clear()
        averaged = {step for step in checkpoints.steps(self.checkpoints) if step >= first}
        stay = checkpoints.remove_old(self.checkpoints, self.config.keep, needed | averaged)
        notices = [
            f"{p} stays: other files are in it, or some are missing" for p in stay if p not in self.stay
        ]
        self.stay = stay
        return [f"saved {path}", *notices]

    def reserve(self) -> None:
        """Begin to allocate the memory that checkpoints of several processes are copied to. Called after the
        first step, when there is a state of the optimizer."""
        if self.background is not None and self.background.reserving is None:
            self.background.reserve(self.weights() | self.optimizer_state())

    def is_writing(self) -> bool:
        return self.background is not None and self.background.is_writing()

    def advance(self) -> list[str]:
        """See `BackgroundWriter.advance`."""
        if self.background is None:
            return []
        notices, self.unreported = self.unreported, []
        return notices + self.background.advance()

    def wait(self) -> list[str]:
        """Wait until the last checkpoint or model is written. All processes must call this together."""
        if self.background is None:
            return []
        notices, self.unreported = self.unreported, []
        return notices + self.background.wait()

    def close(self) -> None:
        if self.background is not None:
            self.background.close()

    def restore(self) -> tuple[TrainState | None, list[str]]:
        """Load the last intact checkpoint. Return its state, if there is one, and notices for the user.

        Nothing in the folder changes: see `clean_up`.
        """
        path, self.damaged = find_checkpoint(self.folder)
        if path is not None:
            model, optimizer, about = checkpoints.open_parts(path)
            state = read_state(path, about, self.config.seed, self.settings)
            check_weights(self.model, model.headers(), path / checkpoints.MODEL, self.names)
            self.check_optimizer(path / checkpoints.OPTIMIZER, optimizer.headers(), state.step)
            weights, moments = self.read_weights(model), self.read_optimizer(optimizer)
            if isinstance(about["data"], list):
                self.check_old_data(about["data"])
            else:
                self.data.expected = about["data"]
                self.check_data(GRACE)
        distributed.barrier()  # all processes have read the folder before the first one changes it
        if path is None:
            return None, []
        self.load_weights(weights)
        self.load_optimizer_state(moments)
        self.saved_step = state.step
        return state, [f"resuming from {path}"]

    def clean_up(self) -> list[str]:
        """Move damaged checkpoints aside, and remove unfinished ones. Return notices for the user."""
        checkpoints.remove_partial(self.checkpoints)
        return [
            f"{broken} is damaged; moved to {checkpoints.set_aside(broken)}, going back to the one before it"
            for broken in self.damaged
        ]

    def go_back(self, state: TrainState, step: int, make_first_model: Callable[[], nn.Module]) -> None:
        """Load the checkpoint of a step, or the initial model. The best evaluation, whose weights are
        published, remains.

        Checkpoints of later steps are removed when the next one is saved: if the run fails before that, they
        are still there; a run that is resumed from them goes back again.

        Tensors are changed in place, since CUDA graphs refer to them. All processes must call this together.
        """
        self.wait()
        if step:
            model, moments, _ = checkpoints.open_parts(self.checkpoints / f"step-{step}")
            weights, optimizer = self.read_weights(model), self.read_optimizer(moments)
        else:
            weights, optimizer = make_first_model().state_dict(), {}
        state.step, state.worse = step, 0
        state.evaluated = min(state.evaluated, step - step % self.config.evaluate)
        distributed.barrier()  # all have read it
        self.abandoned = {n for n in checkpoints.steps(self.checkpoints) if n > step}
        self.load_weights(weights)
        self.load_optimizer_state(optimizer)
        self.saved_step = step or None

    def check_optimizer(self, file: Path, state: dict[str, Tensor], step: int) -> None:
        """Raise UserError that names a tensor that is missing or not of this model's optimizers."""
        owners = {p: o for o in self.optimizers for group in o.param_groups for p in group["params"]}
        average = {ema.KEY} if self.config.ema else set()
        expected: dict[str, tuple[torch.dtype, torch.Size]] = {}
        for name, p in self.model.named_parameters():
            parts = STATE_OF[type(owners[p])] | average if p in owners else set()
            if any(f"{name}/{part}" in state for part in parts):  # without a gradient there is no state
                for part in parts:
                    kind = (torch.float32, torch.Size()) if part == "step" else (p.dtype, p.shape)
                    expected[f"{name}/{part}"] = kind
        actual = {key: (t.dtype, t.shape) for key, t in state.items()}
        wrong = sorted(k for k in actual.keys() | expected.keys() if actual.get(k) != expected.get(k))
        if wrong or (step and not state):
            what = f"{wrong[0]} does not fit the model" if wrong else "empty"
            raise UserError(f"{file}: {what}; {checkpoints.REPLACE}")

    def steps_to_average(self, step: int) -> list[int]:
        """Return the checkpoints to average with the weights at `step`.

        Checkpoints that exist only because training was interrupted don't count.
        """
        count = self.config.average - 1
        steps = checkpoints.steps(self.checkpoints) if count else []
        return [n for n in steps if n < step and n % self.config.save == 0][-count:]

    def average(self, step: int) -> tuple[Tensors, int]:
        """Return the average of the last checkpoints and the current weights, and their number."""
        paths = [self.checkpoints / f"step-{n}" for n in self.steps_to_average(step)]
        paths = [path for path in paths if can_average(path)]
        earlier = (self.read_weights(checkpoints.open_part(path, "model")) for path in paths)
        return checkpoints.average(itertools.chain(earlier, [self.weights()])), len(paths) + 1


def read_shard(parts: Parts, name: str, like: Tensor) -> Tensor:
    """Read this process's rows of a tensor, if it is sharded like `like`; else all rows."""
    if parts.shapes[name] != like.shape:  # a number
        return parts.read(name).to(like.device)
    rows = distributed.own_rows(like)
    return distributed.join_shards(parts.read(name, rows.start, rows.stop), like)


def is_intact(path: Path) -> bool:
    """Return whether a checkpoint is intact; every process checks some files. All must call this together."""
    problem, intact = None, False
    try:
        intact = checkpoints.is_intact(path, slice(distributed.RANK, None, distributed.WORLD))
    except UserError as e:
        problem = e
    agree(problem, f"{path}: another process cannot read it, and says why")
    return not distributed.all_max(not intact)[0]


def no_first_model() -> nn.Module:
    raise UserError("this run can't start over, as it was given no function that builds its model")


def can_average(path: Path) -> bool:
    try:
        return is_intact(path)
    except UserError:  # unreadable now: skipped like a damaged one, rather than losing the last steps
        return False


def find_checkpoint(folder: Path) -> tuple[Path | None, list[Path]]:
    """Return the last intact checkpoint of a run, if it has one, and the damaged ones after it.

    Raise UserError if there was one but is none now: starting over would replace a trained model.
    """
    where = folder / run_folder.CHECKPOINTS
    path, damaged = checkpoints.newest(where, is_intact)
    if path is not None:
        return path, damaged
    if damaged:
        names = ", ".join(p.name for p in damaged)
        raise UserError(
            f"{where}: every checkpoint is damaged ({names}); put an intact copy of one in its place, "
            "or start over with another --out"
        )
    if not is_missing(run_folder.published(folder)) and was_saved(folder):
        raise UserError(
            f"{where}: no checkpoint to continue from, and starting over would replace "
            f"{run_folder.published(folder)}; put the checkpoints back, or start over with another --out"
        )
    return None, []


def was_saved(folder: Path) -> bool:
    """Return whether a run with weights had checkpoints, too. A kill before the first one leaves none.
    Several processes train on while they write that; until it is complete, its folder has another name."""
    log = folder / run_folder.LOG
    if not is_missing(folder / run_folder.CARD) or is_missing(log):
        return True
    section = recipe.read_file(folder / run_folder.RECIPE)["train"]
    interval = recipe.fill("train", section, TrainConfig).save
    unfinished = checkpoints.partial_path(folder / run_folder.CHECKPOINTS, interval)
    return is_missing(unfinished) and any(row["step"] > interval for row in read_log(log))
