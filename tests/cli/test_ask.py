"""`regard ask` and `regard score`: texts, pipes, conversations, ensembles."""

import contextlib
import io
import json
import os
import pty
import shutil
import sys

import pytest

from helpers.commands import WORDS, call, check_refused, pair_model, regard, set_stdin, stdout_of
from helpers.schemas import SCHEMAS, untrained
from regard.runs.load import load
from regard.tasks import Answer

pytestmark = pytest.mark.usefixtures("quick")


def test_ask(capsys, model):
    first = stdout_of(capsys, "ask", model, "The quick", "--seed", 7, "--max-new-tokens", 12)
    assert first.endswith("\n")
    assert 1 < len(first) <= 13
    assert stdout_of(capsys, "ask", model, "The quick", "--seed", 7, "--max-new-tokens", 12) == first
    answers = {
        stdout_of(capsys, "ask", model, "The quick", "--seed", n, "--max-new-tokens", 12) for n in range(5)
    }
    assert len(answers) > 1
    greedy = {stdout_of(capsys, "ask", model, "The", "--temperature", 0, "--max-new-tokens", 9) for _ in "ab"}
    assert len(greedy) == 1


def test_ask_says_nothing_on_standard_error(capsys, model):
    capsys.readouterr()
    call("ask", model, "The quick", "--max-new-tokens", 3)
    assert capsys.readouterr().err == ""


def test_ask_line_by_line(capsys, monkeypatch, model):
    """More lines than one batch; answers keep the order, and an empty line has an answer too."""
    lines = [f"fox {n}" for n in range(70)] + ["", "dogs"]
    options = ["--seed", 3, "--max-new-tokens", 4, "--stop", "\n"]
    set_stdin(monkeypatch, "\n".join(lines) + "\n")
    answers = stdout_of(capsys, "ask", model, *options).split("\n")[:-1]
    assert len(answers) == len(lines)
    for n in (0, 64, 71):
        assert answers[n] + "\n" == stdout_of(capsys, "ask", model, lines[n], *options)
    assert stdout_of(capsys, "ask", model, *lines[:3], *options).split("\n")[:-1] == answers[:3]
    set_stdin(monkeypatch, "")
    assert stdout_of(capsys, "ask", model) == ""


def test_ask_for_json(capsys, monkeypatch, model):
    set_stdin(monkeypatch, "The\nfür „alle“\n")
    options = ["--json", "--seed", 3, "--max-new-tokens", 20]
    rows = [json.loads(line) for line in stdout_of(capsys, "ask", model, *options).splitlines()]
    assert [row["input"] for row in rows] == ["The", "für „alle“"]
    assert all(row.keys() == {"input", "output"} for row in rows)
    one = json.loads(stdout_of(capsys, "ask", model, "The", *options))
    assert one == rows[0]
    assert one["output"] + "\n" == stdout_of(capsys, "ask", model, "The", *options[1:])


def test_several_answers(capsys, model):
    options = ["--num-return-sequences", 3, "--seed", 3, "--max-new-tokens", 9, "--json"]
    rows = [
        json.loads(line) for line in stdout_of(capsys, "ask", model, "The", "dogs", *options).splitlines()
    ]
    assert [row["input"] for row in rows] == ["The"] * 3 + ["dogs"] * 3
    assert len({row["output"] for row in rows}) > 2


def test_lines_that_are_not_text(capsys, tmp_path, monkeypatch, model):
    for errors in ("strict", "surrogateescape"):  # the latter is what Python chooses in the C locale
        stdin = io.TextIOWrapper(io.BytesIO(b"fine\nf\xfcr\n"), encoding="utf-8", errors=errors)
        monkeypatch.setattr(sys, "stdin", stdin)
        assert call("ask", model, "--max-new-tokens", 2) == 1
        output = capsys.readouterr()
        assert "standard input:2: byte 0xfc is not UTF-8" in output.err
        assert output.out.endswith("\n\n")  # the answer to the first line, and none to the second
    check_refused(capsys, tmp_path, ["ask", model, "fine", "f\udcfcr"], "INPUT 2", "UTF-8")
    check_refused(capsys, tmp_path, ["ask", model, "f\udcfcr"], "INPUT 1", "UTF-8")


def test_a_conversation(model):
    """Questions from a terminal, until Ctrl-D."""
    mine, its = pty.openpty()
    with regard("ask", model, "--max-new-tokens", "5", "--seed", "1", stdin=its) as process:
        os.write(mine, b"The\nfox\n\x04")
        answer, output = process.communicate(timeout=60)
    os.close(mine)
    os.close(its)
    assert process.returncode == 0, output
    assert answer.count("> ") == 3


def test_a_pipe_keeps_its_order(capsys, monkeypatch, translator):
    """More lines than two blocks, long, short and blank ones."""
    lines = [f"{WORDS[n % 7]} {WORDS[n % 5]}"[: n % 19] if n % 11 else "" for n in range(1300)]
    options = ["--num-beams", 1, "--max-new-tokens", 4]
    set_stdin(monkeypatch, "\n".join(lines) + "\n")
    answers = stdout_of(capsys, "ask", translator, *options).split("\n")[:-1]
    assert len(answers) == 1300
    for line, answer in zip(lines, answers, strict=True):
        assert line.strip() or not answer
    for n in (1, 18, 511, 512, 513, 1023, 1024, 1299):
        assert stdout_of(capsys, "ask", translator, lines[n], *options) == answers[n] + "\n"
    assert len(set(answers)) > 1


class Lines:
    """A long standard input that counts how many lines were read."""

    def __init__(self, count):
        self.count, self.taken = count, 0
        self.buffer = self

    def isatty(self):
        return False

    def __iter__(self):
        while self.taken < self.count:
            self.taken += 1
            yield b"line %d\n" % self.taken


def test_a_pipe_is_held_a_block_at_a_time(monkeypatch, translator):
    """At most one block of lines is read ahead of the answers."""
    lines, ahead = Lines(20_011), []

    class Out(io.StringIO):
        written = 0

        def write(self, text):
            self.written += text.count("\n")
            return len(text)

    out = Out()
    model = load(translator, "cpu")

    def answers(texts, **options):
        assert len(texts) <= 512
        ahead.append(lines.taken - out.written)
        return [[Answer(text)] for text in texts]

    monkeypatch.setattr(model, "answers", answers)
    monkeypatch.setattr("regard.runs.load.load", lambda folder, **_: model)
    monkeypatch.setattr(sys, "stdin", lines)
    with contextlib.redirect_stdout(out):
        assert call("ask", translator) == 0
    assert out.written == lines.taken == 20_011
    assert len(ahead) == 40
    assert max(ahead) <= 512


def test_answers_with_scores(capsys, monkeypatch, translator):
    set_stdin(monkeypatch, "a bag\n\nbad cabs\n")
    options = ["--num-beams", 4, "--num-return-sequences", 3, "--json", "--max-new-tokens", 6]
    rows = [json.loads(line) for line in stdout_of(capsys, "ask", translator, *options).splitlines()]
    assert [row["input"] for row in rows] == ["a bag"] * 3 + [""] * 3 + ["bad cabs"] * 3
    for row in rows:
        assert row.keys() == {"input", "output"} | ({"score"} if row["input"] else set())
    for answers in (rows[:3], rows[6:]):
        scores = [row["score"] for row in answers]
        assert scores == sorted(scores, reverse=True)
        assert len({row["output"] for row in answers}) == 3
        assert max(scores) < 0
    best = stdout_of(capsys, "ask", translator, "a bag", "bad cabs", *options[:2], *options[5:])
    assert best.split("\n")[:-1] == [rows[0]["output"], rows[6]["output"]]
    texts = stdout_of(capsys, "ask", translator, "a bag", *options[:4], *options[5:])
    assert texts.split("\n")[:-1] == [row["output"] for row in rows[:3]]
    one = stdout_of(capsys, "ask", translator, "a bag", "--json", "--num-beams", 1)
    assert json.loads(one).keys() == {"input", "output"}


def test_prefix(capsys, tmp_path, monkeypatch, translator, model):
    for beams in (1, 4):
        options = ["--num-beams", beams, "--max-new-tokens", 5]
        answer = stdout_of(capsys, "ask", translator, "bad cabs", *options, "--prefix", "cab, fed")
        assert answer.startswith("cab, fed")
        assert answer != "cab, fed\n"
        set_stdin(monkeypatch, "bad cabs\n\na bag\n")
        lines = stdout_of(capsys, "ask", translator, *options, "--prefix", "cab, fed").split("\n")
        assert lines[0] + "\n" == answer
        assert lines[1] == lines[3] == ""
        assert lines[2].startswith("cab, fed")
    check_refused(capsys, tmp_path, ["ask", translator, "a", "--prefix", "a" * 23], "prefix", "23")
    check_refused(capsys, tmp_path, ["ask", model, "The", "--prefix", "a"], "prefix")


def test_shortlist(capsys, tmp_path, pairs, translator, model):
    copy = shutil.copytree(translator, tmp_path / "copy")
    ask, add = ["ask", copy, "bad cabs", "a bag", "--shortlist"], "--resume --set data.shortlist=100"
    check_refused(capsys, tmp_path, ask, copy / "shortlist.safetensors", f"--out {copy} {add}")
    stdout_of(capsys, "train", "translate", pairs, "--out", copy, "--resume", "--set", "data.shortlist=2")
    for beams in (1, 3):
        options = ["--num-beams", beams, "--max-new-tokens", 5]
        answers = stdout_of(capsys, *ask, *options)
        assert answers.count("\n") == 2
        assert answers.startswith(stdout_of(capsys, *ask[:3], *options, "--shortlist"))
    (copy / "shortlist.safetensors").write_bytes(b"")
    check_refused(capsys, tmp_path, ask, copy / "shortlist.safetensors", "damaged")
    check_refused(capsys, tmp_path, ["ask", model, "The", "--shortlist"], "shortlist")


def test_two_models_as_one(capsys, tmp_path, pairs, translator, chatter):
    other = ["--set", f"data.tokenizer={translator}/tokenizer.json", "--set", "train.seed=5"]
    pair_model(tmp_path / "other", "translate", pairs, *other)
    options = ["a bag", "--json", "--max-new-tokens", 6]
    answers = [
        json.loads(stdout_of(capsys, "ask", translator, *options, *more))
        for more in ([], ["--with", translator], ["--with", tmp_path / "other"])
    ]
    assert answers[0]["output"] == answers[1]["output"]
    assert answers[0]["score"] == pytest.approx(answers[1]["score"], abs=1e-5)
    assert abs(answers[0]["score"] - answers[2]["score"]) > 1e-4
    several = ["--with", translator, "--with", tmp_path / "other"]
    assert stdout_of(capsys, "ask", tmp_path / "other", "a bag", *several).count("\n") == 1
    check_refused(capsys, tmp_path, ["ask", translator, "a", "--with", chatter], chatter, "task")
    check_refused(capsys, tmp_path, ["ask", translator, "a", "--with", tmp_path / "none"], tmp_path / "none")
    rows = [
        json.loads(stdout_of(capsys, "score", folder, pairs, "--json", "--num-beams", 1, *more))["loss"]
        for folder, more in (
            (translator, []),
            (tmp_path / "other", []),
            (translator, ["--with", tmp_path / "other"]),
        )
    ]
    assert rows[2] < (rows[0] + rows[1]) / 2


def test_score_on_pairs(capsys, tmp_path, pairs, translator, chatter):
    texts = {"bleu", "chrf", "ter", "exact", "signature"}
    few = tmp_path / "few.tsv"
    few.write_text("".join(pairs.read_text().splitlines(keepends=True)[:11]))
    scores = json.loads(stdout_of(capsys, "score", translator, few, "--json"))
    assert scores.keys() == {"rows", "loss", "perplexity", "bits_per_byte"} | texts
    lines = stdout_of(capsys, "score", translator, few).splitlines()
    shown = [f"{value:.4f}" if isinstance(value, float) else str(value) for value in scores.values()]
    assert shown[0] == "11"
    assert [line.split() for line in lines] == [[k, v] for k, v in zip(scores, shown, strict=True)]
    assert scores["signature"].startswith("nrefs:1|")
    reply = json.loads(stdout_of(capsys, "score", chatter, few, "--json"))
    assert reply.keys() == scores.keys() | {"distinct_1", "distinct_2"}
    other = json.loads(
        stdout_of(capsys, "score", translator, few, "--json", "--num-beams", 1, "--prefix", "bag")
    )
    assert other["loss"] == scores["loss"]
    assert other["chrf"] != scores["chrf"]
    two = ["--num-return-sequences", 2]
    check_refused(capsys, tmp_path, ["score", translator, few, *two], "num_return_sequences=2")


def test_score_against(capsys, tmp_path, pairs, translator, chatter, model, text):
    few = tmp_path / "few.tsv"
    few.write_text("".join(pairs.read_text().splitlines(keepends=True)[:11]))
    options = ["--json", "--num-beams", 1]
    alone = [json.loads(stdout_of(capsys, "score", m, few, *options)) for m in (translator, chatter)]
    scores = json.loads(stdout_of(capsys, "score", translator, few, *options, "--against", chatter))
    for name in ("bleu", "chrf"):
        assert scores[name] == pytest.approx(alone[0][name])
        assert scores[f"{name}_against"] == pytest.approx(alone[1][name])
        assert 0 < scores[f"{name}_p"] <= 1
    same = json.loads(stdout_of(capsys, "score", translator, few, *options, "--against", translator))
    assert same["bleu_p"] == same["chrf_p"] == 1
    assert "bleu_p " in stdout_of(capsys, "score", translator, few, "--against", translator)
    check_refused(capsys, tmp_path, ["score", model, text, "--against", model], "--against")
    check_refused(capsys, tmp_path, ["score", translator, few, "--against", model], "write", "translate")
    last = next((translator / "checkpoints").iterdir())
    earlier = json.loads(stdout_of(capsys, "score", translator, few, *options, "--against", last))
    assert earlier["bleu_against"] == json.loads(stdout_of(capsys, "score", last, few, *options))["bleu"]
    check_refused(
        capsys, tmp_path, ["score", translator, few, "--against", tmp_path / "none"], tmp_path / "none"
    )


class Terminal:
    """A terminal where the user types these lines, then Ctrl-D."""

    def __init__(self, monkeypatch, *lines):
        self.lines = iter(lines)
        monkeypatch.setattr("builtins.input", self)
        monkeypatch.setattr(sys, "stdin", self)

    def isatty(self):
        return True

    def __call__(self, prompt):
        assert prompt == "> "
        try:
            return next(self.lines)
        except StopIteration:
            raise EOFError from None


def record_questions(monkeypatch, folder):
    """Load a model and record the questions it gets."""
    heard, model = [], load(folder, "cpu")
    true = model.stream

    def stream(text, **options):
        heard.append((text, options))
        return true(text, **options)

    monkeypatch.setattr(model, "stream", stream)
    monkeypatch.setattr("regard.runs.load.load", lambda folder, **_: model)
    return heard


def test_a_conversation_has_turns(capsys, monkeypatch, chatter):
    heard = record_questions(monkeypatch, chatter)
    lines = ["a bag", "bad cabs", "fab cafe", "/reset", "good eggs", "/seed 5", "each face", " /help", ""]
    Terminal(monkeypatch, *lines, "/seed ²")
    options = ["--temperature", 1, "--max-new-tokens", 4, "--seed", 1]
    capsys.readouterr()
    assert call("ask", chatter, *options) == 0
    output = capsys.readouterr()
    answers = output.out.split("\n")
    assert len(answers) == 6 + 2  # and the end of the line that Ctrl-D was typed in
    questions = [text for text, _ in heard]
    assert questions[0] == "a bag"
    assert questions[1] == f"a bag\n{answers[0]}\nbad cabs"
    assert questions[2] == f"a bag\n{answers[0]}\nbad cabs\n{answers[1]}\nfab cafe"
    assert questions[3] == "good eggs"
    assert questions[4] == f"good eggs\n{answers[3]}\neach face"
    assert questions[5:] == [""]
    assert answers[5] == ""  # a blank line, a blank answer
    assert [options["seed"] for _, options in heard] == [1, 1, 1, 1, 5, 5]
    assert output.err.count("/reset") == 3  # the first line of it says so, too
    assert output.err.count("\n") == 4


def test_what_was_said_counts(capsys, monkeypatch, chatter):
    """A chat model reads the previous turns; a translator does not."""
    heard = record_questions(monkeypatch, chatter)
    Terminal(monkeypatch, "a bag", "bad cabs")
    assert call("ask", chatter, "--max-new-tokens", 4) == 0
    model = load(chatter)
    assert len(model.task.parts(heard[1][0])[0]) > len(model.task.parts("bad cabs")[0])
    refuse = ["ask", chatter, "--num-return-sequences", 2]
    check_refused(capsys, chatter, refuse, "--num-return-sequences")


def test_a_translator_remembers_nothing(capsys, monkeypatch, translator):
    heard = record_questions(monkeypatch, translator)
    Terminal(monkeypatch, "a bag", "bad cabs", "/quit", "/", "a / b")
    assert call("ask", translator, "--max-new-tokens", 4) == 0
    assert [text for text, _ in heard] == ["a bag", "bad cabs", "/", "a / b"]
    assert "/reset" in capsys.readouterr().err


def test_score(capsys, model, text):
    scores = json.loads(stdout_of(capsys, "score", model, text, "--json"))
    assert scores.keys() == {"tokens", "loss", "perplexity", "bits_per_byte"}
    assert 0 < scores["bits_per_byte"] < scores["loss"] * 2
    lines = stdout_of(capsys, "score", model, text).splitlines()
    assert lines[0].split() == ["tokens", str(scores.pop("tokens"))]
    assert [line.split() for line in lines[1:]] == [[name, f"{value:.4f}"] for name, value in scores.items()]


def test_ask_by_a_schema(capsys, monkeypatch, tmp_path):
    pytest.importorskip("llguidance")
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMAS["person"]))
    monkeypatch.setattr("regard.runs.load.load", lambda *args, **settings: untrained("bpe"))
    for options in ((), ("--json", "--num-return-sequences", 2)):
        out = stdout_of(capsys, "ask", "x", "the fox", "--schema", file, "--max-new-tokens", 60, *options)
        answers = [json.loads(line)["output"] for line in out.splitlines()] if options else [out]
        assert [json.loads(answer).keys() for answer in answers] == [{"name", "age"}] * len(answers)
    file.write_text("{")
    for name in (file, tmp_path / "nowhere.json"):
        check_refused(capsys, tmp_path, ["ask", "x", "the fox", "--schema", name], name)
