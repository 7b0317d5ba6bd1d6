"""The tree of a search: texts that grow token by token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regard.draw.scene import GAP, LARGE, MARGIN, Line, Scene, Shape, Text, heading, make_label, text_width

ROW, FORK = 26, 48  # height of a text; width of the lines before it

Prefix = tuple[str, ...]


@dataclass(frozen=True)
class Tree:
    """Texts with their probabilities; those in `highlighted` are emphasised."""

    title: str
    texts: Mapping[Prefix, float]
    highlighted: Sequence[Prefix]

    def scene(self) -> Scene:
        """A column for each token; the wider a line, the more probable the text."""
        y, leaves = self.heights()
        labels = {text: f"{make_label(text[-1])} {p:.2f}" for text, p in self.texts.items()}
        x = [float(MARGIN + FORK)]
        for n in range(max(map(len, self.texts))):
            column = [labels[text] for text in labels if len(text) == n + 1]
            x.append(x[-1] + text_width(column, LARGE) + FORK)
        top = MARGIN + 2 * LARGE
        shapes: list[Shape] = []
        for text, p in self.texts.items():
            n, opacity = len(text) - 1, 0.9 if text in self.highlighted else 0.25
            start = x[n] - FORK, top + y[text[:-1]]
            shapes.append(Line(*start, x[n] - GAP / 2, top + y[text], 0.5 + 6 * p, opacity))
        shapes.append(heading(self.title))
        for text, label in labels.items():
            shapes.append(Text(x[len(text) - 1], top + y[text], label, pale=text not in self.highlighted))
        width = max(x[-1] - FORK, text_width([self.title], LARGE) + MARGIN)
        return Scene(width + MARGIN, top + leaves * ROW + MARGIN, self.title, shapes)

    def heights(self) -> tuple[dict[Prefix, float], int]:
        """The height of each text, and the number of leaves. A parent is in the middle of its children."""
        y: dict[Prefix, float] = {}
        leaves = 0

        def place(text: Prefix) -> None:
            nonlocal leaves
            children = [other for other in self.texts if other[:-1] == text]
            for child in children:
                place(child)
            if children:
                y[text] = sum(y[child] for child in children) / len(children)
            else:
                y[text] = (leaves + 0.5) * ROW
                leaves += 1

        place(())
        return y, leaves
