"""The display of a running training: a live panel on a terminal and in a notebook, plain lines elsewhere.

Everything goes to standard error, because standard output is for results; in a notebook, below the cell. Rich
is imported only where it is used, to keep the command line fast.
"""

import base64
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

from regard.draw.curve import curve_svg
from regard.draw.terminal import duration, hills, in_notebook, quantity, terminal, visible

Row = Mapping[str, Any]  # one line of log.jsonl

SAMPLE_LINES = 6
CURVE_LINES = 3
NOTEBOOK_SECONDS = 1.0  # at least, between two drawings in a notebook


def display(total_steps: int | None, minutes: float | None, title: str) -> "Display":
    """Return the display for a run of `total_steps` steps or `minutes` minutes."""
    if in_notebook():
        return NotebookPanel(total_steps, minutes, title)
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
        """Show a logged step: `step loss`, and, if known, `lr mfu grad_norm elapsed eta` and a rate."""

    def evaluated(self, row: Row) -> None:
        """Show an evaluation: `step valid_loss best`, and `by`, the metric if not the loss."""

    def sample(self, text: str) -> None:
        """Show a sample of what the model generates."""

    def say(self, message: str) -> None:
        """Show a notice."""


class Silent(Display):
    """Shows nothing, in all processes of a distributed run except the first."""


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


@dataclass
class Figures:
    """The latest figures of a run, as panels show them."""

    total_steps: int | None
    minutes: float | None
    row: Row | None = None
    evaluation: Row | None = None
    best: Row | None = None

    def evaluated(self, row: Row) -> None:
        self.evaluation = row
        if row["best"]:
            self.best = row

    def share(self, row: Row, since: float = 0.0) -> float:
        """The progress from 0 to 1, `since` seconds after the row, towards the nearer limit."""
        done = row["step"] / self.total_steps if self.total_steps else 0.0
        if self.minutes:
            done = max(done, (row.get("elapsed", 0.0) + since) / 60 / self.minutes)
        return min(done, 1.0)

    def times(self, row: Row, since: float = 0.0) -> list[str]:
        words = [_steps(row, self.total_steps), duration(row.get("elapsed", 0.0) + since)]
        if row.get("eta") is not None:
            words.append(f"left {duration(row['eta'] - since)}")
        return words

    def numbers(self) -> list[str]:
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


class LivePanel(Display):
    """A live panel: progress, numbers, the loss curve and the latest sample."""

    def __init__(self, console: "Console", total_steps: int | None, minutes: float | None, title: str):
        from rich.live import Live

        self.console = console
        self.figures = Figures(total_steps, minutes)
        self.title = title
        self.row_time = time.monotonic()
        self.losses: list[float] = []
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
        self.figures.row, self.row_time = row, time.monotonic()
        if math.isfinite(row["loss"]):
            self.losses.append(row["loss"])

    def evaluated(self, row: Row) -> None:
        self.figures.evaluated(row)

    def sample(self, text: str) -> None:
        self.text = visible(text.strip("\n"))

    def say(self, message: str) -> None:
        from rich.text import Text

        self.console.print(Text(visible(message)))

    def _draw(self) -> "Panel":
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        parts: list[Any] = [self._progress(), Text("  ".join(self.figures.numbers()))]
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

        row, seconds = self.figures.row, time.monotonic() - self.row_time
        if row is None:
            return f"starting  {duration(seconds)}"
        since = seconds if self.live.is_started else 0.0
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        words = Text("  ".join(self.figures.times(row, since)))
        line.add_row(ProgressBar(total=1.0, completed=self.figures.share(row, since)), words)
        return line

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


class NotebookPanel(Display):
    """A panel below a notebook's cell that is replaced in place: progress, numbers, the curve, the latest
    sample, and all notices."""

    def __init__(self, total_steps: int | None, minutes: float | None, title: str):
        self.figures = Figures(total_steps, minutes)
        self.title = title
        self.rows: list[Row] = []  # of steps and of evaluations, for the curve
        self.text = ""
        self.notices: list[str] = []
        self.handle: Any = None  # the handle of the output in the notebook
        self.shown = -math.inf  # the time of the last drawing

    def __enter__(self) -> Self:
        self._show()
        return self

    def __exit__(self, *error: object) -> None:
        self._show()

    def log(self, row: Row) -> None:
        self.figures.row = row
        self._add(row)
        if time.monotonic() - self.shown > NOTEBOOK_SECONDS:
            self._show()

    def evaluated(self, row: Row) -> None:
        self.figures.evaluated(row)
        self._add(row)
        self._show()

    def sample(self, text: str) -> None:
        self.text = visible(text.strip("\n"))
        self._show()

    def say(self, message: str) -> None:
        self.notices.append(visible(message))
        self._show()

    def _add(self, row: Row) -> None:
        """Add a row to the curve, and drop later rows if training has gone back to this step."""
        while self.rows and self.rows[-1]["step"] > row["step"]:
            self.rows.pop()
        self.rows.append(row)

    def _show(self) -> None:
        from IPython.display import display as show  # installed, as a notebook runs this

        content = {"text/html": self._html(), "text/plain": self._plain()}
        if self.handle is None:
            self.handle = show(content, raw=True, display_id=True)
        else:
            self.handle.update(content, raw=True)
        self.shown = time.monotonic()

    def _lines(self) -> list[str]:
        row = self.figures.row
        times = "starting" if row is None else "  ".join(self.figures.times(row))
        return [line for line in (times, "  ".join(self.figures.numbers())) if line]

    def _plain(self) -> str:
        return "\n".join([visible(self.title), *self._lines(), *self.notices])

    def _html(self) -> str:
        row = self.figures.row
        share = 0.0 if row is None else self.figures.share(row)
        parts = [
            f"<b>{escape(visible(self.title))}</b>",
            f'<progress value="{share:.4f}" max="1" style="display:block;width:100%"></progress>',
            *(f'<div style="white-space:pre-wrap">{escape(line)}</div>' for line in self._lines()),
        ]
        if self.rows:
            # As an image, because the style rules of an inline SVG apply to the whole page.
            curve = base64.b64encode(curve_svg(self.rows).encode()).decode()
            source = f"data:image/svg+xml;base64,{curve}"
            parts.append(f'<img alt="loss by step" style="max-width:100%" src="{source}">')
        if self.text:
            parts.append(f'<pre style="white-space:pre-wrap">{escape(self.text)}</pre>')
        parts += [f"<div>{escape(line)}</div>" for line in self.notices]
        return f'<div style="max-width:760px;overflow-wrap:anywhere">{"".join(parts)}</div>'


def _steps(row: Row, total_steps: int | None) -> str:
    return f"step {row['step']}/{total_steps}" if total_steps else f"step {row['step']}"


def evaluation_summary(row: Row) -> str:
    """Return the loss of an evaluation, the metric that chooses the best one (if another), and whether the
    moving average of the weights was better."""
    by, whose = row.get("by"), ", moving average" if row.get("ema") else ""
    metric = f", {by} {row[f'valid_{by}']:.4f}" if f"valid_{by}" in row else ""
    return f"{row['valid_loss']:.4f}{metric}{whose}"


def _gradient(row: Row) -> list[str]:
    """Return the norm of the gradient before clipping, if it is known."""
    return [] if row.get("grad_norm") is None else [f"grad {row['grad_norm']:.3g}"]


def _speed(row: Row) -> list[str]:
    """Return the speed, as far as it is known."""
    if row.get("first_step_seconds") is not None:  # mostly initialization by torch
        return [f"first step {duration(row['first_step_seconds'])}"]
    words = []
    for key in row:
        if key.endswith("_per_second") and row[key] is not None:
            unit = key.removesuffix("_per_second").replace("_", " ").replace("tokens", "tok")
            words.append(f"{quantity(row[key])} {unit}/s")
            break  # the others are the same in other units
    if row.get("mfu") is not None:
        words.append(f"mfu {row['mfu']:.0%}")
    return words
