import io
import struct
import tarfile

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from helpers.errors import user_error
from helpers.sounds import tone, wav_bytes, write_wav
from regard.audio.mel import RATE
from regard.data import sounds
from regard.data.sounds import (
    decode_sound,
    find_sound,
    frames_of,
    load_sounds,
    read_header,
    read_spectrogram,
    read_wav,
)
from regard.vision.decoding import ImageSource

FORMATS = [(8, 1), (16, 1), (24, 1), (32, 1), (32, 3), (64, 3)]


def source(path):
    return ImageSource(str(path), str(path))


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("bits", "kind"), FORMATS)
def test_every_format(tmp_path, bits, kind, extensible):
    x = tone(440, 0.1)
    path = write_wav(tmp_path / "a.wav", x, bits=bits, kind=kind, extensible=extensible)
    assert_close(read_wav(source(path)).double(), torch.from_numpy(x), atol=2 ** (1 - min(bits, 16)), rtol=0)


def test_channels_are_averaged_and_rates_resampled(tmp_path):
    stereo = np.stack([tone(440, 0.5, 44100), np.zeros(22050)], axis=1)
    y = read_wav(source(write_wav(tmp_path / "a.wav", stereo, rate=44100)))
    assert_close(y[500:-500].double(), torch.from_numpy(tone(440, 0.5) / 2)[500:-500], atol=2e-3, rtol=0)


def test_other_chunks_are_skipped(tmp_path):
    odd = b"LIST" + struct.pack("<I", 5) + b"hello\0"  # padded to an even length
    path = write_wav(tmp_path / "a.wav", tone(300, 0.1), before=odd)
    assert len(read_wav(source(path))) == 1600


def test_streams_end_where_the_file_ends(tmp_path):
    data = bytearray(wav_bytes(tone(300, 0.1)))
    data[40:44] = b"\xff\xff\xff\xff"
    (tmp_path / "a.wav").write_bytes(data)
    assert len(read_wav(source(tmp_path / "a.wav"))) == 1600


def header(**changes):
    """A WAV file with other numbers in its header."""
    fields = {"kind": 1, "channels": 1, "rate": RATE, "bits": 16, "length": 8} | changes
    block = fields.get("block", fields["channels"] * fields["bits"] // 8)
    format = struct.pack(
        "<HHIIHH", fields["kind"], fields["channels"], fields["rate"], 0, block % 65536, fields["bits"]
    )
    body = b"WAVEfmt " + struct.pack("<I", 16) + format + b"data" + struct.pack("<I", fields["length"])
    return b"RIFF" + struct.pack("<I", 99) + body + 8 * b"\1"


HOSTILE = {
    "empty": (b"", "not a complete WAV"),
    "text": (b"hello, this is no sound at all", "not a complete WAV"),
    "no chunks": (b"RIFF\0\0\0\0WAVE", "no samples"),
    "endless chunks": (b"RIFF\0\0\0\0WAVE" + 5000 * b"junk\0\0\0\0", "no samples"),
    "jump": (b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\xff", "no samples"),
    "cut format": (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0", "format"),
    "samples first": (b"RIFF\0\0\0\0WAVEdata\x04\0\0\0abcd", "no samples"),
    "mp3": (header(kind=0x55), "format 85"),
    "bits": (header(bits=12), "12 bits"),
    "half": (header(kind=3, bits=16), "16 bits"),
    "channels": (header(channels=0), "0 channels"),
    "many channels": (header(channels=65), "65 channels"),
    "block": (header(block=3), "3 bytes"),
    "rate 0": (header(rate=0), "0 samples a second"),
    "rate": (header(rate=2**32 - 1), "4,294,967,295"),
    "none": (header(length=0), "no samples"),
    "half a sample": (header(length=1), "no samples"),
    "promises": (header(length=2**31 - 9), "8 do"),
    "nan": (wav_bytes(np.array([0.0, np.nan]), kind=3, bits=32), "not finite"),
    "infinite": (wav_bytes(np.array([0.0, 1e300]), kind=3, bits=64), "not finite"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_one_line(tmp_path, name):
    data, words = HOSTILE[name]
    path = tmp_path / "bad.wav"
    path.write_bytes(data)
    user_error(lambda: read_wav(source(path)), "bad.wav", words)


def test_long_recordings_are_refused_before_they_are_read(tmp_path, monkeypatch):
    path = write_wav(tmp_path / "a.wav", tone(300, 1.1))
    monkeypatch.setattr(sounds, "decode_samples", lambda *_: pytest.fail("decoded"))
    for name in ("MAX_SECONDS", "MAX_BYTES"):
        with monkeypatch.context() as limits:
            limits.setattr(sounds, name, 1)
            user_error(lambda: read_wav(source(path)), "a.wav", "cut it")


def test_loud_floats_do_not_overflow(tmp_path):
    path = write_wav(tmp_path / "a.wav", 1e30 * tone(300, 0.1), kind=3, bits=32)
    assert read_wav(source(path)).abs().max() == pytest.approx(1)


def test_pipes_and_missing_files(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.wav")
    user_error(lambda: read_wav(source(tmp_path / "pipe.wav")), "a pipe")
    user_error(lambda: read_wav(source(tmp_path / "none.wav")), "none.wav")
    user_error(lambda: find_sound(str(tmp_path / "none.wav")), "no such recording")


def test_a_part_of_a_tar(tmp_path):
    data = wav_bytes(tone(300, 0.1))
    with tarfile.open(tmp_path / "a.tar", "w:") as tar:
        info = tarfile.TarInfo("x.wav")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
        start = tar.getmember("x.wav").offset_data or 512
    part = ImageSource(str(tmp_path / "a.tar"), "a.tar:x.wav", start, len(data))
    assert len(read_wav(part)) == 1600


def test_the_loudest_part_of_a_long_recording(tmp_path):
    quiet = np.concatenate([np.zeros(RATE), tone(500, 0.2), np.zeros(RATE // 2)])
    path = write_wav(tmp_path / "a.wav", quiet)
    x = decode_sound(source(path), (1, 11, 24))
    assert x.shape == (1, 11, 24)
    assert (x[0].max(0) > 200).sum() >= 19  # all of the tone
    spectrogram = decode_sound(source(path), (1, 11, 400))
    assert spectrogram.shape == (1, 11, 176)


def test_datasets_pad_and_keep_what_they_can(tmp_path, monkeypatch):
    paths = [write_wav(tmp_path / f"{n}.wav", tone(400, 0.1 * (n + 1))) for n in range(3)]
    data = load_sounds(list(map(source, paths)), 7, None)
    assert data.shape == (1, 7, 32)  # of the longest
    x = data.read(np.arange(3))
    assert [(row > 0).any(1).sum().item() for row in x] == [16, 24, 32]
    monkeypatch.setattr(sounds, "MAX_MEMORY", 0)
    again = load_sounds(list(map(source, paths)), 7, None)
    assert again.pixels is None
    assert torch.equal(again.read(np.arange(3)), x)
    assert again.fingerprint() == data.fingerprint()
    mean, std = data.moments()
    unpadded = x[x > 0].double() / 255
    assert (mean, std) == ([unpadded.mean().item()], [unpadded.std().item()])
    assert load_sounds(list(map(source, paths)), 7, 0.17).shape == (1, 7, 24)


def test_spectrograms_are_checked():
    good = torch.ones(1, 7, 16, dtype=torch.uint8)
    assert read_spectrogram(good, (1, 7, 24)) is good
    for bad in (good[:, :5], good[:, :, :7], good.repeat(1, 1, 2), good[0]):
        user_error(lambda bad=bad: read_spectrogram(bad, (1, 7, 24)), "7")
    user_error(lambda: read_spectrogram("a.wav", (1, 7, 24)), "reads recordings")


def test_frames():
    assert [frames_of(s) for s in (0.001, 0.08, 0.081, 1.0)] == [8, 8, 16, 104]


def test_headers_know_the_length(tmp_path):
    path = write_wav(tmp_path / "a.wav", np.zeros((4410, 2)), rate=44100)
    with open(path, "rb") as file:
        assert read_header(file, "a.wav").seconds == pytest.approx(0.1)
