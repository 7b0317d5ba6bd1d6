"""Write several scenes as an animated GIF."""

import io
from collections.abc import Sequence

from regard.draw.png import draw_scene, light
from regard.draw.scene import Scene


def gif(scenes: Sequence[Scene], milliseconds: Sequence[int]) -> bytes:
    """The scenes in a loop, each with its duration; smaller ones on a larger background."""
    import PIL.Image

    drawn = [draw_scene(scene) for scene in scenes]
    size = max(image.width for image in drawn), max(image.height for image in drawn)
    frames = [PIL.Image.new("RGB", size, light("ground")) for _ in drawn]
    for frame, image in zip(frames, drawn, strict=True):
        frame.paste(image, (0, 0))
    file = io.BytesIO()
    frames[0].save(
        file, "GIF", save_all=True, append_images=frames[1:], duration=list(milliseconds), loop=0, disposal=1
    )
    return file.getvalue()
