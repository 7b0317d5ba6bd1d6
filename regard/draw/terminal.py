"""Drawing on a terminal: progress bars, small charts, heat maps, and numbers in few characters."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Light to dark in the 256-colour palette, which looks the same on light and dark terminals.
HEAT_COLOURS = (231, 195, 153, 117, 75, 33, 27, 20, 18, 17)

LARGEST = 1e300  # value of a chart: differences and sums of larger ones are infinite
NOTEBOOK_SECONDS = 0.2  # between two counts in a notebook


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, a count in a notebook, nothing elsewhere.

    Yields the function that advances it by n.

    Not for use while the trainer's display is open: both would move the cursor.
    """
    console = terminal()
    if console is None:
        yield notebook_line(visible(description), total) if in_notebook() else lambda n: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name = TextColumn("{task.description}", markup=False)
    columns = name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(visible(description), total=total)
        yield lambda n: bar.advance(task, n)


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook, which can replace a line but not move a cursor."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel") and not sys.stderr.isatty()


def notebook_line(description: str, total: int | None) -> Callable[[int], None]:
    """A function that advances a count by n and writes it over the line before, a few times a second."""
    done, shown = 0, -math.inf

    def advance(n: int) -> None:
        nonlocal done, shown
        done += n
        is_last = total is not None and done >= total
        if is_last or time.monotonic() - shown > NOTEBOOK_SECONDS:
            shown = time.monotonic()
            of = "" if total is None else f"/{total:,}"
            print(f"\r{description} {done:,}{of}", end="\n" if is_last else "", file=sys.stderr, flush=True)

    return advance


def terminal() -> "Console | None":
    """Standard error as a console, or None if that can't move its cursor."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def hills(
    values: list[float], width: int, height: int, ink: str, bounds: tuple[float, float] | None = None
) -> list[str]:
    """An area chart: `height` lines of at most `width` cells; `ink` lists characters from empty to full.

    `bounds` are the lowest and the highest value of the axis; by default, those of the values.
    """
    values = [min(max(value, -LARGEST), LARGEST) for value in values]
    width = min(width, len(values))
    cuts = [i * len(values) // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = bounds or (min(means), max(means))
    full = len(ink) - 1
    scale = (height * full - 1) / ((high - low) or 1)
    levels = [1 + round((mean - low) * scale) for mean in means]  # the lowest value is still visible
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
    """Attention weights as a heat map: a row for each target word, a column for each source word.

    The darker, the larger, up to the maximum; each row ends with the word of its largest weight. Columns that
    do not fit side by side continue below.
    """
    from rich.cells import cell_len

    rows, columns = ([_label(text, ascii_only) for text in texts] for texts in (rows, columns))
    if not columns or not rows:
        return ""
    width = max(width, 1)
    peak = max((weight for row in weights for weight in row if weight > 0), default=1.0)
    left = min(max(map(cell_len, rows)), width // 3)
    margin = left + 1 if left else 0
    longest = max(map(cell_len, columns))
    # Wide enough for short words side by side, if there is room for these and for the words that end rows.
    free = (width - margin - 2 - min(longest, 12)) // len(columns)
    cell = longest + 1 if 3 <= longest + 1 <= min(free, 5) else 3 if free >= 3 else 2
    cell = min(cell, width - margin)
    per_block = (width - margin) // cell  # columns side by side

    def ink(weight: float) -> str:
        share = weight / peak if weight > 0 else 0.0  # also for NaN
        if colour:
            shade = HEAT_COLOURS[min(int(share * len(HEAT_COLOURS)), len(HEAT_COLOURS) - 1)]
            return f"\x1b[48;5;{shade}m{' ' * cell}\x1b[0m"
        shades = " .:*#" if ascii_only else " ░▒▓█"
        return shades[min(int(share * len(shades)), len(shades) - 1)] * cell

    lines = []
    for start in range(0, len(columns), per_block):
        block = columns[start : start + per_block]
        room = width - margin - cell * len(block) - 2
        lines += [" " * margin + line for line in _column_labels(block, cell, width - margin, ascii_only)]
        for word, row in zip(rows, weights, strict=True):
            line = _shorten(word, left, ascii_only)
            line = " " * (left - cell_len(line)) + line + " " * (margin - left)
            line += "".join(
                ink(weight) for _, weight in zip(block, row[start : start + per_block], strict=True)
            )
            best = max(range(len(columns)), key=lambda i: row[i]) - start
            if 0 <= best < len(block) and room >= min(longest, 4):
                line += "  " + _shorten(block[best], room, ascii_only)
            lines.append(line.rstrip())
    return "\n".join(lines)


def _column_labels(words: Sequence[str], cell: int, width: int, ascii_only: bool) -> list[str]:
    """Lines with the words above their columns, higher where the next ones need the room, with bars below."""
    from rich.cells import cell_len

    words = [_shorten(word, width - i * cell, ascii_only) for i, word in enumerate(words)]
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
    """A word on one line, never blank."""
    text = visible(text.strip(" ") or "_").replace("\n", "\\n")
    return text.encode("ascii", "backslashreplace").decode() if ascii_only else text


def _shorten(text: str, room: int, ascii_only: bool) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= room:
        return text
    return set_cell_size(text, room - 1).rstrip() + ("~" if ascii_only else "…") if room > 0 else ""


def visible(text: str) -> str:
    """`text` with control characters as escapes, so that it can't control a terminal; line ends stay."""
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
