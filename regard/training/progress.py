"""The display of a running training: a live panel on a terminal, plain lines elsewhere.

Everything goes to standard error, because standard output is for results. Rich is imported only where it is
used, to keep the command line fast.
"""

import math
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

from regard.draw.terminal import duration, hills, quantity, terminal, visible

Row = Mapping[str, Any]  # one line of log.jsonl

SAMPLE_LINES = 6
CURVE_LINES = 3


def display(total_steps: int | None, minutes: float | None, title: str) -> "Display":
    """Return the display for a run of `total_steps` steps or `minutes` minutes: a panel if on a terminal."""
    console = terminal()
    if console is None:
        return Lines(total_steps, title)
    return LivePanel(console, total_steps, minutes, title)


class Display:
    """The interface of all displays; each is a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def log(self, row: Row) -> None:
        """Show a logged step: `step loss`, and if known `lr mfu grad_norm elapsed eta` and the first rate."""

    def evaluated(self, row: Row) -> None:
        """Show an evaluation: `step valid_loss best`, and `by`, the metric that decides, if not the loss."""

    def sample(self, text: str) -> None:
        """Show a sample of what the model generates."""

    def say(self, message: str) -> None:
        """Show a notice."""


class Silent(Display):
    """Shows nothing: for all processes of a distributed run but the first."""


class Lines(Display):
    """One plain line per event, for pipes, files and simple terminals."""

    def __init__(self, total_steps: int | None, title: str):
        self.total_steps = total_steps
        self.title = title

    def __enter__(self) -> Self:
        self.say(self.title)
        return self

    def log(self, row: Row) -> None:
        words = [_steps(row, self.total_steps), f"loss {row['loss']:.4f}", *_gradient(row), *_speed(row)]
        if row.get("eta") is not None:
            words.append(f"left {duration(row['eta'])}")
        self.say("  ".join(words))

    def evaluated(self, row: Row) -> None:
        best = " (best)" if row["best"] else ""
        self.say(f"step {row['step']}  valid {evaluation_summary(row)}{best}")

    def sample(self, text: str) -> None:
        for line in text.split("\n"):
            self.say("    " + line)

    def say(self, message: str) -> None:
        print(visible(message), file=sys.stderr, flush=True)


class LivePanel(Display):
    """A live panel: progress, numbers, the loss curve and the latest sample."""

    def __init__(self, console: "Console", total_steps: int | None, minutes: float | None, title: str):
        from rich.live import Live

        self.console = console
        self.total_steps = total_steps
        self.minutes = minutes
        self.title = title
        self.row: Row | None = None
        self.row_time = time.monotonic()
        self.losses: list[float] = []
        self.evaluation: Row | None = None
        self.best: Row | None = None
        self.text: str | None = None
        # Live draws in a thread of its own, so that logging costs the training loop nothing.
        self.live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=4, redirect_stdout=False
        )

    def __enter__(self) -> Self:
        self.live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def log(self, row: Row) -> None:
        self.row, self.row_time = row, time.monotonic()
        if math.isfinite(row["loss"]):
            self.losses.append(row["loss"])

    def evaluated(self, row: Row) -> None:
        self.evaluation = row
        if row["best"]:
            self.best = row

    def sample(self, text: str) -> None:
        self.text = visible(text.strip("\n"))

    def say(self, message: str) -> None:
        from rich.text import Text

        self.console.print(Text(visible(message)))

    def _draw(self) -> "Panel":
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        parts: list[Any] = [self._progress(), Text("  ".join(self._numbers()))]
        inner_width = max(self.console.width - 4, 1)  # within the borders and their padding
        if self.losses:
            parts.append(self._curve(inner_width))
        if self.text:
            lines = Text(self.text).wrap(self.console, max(inner_width - 4, 2))[-SAMPLE_LINES:]
            parts.append(Panel(Group(*lines), title=Text("sample"), title_align="left", border_style="dim"))
        return Panel(Group(*parts), title=Text(visible(self.title)), title_align="left")

    def _progress(self) -> "Table | str":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self.row is None:
            return f"starting  {duration(time.monotonic() - self.row_time)}"
        since = time.monotonic() - self.row_time if self.live.is_started else 0.0
        elapsed = self.row.get("elapsed", 0.0) + since
        words = [_steps(self.row, self.total_steps), duration(elapsed)]
        if self.row.get("eta") is not None:
            words.append(f"left {duration(self.row['eta'] - since)}")
        done = 0.0  # a run with both limits ends at whichever comes first
        if self.total_steps:
            done = self.row["step"] / self.total_steps
        if self.minutes:
            done = max(done, elapsed / 60 / self.minutes)
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_row(ProgressBar(total=1.0, completed=min(done, 1.0)), Text("  ".join(words)))
        return line

    def _numbers(self) -> list[str]:
        numbers = []
        if self.row is not None:
            numbers.append(f"loss {self.row['loss']:.4f}")
        if self.evaluation is not None:
            numbers.append(f"valid {evaluation_summary(self.evaluation)}")
            if self.evaluation is self.best:
                numbers[-1] += " (best)"
            elif self.best is not None:
                numbers[-1] += f" (best {evaluation_summary(self.best)} at step {self.best['step']})"
        if self.row is not None:
            numbers += [*_gradient(self.row), *_speed(self.row)]
        return numbers

    def _curve(self, width: int) -> "Table":
        from rich.table import Table
        from rich.text import Text

        labels = [f"{max(self.losses):.2f}", *[""] * (CURVE_LINES - 2), f"{min(self.losses):.2f}"]
        room = max(width - max(map(len, labels)) - 1, 1)
        ink = " .:-=+*#@" if self.console.options.ascii_only else " ▁▂▃▄▅▆▇█"
        grid = Table.grid(padding=(0, 1))
        grid.add_column(justify="right", no_wrap=True, style="dim")
        grid.add_column(no_wrap=True, style="cyan")
        for label, line in zip(labels, hills(self.losses, room, CURVE_LINES, ink), strict=True):
            grid.add_row(Text(label), Text(line))
        return grid


def _steps(row: Row, total_steps: int | None) -> str:
    return f"step {row['step']}/{total_steps}" if total_steps else f"step {row['step']}"


def evaluation_summary(row: Row) -> str:
    """Return the loss of an evaluation, the metric that decides if that is another one, and whether the
    moving average of the weights was better than the weights."""
    by, whose = row.get("by"), ", moving average" if row.get("ema") else ""
    metric = f", {by} {row[f'valid_{by}']:.4f}" if f"valid_{by}" in row else ""
    return f"{row['valid_loss']:.4f}{metric}{whose}"


def _gradient(row: Row) -> list[str]:
    """Return the norm of the gradient before clipping, if it is known."""
    return [] if row.get("grad_norm") is None else [f"grad {row['grad_norm']:.3g}"]


def _speed(row: Row) -> list[str]:
    """Return the speed, as far as it is known."""
    if row.get("first_step_seconds") is not None:  # mostly what torch does once
        return [f"first step {duration(row['first_step_seconds'])}"]
    words = []
    for key in row:
        if key.endswith("_per_second") and row[key] is not None:
            unit = key.removesuffix("_per_second").replace("_", " ").replace("tokens", "tok")
            words.append(f"{quantity(row[key])} {unit}/s")
            break  # the others say the same in other units
    if row.get("mfu") is not None:
        words.append(f"mfu {row['mfu']:.0%}")
    return words
