"""Write a set of spoken digits with espeak-ng: DIGIT_VOICE_NUMBER.wav, in a hundred voices.

First `apt-get install espeak-ng`, then `python bench/spoken_digits.py digits/` and
`regard train hear digits/ --out runs/digits`: every tenth voice is held out.
"""

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ACCENTS = "en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-029"
TAKES = 6  # of each digit in each voice, with different accents, pitches and speeds


def voices() -> list[str]:
    """The names of espeak-ng's variants, which are speakers."""
    lines = subprocess.run(["espeak-ng", "--voices=variant"], capture_output=True, text=True, check=True)
    files = [
        line.split("!v/")[1].split("  ")[0].strip() for line in lines.stdout.splitlines() if "!v/" in line
    ]
    return sorted(name for name in files if " " not in name)


def say(folder: Path, voice: str) -> int:
    rng = random.Random(voice)
    for word in WORDS:
        for take in range(TAKES):
            pitch, speed = rng.randint(25, 75), rng.randint(120, 210)
            name = f"{word}_{voice.replace('_', '-')}_{take}.wav"
            options = ["-v", f"{rng.choice(ACCENTS)}+{voice}", "-p", str(pitch), "-s", str(speed)]
            subprocess.run(["espeak-ng", *options, "-w", str(folder / name), word], check=True)
    return len(WORDS) * TAKES


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = voices()
    with ThreadPoolExecutor(2) as threads:
        count = sum(threads.map(lambda voice: say(folder, voice), names))
    print(json.dumps({"voices": len(names), "recordings": count, "folder": str(folder)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
