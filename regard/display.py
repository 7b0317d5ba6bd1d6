"""How a run shows itself while it works: a live panel on a terminal, plain lines elsewhere.

Everything goes to standard error: standard output is for answers. Rich is imported where it is used, because
the command line imports this file before it knows whether anything will be shown.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

Row = Mapping[str, Any]  # one line of log.jsonl

SAMPLE_LINES = 6
CURVE_LINES = 3
# Light to dark in the palette of 256 colours, the same on terminals of any ground.
HEAT_COLOURS = (231, 195, 153, 117, 75, 33, 27, 20, 18, 17)


def display(total_steps: int | None, minutes: float | None, title: str) -> "Display":
    """The display of a run of `total_steps` steps or `minutes` minutes, chosen by where its words go."""
    console = _terminal()
    if console is None:
        return Lines(total_steps, title)
    return LivePanel(console, total_steps, minutes, title)


class Display:
    """What every display answers to, as a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def log(self, row: Row) -> None:
        """A logged step: `step loss`, and if known `lr tokens_per_second mfu grad_norm elapsed eta`."""

    def evaluated(self, row: Row) -> None:
        """An evaluation: `step valid_loss best`, where `best` says that it is the best so far; and `by`, if
        that is not for its loss but for its `valid_` of this name."""

    def sample(self, text: str) -> None:
        """What the model writes at this moment."""

    def say(self, message: str) -> None:
        """A notice."""


class Silent(Display):
    """Shows nothing: for every process of a distributed run but the first."""


class Lines(Display):
    """One plain line per event, for pipes, files and simple terminals."""

    def __init__(self, total_steps: int | None, title: str):
        self.total_steps = total_steps
        self.title = title

    def __enter__(self) -> Self:
        self.say(self.title)
        return self

    def log(self, row: Row) -> None:
        words = [_steps(row, self.total_steps), f"loss {row['loss']:.4f}", *_pace(row)]
        if row.get("eta") is not None:
            words.append(f"left {duration(row['eta'])}")
        self.say("  ".join(words))

    def evaluated(self, row: Row) -> None:
        best = " (best)" if row["best"] else ""
        self.say(f"step {row['step']}  valid {figures(row)}{best}")

    def sample(self, text: str) -> None:
        for line in text.split("\n"):
            self.say("    " + line)

    def say(self, message: str) -> None:
        print(visible(message), file=sys.stderr, flush=True)


class LivePanel(Display):
    """A panel that redraws itself: progress, numbers, the curve of the loss, and the latest sample."""

    def __init__(self, console: "Console", total_steps: int | None, minutes: float | None, title: str):
        from rich.live import Live

        self.console = console
        self.total_steps = total_steps
        self.minutes = minutes
        self.title = title
        self.row: Row | None = None
        self.row_came_at = time.monotonic()
        self.losses: list[float] = []
        self.evaluation: Row | None = None
        self.best: Row | None = None
        self.text: str | None = None
        # Live's own thread draws, so that logging costs the training loop nothing.
        self.live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=4, redirect_stdout=False
        )

    def __enter__(self) -> Self:
        self.live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def log(self, row: Row) -> None:
        self.row, self.row_came_at = row, time.monotonic()
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
        inside = max(self.console.width - 4, 1)  # within the borders and their padding
        if self.losses:
            parts.append(self._curve(inside))
        if self.text:
            lines = Text(self.text).wrap(self.console, max(inside - 4, 2))[-SAMPLE_LINES:]
            parts.append(Panel(Group(*lines), title=Text("sample"), title_align="left", border_style="dim"))
        return Panel(Group(*parts), title=Text(visible(self.title)), title_align="left")

    def _progress(self) -> "Table | str":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self.row is None:
            return f"starting  {duration(time.monotonic() - self.row_came_at)}"
        since = time.monotonic() - self.row_came_at if self.live.is_started else 0.0
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
            numbers.append(f"valid {figures(self.evaluation)}")
            if self.evaluation is self.best:
                numbers[-1] += " (best)"
            elif self.best is not None:
                numbers[-1] += f" (best {figures(self.best)} at step {self.best['step']})"
        if self.row is not None:
            numbers += _pace(self.row)
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


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere. Gives the function that moves it on by n.

    Not for use while a `display` is open: two of them would fight over the screen.
    """
    console = _terminal()
    if console is None:
        yield lambda n: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name = TextColumn("{task.description}", markup=False)
    columns = name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(visible(description), total=total)
        yield lambda n: bar.advance(task, n)


def _terminal() -> "Console | None":
    """Standard error as a console that can move its cursor, or None."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _steps(row: Row, total_steps: int | None) -> str:
    return f"step {row['step']}/{total_steps}" if total_steps else f"step {row['step']}"


def figures(row: Row) -> str:
    """An evaluation's loss; and what the best one is chosen by, if that is something else."""
    by = row.get("by")
    return f"{row['valid_loss']:.4f}" + (f", {by} {row[f'valid_{by}']:.4f}" if f"valid_{by}" in row else "")


def _pace(row: Row) -> list[str]:
    """How fast it goes, as far as it is known."""
    words = []
    if row.get("tokens_per_second") is not None:
        words.append(f"{quantity(row['tokens_per_second'])} tok/s")
    if row.get("mfu") is not None:
        words.append(f"mfu {row['mfu']:.0%}")
    return words


def hills(values: list[float], width: int, height: int, ink: str) -> list[str]:
    """`values` as a filled curve, `height` lines of at most `width` cells; `ink` goes from empty to full."""
    width = min(width, len(values))
    cuts = [i * len(values) // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, full = min(means), len(ink) - 1
    scale = (height * full - 1) / ((max(means) - low) or 1)
    levels = [1 + round((mean - low) * scale) for mean in means]  # the lowest value still leaves a mark
    return [
        "".join(ink[min(max(level - below * full, 0), full)] for level in levels)
        for below in reversed(range(height))
    ]


def heat(
    weights: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    width: int = 80,
    colour: bool = False,
    ascii_only: bool = False,
) -> str:
    """Attention as a picture: what each row, a target's word, looks at in the columns, the source's words.

    The darker, the larger, up to the largest of all; the word that a row looks at most stands at its end.
    Columns that do not fit beside each other go on below.
    """
    from rich.cells import cell_len

    rows, columns = ([_label(text, ascii_only) for text in texts] for texts in (rows, columns))
    if not columns or not rows:
        return ""
    width = max(width, 1)
    peak = max((weight for looks in weights for weight in looks if weight > 0), default=1.0)
    left = min(max(map(cell_len, rows)), width // 3)
    margin = left + 1 if left else 0
    longest = max(map(cell_len, columns))
    # Wide enough for short words side by side, if there is room for these and the words at the rows' ends.
    free = (width - margin - 2 - min(longest, 12)) // len(columns)
    cell = longest + 1 if 3 <= longest + 1 <= min(free, 5) else 3 if free >= 3 else 2
    cell = min(cell, width - margin)
    many = (width - margin) // cell  # columns side by side

    def ink(weight: float) -> str:
        share = weight / peak if weight > 0 else 0.0  # NaN is not
        if colour:
            shade = HEAT_COLOURS[min(int(share * len(HEAT_COLOURS)), len(HEAT_COLOURS) - 1)]
            return f"\x1b[48;5;{shade}m{' ' * cell}\x1b[0m"
        shades = " .:*#" if ascii_only else " ░▒▓█"
        return shades[min(int(share * len(shades)), len(shades) - 1)] * cell

    lines = []
    for a in range(0, len(columns), many):
        here = columns[a : a + many]
        room = width - margin - cell * len(here) - 2
        lines += [" " * margin + line for line in _slope(here, cell, width - margin, ascii_only)]
        for word, looks in zip(rows, weights, strict=True):
            line = _shortened(word, left, ascii_only)
            line = " " * (left - cell_len(line)) + line + " " * (margin - left)
            line += "".join(ink(weight) for _, weight in zip(here, looks[a : a + many], strict=True))
            most = max(range(len(columns)), key=lambda i: looks[i]) - a
            if 0 <= most < len(here) and room >= min(longest, 4):
                line += "  " + _shortened(here[most], room, ascii_only)
            lines.append(line.rstrip())
    return "\n".join(lines)


def _slope(words: Sequence[str], cell: int, width: int, ascii_only: bool) -> list[str]:
    """The words above their columns, higher where the next ones are in the way; bars lead down from them."""
    from rich.cells import cell_len

    words = [_shortened(word, width - i * cell, ascii_only) for i, word in enumerate(words)]
    heights = [0] * len(words)
    for i in reversed(range(len(words))):
        covered = heights[i + 1 : i + 1 + cell_len(words[i]) // cell]
        heights[i] = max(covered, default=-1) + 1
    lines = []
    for level in reversed(range(max(heights) + 1)):
        line, at = "", 0
        for i, word in enumerate(words):
            if heights[i] >= level:
                mark = word if heights[i] == level else "|" if ascii_only else "│"
                line += " " * (i * cell - at) + mark
                at = i * cell + cell_len(mark)
        lines.append(line)
    return lines


def _label(text: str, ascii_only: bool) -> str:
    """A word for a picture: on one line, and never blank."""
    text = visible(text.strip(" ") or "_").replace("\n", "\\n")
    return text.encode("ascii", "backslashreplace").decode() if ascii_only else text


def _shortened(text: str, room: int, ascii_only: bool) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= room:
        return text
    return set_cell_size(text, room - 1).rstrip() + ("~" if ascii_only else "…") if room > 0 else ""


def visible(text: str) -> str:
    """`text` with everything that could steer a terminal written as an escape; line ends stay."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text
    )


def duration(seconds: float) -> str:
    """45s, 1m20s, 2h05m, 3d04h."""
    if not math.isfinite(seconds):
        return "?"
    minutes, s = divmod(max(round(seconds), 0), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02}h"
    if hours:
        return f"{h}h{m:02}m"
    return f"{m}m{s:02}s" if minutes else f"{s}s"


def quantity(number: float) -> str:
    """234, 18.2k, 182k, 1.5M."""
    if number < 999.5:
        return f"{number:.3g}"
    for unit in "kMBT":  # noqa: B007 (the last one is used below)
        number /= 1000
        if number < 999.5:
            break
    return f"{number:.1f}{unit}" if number < 99.95 else f"{number:.0f}{unit}"
