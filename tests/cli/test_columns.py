"""Columns of tables by options: in a plan, a run, its recipe, and when it is scored."""

import json
import tomllib
from pathlib import Path

import pytest

from helpers.commands import call, check_refused, stdout_of, train_model
from regard.cli.parser import build_parser, chosen_columns

FIXTURES = Path(__file__).parents[1] / "runs" / "fixtures"
SETTINGS = ("model.dim=8", "model.depth=1", "model.heads=2", "model.context=23", "data.tokenizer=char")
TINY = [word for setting in (*SETTINGS, "train.device=cpu") for word in ("--set", setting)]
ROWS = [(f"{n} a {'good' if n % 2 else 'bad'} film", "yes" if n % 2 else "no") for n in range(40)]


def write_table(path: Path, header: str) -> Path:
    path.write_text(
        header + "\n" + "".join(f'{n},"{text}",{label}\n' for n, (text, label) in enumerate(ROWS))
    )
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("columns") / "a.csv", "n,q1,q2")


@pytest.fixture(scope="module")
def run(table: Path) -> Path:
    columns = ("--text", "q1", "--label", "3")
    return train_model(table.parent / "run", "classify", table, *columns, "--steps", 2, *TINY)


def test_a_run_keeps_its_columns(
    run: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (run / "recipe.toml").read_text()
    assert tomllib.loads(text)["data"]["columns"] == {"text": "q1", "label": "3"}
    assert "# data: " in text
    assert "text = q1, label = q2" in text
    assert "film" not in text  # examples are shown, not kept
    assert "accuracy" in stdout_of(capsys, "score", run, table)
    other = write_table(table.parent / "b.csv", "n,text,label")
    assert "accuracy" in stdout_of(capsys, "score", run, other)
    check_refused(
        capsys, tmp_path, ["score", run, other, "--text", "q1"], 'no column "q1" (--text)', '"text", "label"'
    )


def test_info_tells_what_was_understood(run: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = json.loads(stdout_of(capsys, "info", run, "--json"))["understood"]
    assert lines[0] == f"{table}: 40 rows: text = q1, label = q2"
    assert lines[1:] == [
        "left out: nothing",
        "split: 36 texts to train on, 4 texts to evaluate on (held out of the same data)",
    ]
    shown = stdout_of(capsys, "info", run)
    assert all(line in shown for line in lines)


def test_a_plan_names_files_that_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("some text to learn from\n" * 50)
    for name in ("b.pdf", "c.pdf", "d.bin"):
        (folder / name).write_bytes(b"?")
    shown = stdout_of(capsys, "train", "write", folder, "--dry-run", "--steps", 2)
    (note,) = (line for line in shown.splitlines() if "left out 3 of 4 files" in line)
    assert "2 .pdf (convert to .txt)" in note
    assert "1 .bin" in note


def test_a_plan_holds_few_conversations_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    (tmp_path / "chat.jsonl").write_text((json.dumps(chat) + "\n") * 5000)
    words = (
        "train",
        "chat",
        tmp_path / "chat.jsonl",
        "--from",
        FIXTURES / "write",
        "--dry-run",
        "--steps",
        2,
    )
    assert "4% held out to evaluate on, about 200 of 5,000 rows" in stdout_of(capsys, *words)


def test_a_run_is_resumed_with_its_columns(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = run / "recipe.toml", ["--out", run, "--resume"]
    assert call("train", recipe, *out, "--steps", 3, "--text", "q1") == 0
    check_refused(capsys, tmp_path, ["train", recipe, *out, "--text", "q2"], "data.columns.text", "q1", "q2")


def test_what_is_read_is_shown_before_it_is_trained(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train", "classify", table, "--text", "q1", "--label", "q2", "--dry-run", "--steps", 2, *TINY)
    lines = stdout_of(capsys, *words).splitlines()
    assert f"{table}: 40 rows: text = q1, label = q2" in lines[0]
    assert "nothing" in lines[1]
    assert "4 of 40 rows" in lines[2]
    assert "text: 0 a bad film | label: no" in lines[3]
    assert lines[5].startswith("plan:")


def test_columns_of_another_recipe_are_refused(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = ["train", "classify", table, "--source", "q1", "--dry-run"]
    check_refused(capsys, tmp_path, refused, "--source", "--text --other --label --score")
    refused = ["train", "classify", table, "--set", "data.columns=3", "--dry-run"]
    check_refused(capsys, tmp_path, refused, "data.columns=3", "table")


def test_data_that_are_trained_on_and_evaluated_on(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link.csv").symlink_to(table)
    for valid, is_told in (
        (tmp_path / "link.csv", True),
        (write_table(tmp_path / "b.csv", "n,q1,q2"), False),
    ):
        words = ("train", "classify", table, "--valid", valid, "--text", 2, "--label", 3, "--dry-run")
        assert (f"{valid} is also trained on" in stdout_of(capsys, *words)) == is_told


def test_a_text_is_not_its_own_label(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--text", "q1", "--label", "q1"]
    words = ["train", "classify", table, *names, "--out", tmp_path / "out", "--steps", 1]
    check_refused(capsys, tmp_path, words, f"{table}:1", "--text and --label", '"q1"')


def test_an_encoding(run: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "b.csv"
    other.write_text(table.read_text().replace("film", "café"), encoding="cp1252")
    check_refused(capsys, tmp_path, ["score", run, other], f"{other}:2", "--encoding cp1252")
    assert "accuracy" in stdout_of(capsys, "score", run, other, "--encoding", "cp1252")
    wrong = ["train", "classify", other, "--encoding", "cp1253x", "--dry-run"]
    check_refused(capsys, tmp_path, wrong, "cp1253x", "cp1252")
    options = ["--encoding", "cp1252", "--text", "q1", "--label", 3, "--steps", 1, *TINY]
    path = train_model(tmp_path / "run", "classify", other, *options)
    assert tomllib.loads((path / "recipe.toml").read_text())["data"]["encoding"] == "cp1252"
    text = tmp_path / "a.txt"
    text.write_text("Un café.\n" * 50, encoding="cp1252")
    stdout_of(capsys, "prepare", text, "--encoding", "cp1252", "--out", tmp_path / "shards")


def test_the_option_that_is_advised_is_one_of_train_and_of_score(tmp_path, capsys):
    """--words of `score` uses word vectors."""
    table = tmp_path / "a.csv"
    table.write_text("a,b\nthe cat sat,D N V\na dog ran,D N V\n")
    words = ["train", "tag", table, "--out", tmp_path / "out", "--steps", 1]
    check_refused(capsys, tmp_path, words, "--words-column NAME --tags NAME")
    for command in (["train", "tag", "a.csv"], ["score", "run", "a.csv"]):
        options = build_parser().parse_args([*command, "--words-column", "a", "--tags", "b"])
        assert chosen_columns(options) == {"words": "a", "tags": "b"}
    options = build_parser().parse_args(["train", "tag", "a.csv", "--words", "a"])
    assert chosen_columns(options) == {"words": "a"}


def test_running_text_says_which_column_it_reads(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ": 40 rows: text = q1 (choose others with --text)" in stdout_of(
        capsys, "train", "write", table, "--dry-run"
    )
    for option in ((), ("--text", "q2")):
        out = tmp_path / f"shards{len(option)}"
        assert call("prepare", table, "--out", out, *option) == 0
        assert ("text = q1 (choose others with --text)" in capsys.readouterr().err) == (not option)
        index = json.loads((out / "shards.json").read_text())
        assert index["train"]["documents"] + index["valid"]["documents"] == 40
        assert index["train"]["bytes"] + index["valid"]["bytes"] == sum(
            len(row[bool(option)]) for row in ROWS
        )
