import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from helpers.sounds import tone
from regard.audio.mel import (
    FRAMES,
    HOP,
    RATE,
    WINDOW,
    attention_mask,
    log_mel,
    mel_filters,
    resample,
    spectrogram,
)


@pytest.mark.parametrize("mels", [13, 80])
def test_filters_are_those_of_transformers(mels: int) -> None:
    theirs = mel_filter_bank(WINDOW // 2 + 1, mels, 0, RATE / 2, RATE, norm="slaney", mel_scale="slaney")
    assert_close(mel_filters(mels), torch.from_numpy(theirs.T).float(), atol=1e-7, rtol=1e-5)


def test_log_mel_is_whispers() -> None:
    """But for its edges, where Whisper pads with a mirror image, and its scale."""
    samples = np.random.default_rng(0).normal(0, 0.1, RATE // 2) + tone(440, 0.5)
    extract = WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    theirs = torch.from_numpy(extract(samples, sampling_rate=RATE).input_features[0])  # (x + 4) / 4
    ours = log_mel(torch.from_numpy(samples).float(), 80)
    ours = ((ours.clamp(min=ours.max() - 8)) + 4) / 4
    assert ours.shape == (80, RATE // 2 // HOP + 1)
    assert_close(ours[:, 3:-3], theirs[:, 3 : ours.shape[1] - 3], atol=1e-3, rtol=0)


def test_power_by_the_definition() -> None:
    """One frame in the middle: the discrete Fourier transform, written out."""
    samples = np.random.default_rng(1).normal(0, 0.3, 7 * HOP)
    n, k = np.arange(WINDOW), np.arange(WINDOW // 2 + 1)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / WINDOW)
    frame = samples[4 * HOP - WINDOW // 2 : 4 * HOP + WINDOW // 2] * window
    power = abs((frame * np.exp(-2j * np.pi * k[:, None] * n / WINDOW)).sum(1)) ** 2
    expected = np.log10(mel_filters(11).numpy() @ power)
    assert_close(
        log_mel(torch.from_numpy(samples).float(), 11)[:, 4].double(),
        torch.from_numpy(expected),
        atol=1e-4,
        rtol=1e-4,
    )


def test_spectrogram_in_bytes() -> None:
    samples = torch.from_numpy(tone(1000, 0.31)).float()
    x = spectrogram(samples, 23)
    assert (x.dtype, x.shape) == (torch.uint8, (1, 23, 32))
    assert x.shape[2] % FRAMES == 0
    assert x.max() == 255
    assert x.min() >= 1  # 0 is padding
    loudest = 22 - int(x[0, :, 10].argmax())  # the lowest band is the last row
    assert mel_filters(23)[loudest].argmax() == pytest.approx(1000 / RATE * WINDOW, abs=2)
    quieter = spectrogram(samples / 30, 23)
    assert (quieter.int() - x.int()).abs().max() <= 1  # loudness does not matter


def test_silence_is_not_amplified() -> None:
    assert spectrogram(torch.zeros(999), 7).eq(1).all()
    assert spectrogram(1e-5 * torch.randn(999), 7).max() < 128


def test_one_sample_is_enough() -> None:
    assert spectrogram(torch.ones(1), 5).shape == (1, 5, FRAMES)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 15999])
def test_resampled_tones_are_the_same(rate: int) -> None:
    y = resample(torch.from_numpy(tone(700, 1.0, rate)).float(), rate)
    expected = torch.from_numpy(tone(700, 1.0)).float()
    assert len(y) == len(expected)
    assert_close(y[1000:-1000], expected[1000:-1000], atol=2e-3, rtol=0)


def test_what_is_too_high_is_left_out() -> None:
    y = resample(torch.from_numpy(tone(11000, 0.5, 44100)).float(), 44100)
    assert y[1000:-1000].abs().max() < 1e-2


def test_attention_mask() -> None:
    pixels = torch.ones(2, 1, 5, 16, dtype=torch.uint8)
    pixels[1, :, :, 9:] = 0
    assert attention_mask(pixels, 4, False).tolist() == [[True] * 4, [True, True, True, False]]
    assert attention_mask(pixels, 4, True).tolist() == [[True] * 5, [True, True, True, True, False]]
