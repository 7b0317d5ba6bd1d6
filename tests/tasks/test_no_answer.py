"""Questions that a text does not answer: [CLS] is where the answer begins and ends."""

import json

import pytest

from helpers.commands import stdout_of
from regard.data.spans import Span
from regard.tasks import SpanTask, SpanTaskConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

pytestmark = pytest.mark.usefixtures("quick")

NAMES, PLACES = ["Anna", "Kim", "Leo", "Mia"], ["Bonn", "Oslo", "Rome"]
ROWS = [
    {"question": question, "context": f"{name} lives in {place}.", "answers": answers}
    for name in NAMES
    for place in PLACES
    for question, answers in (("Who lives?", [{"text": name, "answer_start": 0}]), ("When was it?", []))
]
TINY = {
    "model.dim": 32, "model.depth": 1, "model.heads": 2, "model.context": 41, "model.dropout": 0.0,
    "train.lr": 0.01, "train.batch": 16, "data.tokenizer": "word", "train.device": "cpu", "train.warmup": 5,
}  # fmt: skip


def test_windows_of_a_question_without_an_answer_point_to_the_first_token() -> None:
    tokenizer = train_tokenizer("char", ["Who? Anna lives here."], 100, SpanTask.specials)
    task = SpanTask(SpanTaskConfig(name="span"), tokenizer, 19)
    examples, notes = task.examples([Span("Who?", "Anna lives here.", "", 0)])
    assert len(examples) > 1
    assert not examples.places.any()
    assert any("no answer" in note for note in notes)
    assert not any("not learned" in note for note in notes)


def test_a_model_says_that_there_is_none(tmp_path, capsys):
    qas = [{"context": row["context"], "qas": [{**row, "id": "1"}]} for row in ROWS]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": qas}]}))
    model = train("span", str(path), valid=str(path), out=tmp_path / "run", steps=60, set=TINY)
    assert model.task.config.unanswerable
    assert model.score(str(path))["exact"] == 1
    assert model.ask(["When was it?\tKim lives in Oslo.", "Who lives?\tKim lives in Oslo."]) == ["", "Kim"]
    printed = stdout_of(capsys, "ask", tmp_path / "run", "When was it?\tKim lives in Oslo.")
    assert printed.split("\t")[1] == "(no answer in the text)\n"
    printed = stdout_of(capsys, "ask", tmp_path / "run", "When was it?\tKim lives in Oslo.", "--json")
    assert json.loads(printed)["output"] == ""
