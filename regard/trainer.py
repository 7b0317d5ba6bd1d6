"""The training loop: stoppable at any moment and resumed bit for bit.

Everything that happens at a step is a function of the weights, the optimizer's state, the seed and the step's
number: which samples are read, which random numbers dropout draws. So a checkpoint needs no more than these.
"""

import contextlib
import functools
import itertools
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from . import checkpoint, distributed, lora, meter, optim, run
from .curve import curve_svg
from .data import Corpus
from .display import Display, Silent, display, figures
from .errors import Mistake
from .log import Log
from .tasks import Batch, idle, targets


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int | None = None
    minutes: float | None = None
    batch: int = 12  # sequences a step, over all processes
    tokens: int | None = None  # a step, padding included, instead of a number of sequences
    micro: int | None = None  # sequences at a time in one process: less memory, the same result
    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-3
    warmup: int = 100
    schedule: Literal["noam", "cosine", "linear", "wsd"] = "cosine"
    weight_decay: float = 0.1
    beta2: float = 0.99
    clip: float = 1.0
    layer_decay: float = 1.0  # each layer's learning rate, as a share of that of the one above it
    freeze: int = 0  # how many blocks stay as they are, and what is below them
    lora: int = 0  # the rank of small changes, learnt instead of the blocks' weights; 0: none
    lora_alpha: float = 16.0  # how much they count, times the rank
    seed: int = 1337
    evaluate: int = 250  # every how many steps
    save: int = 250
    keep: int = 2  # checkpoints
    average: int = 1  # of how many of the last checkpoints the mean is tried as the model in the end
    patience: int | None = None  # evaluations without a better one before training stops early
    log: int = 10
    tensorboard: bool = False
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    parallel: Literal["ddp", "fsdp"] = "ddp"

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise ValueError("give train.steps or train.minutes")
        for name in (
            "steps",
            "minutes",
            "batch",
            "tokens",
            "micro",
            "lr",
            "lora_alpha",
            "evaluate",
            "save",
            "keep",
            "average",
            "patience",
            "log",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be more than 0")
        for name in ("warmup", "weight_decay", "clip", "freeze", "lora", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if not 0 <= self.beta2 < 1:
            raise ValueError(f"beta2={self.beta2} must be from 0 to less than 1")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay={self.layer_decay} must be more than 0 and at most 1")


class Objective(nn.Module):
    """A model and its task's loss as one module, so that it can be compiled and spread as one.

    When not training, what the task measures: the loss, and more if it says so, as sums over the batch.
    """

    def __init__(self, model: nn.Module, task: Any):
        super().__init__()
        self.model, self.loss, self.measure = model, task.loss, task.measure

    def forward(self, *batch: Tensor) -> Tensor:
        return (self.loss if self.model.training else self.measure)(self.model, *batch)


class Trainer:
    def __init__(
        self,
        folder: Path,
        task: Any,
        model: nn.Module,
        corpus: Corpus,
        config: TrainConfig,
        device: torch.device,
    ):
        c = config
        self.folder, self.task, self.model, self.corpus, self.config = folder, task, model, corpus, c
        self.device = device
        self.samples = task.training(corpus.train, c.seed, c.batch, c.tokens)
        bf16 = c.precision == "bf16" or (
            c.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
        )
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=bf16)
        self.objective = Objective(model, task)
        one = task.batch(self.samples, self.samples.rows(0)[:1])
        self.pace = meter.Pace(meter.flops(self.objective, one), device, bf16)
        self.spread = distributed.spread(self.objective, list(model.blocks), c.parallel, device)  # type: ignore[arg-type]
        self.fast = self.compiled()
        self.optimizers = optim.optimizers(
            model, c.optimizer, c.lr, c.weight_decay, c.beta2, bf16, c.layer_decay
        )
        self.signal: int | None = None
        self.first = 0  # the step that this sitting begins with
        self.norm: Tensor | None = None  # of the last step's gradient
        self.told: list[str] = []  # by `restore`, for the display
        # what a checkpoint holds besides weights and optimizer
        self.step, self.before = 0, 0.0  # steps done, and seconds spent on them in earlier sittings
        self.evaluated, self.worse = 0, 0  # the last step with an evaluation; how many since the best one
        self.best: dict[str, float] | None = None
        self.saved: int | None = None
        self.averaged: int | None = None  # the step at whose end the mean was tried

    def compiled(self) -> nn.Module:
        c = self.config
        long = (c.steps or 0) >= 1000 or (c.minutes or 0) >= 3
        pays = long and self.task.steady and (self.device.type == "cuda" or c.precision == "bf16")
        if c.compile == "on" or (c.compile == "auto" and pays):
            return torch.compile(self.spread)  # type: ignore[return-value]
        return self.spread

    # one step

    def batches(self, step: int) -> list[Batch]:
        """This process's share of a step's batch, in as many parts as the others have."""
        rows = self.samples.rows(step)
        mine, most = distributed.share(rows), -(-len(rows) // distributed.WORLD)
        size = self.config.micro or most
        parts = [mine[i : i + size] for i in range(0, most, size)]
        batches = [self.task.batch(self.samples, part if len(part) else rows[:1]) for part in parts]
        return [batch if len(part) else idle(batch) for batch, part in zip(batches, parts, strict=True)]

    def to_device(self, batch: Batch) -> Batch:
        if self.device.type == "cuda":
            batch = tuple(t.pin_memory() for t in batch)
        return tuple(t.to(self.device, non_blocking=True) for t in batch)

    def train_step(self) -> tuple[Tensor, Tensor] | None:
        """Loss and gradient norm of one step; None when a signal broke it off, and nothing has changed."""
        batches = self.batches(self.step)
        count = float(distributed.total(torch.tensor(float(sum(map(targets, batches))))))
        loss = torch.zeros((), device=self.device)
        for i, batch in enumerate(batches):
            if self.signal and distributed.WORLD == 1:
                self.zero_grad()
                return None
            self.dice(i)
            with distributed.waiting(self.spread, last=i == len(batches) - 1):
                with self.autocast:
                    part = self.forward(*self.to_device(batch))
                # processes average their gradients, and the batch's mean is what is wanted
                (part * (distributed.WORLD / count)).backward()
            loss += part.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or float("inf"))
        if self.step == self.first and self.fast is not self.spread and not float(distributed.whole(norm)):
            self.fast = self.spread  # the compiler has lost the gradient: the plain path has it
            self.zero_grad()
            return self.train_step()
        self.norm, lr = norm, self.lr()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * group["scale"]
            optimizer.step()
        self.zero_grad()
        self.step += 1
        self.pace.add(int(count))
        return loss / count, norm

    def dice(self, part: int) -> None:
        """What dropout draws depends on seed, step, part and process alone, not on what came before."""
        numbers = np.random.SeedSequence([self.config.seed, self.step, part, distributed.RANK])
        seed = int(numbers.generate_state(1)[0])
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes longer than a small model's layer
        if self.device.type != "cpu":
            getattr(torch, self.device.type).manual_seed(seed)

    def forward(self, *batch: Tensor) -> Tensor:
        if self.fast is self.spread or self.step > self.first:
            return self.fast(*batch)
        try:
            return self.fast(*batch)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # no compiler here, or one that gives up: the plain path does the same
            self.fast = self.spread
            return self.fast(*batch)

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def done(self) -> float:
        """The share of the budget that is used up."""
        c = self.config
        by_steps = self.step / c.steps if c.steps else 0.0
        by_time = self.elapsed() / (60 * c.minutes) if c.minutes else 0.0
        return distributed.most(max(by_steps, by_time))[0] if c.minutes else by_steps

    def lr(self) -> float:
        c = self.config
        return c.lr * optim.rate(c.schedule, self.done(), self.step + 1, c.warmup)

    def elapsed(self) -> float:
        return self.before + time.monotonic() - self.started

    # the whole run

    def run(self) -> None:
        c, first = self.config, distributed.RANK == 0
        self.started = time.monotonic()
        title = f"{self.folder}: {self.describe()}"
        self.show: Display = display(c.steps, c.minutes, title) if first else Silent()
        self.log = Log(self.folder / run.LOG, self.step, c.tensorboard, self.evaluated) if first else None
        with self.show, signals(self), self.log or contextlib.nullcontext():
            for line in [*self.corpus.notes, *self.samples.notes, *self.told]:
                self.show.say(line)
            over = self.finished()
            if not over and self.due(c.evaluate):
                self.evaluate()
            self.pace.start()
            while not over:
                result = self.train_step()
                interrupted, out_of_time = distributed.most(self.signal or 0, self.done() >= 1)
                self.signal = self.signal or int(interrupted) or None
                if result is not None:
                    over = bool(out_of_time)
                    self.report(over, *result)
                if result is None or interrupted:
                    break
                if self.due(c.evaluate) or over:
                    self.evaluate()
                    over = over or self.finished()
                if self.step % c.save == 0 and not over:
                    self.save()
            if over and self.evaluated != self.step:
                self.evaluate()
            if over and self.evaluated == self.step != self.averaged:
                self.average()
            if self.saved != self.step:
                self.save()
            if first:
                self.finish()
            distributed.most(0)  # nobody leaves before everything is written
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal:
            raise SystemExit(128 + self.signal)

    def describe(self) -> str:
        sizes = [(p.numel(), p.requires_grad) for p in self.model.parameters()]
        n, learning = sum(size for size, _ in sizes), sum(size for size, learns in sizes if learns)
        some = f" ({learning:,} of them learning)" if learning < n else ""
        held = len(self.corpus.valid or ())
        return (
            f"{type(self.model).__name__} of {n:,} weights{some} on {self.corpus.train.describe()}"
            f" ({held:,} held out), {self.device.type}"
        )

    def finished(self) -> bool:
        c = self.config
        return self.done() >= 1 or bool(c.patience and self.worse >= c.patience)

    def due(self, every: int) -> bool:
        return self.step > 0 and self.step % every == 0 and self.evaluated != self.step

    def report(self, last: bool, loss: Tensor, norm: Tensor) -> None:
        c = self.config
        if self.step % c.log and self.step != 1 and not last:
            return
        row = {
            "step": self.step,
            "loss": float(distributed.total(loss)),
            "lr": max(group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups),
            "grad_norm": float(distributed.whole(norm)),
            "elapsed": self.elapsed(),
        } | self.pace.rates()
        self.sound()
        done = self.done()
        if self.log:
            self.log.add(row)
        self.show.log(row | {"eta": self.elapsed() * (1 - done) / done if done else None})

    def sound(self) -> None:
        """Weights that a gradient without end has spoilt are neither measured nor kept."""
        if self.norm is not None and not np.isfinite(norm := float(distributed.whole(self.norm))):
            lr = self.config.lr
            raise Mistake(f"the gradient became {norm} at step {self.step}; lower train.lr (now {lr})")

    def evaluate(self) -> None:
        """The whole validation set; the best weights so far become the run's model."""
        self.sound()
        valid = self.corpus.valid
        if valid is None:
            self.evaluated = self.step
            return
        measured = self.measured(valid)
        if measured is None:
            return
        self.evaluated = self.step
        metrics = {"step": self.step} | measured
        better = self.kept(metrics)
        self.worse = 0 if better else self.worse + 1
        self.draw()
        if isinstance(self.show, Silent) or self.config.parallel == "fsdp":
            return
        self.show.sample(self.task.sample(self.model, valid, self.step))
        self.pace.start()

    def measured(self, valid: Any) -> dict[str, float] | None:
        """What the model makes of the validation set; None when a signal broke it off."""
        c = self.config
        tokens = c.tokens or (c.micro or max(1, c.batch // distributed.WORLD)) * self.task.context
        alone = self.config.parallel == "fsdp"  # its processes must all take every part in the same order
        sums, count = torch.zeros(1, device=self.device, dtype=torch.float64), 0
        self.model.eval()
        with torch.no_grad(), self.autocast:
            for i, batch in enumerate(self.task.in_order(valid, 2 * tokens)):
                if self.signal and distributed.WORLD == 1:
                    self.model.train()
                    return None
                if alone or i % distributed.WORLD == distributed.RANK:
                    sums = sums + self.objective(*self.to_device(batch))
                    count += targets(batch)
        self.model.train()
        if not alone:
            wide = int(distributed.most(len(sums))[0])  # a process that had no batch knows of one sum only
            sums = nn.functional.pad(sums, (0, wide - len(sums)))
            sums, count = distributed.total(sums), int(distributed.total(torch.tensor(count)))
        loss, *more = sums.tolist()
        return {f"valid_{k}": v for k, v in self.task.metrics(loss, count, valid, *more).items()}

    def worth(self, metrics: dict[str, float]) -> tuple[float, float]:
        """An evaluation by what the task is judged by, then by the loss: the better, the higher."""
        loss, by = -metrics["valid_loss"], self.task.best
        return metrics.get(f"valid_{by}", 0.0) if by else loss, loss  # older runs did not measure all of it

    def kept(self, metrics: dict[str, float]) -> bool:
        """Whether these are the best so far; then the weights become the run's model."""
        better = self.best is None or self.worth(metrics) > self.worth(self.best)
        if better:
            self.best = metrics
            self.publish(self.weights())
        if self.log:
            self.log.add(metrics)
        self.show.evaluated(metrics | {"best": better, "by": self.task.best})
        return better

    def average(self) -> None:
        """Try the mean of the last checkpoints and the weights now as the model, Vaswani et al. 2017, 6.1."""
        valid, self.averaged = self.corpus.valid, self.step
        distributed.most(0)  # the first process has written what all read now
        folder = self.folder / "checkpoints"
        steps = [step for step in self.planned() if checkpoint.whole(folder / f"step-{step}")]
        if not steps or valid is None:
            return
        now = {name: t.clone() for name, t in self.weights().items()}
        files = (folder / f"step-{step}" / "model.safetensors" for step in steps)
        device = self.device
        each = ({n: t.to(device) for n, t in checkpoint.read_tensors(file).items()} for file in files)
        self.fill(checkpoint.average(itertools.chain(each, [now])))
        if (measured := self.measured(valid)) is not None:
            self.show.say(f"the mean of the last {len(steps) + 1} checkpoints:")
            self.kept({"step": self.step, "averaged": len(steps) + 1} | measured)
        else:
            self.evaluated = self.step - 1  # the next sitting evaluates again, and then comes here
        self.fill(now)

    def planned(self) -> list[int]:
        """The checkpoints that are averaged with the last one: none that only a stop has left."""
        before, every = self.config.average - 1, self.config.save
        steps = checkpoint.steps(self.folder / "checkpoints") if before else []
        return [step for step in steps if step < self.step and step % every == 0][-before:]

    # keeping it

    def fill(self, weights: dict[str, Tensor]) -> None:
        for name, t in self.model.state_dict().items():
            t.copy_(distributed.shared_like(weights[name], t))

    def weights(self) -> dict[str, Tensor]:
        return {name: distributed.whole(t) for name, t in self.model.state_dict().items()}

    def publish(self, weights: dict[str, Tensor]) -> None:
        """These weights are the run's model from now on."""
        if distributed.RANK == 0:
            checkpoint.write_tensors(self.folder / run.WEIGHTS, lora.merge(self.model, weights))

    @functools.cached_property
    def fingerprints(self) -> list[str]:
        return [data.fingerprint() for data in (self.corpus.train, self.corpus.valid) if data is not None]

    def save(self) -> None:
        self.sound()
        weights = self.weights()
        state = {
            f"{name}/{key}": distributed.whole(value)
            for name, p in self.model.named_parameters()
            for optimizer in self.optimizers
            for key, value in optimizer.state.get(p, {}).items()
        }
        self.saved = self.step
        if distributed.RANK:
            return
        if self.corpus.valid is None or not (self.folder / run.WEIGHTS).exists():
            self.publish(weights)
        about = {
            "step": self.step,
            "seed": self.config.seed,
            "elapsed": self.elapsed(),
            "evaluated": self.evaluated,
            "best": self.best,
            "worse": self.worse,
            "data": self.fingerprints,
        }
        if self.log:
            self.log.flush()
        folder = self.folder / "checkpoints"
        path = checkpoint.save(folder, self.step, weights, state, about)
        needed = [step for step in checkpoint.steps(folder) if step >= min(self.planned(), default=self.step)]
        checkpoint.tidy(folder, max(self.config.keep, len(needed)))
        self.show.say(f"saved {path}")
        self.pace.start()

    def restore(self) -> None:
        """Go on from the last whole checkpoint, if there is one."""
        folder = self.folder / "checkpoints"
        path, damaged = checkpoint.newest(folder)
        self.told = [f"{p} is damaged; going back to the one before it" for p in damaged]
        distributed.most(0)  # all have looked before one of them tidies up
        if distributed.RANK == 0:
            for broken in damaged:
                shutil.rmtree(broken)
        if path is None:
            return
        weights, state, about = checkpoint.load(path)
        if about["data"] != self.fingerprints:
            raise Mistake(f"the data are not those that {self.folder} was begun with; give the same files")
        self.fill(weights)
        owners = {p: o for o in self.optimizers for group in o.param_groups for p in group["params"]}
        for name, p in self.model.named_parameters():
            if p not in owners:  # it is not trained
                continue
            owners[p].state[p] = {
                key.removeprefix(f"{name}/"): distributed.shared_like(v, p) if v.ndim else v.to(p.device)
                for key, v in state.items()
                if key.startswith(f"{name}/")
            }
        self.step, self.before = about["step"], about["elapsed"]
        self.evaluated, self.best, self.worse = about["evaluated"], about["best"], about["worse"]
        self.saved = self.first = self.step
        self.averaged = self.evaluated
        self.told += [f"going on from {path}"]

    def finish(self) -> None:
        """The picture and the card that people see first."""
        self.draw()
        scores = "".join(f"| {k} | {v:.4f} |\n" for k, v in (self.best or {}).items() if k != "step")
        reached = f"at step {self.best['step']:.0f}" if self.best else "without a validation set"
        card = (
            f"# {self.folder.name}\n\n{self.describe()}; {self.step} steps of [this recipe](recipe.toml)"
            f" in {self.elapsed():.0f} s.\n\n![loss](curve.svg)\n\n"
            f"| best, {reached} | |\n|---|---|\n{scores}\n"
            f'```\nregard ask {self.folder} "..."\nregard score {self.folder} FILE\n```\n'
        )
        checkpoint.write_text(self.folder / "README.md", card)
        self.task.finish(self.folder, checkpoint.read_tensors(self.folder / run.WEIGHTS))
        if self.best:
            told = figures(self.best | {"by": self.task.best})
            self.show.say(f"best valid {told} at step {self.best['step']}: {self.folder}")

    def draw(self) -> None:
        if self.log:
            svg = curve_svg(self.log.rows, str(self.folder.name), self.best)
            checkpoint.write_text(self.folder / "curve.svg", svg)


@contextlib.contextmanager
def signals(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask the trainer to save and stop; a second Ctrl-C stops at once."""

    def ask(number: int, frame: Any) -> None:
        if trainer.signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        trainer.signal = number

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs us looks after signals
        yield
        return
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
