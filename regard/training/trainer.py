"""The training loop. It can be interrupted at any moment and resumed bit for bit.

The result of a step depends only on the weights, the optimizer state, the seed and the step number, which
determine the samples and the random numbers of dropout.
"""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.data import Corpus
from regard.data.text_stream import StreamWindows
from regard.runs import layout as run_folder
from regard.runs.film import drop_later
from regard.runs.parts import Parts
from regard.tasks import Batch, Task, idle
from regard.tasks.batches import Bucketed
from regard.training import compilation, distributed, folds, throughput
from regard.training.checkpointer import Checkpointer, no_first_model
from regard.training.config import WARMUP_SHARE, TrainConfig
from regard.training.data_check import DataCheck
from regard.training.ema import MovingAverage
from regard.training.evaluation import Evaluation
from regard.training.guard import Guard, Rollback, first_batches
from regard.training.live import LivePage
from regard.training.machine import catch_signals
from regard.training.objective import Objective
from regard.training.optimizers import lr_factor
from regard.training.prefetch import Prefetcher
from regard.training.reporter import Reporter, describe
from regard.training.state import TrainState
from regard.training.step import TrainStep


class Trainer:
    """Trains a model on a corpus: one step, the schedule and the stop conditions."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        model: nn.Module,
        corpus: Corpus,
        config: TrainConfig,
        device: torch.device,
        make_first_model: Callable[[], nn.Module] = no_first_model,  # the model before the first step
    ):
        c = config
        self.folder, self.task, self.model, self.corpus, self.config = folder, task, model, corpus, c
        self.device, self.state, self.make_first_model = device, TrainState(), make_first_model
        data_check = DataCheck(folder, corpus)  # begins before other data are read, in the background
        self.samples = task.samples(corpus.train, c.seed, c.batch, c.tokens)
        self.reporter = Reporter(folder, task, c, describe(model, corpus, device.type))
        for line in [*corpus.summary, *corpus.notes, *self.samples.notes]:
            self.reporter.notice(line)
        bf16 = c.precision in ("bf16", "fp8") or (
            c.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
        )
        self.objective = Objective(model, task)
        operations = throughput.flops_per_token(self.objective, task, self.samples)
        self.pace = throughput.Pace(operations, device, bf16)
        self.take_step = take_step = TrainStep(
            *(self.objective, c, device, bf16, self.pace.flops), self.report_failure, self.is_interrupted
        )
        if take_step.few_shapes:
            assert isinstance(self.samples, Bucketed)
            self.reporter.notice(self.samples.describe_shapes())
        self.ema = MovingAverage(take_step.wrapped, take_step.optimizers, c.ema) if c.ema else None
        count_read = partial(throughput.count_read, task)
        pad = task.pad_to_bucket if take_step.few_shapes else None
        makers = 2 if task.has_media else 1  # the next batch's images are decoded while this one's last are
        self.prefetch = Prefetcher(self.batches, device, count_read, pad, makers=makers)
        self.checkpointer = Checkpointer(
            folder, model, take_step.optimizers, corpus, c, task.config, data_check
        )
        self.evaluation = Evaluation(
            *(task, self.objective, self.checkpointer, self.reporter, c, device, take_step.autocast),
            is_interrupted=self.is_interrupted,
        )
        guess = partial(task.guess, model, first_batches(task, self.samples), corpus.train)
        self.guard = Guard(c, self.state.guard, task.best_metric, guess, self.log_notice)
        self.started = time.monotonic()
        self.first_step = 0  # the step that this process starts with
        self.averaged_step: int | None = None  # the step at which the average was last tried
        self.signal: int | None = None  # the signal that asks to save and stop
        self.changes: list[Callable[[], object]] = []  # to the folder, made once a resumed run may change it
        self.may_change = False  # whether it may: the data are those that the run began with
        self.live: LivePage | None = None  # the page of the run, if it was asked for

    @property
    def step(self) -> int:
        return self.state.step

    def restore(self) -> None:
        """Resume from the last intact checkpoint, if there is one."""
        run_folder.check_files(self.folder)  # otherwise nothing changes
        folds.score_table(self.folder)  # which the end of the run needs
        state, notices = self.checkpointer.restore()
        for line in notices:
            self.reporter.notice(line)
        if state is not None:
            self.state, self.first_step, self.averaged_step = state, state.step, state.evaluated
            self.guard.state = state.guard
            if isinstance(self.samples, StreamWindows):
                self.samples.restore(state.stream)
            if state.rate != 1.0:
                self.log_rate()
        self.changes.append(partial(drop_later, self.folder, self.step))

    def begin_changes(self) -> None:
        """Change the run's folder from now on."""
        if self.may_change:
            return
        self.may_change = True
        if distributed.RANK == 0:
            for change in self.changes:
                change()
            self.reporter.begin_log()
            for line in self.checkpointer.clean_up():  # after the log, which may be ahead of the checkpoints
                self.reporter.notice(line)

    # The loop

    def run(self) -> None:
        """Train until the budget is used up, patience runs out, or a signal asks to stop."""
        self.started = time.monotonic()
        with self.reporter.open(self.state), catch_signals(self), contextlib.ExitStack() as stack:
            stack.callback(self.checkpointer.close)
            if self.checkpointer.data_is_checked or self.checkpointer.data.expected is None:
                self.begin_changes()
            elif self.live is not None:  # which writes a film
                self.check_data()
            if self.live is not None:
                self.live.start(self)
                stack.callback(self.live.close)
            finished = self.finished()
            if not finished and self.evaluation_due():  # interrupted between a step and its evaluation
                self.evaluate()
            if self.step == 0 and self.task.measures_base:
                self.evaluate()
            self.pace.start()
            while not finished:
                if self.live is not None:
                    self.live.between_steps(self)
                result = self.train_step()
                if self.step == self.first_step + 1:
                    self.checkpointer.reserve()
                problem = self.checkpointer.data.problem()
                interrupted, used_up, wrong_data, is_writing = distributed.all_max(
                    *(self.signal or 0, self.budget_used() >= 1, problem is not None),
                    self.checkpointer.is_writing(),
                )
                if not is_writing:
                    self.report_saved(self.checkpointer.advance())
                if wrong_data or not self.may_change:
                    self.checkpointer.check_data(seconds=0)
                    if self.checkpointer.data_is_checked:
                        self.begin_changes()
                self.signal = self.signal or int(interrupted) or None
                if result is not None:
                    finished = bool(used_up)
                    rollback = self.log_step(*result, last=finished)
                    if rollback is None and (
                        finished or interrupted or self.evaluation_due() or self.save_due()
                    ):
                        rollback = self.check_gradient()
                    if rollback is not None:
                        self.go_back(rollback)
                        finished = self.finished()
                if result is None or interrupted:
                    break
                if finished or self.evaluation_due():
                    self.evaluate()
                    finished = finished or self.finished()
                if self.save_due() and not finished:
                    self.save()
            self.finish(finished)
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal:
            raise SystemExit(128 + self.signal)

    def finish(self, finished: bool) -> None:
        """Evaluate and save the last step if necessary, and write the report."""
        if finished and self.state.evaluated != self.step:
            self.evaluate()
        if finished and self.state.evaluated == self.step != self.averaged_step:
            self.averaged_step = self.step
            self.evaluation.try_average(self.state)
        if finished and self.state.best:
            self.guard.sum_up(self.state.best, len(self.corpus.valid or ()))
        if self.checkpointer.saved_step != self.step:
            self.save()
        self.report_saved(self.checkpointer.wait())
        if self.live is not None:
            self.live.finish(self)
        if distributed.RANK == 0:
            weights = run_folder.published(self.folder)
            self.task.finish(self.folder, Parts([weights]), self.corpus.train, like=weights)
            self.reporter.finish(self.state, self.elapsed(), finished)
        distributed.barrier()  # no process leaves before everything is written

    def elapsed(self) -> float:
        return self.state.elapsed + time.monotonic() - self.started

    def budget_used(self) -> float:
        """The fraction of train.steps or train.minutes that is used up, whichever is larger."""
        c = self.config
        by_steps = self.step / c.steps if c.steps else 0.0
        by_time = self.elapsed() / (60 * c.minutes) if c.minutes else 0.0
        return distributed.all_max(max(by_steps, by_time))[0] if c.minutes else by_steps

    def time_left(self) -> float | None:
        """Seconds until the budget is used up."""
        done = self.budget_used()
        return self.elapsed() * (1 - done) / done if done else None

    def finished(self) -> bool:
        c = self.config
        is_stale = c.guard and self.state.guard.has_stopped and not c.patience
        is_stale = is_stale or bool(c.patience and self.state.worse >= c.patience)
        return is_stale or self.budget_used() >= 1

    def is_interrupted(self) -> bool:
        """Return whether to stop: with several processes, only if all of them agree."""
        return self.signal is not None and distributed.WORLD == 1

    def evaluation_due(self) -> bool:
        return self.step > 0 and self.step % self.config.evaluate == 0 and self.state.evaluated != self.step

    def save_due(self) -> bool:
        return self.step > 0 == self.step % self.config.save and self.checkpointer.saved_step != self.step

    # One step

    def train_step(self) -> tuple[Tensor, Tensor] | None:
        """Train on one batch and return its loss and gradient norm.

        Return None if a signal interrupted it; then nothing has changed.
        """
        batches, own_count, read = self.prefetch(self.step)
        count = float(distributed.all_sum(torch.tensor(float(own_count))))
        first = self.step == self.first_step
        if not self.take_step(batches, self.step, self.lr(), count, first):
            return None
        self.state.step += 1
        if self.ema:
            self.ema.update(self.step)
        self.pace.add(read)
        return self.take_step.loss / count, self.take_step.norm

    def batches(self, step: int) -> list[Batch]:
        """This process's share of a step, in the same number of parts as in every other process."""
        rows = self.samples.rows(step)
        mine, longest = distributed.local_rows(rows), -(-len(rows) // distributed.WORLD)
        size = self.config.micro or longest
        parts = [mine[i : i + size] for i in range(0, longest, size)]
        batches = [self.task.batch(self.samples, part if len(part) else rows[:1]) for part in parts]
        return [batch if len(part) else idle(batch) for batch, part in zip(batches, parts, strict=True)]

    def lr(self) -> float:
        c = self.config
        longest = 0.0 if c.steps else WARMUP_SHARE
        factor = lr_factor(c.schedule, self.budget_used(), self.step + 1, c.warmup, longest)
        return c.lr * factor * self.guard.factor(self.step) * self.state.rate

    # When training goes wrong

    def check_gradient(self) -> Rollback | None:
        """Return what to do if the last gradient is not finite, before such weights are measured or saved."""
        norm = float(distributed.gather_full(self.take_step.norm))
        return self.guard.see_gradient(self.step, norm, self.budget_used())

    def go_back(self, rollback: Rollback) -> None:
        """Go back to an earlier step, as the guard decided. The best weights so far stay published."""
        if not self.may_change:
            self.check_data()
        self.checkpointer.go_back(self.state, rollback.to, self.make_first_model)
        self.averaged_step = None
        if self.live is not None:
            self.live.film.go_back()
        if distributed.RANK == 0:
            drop_later(self.folder, self.step)
        self.reporter.go_back(self.state)
        self.reporter.notice(
            rollback.line, logged_at=self.step + 1
        )  # one of the steps that are trained again
        self.pace.start()

    def log_notice(self, line: str) -> None:
        self.reporter.notice(line, logged_at=self.step)

    def log_rate(self) -> None:
        """Show the factor of the learning rate from the next step on, and log it as a part of that step: if
        the step is repeated, the factor is logged again."""
        line = f"the learning rate is {self.state.rate:g} times the schedule's after step {self.step}"
        self.reporter.notice(f"{line}, as asked on the page", logged_at=self.step + 1)

    def report_failure(self, what: str, problem: object) -> None:
        self.reporter.notice(compilation.notice(what, problem), logged_at=self.step)

    # Evaluation

    def evaluate(self) -> None:
        """Measure the model on the validation set; the best weights so far are published."""
        self.check_data()
        valid = self.corpus.valid
        if valid is None:
            self.state.evaluated = self.step
            return
        metrics = self.evaluation.evaluate(self.state, valid, self.ema)
        if metrics is not None:
            done, best = self.budget_used(), self.state.best or metrics
            self.guard.see_evaluation(metrics, best, len(valid), done, self.time_left())
            self.guard.see_remark(self.evaluation.remark, done)
        self.pace.start()

    # Reports and checkpoints

    def log_step(self, loss: Tensor, norm: Tensor, last: bool) -> Rollback | None:
        """Log a step if it is due. Return a correction if its loss or gradient shows a problem."""
        is_due = self.step % self.config.log == 0 or self.step == 1
        if not is_due and not last:
            return None
        row = {
            "step": self.step,
            "loss": float(distributed.all_sum(loss)),
            "lr": self.take_step.highest_lr(),
            "grad_norm": float(distributed.gather_full(norm)),
            "elapsed": self.elapsed(),
        } | self.pace.rates()
        done = self.budget_used()
        rollback = self.guard.see_gradient(self.step, row["grad_norm"], done)
        if rollback is None:
            self.reporter.log_step(row, eta=self.time_left())
        if rollback is None and is_due:
            rollback = self.guard.see_loss(self.step, row["loss"], done)
        return rollback

    def check_data(self) -> None:
        """Raise UserError if the data changed; if not, the folder may change from now on."""
        if not self.checkpointer.data.is_done():
            self.reporter.notice("waiting until all data are read once, to know them when the run is resumed")
        self.checkpointer.check_data()
        self.begin_changes()

    def save(self) -> None:
        self.check_data()
        if self.step % self.config.save == 0:
            self.guard.see_checkpoint(self.step)
        state = dataclasses.replace(self.state, elapsed=self.elapsed(), stream=self.stream_places())
        self.report_saved(self.checkpointer.save(state, self.reporter.flush))

    def report_saved(self, lines: list[str]) -> None:
        for line in lines:
            self.reporter.notice(line)
            self.pace.start()

    def stream_places(self) -> list[list[int]]:
        """The place in each part of a stream, also in parts that only other processes read."""
        if not isinstance(self.samples, StreamWindows):
            return []
        places = self.samples.places(self.step)
        numbers = distributed.all_max(*(number for place in places for number in place))
        return [[int(n) for n in numbers[i : i + len(places[0])]] for i in range(0, len(numbers), 6)]
