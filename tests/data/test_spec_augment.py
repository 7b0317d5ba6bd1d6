import numpy as np
import pytest
import torch
from torch.testing import assert_close

from regard.data.shuffling import random_keys
from regard.data.spec_augment import SpecAugmentation, apply_spec_augmentation, sample_spec_augmentation

NONE = {"masks": 0, "band": 0.0, "stretch": 0.0, "shift": 0.0, "speed": 0.0, "pitch": 0.0}
KEYS = random_keys(1, np.arange(3))


def spectrograms():
    """Three of 7 bands, and of 24, 16 and 8 frames."""
    x = torch.randint(1, 256, (3, 1, 7, 24), generator=torch.Generator().manual_seed(0)) / 255
    return x * (torch.arange(24) < torch.tensor([[24], [16], [8]]))[:, None, None]


def augment(x, keys=KEYS, **settings):
    c = SpecAugmentation(**NONE | settings)
    return apply_spec_augmentation(x, torch.from_numpy(sample_spec_augmentation(c, keys)))


def test_nothing_changes_without_settings():
    x = spectrograms()
    assert_close(augment(x), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "settings", [{"speed": 0.9}, {"shift": 0.9}, {"pitch": 0.9}, {"masks": 3, "band": 0.9}, {}]
)
def test_padding_stays_padding_and_nothing_else_becomes_it(settings):
    x = spectrograms()
    y = (
        augment(x, **settings)
        if settings
        else apply_spec_augmentation(x, torch.from_numpy(sample_spec_augmentation(SpecAugmentation(), KEYS)))
    )
    assert torch.equal(y > 0, x > 0)
    assert y.max() <= 1
    assert not torch.equal(x, y)


def test_padding_does_not_matter():
    x = spectrograms()[1:2]
    c = SpecAugmentation()
    how = torch.from_numpy(sample_spec_augmentation(c, KEYS[1:2]))
    assert_close(
        apply_spec_augmentation(x[..., :16], how),
        apply_spec_augmentation(x, how)[..., :16],
        atol=1e-5,
        rtol=0,
    )


def test_parameters_depend_on_the_key_alone():
    c = SpecAugmentation()
    rows = sample_spec_augmentation(c, KEYS)
    assert rows.shape == (3, 3 + 4 * c.masks)
    assert np.array_equal(sample_spec_augmentation(c, KEYS[1:2])[0], rows[1])
    assert not np.array_equal(rows[0], rows[1])


def test_bands_and_stretches_are_hidden():
    x = spectrograms()[:1]
    how = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.3, 0.5, 0.75]])  # the two highest of 7 bands, 6 of 24 frames
    y = apply_spec_augmentation(x, how)
    hidden = torch.zeros(7, 24, dtype=torch.bool)
    hidden[:2] = True
    hidden[:, 12:18] = True
    assert_close(y[0, 0][hidden], x.mean().expand(int(hidden.sum())), atol=1e-5, rtol=0)
    assert_close(y[0, 0][~hidden], x[0, 0][~hidden], atol=1e-5, rtol=0)


def test_shifts_and_pitches():
    x = spectrograms()[:1]
    later = apply_spec_augmentation(x, torch.tensor([[1.0, -6 / 24, 0.0]]))
    assert_close(later[..., 6:], x[..., :18], atol=1e-5, rtol=0)
    assert_close(later[..., :6], x[..., :1].expand(-1, -1, -1, 6), atol=1e-5, rtol=0)  # the edge goes on
    higher = apply_spec_augmentation(x, torch.tensor([[1.0, 0.0, 2 / 7]]))
    assert_close(higher[:, :, :5], x[:, :, 2:], atol=1e-5, rtol=0)
    fast = apply_spec_augmentation(x, torch.tensor([[2.0, 0.0, 0.0]]))
    assert_close(fast[..., 6:18], x.unflatten(-1, (12, 2)).mean(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("setting", [{"masks": -1}, {"band": 1.0}, {"speed": -0.1}, {"pitch": 2}])
def test_wrong_settings(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        SpecAugmentation(**setting)
