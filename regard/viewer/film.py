"""The film of a run's training: a view of the model at its steps, as a GIF or as a strip of pictures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.draw.gif import gif
from regard.draw.scene import LARGE, MARGIN, Scene, Text, side_by_side, stack
from regard.errors import UserError
from regard.files.atomic import atomic_file
from regard.runs.film import film_steps, logged_losses
from regard.runs.load import at_step, steps_of
from regard.runs.model import Model
from regard.viewer import views
from regard.viewer.views import Choice

FRAME, LAST = 250, 2000  # milliseconds of a frame, and of the last one
ACROSS, PICTURES = 4, 12  # of a strip


def film_scenes(
    model: Model, input: Any, view: str | None, choice: Choice, max_frames: int | None = None
) -> list[Scene]:
    """A view of the model at the frames of its film, or at its checkpoints if it has none; of many, at most
    `most` at equal distances. Each has its step and its loss above it."""
    steps = film_steps(model.folder) if model.folder is not None else []
    steps = steps or steps_of(model)
    if not steps or model.folder is None:
        raise UserError(f"{model.folder}: no film and no checkpoints; train with --look")
    if max_frames is not None and len(steps) > max_frames:
        steps = [steps[round(i * (len(steps) - 1) / (max_frames - 1))] for i in range(max_frames)]
    text, losses = model.open_input(input), logged_losses(model.folder, steps)
    if choice.answer is None and model.task.reads == "text" and model.task.has_source and model.task.streams:
        choice = replace(choice, answer=model.ask(text))  # the same rows in all frames
    scenes = []
    for step, loss in zip(steps, losses, strict=True):
        scene = views.view(at_step(model, step), text, view, choice).scene()
        words = f"step {step:,}" if loss is None else f"step {step:,}, loss {loss:.4f}"
        caption = Scene(
            scene.width, MARGIN + LARGE, words, [Text(MARGIN, MARGIN + LARGE / 2, words, bold=True)]
        )
        scenes.append(stack([caption, scene]))
    return scenes


def save_gif(
    path: str | Path, model: Model, input: Any, view: str | None = None, choice: Choice | None = None
) -> None:
    """Write a view of the model at the steps of its training as an animated GIF."""
    scenes = film_scenes(model, input, view, choice or Choice())
    data = gif(scenes, [*[FRAME] * (len(scenes) - 1), LAST])
    with atomic_file(Path(path)) as temporary:
        temporary.write_bytes(data)


def film_strip(model: Model, input: Any, choice: Choice | None = None) -> Scene:
    """The model's first view at steps of its training, in rows."""
    scenes = film_scenes(model, input, None, choice or Choice(), PICTURES)
    rows = [scenes[i : i + ACROSS] for i in range(0, len(scenes), ACROSS)]
    return stack([side_by_side(row, "; ".join(scene.title for scene in row)) for row in rows])
