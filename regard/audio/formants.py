"""A small formant synthesizer that says the digits. After Klatt 1980, but in the frequency domain.

A phone, one sound of a word, has a source, pulses of the voice and noise, and a filter: the resonances of
the mouth (formants), and bands of noise where air passes a narrow place. Both change smoothly from one phone
to the next.

Shapes: N samples, T frames, F frequencies, P phones of a word.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from regard.audio.mel import RATE

FRAME, STEP = 512, 128  # samples of a frame, and from one to the next
BANDWIDTHS = (70.0, 100.0, 150.0, 220.0)  # of the formants, in Hz
FOURTH = 3500.0  # Hz: the fourth formant, which hardly moves


class Phone(NamedTuple):
    """The state of the mouth at one moment of a word."""

    formants: tuple[float, float, float]  # Hz, of a man's voice; Peterson & Barney 1952
    voice: float  # loudness of the pulses
    noise: float  # loudness of the noise
    band: tuple[float, float]  # the centre and the width of the noise: Hz
    seconds: float


def vowel(f1: float, f2: float, f3: float, seconds: float = 0.12, voice: float = 1.0) -> Phone:
    return Phone((f1, f2, f3), voice, 0.0, (2500, 2000), seconds)


def noise(centre: float, width: float, loud: float, seconds: float = 0.1, voice: float = 0.0) -> Phone:
    return Phone((350, 1600, 2600), voice, loud, (centre, width), seconds)


CLOSED = Phone((300, 1500, 2500), 0.0, 0.0, (3000, 2000), 0.05)  # before a plosive
BURST = noise(4000, 2500, 1.0, 0.03)
S, Z = noise(6000, 1800, 1.0, 0.13), noise(6000, 1800, 0.5, 0.09, 0.3)
SOFT, V = noise(5000, 5000, 0.25, 0.11), noise(4000, 5000, 0.12, 0.07, 0.4)  # f and th; v
N, R, W = vowel(280, 1300, 2300, 0.09, 0.4), vowel(350, 1150, 1550, 0.09), vowel(300, 700, 2200, 0.08)
I, E, A, O, U = (
    vowel(*f)
    for f in ((300, 2250, 3000), (550, 1800, 2500), (720, 1150, 2450), (530, 880, 2400), (320, 900, 2250))
)
SHORT_I, UH = vowel(400, 1950, 2550, 0.09), vowel(620, 1200, 2400, 0.11)
DIGITS: dict[str, tuple[Phone, ...]] = {
    "zero": (Z, SHORT_I, R, O, U),
    "one": (W, UH, UH, N),
    "two": (CLOSED, BURST, U, U),
    "three": (SOFT, R, I, I),
    "four": (SOFT, O, O, R),
    "five": (SOFT, A, A, SHORT_I, V),
    "six": (S, SHORT_I, CLOSED, BURST._replace(band=(2000, 1500)), S),
    "seven": (S, E, V, UH._replace(seconds=0.07), N),
    "eight": (E, SHORT_I, CLOSED, BURST),
    "nine": (N, A, A, SHORT_I, N),
}


@dataclass(frozen=True)
class Voice:
    pitch: float  # Hz
    scale: float  # of the formants: a shorter throat has higher ones
    speed: float
    breath: float  # noise in the voice
    slope: float  # dB an octave by which the voice's overtones fall

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Voice":
        """A voice of any pitch, from deep to a child's; high voices usually have higher formants."""
        height = rng.random()
        return cls(
            pitch=90 * 3**height,
            scale=0.92 + 0.28 * height + rng.uniform(-0.06, 0.06),
            speed=rng.uniform(0.75, 1.35),
            breath=rng.uniform(0.0, 0.06),
            slope=rng.uniform(3, 9),
        )


def say(word: str, voice: Voice, rng: np.random.Generator) -> np.ndarray:
    """A digit in this voice, with some silence around it and a little background noise: float32 (N)."""
    phones = DIGITS[word]
    seconds = (
        np.array([phone.seconds for phone in phones]) * rng.uniform(0.8, 1.25, len(phones)) / voice.speed
    )
    before, after = rng.uniform(0.02, 0.15, 2)
    total = int(RATE * (before + seconds.sum() + after)) // STEP * STEP
    centres = before + seconds.cumsum() - seconds / 2
    times = np.arange(total // STEP + 1) * STEP / RATE  # (T)
    inside = (times > before) & (times < before + seconds.sum())  # (T)

    def track(values: list[float]) -> np.ndarray:
        """A value for each frame, interpolated between the middles of the phones."""
        return np.interp(times, centres, np.array(values) * rng.uniform(0.96, 1.04, len(values)))

    tilt = rng.uniform(-0.2, 0.1)  # pitch falls towards the end, or rises
    pitch = voice.pitch * (1 + tilt * (times / times[-1] - 0.5)) * rng.uniform(0.94, 1.06)
    phase = np.cumsum(np.interp(np.arange(total) / RATE, times, pitch)) / RATE
    pulses = np.diff(np.floor(phase), prepend=0.0) * np.sqrt(RATE / voice.pitch)
    hiss = rng.normal(size=total)
    frequency = np.fft.rfftfreq(FRAME, 1 / RATE)  # (F)

    mouth = resonances(frequency, [track([p.formants[i] for p in phones]) * voice.scale for i in range(3)])
    mouth *= (1 + frequency / 200) ** (-voice.slope / 6)
    centre, width = (track([p.band[i] for p in phones])[:, None] for i in (0, 1))
    narrow = np.exp(-(((frequency - centre * (0.8 + 0.2 * voice.scale)) / width) ** 2))  # (T, F)
    loud, rough = (
        (inside * track([getattr(p, name) for p in phones]))[:, None] for name in ("voice", "noise")
    )
    samples = filtered(pulses, loud * mouth) + filtered(
        hiss, loud * voice.breath * mouth + 0.15 * rough * narrow
    )
    samples /= max(1e-9, abs(samples).max())
    background = 10 ** rng.uniform(-3.5, -1.8) * rng.normal(size=len(samples))
    return ((samples + background) * 10 ** rng.uniform(-1, -0.1) / 2).astype(np.float32)


def resonances(frequency: np.ndarray, formants: list[np.ndarray]) -> np.ndarray:
    """The gain of each frequency in a mouth with these formants, each (T): (T, F)."""
    gain = np.ones((len(formants[0]), len(frequency)))
    for f, width in zip([*formants, np.full(len(gain), FOURTH)], BANDWIDTHS, strict=True):
        f = f[:, None]  # (T, 1)
        gain *= f**2 / np.sqrt((frequency**2 - f**2) ** 2 + (width * frequency) ** 2)
    return gain


def filtered(source: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """A source (N), whose frames are filtered (T, F), added up again."""
    window = np.hanning(FRAME + 1)[:-1]
    padded = np.pad(source, FRAME // 2)
    starts = np.arange(len(gain)) * STEP
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[starts] * window  # (T, FRAME)
    frames = np.fft.irfft(np.fft.rfft(frames) * gain) * window
    result = np.zeros((len(gain) + FRAME // STEP - 1, STEP))
    for i, part in enumerate(np.split(frames, FRAME // STEP, axis=1)):
        result[i : i + len(part)] += part
    return result.reshape(-1)[FRAME // 2 : FRAME // 2 + len(source)]
