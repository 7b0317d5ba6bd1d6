"""Teachers' time is part of --minutes: planned, taken first, and the student has the rest."""

from pathlib import Path
from typing import Any

import pytest

from helpers.runs import tiny, write_data
from helpers.slow import slow_after
from regard.runs.model import Model
from regard.training import teacher as distillation
from regard.training.build import plan
from regard.training.plan import teaching
from regard.training.plan.report import describe
from regard.training.teacher import read_answers, read_seconds
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")
CASE = "translate-transformer"


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, quick: None) -> tuple[str, Path]:
    """Pairs, and a teacher."""
    folder = tmp_path_factory.mktemp("teaching")
    data = write_data(CASE, folder)
    tiny(data, folder / "a", case=CASE, steps=1)
    return data, folder / "a"


def test_teachers_are_planned(taught: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    data, teacher = taught
    alone = plan("translate", data, minutes=1, machine="cpu2")
    one = plan("translate", data, minutes=1, machine="cpu2", teacher=teacher)
    two = plan("translate", data, minutes=1, machine="cpu2", teacher=[teacher, teacher])
    assert 0 == alone.request.teaching.seconds < one.request.teaching.seconds
    assert two.request.teaching.seconds == pytest.approx(2 * one.request.teaching.seconds)
    lines = "\n".join(describe(two))
    assert "2 teachers" in lines
    assert f"{two.request.facts.rows} sources" in lines
    assert len(describe(two)) == len(describe(alone)) + 1
    monkeypatch.setattr(teaching, "seconds_to_answer", lambda plan, beams: 40.0)  # more than half
    slow = plan("translate", data, minutes=1, machine="cpu2", teacher=teacher)
    assert "40 s" in "\n".join(describe(slow))
    assert "30 s" in "\n".join(describe(slow))
    assert slow.steps < alone.steps
    assert alone.seconds() <= slow.seconds() <= 60
    by_steps = plan("translate", data, steps=10, teacher=teacher, machine="cpu2")  # nothing is cut short
    assert by_steps.seconds() > 40


def test_probabilities_cost_a_part_of_each_step(tmp_path: Path) -> None:
    data = write_data("classify-bert", tmp_path)
    tiny(data, tmp_path / "t", case="classify-bert", steps=1, model__context=16)
    alone = plan("classify", data, minutes=1, machine="cpu2")
    by_minutes = plan("classify", data, minutes=1, machine="cpu2", teacher=tmp_path / "t")
    assert (
        by_minutes.cost.flops > by_minutes.request.teaching.flops > 0 == by_minutes.request.teaching.seconds
    )
    assert any("teacher reads every step" in line for line in describe(by_minutes))
    assert by_minutes.settings["model.context"] == 16 < alone.settings["model.context"]


class StoppedError(Exception):
    """Raised where training begins."""


class Clock:
    """Time that passes only while a teacher answers, some seconds for each source."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, teacher: type[Model], each: float) -> None:
        self.now, self.asked, true = 0.0, 0, teacher.answers

        def answers(model: Model, texts: list[str], **options: Any) -> Any:
            self.now += each * len(texts)
            self.asked += len(texts)
            return true(model, texts, **options)

        monkeypatch.setattr(distillation.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(teacher, "answers", answers)
        monkeypatch.setattr(distillation, "FIRST", 4)


@pytest.fixture
def built_trainers(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """The trainers that are made; none of them trains."""
    trainers: list[Trainer] = []

    def run(trainer: Trainer) -> None:
        trainers.append(trainer)
        raise StoppedError

    monkeypatch.setattr(Trainer, "run", run)
    return trainers


@pytest.mark.parametrize(("each", "answered"), slow_after(1, [(0.25, 33), (2.0, 15)]))
def test_the_student_has_the_time_that_is_left(
    taught: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_trainers: list[Trainer],
    each: float, answered: int,
) -> None:  # fmt: skip
    """All is answered if half of the time is enough; else other targets stay, also when it is resumed."""
    data, teacher = taught
    clock = Clock(monkeypatch, Model, each)
    out, settings = tmp_path / "out", {"case": CASE, "model__dim": 12, "data__vocab": 300}

    def start(**more: Any) -> None:
        with pytest.raises(StoppedError):
            tiny(data, out, minutes=1, teacher=teacher, **settings, **more)

    start()
    rows = len(built_trainers[0].corpus.train)
    answers = read_answers(out, built_trainers[0].corpus.train.sources)
    assert rows == 33
    assert answered <= len(answers) == clock.asked <= answered + 2
    assert read_seconds(out) == pytest.approx(each * clock.asked)
    assert built_trainers[0].config.minutes == pytest.approx(1 - each * clock.asked / 60)
    assert "minutes = 1.0" in (out / "recipe.toml").read_text()
    start(resume=True)
    assert len(answers) == clock.asked  # nobody is asked again
    assert built_trainers[1].config.minutes == built_trainers[0].config.minutes
    assert built_trainers[1].corpus.train.targets == built_trainers[0].corpus.train.targets
    assert any("no time" in note for note in built_trainers[0].corpus.notes) == (len(answers) < rows)
