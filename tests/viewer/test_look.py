"""`regard.look`: from a model's attention to pixels."""

import io

import numpy as np
import PIL.Image

import regard
from helpers.looking import noise, reader, seer
from regard.draw.heat import resize_nearest
from regard.draw.scene import Image
from regard.viewer.views import view


def decode_png(picture):
    return np.asarray(PIL.Image.open(io.BytesIO(picture.png())).convert("RGB"))


def test_patches_are_as_bright_as_their_weights():
    model, pixels = seer(), noise(6)
    picture = regard.look(model, pixels)
    weights = view(model, pixels).maps[0]
    image = [part for part in picture.scene.shapes if isinstance(part, Image)][1].pixels.astype(float)
    side = image.shape[0] // 3
    plain = resize_nearest(pixels.permute(1, 2, 0).numpy(), *image.shape[:2])
    light = (image - 0.3 * plain) / (0.4 * plain + 76.5)  # from 0 to 1
    brightness = light.mean(-1).reshape(3, side, 3, side).mean((1, 3))
    np.testing.assert_allclose(brightness, weights / weights.max(), atol=0.01)


def test_several_inputs_are_drawn_below_each_other():
    model = reader("write", "gpt")
    inputs = ["the quick fox", "the lazy dog jumps"]
    both, *each = (regard.look(model, input) for input in (inputs, *inputs))
    assert both.scene.height == sum(one.scene.height for one in each)
    one, pixels = decode_png(each[1]), decode_png(both)
    assert (pixels[-one.shape[0] :, : one.shape[1]] == one).all()
