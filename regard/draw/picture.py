"""A drawing to show in a notebook or to save."""

from pathlib import Path

from regard.draw.png import png
from regard.draw.scene import Figure, Scene
from regard.draw.svg import svg
from regard.errors import UserError
from regard.files.atomic import atomic_file

SUFFIXES = ".svg", ".png"


def check_suffix(path: str | Path) -> Path:
    """Return the path; raise UserError if a picture can't be saved there."""
    if (path := Path(path)).suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: can't save a picture in this format; use {' or '.join(SUFFIXES)}")
    return path


class Picture:
    """A scene that displays itself in a notebook."""

    def __init__(self, scene: Scene):
        self.scene = scene

    def __repr__(self) -> str:
        return f"Picture({self.scene.title!r})"

    def svg(self) -> str:
        return svg(self.scene)

    def png(self) -> bytes:
        return png(self.scene)

    def save(self, path: str | Path) -> None:
        """Write an .svg or a .png file atomically."""
        path = check_suffix(path)
        data = self.png() if path.suffix.lower() == ".png" else self.svg().encode()
        with atomic_file(path) as temporary:
            temporary.write_bytes(data)

    _repr_svg_ = svg
    _repr_png_ = png


def draw(figure: Figure) -> Picture:
    """Draw a figure: `draw(Matrix("attention", weights, rows, columns)).save("attention.svg")`."""
    return Picture(figure.scene())
