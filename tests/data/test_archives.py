"""Zips: the same rows as in the folder that was packed, and errors that name archive and member."""

import errno
import gzip
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.errors import user_error
from helpers.sounds import write_wav
from regard.data import archives
from regard.data.documents import read_documents
from regard.data.image_readers import read_captions, read_image_classes
from regard.data.labels import read_labels
from regard.data.pairs import read_pairs
from regard.data.reading import read_together
from regard.data.sound_readers import read_sound_classes
from regard.data.splitting import choose_test, use_splits
from regard.errors import UserError


def pack(folder: Path, name: str = "data.zip", method: int = zipfile.ZIP_DEFLATED) -> str:
    """Pack a folder as other tools do: its own name is the first part of every member's."""
    path = folder.parent / name
    with zipfile.ZipFile(path, "w", method) as file:
        for each in sorted(folder.rglob("*")):
            file.write(each, each.relative_to(folder.parent))
    return str(path)


def write_texts(folder: Path) -> None:
    (folder / "deep").mkdir(parents=True)
    (folder / "one.txt").write_text("Ein Text.\nNoch eine Zeile.\n")
    (folder / "deep" / "two.md").write_text("# Zwei\n")
    (folder / ".hidden.txt").write_text("hidden")
    (folder / "photo.raw").write_bytes(b"\0")


def draw(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (11, 13, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def test_what_cannot_be_determined_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a corpus notes the sizes of all files: a size of 0 would make it one of other files."""
    ask = archives.is_file, archives.is_folder, archives.path_exists, archives.file_size
    (tmp_path / "file").write_text("abc")
    assert [f(str(tmp_path / "file")) for f in ask] == [True, False, True, 3]
    for path in (tmp_path / "missing", tmp_path / "file" / "below", tmp_path / ("x" * 999), "a\0b"):
        assert not any(f(str(path)) for f in ask)

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(archives.os, "stat", fail)
    for f in ask:
        with pytest.raises(OSError, match="Input"):
            f("file")


def test_texts(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    write_texts(folder)
    with read_together() as reading:
        packed = list(read_documents([pack(folder)]))
    assert packed == list(read_documents([str(folder)]))
    assert list(reading.files) == [str(tmp_path / "data.zip")]
    assert any(".raw" in note for note in reading.notes)
    one = str(tmp_path / "data.zip" / "texts" / "one.txt")
    assert list(read_documents([one])) == ["Ein Text.\nNoch eine Zeile.\n"]


def test_rows_and_compressed_members(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "a.csv").write_text("text,label\ngood,yes\nbad,no\n")
    with gzip.open(folder / "b.csv.gz", "wt") as file:
        file.write("text,label\nfine,yes\n")
    assert read_labels([pack(folder)]).texts == ["good", "bad", "fine"]
    for each in folder.iterdir():
        each.unlink()
    (folder / "pairs.tsv").write_text("a dog\tein Hund\n")
    (folder / "more.jsonl").write_text(json.dumps({"source": "a cat", "target": "eine Katze"}) + "\n")
    assert sorted(read_pairs([pack(folder, "p.zip")])) == [("a cat", "eine Katze"), ("a dog", "ein Hund")]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_class_folders_of_images(tmp_path: Path, method: int) -> None:
    folder = tmp_path / "pets"
    for seed, name in enumerate(["cat/1.png", "cat/2.bmp", "dog/1.png"]):
        draw(folder / name, seed)
    expected, labels = read_image_classes([str(folder)])
    (path,), _ = use_splits([pack(folder, method=method)], [], has_classes=True)
    images, packed_labels = read_image_classes([path])
    assert packed_labels == labels == ["cat", "cat", "dog"]
    rows = np.arange(3)
    assert (images.read(rows) == expected.read(rows)).all()
    assert images.keys() == expected.keys()
    assert [s.key() for s in images.sources] == [s.key() for s in expected.sources]
    assert len(images.fingerprint()) == 64


def test_splits_in_a_zip(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    for seed, name in enumerate(["train/cat/1.png", "train/dog/1.png", "val/cat/9.png", "test/dog/7.png"]):
        draw(folder / name, seed)
    path = pack(folder)
    train, valid = use_splits([path], [], has_classes=True)
    assert train == [f"{path}/pets/train"]
    assert valid == [f"{path}/pets/val"]
    assert choose_test([path], has_classes=True) == [f"{path}/pets/test"]
    assert read_image_classes(train)[1] == ["cat", "dog"]


def test_sounds(tmp_path: Path) -> None:
    folder = tmp_path / "words"
    for label in ("no", "yes"):
        (folder / label).mkdir(parents=True)
        write_wav(folder / label / "a.wav", np.zeros(800, dtype=np.int16))
    (path,), _ = use_splits([pack(folder)], [], has_classes=True)
    recordings = read_sound_classes([path])
    assert [recording.label for recording in recordings] == ["no", "yes"]
    data = recordings[0].source.open()
    assert not isinstance(data, str)
    assert data.read() == (folder / "no" / "a.wav").read_bytes()


def test_captions_with_the_images_in_the_zip_or_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "captions"
    draw(folder / "a.png", 1)
    (folder / "captions.tsv").write_text("image\tcaption\na.png\ta picture\n")
    path = pack(folder)
    _, captions = read_captions([f"{path}/captions/captions.tsv"])
    assert captions == [["a picture"]]
    (tmp_path / "table.tsv").write_text("image\tcaption\ncaptions/a.png\tthe same\n")
    pack(folder, "table.zip")
    assert read_captions([str(tmp_path / "table.tsv")])[1] == [["the same"]]


def nested(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "text")
        file.writestr("inner.zip", b"PK")


def encrypted(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "text")
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(data)


def damaged(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "some text")
    path.write_bytes(path.read_bytes().replace(b"some text", b"some tex!", 1))


def broken_stream(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.txt", random.Random(1).randbytes(1000).hex())
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    path.write_bytes(data)


def unusual_method(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("a.txt", "text")


def cut_short(path: Path) -> None:
    nested(path)
    path.write_bytes(path.read_bytes()[:-30])


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in "abc":
            file.writestr(f"{name}.txt", "a" * 2**20)


def no_text(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.raw", "text")


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (nested, ["x.zip/inner.zip", "unpack"]),
        (encrypted, ["x.zip/a.txt", "encrypted"]),
        (damaged, ["x.zip/a.txt", "checksum"]),
        (broken_stream, ["x.zip/a.txt", "damaged"]),
        (unusual_method, ["x.zip/a.txt", "lzma"]),
        (cut_short, ["x.zip", "not a complete zip"]),
        (bomb, ["x.zip", "data.max_bytes"]),
        (no_text, ["x.zip", "1 .raw"]),
    ],
)
def test_what_is_refused(tmp_path: Path, make: Callable[[Path], None], facts: list[str]) -> None:
    path = tmp_path / "x.zip"
    make(path)
    with pytest.raises(UserError) as error, read_together(max_bytes=2**20 if make is bomb else None):
        list(read_documents([str(path)]))
    message = str(error.value)
    assert all(fact in message for fact in facts), message
    assert "\n" not in message


def test_a_missing_member(tmp_path: Path) -> None:
    nested(tmp_path / "x.zip")
    with pytest.raises(UserError, match=r"x\.zip/b\.txt"):
        list(read_documents([str(tmp_path / "x.zip" / "b.txt")]))


def test_no_member_is_larger_than_it_says(tmp_path: Path) -> None:
    """Whoever lies about the size of a member gets no more memory than the size."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.txt", "a" * 2**20)
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.index(signature) + offset
        data[at : at + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(UserError, match="checksum"):
        list(read_documents([str(path)]))


def test_folders_whose_names_end_in_zip_stay_folders(tmp_path: Path) -> None:
    folder = tmp_path / "my.zip"
    folder.mkdir()
    (folder / "a.txt").write_text("text")
    assert archives.split_path(str(folder / "a.txt")) is None
    assert list(read_documents([str(folder)])) == ["text"]


@pytest.mark.parametrize("images", ["", "photos/"])  # beside the table, or in the only folder there
def test_a_folder_or_zip_with_images_and_their_table(tmp_path: Path, images: str) -> None:
    folder = tmp_path / "my data" / "größe"
    for n, name in enumerate(("a b.png", "c.png", "d.png")):
        draw(folder / images / name, n)
    (folder / "labels.csv").write_text("image,label,caption\na b.png,x,an a\nc.png,y,a c\n")
    archive = Path(pack(folder)).rename(tmp_path / "packed.zip")
    for path in (str(tmp_path / "my data"), str(archive)):
        for has_classes in (True, False):
            with read_together() as reading:
                (table,), _ = use_splits([path], [], has_classes, has_media=True)
                assert choose_test([path], has_classes, has_media=True) == [table]
            assert "labels.csv" in next(iter(reading.notes))
        assert read_image_classes([table])[1] == ["x", "y"]
        assert read_captions([table])[1] == [["an a"], ["a c"]]
    (folder / "more.csv").touch()
    user_error(lambda: use_splits([str(folder)], [], True, has_media=True), "labels.csv, more.csv", "--valid")


def test_a_table_beside_class_folders_is_not_asked(tmp_path: Path) -> None:
    for n, name in enumerate(("cat", "dog")):
        draw(tmp_path / name / "a.png", n)
    (tmp_path / "notes.csv").write_text("image,label\nx,y\n")
    assert use_splits([str(tmp_path)], [], True, has_media=True) == ([str(tmp_path)], [])


def test_links_beside_data_that_lead_nowhere_are_no_folders(tmp_path: Path) -> None:
    """One that leads to itself is an error of the system, which has nothing to do with the data."""
    (tmp_path / "images").mkdir()
    for name, target in (("loop", "loop"), ("gone", "nowhere"), ("there", "images")):
        (tmp_path / name).symlink_to(target)
    listed = archives.list_entries(str(tmp_path))
    assert listed == [("gone", False), ("images", True), ("loop", False), ("there", True)]
