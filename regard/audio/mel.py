"""Log-mel spectrograms: how loud each band of frequencies is, frame by frame. Davis & Mermelstein 1980.

The bands, the window and the range are those of Whisper, Radford et al. 2022.

Shapes: B batch, N samples, T frames, F frequencies, M mel bands.
"""

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

RATE = 16_000  # samples a second
WINDOW = 400  # samples of a frame: 25 ms
HOP = 160  # samples from one frame to the next: 10 ms
FRAMES = 8  # a spectrogram has a multiple of this many frames, so that it divides into patches
RANGE = 8.0  # orders of magnitude of power below the loudest: 80 dB
SILENCE = -2.0  # log10 power: recordings below it are not amplified
LINEAR = 1000.0  # Hz, up to which mels are linear; above, they are logarithmic
MELS_PER_HZ = 3 / 200
MELS_PER_LOG = 27 / math.log(6.4)


def hz_to_mel(hz: Tensor) -> Tensor:
    """The pitch of a frequency in mels, Slaney 1998."""
    above = LINEAR * MELS_PER_HZ + (hz.clamp(min=LINEAR) / LINEAR).log() * MELS_PER_LOG
    return torch.where(hz < LINEAR, hz * MELS_PER_HZ, above)


def mel_to_hz(mel: Tensor) -> Tensor:
    """The inverse of `hz_to_mel`."""
    above = LINEAR * ((mel - LINEAR * MELS_PER_HZ) / MELS_PER_LOG).exp()
    return torch.where(mel < LINEAR * MELS_PER_HZ, mel / MELS_PER_HZ, above)


@cache
def mel_filters(mels: int) -> Tensor:
    """Triangles over the frequencies of a frame, each of area 1, at equal distances in mels: (M, F)."""
    frequencies = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)  # (F)
    top = hz_to_mel(torch.tensor(RATE / 2, dtype=torch.float64))
    edges = mel_to_hz(torch.linspace(0, 1, mels + 2, dtype=torch.float64) * top)[:, None]  # (M + 2, 1)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - left) / (centre - left), (right - frequencies) / (right - centre)
    triangles = torch.minimum(rising, falling).clamp(min=0)  # (M, F)
    return (triangles * 2 / (right - left)).float()  # (M, F)


def log_mel(samples: Tensor, mels: int) -> Tensor:
    """log10 of the power in each mel band: samples (N) from -1 to 1 -> (M, N / HOP + 1)."""
    window = torch.hann_window(WINDOW, dtype=samples.dtype)
    padded = F.pad(samples, (WINDOW // 2, WINDOW // 2))
    power = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True).abs() ** 2
    return (mel_filters(mels).to(power.dtype) @ power).clamp(min=1e-10).log10()  # (M, T)


def spectrogram(samples: Tensor, mels: int) -> Tensor:
    """A log-mel spectrogram in bytes, low bands at the bottom: samples (N) -> uint8 (1, M, T).

    255 is the loudest, 1 is 80 dB below it or less, and 0 stands for no sound at all, where spectrograms of
    unequal length are padded. The last frames are silent, up to a multiple of FRAMES.
    """
    frames = -(-len(samples) // (HOP * FRAMES)) * FRAMES
    x = log_mel(F.pad(samples, (0, frames * HOP - len(samples))), mels)[:, :frames].flip(0)  # (M, T)
    x = 1 + (x - x.max().clamp(min=SILENCE)) / RANGE
    return (1 + 254 * x.clamp(min=0)).round().to(torch.uint8)[None]  # (1, M, T)


def attention_mask(pixels: Tensor, patch: int, first: bool) -> Tensor:
    """The mask of patches that are not padding, after a `first` token for the whole if there is one:
    spectrograms (B, 1, M, T) -> (B, T / patch) or one more."""
    frames = (pixels > 0).flatten(1, 2).any(1)  # (B, T)
    return F.pad(frames.unflatten(1, (-1, patch)).any(2), (int(first), 0), value=True)


def resample(samples: Tensor, rate: int) -> Tensor:
    """Resample (N) samples to RATE: the part of the spectrum that both rates can represent is unchanged."""
    count = max(1, round(len(samples) * RATE / rate))
    if count == len(samples):
        return samples
    spectrum = torch.fft.rfft(samples)
    size = count // 2 + 1
    spectrum = F.pad(spectrum, (0, size - len(spectrum))) if size > len(spectrum) else spectrum[:size]
    return torch.fft.irfft(spectrum, count) * (count / len(samples))
