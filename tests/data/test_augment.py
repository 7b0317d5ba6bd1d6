"""Augmentation against Pillow and numpy; it depends on keys alone."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.testing import assert_close

from regard.data.augment import (
    COLUMNS,
    IDENTITY,
    Augmentation,
    affine_matrices,
    apply_augmentation,
    apply_mix,
    beta_quantile,
    box_mask,
    sample_augmentation,
    sample_mix,
)
from regard.data.shuffling import random_keys

ALL = Augmentation(pad=2, area=0.5, flip=True, operations=2, erase=0.5, mixup=0.3, cutmix=1.0)
KEYS = random_keys(7, np.arange(4000))


def noise(B=3, C=3, H=11, W=11):
    return torch.randint(256, (B, C, H, W), dtype=torch.uint8)


def parameters(B=1, **values):
    """Parameters that change nothing but these columns."""
    array = np.tile(IDENTITY, (B, 1))
    for name, value in values.items():
        array[:, COLUMNS.index(name)] = value
    return torch.from_numpy(array)


def augmented(config, pixels, how):
    """Pixels from 0 to 255, not rounded."""
    return apply_augmentation(config, pixels.double() / 255, how) * 255


def test_a_row_draws_the_same_in_any_batch():
    samples = sample_augmentation(ALL, KEYS, 28)
    rows = np.array([17, 3, 999])
    assert np.array_equal(sample_augmentation(ALL, KEYS[rows], 28), samples[rows])
    assert np.array_equal(sample_mix(ALL, KEYS[rows]), sample_mix(ALL, KEYS)[rows])
    assert len(np.unique(samples, axis=0)) == len(KEYS)
    pixels = noise(4000 // 100)
    first_rows = torch.from_numpy(samples[:40])
    together = augmented(ALL, pixels, first_rows)
    assert_close(together[5:6], augmented(ALL, pixels[5:6], first_rows[5:6]))


def test_nothing_asked_nothing_done():
    plain = Augmentation()
    pixels = noise()
    assert np.array_equal(sample_augmentation(plain, KEYS, 28), np.tile(IDENTITY, (len(KEYS), 1)))
    assert torch.equal(augmented(plain, pixels, parameters(3)), pixels.double() / 255 * 255)
    assert_close(augmented(ALL, pixels, parameters(3)), pixels.double(), atol=1e-3, rtol=0)
    mixed, stays = apply_mix(pixels / 255, noise() / 255, torch.from_numpy(sample_mix(plain, KEYS[:3])))
    assert torch.equal(mixed, pixels / 255)
    assert stays.tolist() == [1, 1, 1]


def test_moves_are_those_of_a_padded_crop():
    c = Augmentation(pad=2, flip=True)
    pixels, how = noise(1).expand(900, -1, -1, -1), sample_augmentation(c, KEYS[:900], 11)
    images = augmented(c, pixels, torch.from_numpy(how))
    wide = np.pad(pixels[0].numpy(), ((0, 0), (2, 2), (2, 2)), mode="symmetric")
    crops = {
        crop[:, :, :: -1 if flipped else 1].tobytes()
        for y in range(5)
        for x in range(5)
        for flipped in (False, True)
        for crop in [wide[:, y : y + 11, x : x + 11]]
    }
    variants = {image.round().byte().numpy().tobytes() for image in images}
    assert_close(images, images.round(), atol=1e-3, rtol=0)
    assert variants <= crops
    assert len(variants) == len(crops) == 50


@pytest.mark.parametrize(
    ("name", "amount", "theirs"),
    [
        ("brightness", 0.6, lambda im: ImageEnhance.Brightness(im).enhance(0.6)),
        ("brightness", 1.7, lambda im: ImageEnhance.Brightness(im).enhance(1.7)),
        ("contrast", 0.4, lambda im: ImageEnhance.Contrast(im).enhance(0.4)),
        ("contrast", 1.8, lambda im: ImageEnhance.Contrast(im).enhance(1.8)),
        ("colour", 0.3, lambda im: ImageEnhance.Color(im).enhance(0.3)),
        ("colour", 1.9, lambda im: ImageEnhance.Color(im).enhance(1.9)),
        ("sharpness", 0.2, lambda im: ImageEnhance.Sharpness(im).enhance(0.2)),
        ("sharpness", 1.9, lambda im: ImageEnhance.Sharpness(im).enhance(1.9)),
        ("posterize", 5, lambda im: ImageOps.posterize(im, 5)),
        ("solarize", 99.5 / 255, lambda im: ImageOps.solarize(im, 100)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_colours_change_as_pillows(name, amount, theirs):
    pixels = noise(1)
    his = np.asarray(theirs(Image.fromarray(pixels[0].permute(1, 2, 0).numpy())))
    mine = (
        augmented(Augmentation(operations=1), pixels, parameters(**{name: amount}))[0]
        .permute(1, 2, 0)
        .numpy()
    )
    inner = slice(1, -1) if name == "sharpness" else slice(None)  # at the edges Pillow does not sharpen
    assert abs(mine - his)[inner, inner].max() < 2  # Pillow rounds on its way
    assert abs(mine - pixels[0].permute(1, 2, 0).numpy()).max() > 5


def test_turns_are_pillows():
    smooth = (
        torch.nn.functional.interpolate(torch.rand(1, 3, 5, 5) * 255, 41, mode="bicubic").clamp(0, 255).byte()
    )
    affine = affine_matrices("rotate", np.array([0.5]))[0, :2].ravel()
    how = parameters(**dict(zip("abcdef", affine, strict=True)))
    mine = augmented(Augmentation(operations=1), smooth, how)[0].permute(1, 2, 0)
    his = Image.fromarray(smooth[0].permute(1, 2, 0).numpy()).rotate(15, Image.Resampling.BILINEAR)
    middle = slice(8, -8)
    assert abs(mine.numpy() - np.asarray(his))[middle, middle].max() < 3


def test_every_operation_is_drawn_and_goes_no_farther_than_its_strength():
    how = sample_augmentation(Augmentation(operations=1, strength=0.5), KEYS, 28)
    for i, name in enumerate(COLUMNS):
        rows = how[:, i] != IDENTITY[i]
        assert 0.05 < rows.mean() < 0.25, name
    at = {name: how[:, i] for i, name in enumerate(COLUMNS)}
    assert np.arcsin(at["d"][at["a"] != 1]).max() == pytest.approx(np.pi / 12, rel=0.05)
    assert abs(at["b"][at["a"] == 1]).max() == pytest.approx(0.15, rel=0.05)
    assert abs(at["c"]).max() == pytest.approx(0.45, rel=0.05)
    assert at["posterize"].min() == pytest.approx(6, rel=0.05)
    assert at["solarize"].min() == pytest.approx(0.5, rel=0.05)
    for name in ("brightness", "contrast", "colour", "sharpness"):
        assert at[name].min() == pytest.approx(0.55, rel=0.05)
        assert at[name].max() == pytest.approx(1.45, rel=0.05)


def test_what_is_cut_out_lies_inside_and_has_the_area_asked_for():
    how = sample_augmentation(Augmentation(area=0.3), KEYS, 28)
    w, h = how[:, 0], how[:, 4]
    assert (abs(how[:, 2]) <= 1 - w + 1e-6).all()
    assert (abs(how[:, 5]) <= 1 - h + 1e-6).all()
    assert (w * h).min() == pytest.approx(0.3, abs=0.01)
    assert 0.6 < (w * h).mean() < 0.66
    assert (w / h).max() == pytest.approx(4 / 3, abs=0.05)


def test_a_rectangle_of_some_is_erased():
    c = Augmentation(erase=0.4)
    how = sample_augmentation(c, KEYS, 11)
    pixels = noise(1, 1).expand(4000, -1, -1, -1)
    gone = augmented(c, pixels, torch.from_numpy(how)) != pixels.double() / 255 * 255
    erased = gone.flatten(1).any(1)
    assert erased.float().mean() == pytest.approx(0.4, abs=0.03)
    assert 0.02 < gone[erased].float().mean() < 0.2
    first = gone[erased][0, 0]
    rows, columns = first.any(1).nonzero(), first.any(0).nonzero()
    assert first.sum() == len(rows) * len(columns)


def test_mixtures_add_up():
    a, b = torch.zeros(4000, 1, 11, 11), torch.ones(4000, 1, 11, 11)
    how = torch.from_numpy(sample_mix(ALL, KEYS))
    x, stays = apply_mix(a, b, how)
    assert_close(1 - x.mean((1, 2, 3)), stays)
    cut = how[:, 0] == 1
    assert 0.45 < cut.float().mean() < 0.55
    assert set(x[cut].unique().tolist()) == {0.0, 1.0}
    assert (x[~cut].amax((1, 2, 3)) - x[~cut].amin((1, 2, 3))).max() < 1e-6
    assert stays[cut].std() == pytest.approx((1 / 12) ** 0.5, abs=0.03)  # Beta(1, 1) is even
    assert stays[~cut].var() == pytest.approx(1 / 4 / (2 * 0.3 + 1), abs=0.01)  # Beta(α, α)


def test_quantiles_are_those_of_numbers_parameters():
    u = (np.arange(20_000) + 0.5) / 20_000
    for alpha in (0.2, 1.0, 3.0):
        theirs = np.sort(np.random.default_rng(0).beta(alpha, alpha, 20_000))
        assert abs(beta_quantile(u, alpha) - theirs).max() < 0.05


def test_edges_count_pixels_by_their_middle():
    mask = box_mask(torch.tensor([[0.25, 0.5, 1.0, 0.75]]), 4, 8)
    assert mask.nonzero()[:, 2:].tolist() == [[2, x] for x in range(2, 8)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pad": -1}, "pad=-1"),
        ({"area": 0.0}, "area=0.0"),
        ({"erase": 1.5}, "erase=1.5"),
        ({"mixup": -1.0}, "mixup"),
    ],
)
def test_settings_that_do_not_do_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        Augmentation(**settings)
