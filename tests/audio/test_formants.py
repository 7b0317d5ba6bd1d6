import numpy as np
import torch

from regard.audio.formants import DIGITS, RATE, Voice, filtered, resonances, say
from regard.audio.mel import spectrogram
from regard.data.synthetic import speak_digits

MAN = Voice(pitch=100, scale=1.0, speed=1.0, breath=0.0, slope=6)


def test_filters_that_do_nothing() -> None:
    """Frames add up to the source, but for a constant, where their windows overlap."""
    source = np.random.default_rng(0).normal(size=128 * 20)
    y = filtered(source, np.ones((21, 257)))
    assert np.allclose(y[512:-512], 1.5 * source[512:-512])


def test_formants_are_peaks() -> None:
    frequency = np.arange(0.0, 4000.0, 10.0)
    (gain,) = resonances(frequency, [np.array([f]) for f in (500.0, 1500.0, 2500.0)])
    peaks = [frequency[i] for i in range(1, len(gain) - 1) if gain[i - 1] < gain[i] > gain[i + 1]]
    assert np.allclose(peaks, [500, 1500, 2500, 3500], atol=50)


def test_every_digit_is_said() -> None:
    for word in DIGITS:
        x = say(word, MAN, np.random.default_rng(0))
        assert x.dtype == np.float32
        assert np.isfinite(x).all()
        assert 0.02 < abs(x).max() < 1
        assert 0.2 < len(x) / RATE < 1.2


def test_voiced_and_unvoiced_sounds() -> None:
    """An s is high, and a vowel low."""
    x = spectrogram(torch.from_numpy(say("six", MAN, np.random.default_rng(1))), 40)[0].float()
    high, low = x[:12].mean(0), x[-12:].mean(0)
    assert (high - low).max() > 40
    assert (low - high).max() > 60


def test_voices_differ_by_seed() -> None:
    recordings = speak_digits(3, voices=2, takes=2)
    assert [word for word, _, _ in recordings[::2]] == 2 * list(DIGITS)
    assert len({voice for _, voice, _ in recordings}) == 2
    again, other = speak_digits(3, 1, 2), speak_digits(4, 1, 2)
    assert all(np.array_equal(a[2], b[2]) for a, b in zip(recordings, again, strict=False))
    assert not np.array_equal(again[0][2], other[0][2])
    assert not np.array_equal(recordings[0][2], recordings[1][2])  # each time a little different
