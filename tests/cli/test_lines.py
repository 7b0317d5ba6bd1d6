"""`regard ask` with lines that can't be answered, lines that are too long, and JSON with numbers."""

import json
from pathlib import Path

import pytest

from helpers.commands import call, check_refused, set_stdin
from helpers.looking import reader, seer
from helpers.runs import write_pictures
from regard.runs.model import Model
from regard.text.chat_template import Template

pytestmark = pytest.mark.usefixtures("quick")


def template():
    text = "{% for m in messages %}{{ m.content }} the {% endfor %}quick"
    return Template(text, {}, "chat_template.jinja")


@pytest.fixture
def use(monkeypatch):
    """Make this model the one that commands load."""

    def use(model: Model) -> Model:
        monkeypatch.setattr("regard.runs.load.load", lambda *_, **__: model)
        return model

    return use


def ask(capsys, *words):
    capsys.readouterr()
    status = call("ask", "RUN", *words)
    output = capsys.readouterr()
    return status, output.out, output.err


WRONG = {  # lines of which the second and the fifth can't be answered
    ("words", "words"): ["fox", "zzyzx", "dog - fox", "the", "qwrtz + fox", "quick"],
    ("fill", "bert"): ["The [MASK] fox", "no blank", "[MASK]", "a ___", "___ " + "fox " * 50, "dog [MASK]"],
    ("restore", "t5"): ["The ___ fox", "no blank", "___", "a ___", "___ " + "fox " * 50, "dog ___"],
    ("span", "bert"): ["Who?\tThe fox.", "no text", "What?\ta dog", "Who?\tI", "neither", "How?\tso"],
}


@pytest.mark.parametrize("case", WRONG)
def test_a_bad_line_does_not_end_the_others(capsys, monkeypatch, use, case):
    use(reader(*case))
    lines = WRONG[case]
    good = [line for n, line in enumerate(lines) if n not in (1, 4)]
    _, expected, said = ask(capsys, *good, "--json")
    assert said == ""
    set_stdin(monkeypatch, "\n".join(lines) + "\n")
    status, out, err = ask(capsys, "--json")
    assert status == 1
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["input"] for row in rows] == lines
    answers = [row for row in rows if "error" not in row]
    assert [row["input"] for row in answers] == good
    assert [str(row["output"])[:9] for row in answers] == [
        str(json.loads(line)["output"])[:9] for line in expected.splitlines()
    ]
    assert [line.split(": ")[1] for line in err.splitlines()] == ["standard input:2", "standard input:5"]
    status, out, err = ask(capsys, *lines[:3])
    assert status == 1
    assert "INPUT 2: " in err
    plain = out.split("\n")
    assert len(plain) == 4  # a line for each, of which that of the second is empty
    assert plain[1] == ""


def test_a_missing_picture_does_not_end_the_others(capsys, tmp_path, use):
    use(seer())
    write_pictures(tmp_path / "a-images-idx3-ubyte")
    picture = tmp_path / "one.png"
    (tmp_path / "bad.png").write_bytes(picture.read_bytes()[:50])
    status, out, err = ask(capsys, picture, tmp_path / "none.png", tmp_path / "bad.png", picture)
    assert status == 1
    first, *empty, last, end = out.split("\n")
    assert (first, empty, end) == (last, ["", ""], "")
    assert err.count("\n") == 2
    assert "INPUT 2: " in err
    assert "none.png" in err
    assert "INPUT 3: " in err


def test_what_is_wrong_with_every_line_is_said_once(capsys, tmp_path, monkeypatch, use):
    """Then nothing was asked that could be answered, and the status is that of a user's mistake."""
    use(reader("fill", "bert"))
    set_stdin(monkeypatch, "no blank\n" * 7)
    check_refused(capsys, tmp_path, ["ask", "RUN"], "standard input:1", "[MASK]")
    check_refused(capsys, tmp_path, ["ask", "RUN", "The [MASK]", "fox", "--temperature", -1], "temperature")


def test_a_batch_that_is_wrong_does_not_end_the_lines_after_it(capsys, monkeypatch, use):
    model = use(reader("fill", "bert"))
    monkeypatch.setattr(type(model.task), "ask_batch_size", 3)
    set_stdin(monkeypatch, "no blank\n" * 6 + "The [MASK]\n" + "no blank\n")
    status, out, err = ask(capsys, "--json")
    assert status == 1
    rows = [json.loads(line) for line in out.splitlines()]
    assert [n for n, row in enumerate(rows) if "error" not in row] == [6]
    assert len(rows) == 8
    places = [line.split(": ")[1] for line in err.splitlines()]
    assert places == [f"standard input:{n}" for n in (1, 2, 3, 4, 5, 6, 8)]


def test_a_conversation_goes_on_after_a_bad_line(capsys, monkeypatch, use):
    use(reader("words", "words"))
    lines = iter(["fox", "zzyzx", "dog"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines, None) or (_ for _ in ()).throw(EOFError))
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    status, out, err = ask(capsys)
    assert status == 0
    assert len(out.splitlines()) == 3  # two answers, and the end of the line of Ctrl-D
    assert "zzyzx" in err


@pytest.mark.parametrize("case", [("chat", "transformer"), ("converse", "gpt")])
def test_a_conversation_says_what_is_cut(capsys, monkeypatch, use, case):
    """Until it is begun anew."""
    model = use(reader(*case))
    if case[0] == "converse":
        model.task.template, model.task.converses = template(), True
    lines = iter(["fox", "the fox " * 30, "/reset", "dog"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines, None) or (_ for _ in ()).throw(EOFError))
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    status, _, err = ask(capsys, "--max-new-tokens", 2)
    assert status == 0
    (note,) = [line for line in err.splitlines() if line.startswith("regard: ")]
    assert "the conversation: " in note
    assert " tokens are read" in note
    assert "/reset" in note


@pytest.mark.parametrize(
    "case", [("write", "gpt"), ("chat", "transformer"), ("classify", "bert"), ("embed", "bert")]
)
def test_what_is_not_read_is_said(capsys, use, case):
    labels = {"task_labels": ("a", "b")} if case[0] == "classify" else {}
    model = use(reader(*case, **labels))
    limit = ["--max-new-tokens", 2] if model.task.generates else []
    long = "the fox " * 50
    status, out, err = ask(capsys, long, *limit)
    assert status == 0
    read, count = model.task.count_tokens(long)
    assert 0 < read <= model.task.context < count
    assert err.count("\n") == 1
    assert f"{read:,} of its {count:,} tokens" in err
    _, out, err = ask(capsys, "fox", long, *limit, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row.get("unread_tokens") for row in rows] == [None, count - read]
    assert err.startswith("regard: INPUT 2: ")
    assert err.count("\n") == 1


def test_json_has_numbers_and_lists(capsys, use):
    def rows(*words):
        return [json.loads(line) for line in ask(capsys, *words, "--json")[1].splitlines()]

    use(reader("words", "words"))
    (row,) = rows("fox", "--top-k", 3)
    assert [list(each) for each in row["output"]] == [["word", "score"]] * 3
    assert all(isinstance(each["score"], float) for each in row["output"])
    use(reader("fill", "bert"))
    (row,) = rows("The [MASK] saw a ___.")
    assert [len(blank) for blank in row["output"]] == [5, 5]
    assert row["output"][0][0].keys() == {"word", "score"}
    use(reader("embed", "bert"))
    (row,) = rows("fox")
    assert len(row["output"]) > 3
    assert all(isinstance(x, float) for x in row["output"])
    use(reader("classify", "bert", task_low=1.0, task_high=5.0))
    assert isinstance(rows("fox")[0]["output"], float)
    use(reader("tag", "bert", task_labels=("B-X", "O")))
    (row,) = rows("the fox")
    assert [each["word"] for each in row["output"]] == ["the", "fox"]
    assert {each["tag"] for each in row["output"]} <= {"B-X", "O"}


def test_several_answers_of_fill_differ(capsys, use):
    """One blank: its likeliest words. Two: the likeliest pairs of words, by their product."""
    use(reader("fill", "bert"))
    best = json.loads(ask(capsys, "The [MASK] saw a ___.", "--json")[1])["output"]
    out = ask(capsys, "The [MASK]", "--num-return-sequences", 7)[1]
    assert len({line.split("\t")[1] for line in out.splitlines()}) == 7
    rows = [
        json.loads(line)
        for line in ask(capsys, "The [MASK] saw a ___.", "--num-return-sequences", 4, "--json")[
            1
        ].splitlines()
    ]
    pairs = {(a["word"], b["word"]): a["score"] * b["score"] for a in best[0] for b in best[1]}
    expected = sorted(pairs.items(), key=lambda pair: -pair[1])[:4]
    assert [tuple(row["output"]) for row in rows] == [words for words, _ in expected]
    assert [row["score"] for row in rows] == pytest.approx([p for _, p in expected], rel=1e-5)


def test_a_path_is_a_path(use, tmp_path, capsys):
    """What is wrong with the only input is a user's mistake, as ever."""
    use(seer())
    check_refused(capsys, tmp_path, ["ask", "RUN", Path("none.png")], "none.png")


def test_scores_are_json(capsys, use, monkeypatch):
    model = use(reader("write", "gpt"))
    scores = {"loss": float("nan"), "perplexity": float("inf"), "bleu": 1.5, "loss_by_position": [1.0]}
    monkeypatch.setattr(model, "score", lambda *paths, **options: scores)
    capsys.readouterr()
    assert call("score", "RUN", "data", "--json") == 0
    output = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert output == {"loss": None, "perplexity": None, "bleu": 1.5, "loss_by_position": [1.0]}
