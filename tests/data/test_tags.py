"""Tagged sentences in CoNLL's columns, and every kind of wrong input."""

import json
from pathlib import Path

import pytest

from helpers.corpora import COMPRESS, standard_input, write_file
from helpers.errors import user_error
from regard.data.reading import read_together
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


CONLLU = """# sent_id = 1
# text = Don't pay 10 000.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tpay\tpay\tVERB\tVB\tMood=Imp\t0\troot\t_\t_
3.1\tgone\t_\tVERB\t_\t_\t_\t_\t_\t_
4\t10 000\t10000\tNUM\tCD\t_\t3\tobj\t_\tSpaceAfter=No

1\t#\t#\tSYM\t_\t_\t0\troot\t_\t_
"""


def test_conll_u_has_its_own_columns(tmp_path):
    """With comments or without; ranges of words and empty nodes are no words."""
    sentences = [
        (["Do", "n't", "pay", "10\u00a0000"], ["AUX", "PART", "VERB", "NUM"]),
        (["#"], ["SYM"]),
    ]
    for name, text in (("a.conllu", CONLLU), ("b.txt", CONLLU.split("\n", 2)[2])):
        path = write_file(tmp_path / name, text)
        with read_together() as reading:
            assert read_tags([path]) == sentences
        (note,) = reading.notes
        assert str(path) in note
        assert "UPOS" in note
    assert read_tags([tmp_path]) == sentences * 2
    for line, words in (
        ("2\tx\ty", ["c.conllu:3", "ten columns"]),
        ("2\tx" + "\t_" * 8, ["c.conllu:3", "UPOS"]),
    ):
        path = write_file(tmp_path / "c.conllu", "# text = x\n1\ta\ta\tNOUN" + "\t_" * 6 + f"\n{line}\n")
        user_error(lambda path=path: read_tags([path]), *words)


def test_a_header_is_no_word(tmp_path):
    path = write_file(tmp_path / "a.tsv", "Token\tPOS\tLabel\nEU\tNNP\tB-ORG\n\nlabel\tNN\tO\n")
    with read_together() as reading:
        assert read_tags([path]) == [(["EU"], ["B-ORG"]), (["label"], ["O"])]
    assert f"{path}:1" in next(iter(reading.notes))
    assert read_tags([write_file(tmp_path / "b.tsv", "\nToken\tLabel\n")]) == [(["Token"], ["Label"])]
    with read_together(version=1):
        assert read_tags([path])[0][0] == ["Token", "EU"]


# Tables with a word in each row

KAGGLE = (
    "Sentence #,Word,POS,Tag\n"
    "Sentence: 1,Thousands,NNS,O\n,of,IN,O\n,London,NNP,B-geo\n"
    "Sentence: 2,New York,NNP,B-geo\n,\",\",\",\",O\nSentence: 3,[,(,O\n"
)  # fmt: skip
GROUPED = [
    (["Thousands", "of", "London"], ["O", "O", "B-geo"]),
    (["New\N{NO-BREAK SPACE}York", ","], ["B-geo", "O"]),
    (["["], ["O"]),
]


def test_a_word_in_each_row(tmp_path: Path) -> None:
    path = tmp_path / "ner.csv"
    path.write_text(KAGGLE)
    with read_together() as reading:
        assert read_tags([str(path)]) == GROUPED
    columns = reading.sources[str(path)].columns
    assert columns == {"words": "Word", "tags": "Tag", "group": "Sentence #"}
    with read_together(columns={"tags": "POS"}):
        assert read_tags([str(path)])[0][1] == ["NNS", "IN", "NNP"]


def test_a_number_for_each_sentence(tmp_path: Path) -> None:
    rows = [(n, *pair) for n, both in enumerate(GROUPED) for pair in zip(*both, strict=True)]
    path = tmp_path / "ner.jsonl"
    path.write_text("".join(json.dumps({"sent_id": n, "word": w, "ner": t}) + "\n" for n, w, t in rows))
    assert read_tags([str(path)]) == GROUPED
    path.write_text("".join(json.dumps({"which": n, "word": w, "tag": t}) + "\n" for n, w, t in rows))
    with read_together(columns={"group": "which"}):
        assert read_tags([str(path)]) == GROUPED
