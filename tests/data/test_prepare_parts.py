"""A corpus that is prepared in parts, as by several machines, is one corpus."""

import json
import shutil

import pytest

from helpers.corpora import SPECIALS, ids
from helpers.errors import user_error
from regard import cli
from regard.data import DataConfig, load_corpus, prepare, shards

CONFIG = DataConfig(tokenizer="bpe", vocab=300)


@pytest.fixture
def texts(tmp_path):
    """Seven files in a folder."""
    (tmp_path / "texts").mkdir()
    for n in range(7):
        lines = (f"the {n} old mill number {k * n} by her river {k}.\n" for k in range(40))
        (tmp_path / "texts" / f"{n}.txt").write_text("".join(lines))
    return tmp_path / "texts"


def prepare_parts(texts, out, numbers=(2, 3, 1), **options):
    return [prepare([str(texts)], out, CONFIG, SPECIALS, part=(n, 3), **options) for n in numbers]


def test_parts_are_joined_by_the_last_one(texts, tmp_path, capsys):
    out = tmp_path / "out"
    prepare_parts(texts, out, (2, 3))
    assert "1 of 3 parts" in capsys.readouterr().err
    user_error(lambda: load_corpus([str(out)], [], CONFIG, SPECIALS), out, "1/3")
    prepare_parts(texts, out, (1,))
    index = json.loads((out / "shards.json").read_text())
    assert list(index["parts"]) == [f"part-0000{n}-of-00003" for n in (1, 2, 3)]
    corpus = load_corpus([str(out)], [], CONFIG, SPECIALS)
    end, expected = corpus.tokenizer.end, []
    for n in (1, 2, 3):
        part = load_corpus([str(out / f"part-0000{n}-of-00003")], [], CONFIG, SPECIALS)
        expected += [end] * bool(expected) + ids(part.train)
        assert part.tokenizer.digest == corpus.tokenizer.digest
    assert ids(corpus.train) == expected
    said = corpus.tokenizer.decode(expected)
    assert all(f"the {n} old mill number 0" in said for n in range(7))
    assert index["train"]["bytes"] + index["valid"]["bytes"] == sum(f.stat().st_size for f in texts.iterdir())


def test_the_last_one_can_join_the_parts_later(texts, tmp_path, monkeypatch, capsys):
    """It was ended when its part was complete."""
    out, other = tmp_path / "out", tmp_path / "other"
    prepare_parts(texts, other)
    prepare_parts(texts, out, (1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(shards, "join_parts", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare_parts(texts, out, (3,))
    assert not (out / "shards.json").exists()
    capsys.readouterr()
    prepare_parts(texts, out, (3,))
    already, line = capsys.readouterr().err.splitlines()
    assert str(out / "part-00003-of-00003") in already
    assert "all 3 parts" in line
    contents = [sorted(f.read_bytes() for f in at.rglob("*") if f.is_file()) for at in (out, other)]
    assert contents[0] == contents[1]
    user_error(lambda: prepare_parts(texts, out, (3,)), "not empty")  # nothing is left to do
    (out / "shards.json").unlink()
    (texts / "8.txt").write_text("one more")
    user_error(lambda: prepare_parts(texts, out, (3,)), "not empty")  # other files


def test_validation_texts_are_those_of_all_parts(texts, tmp_path):
    (tmp_path / "valid.txt").write_text("the old mill by her river\n" * 9)
    out = tmp_path / "out"
    prepare_parts(texts, out, valid_paths=[str(tmp_path / "valid.txt")])
    index = json.loads((out / "shards.json").read_text())
    assert index["valid"]["bytes"] == (tmp_path / "valid.txt").stat().st_size
    assert index["train"]["bytes"] == sum(f.stat().st_size for f in texts.iterdir())


def test_a_part_of_other_files_is_refused(texts, tmp_path):
    out = tmp_path / "out"
    prepare_parts(texts, out, (1, 2))
    (texts / "8.txt").write_text("one more")
    user_error(lambda: prepare_parts(texts, out, (3,)), out / "part-00003-of-00003", "again")
    assert not (out / "shards.json").exists()


def test_a_part_of_other_files_of_the_same_names_is_refused(texts, tmp_path):
    out = tmp_path / "out"
    prepare_parts(texts, out, (1, 2))
    index = out / "part-00001-of-00003" / "shards.json"
    contents, earlier = (texts / "1.txt").read_text(), json.loads(index.read_text())
    (texts / "1.txt").write_text(f"{contents}one more")
    user_error(lambda: prepare_parts(texts, out, (3,)), out / "part-00003-of-00003", "again")
    (texts / "1.txt").write_text(contents)
    del earlier["sizes"]  # as earlier versions wrote it
    index.write_text(json.dumps(earlier))
    shutil.rmtree(out / "part-00003-of-00003")
    prepare_parts(texts, out, (3,))
    assert (out / "shards.json").exists()


def test_a_part_that_changed_afterwards_is_noticed(texts, tmp_path):
    out = tmp_path / "out"
    prepare_parts(texts, out)
    file = out / "part-00002-of-00003" / "shards.json"
    file.write_text(file.read_text() + " ")
    user_error(lambda: load_corpus([str(out)], [], CONFIG, SPECIALS), file)
    index = json.loads((out / "shards.json").read_text())
    for parts in ({"../x": "0"}, [], None, {"part-00001-of-00003/..": "0"}):
        (out / "shards.json").write_text(json.dumps(index | {"parts": parts}))
        user_error(lambda: load_corpus([str(out)], [], CONFIG, SPECIALS), out / "shards.json")


@pytest.mark.parametrize("content", ["", "{}", "[" * 10**5], ids=("empty", "nothing", "deep"))
def test_a_part_that_was_damaged_before_the_last_one(texts, tmp_path, content):
    out = tmp_path / "out"
    prepare_parts(texts, out, (1, 2))
    (file := out / "part-00002-of-00003" / "shards.json").write_text(content)
    user_error(lambda: prepare_parts(texts, out, (3,)), file.parent)
    assert not (out / "shards.json").exists()


def test_what_cannot_be_divided(texts, tmp_path, capsys):
    out = tmp_path / "out"
    user_error(lambda: prepare([str(texts)], out, CONFIG, SPECIALS, part=(1, 8)), "1/8", "7 files")
    char = DataConfig(tokenizer="char")
    user_error(lambda: prepare([str(texts)], out, char, SPECIALS, part=(1, 2)), "--part")
    assert not out.exists()
    for part in ("0/3", "4/3", "3", "a/b", "1/0", "-1/3"):
        with pytest.raises(SystemExit):
            cli.main(["prepare", str(texts), "--out", str(out), f"--part={part}"])
        assert part in capsys.readouterr().err
    words = ["prepare", str(texts), "--out", str(out), "--part", "1/1"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--set", "data.vocab=300"])  # BPE, if nothing else is asked for
    assert not ended.value.code
    assert load_corpus([str(out)], [], CONFIG, SPECIALS).tokenizer.vocab == 300
