"""Next sentences: `ask` says isNext or notNext, everywhere that a model can be asked."""

import json
import random
import runpy
from pathlib import Path

import pytest

from helpers.commands import call, set_stdin, stdout_of
from helpers.errors import user_error
from helpers.looking import reader
from helpers.serving import serve_models
from regard import trace
from regard.training.build import train
from regard.viewer.trace_data import TraceData

TOPICS = Path(__file__).parents[2] / "bench/topics.py"
A, B = "the quick fox", "the lazy dog"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("next")
    write = runpy.run_path(str(TOPICS))["write_documents"]
    (folder / "text.txt").write_text(write(40, 0))
    sizes = {"model.dim": 16, "model.context": 64, "data.vocab": 300, "train.steps": 1}
    sizes |= {"task.next": True, "train.batch": 2}
    train("fill", str(folder / "text.txt"), out=folder / "run", set=sizes)
    return str(folder / "run")


def test_two_texts_are_a_pair(capsys, monkeypatch, run):
    pair = "The salty ship sails near the wave.\tA gull and a net are deep today."
    score, answer = stdout_of(capsys, "ask", run, *pair.split("\t")).rstrip("\n").split("\t")
    assert answer in ("isNext", "notNext")
    assert 0.5 <= float(score) <= 1
    row = json.loads(stdout_of(capsys, "ask", run, *pair.split("\t"), "--json"))
    assert row == {"input": pair, "output": answer, "score": pytest.approx(float(score), abs=1e-4)}
    set_stdin(monkeypatch, f"{pair}\nThe [MASK] sails\n{pair}\n")
    rows = [json.loads(line) for line in stdout_of(capsys, "ask", run, "--json").splitlines()]
    assert [rows[0], rows[2]] == [row, row]
    assert rows[1].keys() == {"input", "output"}
    lines = stdout_of(capsys, "ask", run, "A [MASK] sinks", "The [MASK] sails").splitlines()
    assert len(lines) == 2  # texts with blanks are no pair
    both = stdout_of(capsys, "ask", run, pair, "--num-return-sequences", 2).splitlines()
    assert sorted(line.split("\t")[1] for line in both) == ["isNext", "notNext"]
    assert sum(float(line.split("\t")[0]) for line in both) == pytest.approx(1, abs=1e-3)


def test_score_reports_it(capsys, tmp_path, run):
    write = runpy.run_path(str(TOPICS))["write_documents"]
    (tmp_path / "text.txt").write_text(write(9, 1))
    call("score", run, tmp_path / "text.txt")
    assert "next_accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("two_texts", [f"{A}\t{B}", [(A, B)], [f"{A}\t{B}"]], ids=["text", "pair", "texts"])
def test_pairs_in_python(two_texts):
    model = reader("fill", "bert")
    ((answer,),) = model.answers(two_texts)
    assert answer.text in ("isNext", "notNext")
    assert model.ask(two_texts) in (answer.text, [answer.text])


def test_a_model_without_the_head():
    model = reader("fill", "bert", task_next=False)
    user_error(lambda: model.ask(f"{A}\t{B}"), "next sentence", "task.next=true")
    assert model.task.join_arguments([A, B]) == [f"{A}\t{B}"]
    detects = reader("fill", "bert", task_replaced=True)
    assert detects.task.join_arguments([A, B]) == [A, B]  # two texts to look for replaced words in


def test_a_pair_that_is_too_long():
    model = reader("fill", "bert")
    user_error(lambda: model.ask(f"{A}\t{B * 99}"), "does not fit the context")


def test_the_page_shows_answer_and_segments():
    model = reader("fill", "bert")
    run = trace(model, f"{A}\t{B}")
    first = len(model.tokenizer.encode(A)) + 2
    assert run["segment"].flatten().tolist() == [0] * first + [1] * (len(run.tokens["text"]) - first)
    ((answer,),) = model.answers(f"{A}\t{B}")
    assert TraceData(model, f"{A}\t{B}").answer == f"{answer.text} {answer.score:.0%}"


def test_over_http():
    model = reader("fill", "bert")
    ((answer,),) = model.answers(f"{A}\t{B}")
    with serve_models({"fill": model}) as server:
        _, _, body = server.ask("/api/ask", {"input": f"{A}\t{B}"})
        _, _, document = server.ask("/openapi.json")
    result = json.loads(body)
    assert result["output"] == answer.text
    assert result["answers"] == [[{"text": answer.text, "score": pytest.approx(answer.score, abs=1e-5)}]]
    about = json.loads(document)["paths"]["/api/ask"]["post"]
    request = about["requestBody"]["content"]["application/json"]["schema"]
    assert "tab" in request["properties"]["input"]["description"]
    answers = about["responses"]["200"]["content"]["application/json"]["schema"]["properties"]["answers"]
    assert answers["items"]["items"]["properties"].keys() >= {"text", "score"}


def write_words(count: int, seed: int) -> str:
    """Documents of one word each, one of six: a pair of two of them has the same by chance in one of six."""
    rng, words = random.Random(seed), ("sea", "oven", "rose", "violin", "goal", "desk")
    documents = [[rng.choice(words)] * rng.randint(4, 8) for _ in range(count)]
    return "\n\n".join("\n".join(f"{word} {word} {word}." for word in document) for document in documents)


def test_it_learns_to_compare(tmp_path, quick):
    """The smallest text that can only be understood by comparing: 92 % are possible, 53 % by always one."""
    (tmp_path / "text.txt").write_text(write_words(600, 0))
    (tmp_path / "held.txt").write_text(write_words(100, 1))
    paths = str(tmp_path / "text.txt"), str(tmp_path / "held.txt")
    sizes = {"model.context": 12, "model.dim": 32, "model.depth": 2, "model.heads": 4, "model.dropout": 0}
    more = {"task.next": True, "data.tokenizer": "word", "train.lr": 0.015, "train.batch": 16}
    more |= {"model.pre": False, "train.warmup": 10}
    model = train("fill", paths[0], valid=paths[1], out=tmp_path / "run", steps=240, set=sizes | more)
    assert model.score(paths[1])["next_accuracy"] > 0.8
    assert model.ask(["sea sea sea.\tsea sea sea.", "sea sea sea.\tdesk desk desk."]) == ["isNext", "notNext"]


@pytest.mark.slow
def test_it_learns_topics(tmp_path):
    """The command of docs/reading.md: most of about 100 held-out pairs."""
    write = runpy.run_path(str(TOPICS))["write_documents"]
    (tmp_path / "text.txt").write_text(write(1200, 0))
    (tmp_path / "held.txt").write_text(write(34, 1))
    sizes = {"model.context": 64, "model.dim": 96, "model.heads": 4, "model.dropout": 0}
    more = {"task.next": True, "data.tokenizer": "word", "train.lr": 1e-2, "train.batch": 32}
    paths = str(tmp_path / "text.txt"), str(tmp_path / "held.txt")
    model = train("fill", paths[0], valid=paths[1], out=tmp_path / "run", steps=600, set=sizes | more)
    assert model.score(paths[1])["next_accuracy"] > 0.8
    ship = "The salty ship drifts near the wave."
    pairs = [
        f"{ship}\tNobody saw the deep net behind the anchor.",
        f"{ship}\tThe leafy rose grows near the bee.",
    ]
    assert model.ask(pairs) == ["isNext", "notNext"]
