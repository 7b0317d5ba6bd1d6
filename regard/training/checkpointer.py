"""Save and restore a training run, and publish its model.

A step's result depends only on the weights, the optimizer state, the seed and the step number, so a
checkpoint of these is enough to resume bit for bit.
"""

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.data import Corpus
from regard.errors import UserError
from regard.files.tensors import read_tensors, write_tensors
from regard.runs import checkpoints, lora
from regard.runs import folder as run_folder
from regard.training import distributed
from regard.training.config import TrainConfig
from regard.training.data_check import DataCheck

GRACE = 2.0  # seconds that a resumed run waits for the fingerprint of its data before the first step


@dataclass
class TrainState:
    """What a checkpoint holds besides the weights and the optimizer state."""

    step: int = 0  # steps done
    elapsed: float = 0.0  # seconds spent on them, until the process that restored this state
    evaluated: int = 0  # step of the last evaluation
    best: dict[str, float] | None = None  # the best evaluation
    worse: int = 0  # evaluations since the best one


class Checkpointer:
    """Keeps the checkpoints and the published weights of a run."""

    def __init__(
        self,
        folder: Path,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        corpus: Corpus,
        config: TrainConfig,
        data: DataCheck,
    ):
        self.folder, self.checkpoints = folder, folder / run_folder.CHECKPOINTS
        self.model, self.optimizers, self.corpus, self.config = model, optimizers, corpus, config
        self.saved_step: int | None = None
        self.data, self.data_is_checked = data, False

    def check_data(self, seconds: float | None = None) -> None:
        """Raise UserError if the data are damaged or not those of the checkpoint, as far as that is known
        after so many seconds; by default, wait until it is. All processes must call this together."""
        if self.data_is_checked:
            return
        self.data.wait(seconds)
        problem = self.data.problem()
        wrong, running = distributed.all_max(problem is not None, not self.data.is_done())
        if wrong:
            raise problem or UserError("another process found that the data changed; it names the file")
        self.data_is_checked = not running

    def check_old_data(self, expected: list[str]) -> None:
        """Compare with the fingerprints of earlier versions, which took a sample of large data."""
        sides = [data for data in (self.corpus.train, self.corpus.valid) if data is not None]
        if expected != [getattr(data, "sampled_fingerprint", data.fingerprint)() for data in sides]:
            raise UserError(f"the data differ from those that {self.folder} began with; give the same files")

    def weights(self) -> dict[str, Tensor]:
        """Return the full weights. All processes must call this together."""
        return {name: distributed.gather_full(t) for name, t in self.model.state_dict().items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        for name, t in self.model.state_dict().items():
            t.copy_(distributed.shard_like(weights[name], t))

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the full optimizer state as `parameter/key`. All processes must call this together."""
        return {
            f"{name}/{key}": distributed.gather_full(value)
            for name, p in self.model.named_parameters()
            for optimizer in self.optimizers
            for key, value in optimizer.state.get(p, {}).items()
        }

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        owners = {p: o for o in self.optimizers for group in o.param_groups for p in group["params"]}
        for name, p in self.model.named_parameters():
            if p not in owners:  # not trained
                continue
            owners[p].state[p] = {
                key.removeprefix(f"{name}/"): distributed.shard_like(v, p) if v.ndim else v.to(p.device)
                for key, v in state.items()
                if key.startswith(f"{name}/")
            }

    def publish(self, weights: dict[str, Tensor]) -> None:
        """Make these weights the model of the run."""
        if distributed.RANK == 0:
            write_tensors(self.folder / run_folder.WEIGHTS, lora.merge(self.model, weights))

    def save(self, state: TrainState) -> Path | None:
        """Write a checkpoint, remove old ones, and return its path in the first process.

        The data must be checked before.
        """
        weights, optimizer = self.weights(), self.optimizer_state()
        self.saved_step = state.step
        if distributed.RANK:
            return None
        if self.corpus.valid is None or not (self.folder / run_folder.WEIGHTS).exists():
            self.publish(weights)
        self.data.save()
        about = asdict(state) | {"seed": self.config.seed, "data": self.data.fingerprint}
        path = checkpoints.save(self.checkpoints, state.step, weights, optimizer, about)
        first = min(self.steps_to_average(state.step), default=state.step)
        needed = [step for step in checkpoints.steps(self.checkpoints) if step >= first]
        checkpoints.remove_old(self.checkpoints, max(self.config.keep, len(needed)))
        return path

    def restore(self) -> tuple[TrainState | None, list[str]]:
        """Load the last intact checkpoint. Return its state, if there is one, and notices for the user."""
        path, damaged = checkpoints.newest(self.checkpoints)
        notices = [f"{p} is damaged; going back to the one before it" for p in damaged]
        distributed.barrier()  # all processes have read the folder before the first one changes it
        if distributed.RANK == 0:
            for broken in damaged:
                shutil.rmtree(broken)
        if path is None:
            return None, notices
        weights, optimizer, about = checkpoints.load(path)
        if isinstance(about["data"], list):
            self.check_old_data(about["data"])
        else:
            self.data.expected = about["data"]
            self.check_data(GRACE)
        self.load_weights(weights)
        self.load_optimizer_state(optimizer)
        state = TrainState(**{f.name: about[f.name] for f in fields(TrainState)})
        self.saved_step = state.step
        return state, [*notices, f"resuming from {path}"]

    def steps_to_average(self, step: int) -> list[int]:
        """Return the checkpoints to average with the weights at `step`.

        Checkpoints that exist only because training was interrupted don't count.
        """
        count = self.config.average - 1
        steps = checkpoints.steps(self.checkpoints) if count else []
        return [n for n in steps if n < step and n % self.config.save == 0][-count:]

    def average(self, step: int, device: torch.device) -> tuple[dict[str, Tensor], int]:
        """Return the average of the last checkpoints and the current weights, and how many these are."""
        paths = [self.checkpoints / f"step-{n}" for n in self.steps_to_average(step)]
        files = [path / run_folder.WEIGHTS for path in paths if checkpoints.is_intact(path)]
        earlier = ({name: t.to(device) for name, t in read_tensors(file).items()} for file in files)
        return checkpoints.average(itertools.chain(earlier, [self.weights()])), len(files) + 1
