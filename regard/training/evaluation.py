"""Measure a model on the validation set, and publish the best weights."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.tasks import Task, targets
from regard.training import distributed
from regard.training.checkpointer import Checkpointer
from regard.training.config import TrainConfig
from regard.training.ema import MovingAverage, measure_better
from regard.training.objective import Objective
from regard.training.prefetch import to_device
from regard.training.reporter import Reporter
from regard.training.state import TrainState


class Evaluation:
    """Evaluates a model's current weights, or others."""

    def __init__(
        self,
        task: Task,
        objective: Objective,
        checkpointer: Checkpointer,
        reporter: Reporter,
        config: TrainConfig,
        device: torch.device,
        autocast: torch.autocast,
        is_interrupted: Callable[[], bool],
    ):
        self.task, self.objective, self.model = task, objective, checkpointer.model
        self.checkpointer, self.reporter, self.config = checkpointer, reporter, config
        self.device, self.autocast, self.is_interrupted = device, autocast, is_interrupted
        self.remark: str | None = None  # about the last measurement

    def measure(self, valid: Any) -> dict[str, float] | None:
        """Return the metrics on the validation set, or None if a signal interrupted it. Each process runs
        its share of the batches."""
        c = self.config
        tokens = c.tokens or (c.micro or max(1, c.batch // distributed.WORLD)) * self.task.context
        sums, count, turn = torch.zeros(1, device=self.device, dtype=torch.float64), 0, 0
        self.model.eval()
        with torch.no_grad(), self.autocast:
            for batch in self.task.evaluation_batches(valid, 2 * tokens):
                if self.is_interrupted():
                    self.model.train()
                    return None
                if turn == distributed.RANK:
                    sums = sums + self.objective(*to_device(batch, self.device))
                    count += targets(batch)
                turn = (turn + 1) % distributed.WORLD
            if c.parallel != "ddp" and 0 < turn <= distributed.RANK:  # others need its weights
                self.objective(*to_device(batch, self.device))
        self.model.train()
        width = int(distributed.all_max(len(sums))[0])  # a process without a batch has only one sum
        sums = nn.functional.pad(sums, (0, width - len(sums)))
        sums, count = distributed.all_sum(sums), int(distributed.all_sum(torch.tensor(count)))
        loss, *more = sums.tolist()
        self.remark = self.task.remark(*more)
        return {f"valid_{k}": v for k, v in self.task.metrics(loss, count, valid, *more).items()}

    def evaluate(self, state: TrainState, valid: Any, ema: MovingAverage | None) -> dict[str, float] | None:
        """Measure the model, and publish the best weights so far. Return None if a signal interrupted it."""
        result = measure_better(ema, partial(self.measure, valid), self.rank_key)
        if result is None:
            return None
        metrics, better_weights = result
        state.evaluated = state.step
        with better_weights:
            is_best = self.keep_if_best(state, metrics)
            self.reporter.draw_curve(state.best)
            if self.config.parallel == "ddp":  # a single process has only a share of the weights
                self.reporter.show_sample(self.model, valid, state.step)
        state.worse = 0 if is_best else state.worse + 1
        return {"step": state.step} | metrics

    def measure_weights(self, weights: dict[str, Tensor], valid: Any) -> dict[str, float] | None:
        """Measure other weights, then restore the model's own."""
        current = {name: t.clone() for name, t in self.checkpointer.weights().items()}
        self.checkpointer.load_weights(weights)
        metrics = self.measure(valid)
        self.checkpointer.load_weights(current)
        return metrics

    def rank_key(self, metrics: dict[str, float]) -> tuple[float, float]:
        """Order evaluations by the task's metric, then by the loss; the best has the largest key."""
        loss, by = -metrics["valid_loss"], self.task.best_metric
        return metrics.get(f"valid_{by}", 0.0) if by else loss, loss  # older runs lack some metrics

    def keep_if_best(
        self, state: TrainState, metrics: dict[str, float], weights: dict[str, Tensor] | None = None
    ) -> bool:
        """Log an evaluation. If it is the best so far, publish the weights or the model's; return True."""
        metrics = {"step": state.step} | metrics
        is_best = state.best is None or self.rank_key(metrics) > self.rank_key(state.best)
        is_best = is_best or metrics == state.best  # the same evaluation, after it was interrupted
        if is_best:
            state.best = metrics
            self.checkpointer.publish(self.checkpointer.weights() if weights is None else weights)
        self.reporter.log_evaluation(metrics, is_best)
        return is_best

    def try_average(self, state: TrainState) -> None:
        """Try the average of the last checkpoints as the model (Vaswani et al. 2017, 6.1)."""
        for line in self.checkpointer.wait():  # all read the checkpoints now
            self.reporter.notice(line)
        valid = self.checkpointer.corpus.valid
        if valid is None or not self.checkpointer.steps_to_average(state.step):
            return
        weights, count = self.checkpointer.average(state.step)
        if count == 1:  # the checkpoints are damaged
            return
        metrics = self.measure_weights(weights, valid)
        if metrics is None:
            state.evaluated = state.step - 1  # when resumed, evaluate and try again
            return
        self.reporter.notice(f"the average of the last {count} checkpoints:")
        self.keep_if_best(state, {"averaged": count} | metrics, weights)
