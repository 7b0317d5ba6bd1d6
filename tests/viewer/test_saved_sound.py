"""A saved model hears a WAV file as the model in Python does: the same samples, bands and frames."""

import base64
import io
import json
import struct
import wave

import numpy as np
import pytest

from helpers.looking import hearer, recording
from helpers.saved import open_saved
from regard.data.archives import find_source
from regard.data.sounds import decode_sound
from regard.viewer import head_corpus
from regard.viewer.model_file import model_content
from regard.viewer.session import Session

SHAPE = 1, 5, 24
HEAR = """async ([recording]) => {
  const { tokens, ids, grid, answer } = await regard.trace({ picture: recording });
  const { shape, data } = await regard.tensor("pixels");
  const logits = await regard.tensor("logits");
  return { tokens, grid, answer, shape, data: Array.from(data), logits: Array.from(logits.data) };
}"""
REFUSED = "([picture]) => regard.trace({ picture }).then(() => null, (error) => error.message)"


def tone(seconds, rate, channels=1):
    """A voice-like sound with a pause, (samples, channels), the channels different."""
    at = np.arange(int(seconds * rate))[:, None] / rate
    signal = np.sin(2 * np.pi * (200 + 300 * at) * at) * np.exp(-8 * (at - 0.3 * seconds) ** 2)
    noise = 0.02 * np.random.default_rng(7).standard_normal((len(at), channels))
    return 0.6 * signal * (1 - 0.3 * np.arange(channels)) + noise


def pcm(samples, rate, size=2):
    """A WAV file of 8, 16, 24 or 32 bits."""
    file, channels = io.BytesIO(), samples.shape[1]
    integers = np.clip(samples * 2.0 ** (8 * size - 1), -(2.0 ** (8 * size - 1)), 2.0 ** (8 * size - 1) - 1)
    data = integers.round().astype("<i8")
    rows = (data + 128 if size == 1 else data).reshape(-1, 1).view(np.uint8)[:, :size]
    with wave.open(file, "wb") as out:
        out.setparams((channels, size, rate, 0, "NONE", ""))
        out.writeframes(rows.tobytes())
    return file.getvalue()


def floats(samples, rate, bits, extensible=False):
    """A WAV file of floats, with a chunk of odd length before its samples."""
    data, channels = samples.astype(f"<f{bits // 8}").tobytes(), samples.shape[1]
    kind = 0xFFFE if extensible else 3
    size = channels * bits // 8
    about = struct.pack("<HHIIHH", kind, channels, rate, rate * size, size, bits)
    about += struct.pack("<HHIH", 22, bits, 0, 3) + b"\x00" * 14 if extensible else b""
    parts = ((b"fmt ", about), (b"note", b"odd"), (b"data", data))
    chunks = [name + struct.pack("<I", len(one)) + one + b"\x00" * (len(one) % 2) for name, one in parts]
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


FILES = {
    "as it is": pcm(tone(0.2, 16_000), 16_000),
    "8 bits": pcm(tone(0.1, 16_000), 16_000, 1),
    "24 bits, stereo": pcm(tone(0.15, 16_000, 2), 16_000, 3),
    "32 bits": pcm(tone(0.1, 16_000), 16_000, 4),
    "from 44,100": pcm(tone(0.21, 44_100), 44_100),
    "from 8,000": pcm(tone(0.2, 8_000), 8_000),
    "an odd number from 22,050": pcm(tone(0.1, 22_050)[:2203], 22_050),
    "floats too loud": floats(3 * tone(0.2, 16_000, 3), 16_000, 32),
    "doubles, extensible": floats(tone(0.1, 16_000), 16_000, 64, extensible=True),
    "longer than the model reads": pcm(tone(0.9, 16_000), 16_000),
    "silence": pcm(np.zeros((1000, 1)), 16_000),
}
BROKEN = {
    "this file hears WAV": b"ID3\x03 something else",
    "no complete WAV": FILES["as it is"][:40],
    "no samples": FILES["as it is"][:44],
    "format 7": FILES["as it is"][:20] + b"\x07" + FILES["as it is"][21:],
}


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_corpus, "TEXTS", 1)
        patch.setattr(head_corpus, "REPEATS", 1)
        yield from open_saved(browser, hearer(), tmp_path_factory)


def heard(opened, data):
    return opened.evaluate(HEAR, [base64.b64encode(data).decode()])


@pytest.mark.parametrize("name", FILES)
def test_wav_files(name, opened, tmp_path):
    path = tmp_path / "sound.wav"
    path.write_bytes(FILES[name])
    want = decode_sound(find_source(str(path)), SHAPE)
    result = heard(opened, FILES[name])
    assert result["shape"] == list(want.shape)
    apart = np.abs(np.array(result["data"]).reshape(want.shape) - want.astype(int))
    assert apart.max() <= 1  # torch rounds to float32 on the way
    assert (apart == 0).mean() > 0.98
    session = Session(hearer(), find_source(str(path)))
    assert result["tokens"] == session.manifest["tokens"]
    assert result["grid"] == list(session.manifest["grid"])
    assert result["logits"] == pytest.approx(session.trace["logits"].tolist(), abs=0.05)


def test_a_long_one_is_cut_where_it_is_loudest(opened):
    """What is silent before and after is left out."""
    samples = np.concatenate([np.zeros((9000, 1)), tone(0.24, 16_000), np.zeros((7000, 1))])
    result = np.array(heard(opened, pcm(samples, 16_000))["data"]).reshape(SHAPE)
    assert result.mean() > 100


@pytest.mark.parametrize("reason", BROKEN)
def test_says_what_it_can_not_hear(reason, opened):
    assert reason in opened.evaluate(REFUSED, [base64.b64encode(BROKEN[reason]).decode()])


def test_the_page_opens_a_file(opened, tmp_path):
    """By its button, as any picture."""
    path = tmp_path / "sound.wav"
    path.write_bytes(FILES["from 8,000"])
    with opened.expect_file_chooser() as chooser:
        opened.click("text=Another recording")
    chooser.value.set_files(path)
    opened.wait_for_function("regard.manifest.tokens.text.length === 7")
    opened.wait_for_selector("main:not([aria-busy])")
    assert not opened.query_selector(".problem:not(:empty)")


def test_the_example_is_a_recording_of_the_longest(opened):
    content = json.loads(json.dumps(model_content(hearer(), recording(8))))
    assert len(content["manifest"]["tokens"]["text"]) == 3
    assert len(content["model"]["task"]["regions"]) == 7


def test_the_microphone(opened):
    """Chromium's own, for tests, beeps every half second: what is heard is not silent."""
    opened.wait_for_selector("#record")
    before = opened.evaluate("regard.manifest.id")
    opened.click("#record")
    opened.wait_for_selector("#record[aria-pressed=true]")
    opened.evaluate("new Promise((done) => setTimeout(done, 1200))")
    opened.click("#record")
    opened.wait_for_function("(before) => regard.manifest.id !== before", arg=before)
    opened.wait_for_selector("#record[aria-pressed=false]")
    opened.wait_for_selector("main:not([aria-busy])")
    pixels = opened.evaluate("regard.tensor('pixels').then(({ data }) => Array.from(data))")
    assert max(pixels) > 50
    assert len(set(pixels)) > 5
    assert not opened.query_selector(".problem:not(:empty)")
