"""A timeline: one line for each event, from the first to the last."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.draw.scene import (
    GAP,
    LARGE,
    MARGIN,
    NEUTRAL,
    SERIES,
    Circle,
    Polyline,
    Scene,
    Shape,
    Text,
    heading,
    text_width,
)

ROW = 22  # pixels
RADIUS = 4


@dataclass(frozen=True)
class Timeline:
    """Events as (year, name, note). Rows are evenly spaced, however many years lie between them."""

    title: str
    events: Sequence[tuple[int, str, str]]

    def scene(self) -> Scene:
        """Years on the left of a line with a dot for each event, names and notes on the right."""
        events = sorted(self.events, key=lambda event: event[0])
        line = MARGIN + text_width(["0000"], LARGE) + GAP + RADIUS
        names, top = line + RADIUS + GAP, MARGIN + 2 * LARGE + ROW / 2
        notes = names + text_width([name for _, name, _ in events], LARGE) + GAP
        bottom = top + ROW * (len(events) - 1)
        shapes: list[Shape] = [heading(self.title), Polyline(((line, top), (line, bottom)), NEUTRAL, 1)]
        last = None
        for n, (year, name, note) in enumerate(events):
            y = top + n * ROW
            if year != last:
                shapes.append(Text(line - RADIUS - GAP, y, str(year), anchor="end", pale=True))
            shapes.append(Circle(line, y, RADIUS, SERIES[0]))
            shapes += [Text(names, y, name), Text(notes, y, note, pale=True)]
            last = year
        width = max(notes + text_width([note for *_, note in events], LARGE), text_width([self.title], LARGE))
        return Scene(width + MARGIN, bottom + ROW / 2 + MARGIN, self.title, shapes)
