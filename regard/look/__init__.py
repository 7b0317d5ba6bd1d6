"""Where a model looked, as pictures: `look(model, "Hi how are you").save("look.svg")`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.checkpoint import replacing
from regard.errors import Mistake
from regard.run import Model

from . import draw, plots, views

ENDINGS = ".svg", ".png"


class Picture:
    """A scene that shows itself in a notebook."""

    def __init__(self, scene: draw.Scene):
        self.scene = scene

    def svg(self) -> str:
        return draw.svg(self.scene)

    def png(self) -> bytes:
        return draw.png(self.scene)

    def save(self, path: str | Path) -> None:
        """Writes an .svg or a .png, whole or not at all."""
        path = Path(path)
        if path.suffix.lower() not in ENDINGS:
            raise Mistake(
                f"{path}: pictures are saved as {' or '.join(ENDINGS)}; choose one of these endings"
            )
        data = self.png() if path.suffix.lower() == ".png" else self.svg().encode()
        with replacing(path) as beside:
            beside.write_bytes(data)

    _repr_svg_ = svg
    _repr_png_ = png


def look(model: Model, input: Any, view: str | None = None, **choice: Any) -> Picture:
    """A picture of what a model looked at in a text or a picture; of several, one below the other.

    `view` names one that the model has; without it, the usual. `layer`, `head`, `part`, `patch` and `answer`
    choose what of the model is to be seen, see `views.Choice`.
    """
    several = input if isinstance(input, Sequence) and not isinstance(input, str) else [input]
    chosen = views.Choice(**choice)
    return Picture(draw.stacked([plots.scene(views.view(model, one, view, chosen)) for one in several]))


def drawn(view: Any) -> Picture:
    """A view (views.py) or a figure (figures.py) as a picture: `drawn(pooling(x, y, "boxcar"))`."""
    return Picture(plots.scene(view))
