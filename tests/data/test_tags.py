"""Tagged sentences in CoNLL's columns, and every kind of wrong input."""

import pytest

from helpers.corpora import COMPRESS, standard_input, write_file
from helpers.errors import user_error
from regard.data.tags import read_tags

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP I-ORG
rejects VBZ B-VP O


Peter\tNNP \t B-NP B-PER
-DOCSTART- -X- O O
. . O S-X\x20
"""


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_read_tags(tmp_path, suffix, newline):
    path = write_file(tmp_path / "a.conll", CONLL.replace("\n", newline), suffix)
    sentences = [(["EU", "rejects"], ["I-ORG", "O"]), (["Peter"], ["B-PER"]), (["."], ["S-X"])]
    assert read_tags([path]) == sentences
    other = write_file(tmp_path / "b.txt", "a\u00a0b\tO")
    assert read_tags([path, other]) == [*sentences, (["a\u00a0b"], ["O"])]
    assert len(read_tags([tmp_path])) == 4


def test_wrong_tags(tmp_path, monkeypatch):
    path = str(tmp_path / "a.conll")
    for content, words in {
        "a O\n\nb\n": ":3: 1 column; ",
        "a O\nNew York B-LOC\n": ":2: 3 columns, but 2 before; ",
        "": ": no sentence",
        "\n \n": ": no sentence",
        "-DOCSTART- O\n": ": no sentence",
        "a O\nb\0 O\n": ":2: a zero byte",
    }.items():
        write_file(tmp_path / "a.conll", content)
        user_error(lambda: read_tags([path]), path + words)
    write_file(tmp_path / "a.conll", b"a O\n\xe9 O\n")
    user_error(lambda: read_tags([path]), f"{path}:2: byte 0xe9")
    user_error(lambda: read_tags([tmp_path / "missing"]), "missing: no such file")
    standard_input(monkeypatch, b"a O\nb\n")
    user_error(lambda: read_tags(["-"]), "standard input:2:")
