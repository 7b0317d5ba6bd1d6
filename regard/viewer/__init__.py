"""Draw what a model attends to: `look(model, "Hi how are you").save("look.svg")`."""

from collections.abc import Sequence
from typing import Any

from regard.draw.picture import Picture, draw
from regard.draw.scene import stack
from regard.runs.model import Model
from regard.viewer import views
from regard.viewer.film import film_strip

__all__ = ["Picture", "draw", "look"]


def look(model: Model, input: Any, view: str | None = None, **choice: Any) -> Picture:
    """Draw what a model attends to in a text or an image; several inputs are drawn one below the other.

    `view` names one of the model's views; the default is its first. "film" is the default view at
    steps of the model's training. `layer`, `head`, `part`, `patch` and `answer` select the contents, see
    `views.Choice`.
    """
    inputs = input if isinstance(input, Sequence) and not isinstance(input, str) else [input]
    chosen = views.Choice(**choice)
    if view == "film":
        return Picture(stack([film_strip(model, one, chosen) for one in inputs]))
    return Picture(stack([views.view(model, model.open_input(one), view, chosen).scene() for one in inputs]))
