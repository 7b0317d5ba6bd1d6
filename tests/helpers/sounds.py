"""WAV files for the tests."""

import struct
from pathlib import Path

import numpy as np

from regard.audio.mel import RATE


def wav_bytes(
    samples: np.ndarray,
    rate: int = RATE,
    bits: int = 16,
    kind: int = 1,
    extensible: bool = False,
    before: bytes = b"",  # other chunks, before the samples
) -> bytes:
    """Samples (N) or (N, channels) from -1 to 1 as a WAV file; kind 3 is floating-point."""
    samples = np.atleast_2d(samples.T).T
    channels, width = samples.shape[1], bits // 8
    if kind == 3:
        data = samples.astype(f"<f{width}").tobytes()
    elif bits == 8:
        data = (samples * 127 + 128).round().astype(np.uint8).tobytes()
    else:
        integers = (samples * (2 ** (bits - 1) - 1)).round().astype("<i8")
        data = integers[..., None].view(np.uint8)[..., :width].tobytes()
    block = channels * width
    format = struct.pack("<HHIIHH", 0xFFFE if extensible else kind, channels, rate, rate * block, block, bits)
    if extensible:
        guid = bytes.fromhex("000000001000800000aa00389b71")
        format += struct.pack("<HHIH", 22, bits, 0, kind) + guid
    body = b"WAVEfmt " + struct.pack("<I", len(format)) + format + before
    body += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def write_wav(path: Path, samples: np.ndarray, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wav_bytes(samples, **options))  # type: ignore[arg-type]
    return path


def tone(hertz: float, seconds: float = 0.3, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)
