"""The reports of a training run: the display, log.jsonl, the loss curve, samples and the model card."""

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from regard.data import Corpus
from regard.draw.curve import curve_svg
from regard.runs import layout as run_folder
from regard.tasks import Task
from regard.training import distributed, folds
from regard.training.config import TrainConfig
from regard.training.log import Log
from regard.training.progress import Display, Silent, display, evaluation_summary
from regard.training.state import TrainState


class Reporter:
    """Reports from the first process; silent in the others, and until it is opened."""

    def __init__(self, folder: Path, task: Task, config: TrainConfig, description: str):
        self.folder, self.task, self.config, self.description = folder, task, config, description
        self.display: Display = Silent()
        self.log: Log | None = None
        self.pending: list[tuple[str, int | None]] = []  # notices, until it is opened
        self.is_open = False

    @contextlib.contextmanager
    def open(self, state: TrainState) -> Iterator[None]:
        """Show the display inside a `with` block, and keep the log; `begin_log` writes it."""
        if distributed.RANK:
            yield
            return
        c, title = self.config, f"{self.folder}: {self.description}"
        self.log = Log(self.folder / run_folder.LOG, state.step, c.tracker, state.evaluated)
        with display(c.steps, c.minutes, title) as self.display, self.log:
            self.is_open = True
            for line, logged_at in self.pending:
                self.notice(line, logged_at)
            yield

    def begin_log(self) -> None:
        """Write the log from now on, with what was logged before."""
        for line in self.log.begin() if self.log else []:
            self.notice(line)

    def notice(self, line: str, logged_at: int | None = None) -> None:
        """Show a line, and log it if a step is given; at the latest when the display opens."""
        if not self.is_open:
            self.pending.append((line, logged_at))
            return
        row = {"step": logged_at, "notice": line}
        if self.log and logged_at is not None and row not in self.log.rows:  # not again if resumed
            self.log.add(row)
        self.display.say(line)

    def go_back(self, state: TrainState) -> None:
        """Forget the log after the step and the evaluation of this state, except notices."""
        if self.log:
            self.log.go_back(state.step, state.evaluated)

    def log_step(self, row: dict[str, Any], eta: float | None) -> None:
        if self.log:
            self.log.add(row)
        self.display.log(row | {"eta": eta})

    def log_evaluation(self, metrics: dict[str, float], is_best: bool) -> None:
        if self.log:
            mark = {"best": self.task.best_metric or "loss"} if is_best else {}
            self.log.add(metrics | mark)
        self.display.evaluated(metrics | {"best": is_best, "by": self.task.best_metric})

    def show_sample(self, model: nn.Module, valid: Any, step: int) -> None:
        if not isinstance(self.display, Silent):
            self.display.sample(self.task.preview(model, valid, step))

    def draw_curve(self, best: dict[str, float] | None) -> None:
        if self.log:
            svg = curve_svg(self.log.rows, self.folder.name, best)
            run_folder.write_text(self.folder / run_folder.CURVE, svg)

    def flush(self) -> None:
        """Write the log to the disk."""
        if self.log:
            self.log.flush()

    def finish(self, state: TrainState, elapsed: float, finished: bool) -> None:
        """Draw the curve, write the model card, and show the best evaluation."""
        self.draw_curve(state.best)
        scores = "".join(f"| {k} | {v:.4f} |\n" for k, v in (state.best or {}).items() if k != "step")
        reached = f"at step {state.best['step']:.0f}" if state.best else "without a validation set"
        table = f"| best, {reached} | |\n|---|---|\n{scores}"
        table = folds.score_table(self.folder) or table
        gain = self.describe_gain(state.best)
        table += f"\n{gain}\n" if gain else ""
        card = (
            f"# {self.folder.name}\n\n{self.description}; {state.step} steps of [this recipe](recipe.toml)"
            f" in {elapsed:.0f} s.\n\n![loss](curve.svg)\n\n"
            f"{table}\n"
            f'```\nregard ask {self.folder} "..."\nregard score {self.folder} FILE\n```\n'
        )
        run_folder.write_text(self.folder / run_folder.CARD, card)
        if state.best:
            summary = evaluation_summary(state.best | {"by": self.task.best_metric})
            self.display.say(f"best valid {summary} at step {state.best['step']}: {self.folder}")
        if gain:
            self.display.say(gain)
        if not finished:
            path = shlex.quote(str(self.folder / run_folder.RECIPE))
            how = f"regard train {path} --out {shlex.quote(str(self.folder))} --resume"
            self.display.say(f"stopped at step {state.step}; continue with: {how}")

    def describe_gain(self, best: dict[str, float] | None) -> str:
        """The perplexity before training, if it was measured, and at the best step."""
        rows = self.log.rows if self.log and best else []
        first = next((row for row in rows if row["step"] == 0 and "valid_perplexity" in row), None)
        if first is None or best is None:
            return ""
        before, after = first["valid_perplexity"], best["valid_perplexity"]
        return f"perplexity of held-out answers: {before:.2f} before training, {after:.2f} afterwards"


def describe(model: nn.Module, corpus: Corpus, device_type: str) -> str:
    """Describe a model and its data in one line."""
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    share = f" ({trained:,} trained)" if trained < total else ""
    return (
        f"{type(model).__name__} with {total:,} parameters{share} on {corpus.train.describe()}"
        f" ({len(corpus.valid or ()):,} held out), {device_type}"
    )
