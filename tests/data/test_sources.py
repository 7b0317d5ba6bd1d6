"""Pairs from translation memories and from Tatoeba; captions of COCO."""

import json
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from regard.data.image_readers import read_captions
from regard.data.pairs import read_pairs
from regard.data.reading import read_together
from regard.errors import UserError

PAIRS = [("A dog runs.", "Ein Hund läuft."), ("x < y & z", "x < y & z"), ("Bye", "Tschüss")]


def write_tmx(path: Path) -> str:
    root = ElementTree.Element("tmx", version="1.4")
    ElementTree.SubElement(root, "header", srclang="en")
    body = ElementTree.SubElement(root, "body")
    for pair in PAIRS:
        unit = ElementTree.SubElement(body, "tu")
        for language, text in zip(("en", "de"), pair, strict=True):
            variant = ElementTree.SubElement(unit, "tuv", {"xml:lang": language})
            ElementTree.SubElement(variant, "seg").text = text
    ElementTree.ElementTree(root).write(path, "utf-8", xml_declaration=True)
    return str(path)


def test_tmx(tmp_path: Path) -> None:
    path = write_tmx(tmp_path / "a.tmx")
    assert list(read_pairs([path])) == PAIRS
    assert list(read_pairs([str(tmp_path)])) == PAIRS
    with read_together(columns={"source": "de", "target": "en"}):
        assert list(read_pairs([path])) == [(b, a) for a, b in PAIRS]
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.write(path, "de-en.tmx")
    assert list(read_pairs([str(tmp_path / "a.zip")])) == PAIRS


def test_codes_in_a_segment_are_left_out(tmp_path: Path) -> None:
    unit = (
        '<tuv xml:lang="{}"><seg>a <bpt i="1">&lt;b></bpt>{}<ept i="1">&lt;/b></ept>\n <hi>c</hi></seg></tuv>'
    )
    units = "".join(unit.format(*each) for each in (("en-US", "x"), ("de", "y")))
    (tmp_path / "a.tmx").write_text(f'<tmx version="1.4"><body><tu>{units}</tu></body></tmx>')
    assert list(read_pairs([str(tmp_path / "a.tmx")])) == [("a x c", "a y c")]


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ('<!DOCTYPE tmx [<!ENTITY a "aaa">]>\n<tmx>&a;</tmx>', ["a.tmx:1", "entity a"]),
        ("<tmx><body>\n<tu>", ["a.tmx:2", "not XML"]),
        ("<html></html>", ["<html>", "<tmx>"]),
        ("<tmx></tmx>", ["a.tmx", "empty"]),
    ],
)
def test_wrong_tmx(tmp_path: Path, content: str, facts: list[str]) -> None:
    (tmp_path / "a.tmx").write_text(content)
    with pytest.raises(UserError) as error:
        list(read_pairs([str(tmp_path / "a.tmx")]))
    assert all(fact in str(error.value) for fact in facts), str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "{0}\t{1}\tCC-BY 2.0 (France) Attribution: tatoeba.org #2877272 (CM) & #8597805 (Roujin)",
        "{2}\t{0}\t{3}\t{1}",
    ],
)
def test_exports_of_tatoeba(tmp_path: Path, line: str) -> None:
    lines = [line.format(a, b, 1276 + n, 77 + n) for n, (a, b) in enumerate(PAIRS)]
    (tmp_path / "deu.tsv").write_text("\n".join(lines) + "\n")
    assert list(read_pairs([str(tmp_path / "deu.tsv")])) == PAIRS


COCO = {
    "info": {"year": 2017},
    "images": [{"id": 5, "file_name": "a.png"}, {"id": 9, "file_name": "b.png"}],
    "annotations": [
        {"id": 1, "image_id": 9, "caption": "A dog."},
        {"id": 2, "image_id": 5, "caption": "A cat. "},
        {"id": 3, "image_id": 9, "caption": "The dog"},
    ],
}


@pytest.mark.parametrize("folder", ["val2017", "annotations", "annotations/captions_val2017"])
def test_captions_of_coco(tmp_path: Path, folder: str) -> None:
    for name in ("annotations", folder):
        (tmp_path / name).mkdir(exist_ok=True)
    for name in "ab":
        Image.new("RGB", (7, 5), (name == "a" and "red") or "blue").save(tmp_path / folder / f"{name}.png")
    path = tmp_path / "annotations" / "captions_val2017.json"
    path.write_text(json.dumps(COCO))
    images, captions = read_captions([str(path)])
    assert [Path(name).name for name in images.names] == ["b.png", "a.png"]
    assert captions == [["A dog.", "The dog"], ["A cat."]]


@pytest.mark.parametrize(
    ("annotation", "fact"),
    [({"image_id": 7, "caption": "x"}, "id 7"), ({"image_id": 5, "bbox": []}, "caption")],
)
def test_wrong_captions_of_coco(tmp_path: Path, annotation: dict[str, object], fact: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(COCO | {"annotations": [annotation]}))
    with pytest.raises(UserError, match=f"c.json annotation 1: .*{fact}"):
        read_captions([str(path)])
