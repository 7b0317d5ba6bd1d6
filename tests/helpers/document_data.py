"""Small data files in the place of those that the documents name."""

import csv
import gzip
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from helpers import hostile
from helpers.runs import write_captions
from helpers.sounds import tone, write_wav

BUILTIN, DEPLOY = (Path(__file__).parents[2] / name for name in ("regard/builtin", "deploy"))
ROYAL = "The king and the queen sat by the river. A man and a woman walked to the bank of the river.\n"
WORDS = ("king", "queen", "man", "woman", "river", "bank", "dog", "fox")


def copy_lines(name: str, lines: int = 60) -> Callable[[Path], None]:
    """The first lines of a built-in file."""

    def write(path: Path) -> None:
        path.write_text("".join((BUILTIN / name).read_text().splitlines(keepends=True)[:lines]))

    return write


def write_prose(path: Path) -> None:
    copy_lines("stories.txt", 300)(path)
    path.write_text(ROYAL * 6 + path.read_text())


def write_texts(path: Path) -> None:
    path.mkdir()
    for n in range(3):
        write_prose(path / f"{n}.txt")


def copy_side(column: int) -> Callable[[Path], None]:
    """One side of the first pairs."""

    def write(path: Path) -> None:
        rows = (BUILTIN / "translate.tsv").read_text().splitlines()[:40]
        path.write_text("".join(row.split("\t")[column] + "\n" for row in rows))

    return write


def write_image(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3)).astype(np.uint8)).save(path)


def write_classes(path: Path) -> None:
    for n in range(12):
        folder = path / ("cat", "dog")[n % 2]
        folder.mkdir(parents=True, exist_ok=True)
        write_image(folder / f"{n}.png")


def write_idx(path: Path) -> None:
    """Images as large as MNIST's, and their labels beside them."""
    pixels, labels = np.random.default_rng(0).integers(0, 256, (20, 28, 28)), np.arange(20) % 2
    beside = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    for file, head, numbers in ((path, b"\0\0\x08\x03", pixels), (beside, b"\0\0\x08\x01", labels)):
        sizes = struct.pack(f">{numbers.ndim}I", *numbers.shape)
        file.write_bytes(gzip.compress(head + sizes + numbers.astype(np.uint8).tobytes()))


def write_recordings(path: Path) -> None:
    for n in range(12):
        write_wav(path / ("low", "high")[n % 2] / f"{n}.wav", tone(200 + 400 * (n % 2) + n))


def write_digits(path: Path) -> None:
    for n, voice in enumerate(("ada", "ben", "cy", "zac") * 2):
        for word, hertz in (("one", 200), ("seven", 500)):
            write_wav(path / f"{word}_{voice}_{n // 4}.wav", tone(hertz + n))


def write_audio_table(path: Path) -> None:
    rows = [(f"{path.stem}-{n}.wav", ("low", "high")[n % 2]) for n in range(12)]
    for n, (name, _) in enumerate(rows):
        write_wav(path.with_name(name), tone(200 + 400 * (n % 2) + n))
    path.write_text("audio\tlabel\n" + "".join("\t".join(row) + "\n" for row in rows))


def write_word(path: Path) -> None:
    write_wav(path, tone(250))


def write_glove(path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(len(WORDS), 30))
    lines = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(WORDS, rows.round(4), strict=True)]
    path.write_text("".join(lines))


def write_similarities(path: Path) -> None:
    path.write_text("word1,word2,similarity\nking,queen,9\nman,woman,8\nking,river,1\ndog,fox,5\n")


def write_reviews(path: Path) -> None:
    """The built-in texts with classes, under other names."""
    rows = [line.split("\t") for line in (BUILTIN / "classify.tsv").read_text().splitlines()[1:60]]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("review", "sentiment"), *rows])


def write_gguf(path: Path) -> None:
    hostile.make_gguf(path.with_name("gguf"))
    (path.with_name("gguf") / hostile.GGUF).rename(path)


def write_conversations(path: Path) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    path.write_text((json.dumps({"messages": turns}) + "\n") * 12)


DATA: dict[str, Callable[[Path], object]] = {
    "my.txt": write_prose,
    "other.txt": write_prose,
    "my.tsv": copy_lines("chat.tsv"),
    "reviews.tsv": copy_lines("classify.tsv"),
    "reviews.csv": write_reviews,
    "test.csv": write_reviews,
    "news.conll": copy_lines("tag.conll", 700),
    "tags.tsv": copy_lines("tag.conll", 700),
    "questions.jsonl": copy_lines("span.jsonl"),
    "pairs.tsv": copy_lines("embed.tsv"),
    "texts": write_texts,
    "lines.txt": copy_side(0),
    "cat.jpg": write_image,
    "photo.jpg": write_image,
    "photos/": write_classes,
    "test/": write_classes,
    "train-images-idx3-ubyte.gz": write_idx,
    "word.wav": write_word,
    "recordings/": write_recordings,
    "digits/": write_digits,
    "glove.6B.300d.txt": write_glove,
    "simlex.csv": write_similarities,
    "model.gguf": write_gguf,
    "regard/builtin/stories.txt": copy_lines("stories.txt", 300),
    **{f"{part}.en": copy_side(0) for part in ("train", "val", "test")},
    **{f"{part}.de": copy_side(1) for part in ("train", "val", "test")},
    **{f"{part}.tsv": write_captions for part in ("train", "dev", "test")},
}
DATA_OF_PAGE: dict[str, dict[str, Callable[[Path], object]]] = {  # where a name stands for something else
    "docs/chatting.md": {
        "my.jsonl": write_conversations,
        "SmolLM2.gguf": write_gguf,
        **{f"{part}.tsv": copy_lines("chat.tsv") for part in ("train", "valid")},
    },
    "docs/scale.md": {"deploy/7b.toml": lambda path: shutil.copy(DEPLOY / path.name, path)},
    "docs/hearing.md": {
        "test/": write_recordings,
        "train.tsv": write_audio_table,
        "dev.tsv": write_audio_table,
    },
}


def make(page: str, name: str) -> None:
    """Write the file or folder of this name, if it is one that a page uses."""
    write = DATA_OF_PAGE.get(page, {}).get(name) or DATA.get(name)
    if write is not None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        write(Path(name))
