"""A table of words and numbers, which shows itself in a notebook and at a Python prompt."""

from collections.abc import Iterable, Sequence
from typing import Any

from regard.draw.scene import display_width


class Table:
    """Rows below the names of their columns: `Table(["weight", *words], zip(words, weights))`.

    A tensor or array in a row is one cell for each of its numbers. Floats have `digits` decimals.
    """

    def __init__(self, columns: Sequence[object], rows: Iterable[Iterable[Any]], digits: int = 2):
        self.rows = [[cell for each in row for cell in spread(each, digits)] for row in (columns, *rows)]
        for row in self.rows:
            if len(row) != len(self.rows[0]):
                raise ValueError(
                    f"a row of {len(row)} cells in a table of {len(self.rows[0])} columns: {row}"
                )

    def __repr__(self) -> str:
        """Columns of plain text; numbers are at their right edge."""
        widths = [max(map(display_width, column)) for column in zip(*self.rows, strict=True)]
        lines = [zip(row, widths, strict=True) for row in self.rows]
        return "\n".join("  ".join(align(cell, width) for cell, width in line).rstrip() for line in lines)

    def _repr_markdown_(self) -> str:
        columns, *rows = [[cell.replace("<", "&lt;").replace("|", "\\|") for cell in r] for r in self.rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))


def spread(cell: Any, digits: int) -> list[str]:
    """The cell as text; of a tensor or array, each of its numbers."""
    if hasattr(cell, "tolist"):
        cell = cell.tolist()
    cells = cell if isinstance(cell, list | tuple) else [cell]
    return [format_number(x, digits) if isinstance(x, float) else str(x) for x in cells]


def format_number(x: float, digits: int) -> str:
    text = f"{x:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def align(cell: str, width: int) -> str:
    padding = " " * (width - display_width(cell))
    return padding + cell if cell[-1:].isdigit() else cell + padding
