"""Teachers' answers are a student's targets: written once, gone on with, and learned."""

import json
import tomllib

import pytest

from helpers.errors import user_error
from helpers.runs import at_step, same, stopped, tiny, write_data
from regard.runs.load import load
from regard.training import teacher as distillation
from regard.training.teacher import answer_sources, read_answers
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")

CASE = "translate-transformer"
STUDENT = {"case": CASE, "steps": 6, "train__evaluate": 3, "train__save": 2}


@pytest.fixture(scope="module")
def taught(tmp_path_factory, quick):
    """Data, two teachers with one vocabulary, and a student of both."""
    folder = tmp_path_factory.mktemp("teachers")
    data = write_data(CASE, folder)
    well = {"case": CASE, "steps": 60, "train__lr": 0.04, "model__dim": 16, "model__depth": 1}
    tiny(data, folder / "a", **well)
    tiny(data, folder / "b", **well, train__seed=2)
    teachers = [folder / "a", folder / "b"]
    tiny(data, folder / "student", **STUDENT, teacher=teachers, model__dim=12, data__vocab=300)
    return folder, data, teachers


def learned(trainer_corpus):
    return dict(zip(trainer_corpus.sources, trainer_corpus.targets, strict=True))


def watch(monkeypatch):
    """What trainers get to train on."""
    seen, true = [], Trainer.__init__

    def init(self, folder, task, model, corpus, *more):
        seen.append(corpus)
        true(self, folder, task, model, corpus, *more)

    monkeypatch.setattr(Trainer, "__init__", init)
    return seen


def test_the_targets_are_the_ensembles_beams(taught, tmp_path, monkeypatch):
    """Also of a student of another size and vocabulary; what it is evaluated on stays."""
    from regard.runs.ensemble import ensemble

    folder, data, teachers = taught
    seen = watch(monkeypatch)
    tiny(data, tmp_path / "out", **STUDENT, teacher=teachers, model__dim=12, data__vocab=300)
    tiny(data, tmp_path / "plain", **STUDENT, model__dim=12, data__vocab=300)
    with_teachers, plain = seen
    together = ensemble([load(path, "cpu") for path in teachers])
    answers = learned(with_teachers.train)
    assert list(answers) == plain.train.sources
    expected = together.ask(plain.train.sources)
    for source, answer, old in zip(plain.train.sources, expected, plain.train.targets, strict=True):
        fits = 0 < len(plain.tokenizer.encode(answer)) < 23  # or the target stays
        assert answers[source] == (answer if fits else old)
    assert answers != learned(plain.train)
    assert learned(with_teachers.valid) == learned(plain.valid)
    assert any("answered" in note for note in with_teachers.notes)
    decoded = [with_teachers.tokenizer.decode(with_teachers.train.target(row)) for row in range(3)]
    assert decoded == with_teachers.train.targets[:3]
    same(tmp_path / "out", folder / "student")  # the same twice


def test_both_targets_can_be_learned(taught, tmp_path, monkeypatch):
    _, data, teachers = taught
    seen = watch(monkeypatch)
    tiny(data, tmp_path / "out", **STUDENT, teacher=teachers[0], data__keep_targets=True)
    train = seen[0].train
    half = len(train) // 2
    assert train.sources[:half] == train.sources[half:]
    assert train.targets[:half] != train.targets[half:]
    assert len(train.target_ids.lengths) == len(train.source_ids.lengths) == len(train)


def test_it_is_recorded_and_resumed_without_asking_again(taught, tmp_path, monkeypatch):
    folder, data, teachers = taught
    out = tmp_path / "out"
    settings = STUDENT | {"model__dim": 12, "data__vocab": 300}
    with stopped(Trainer, "train_step", at_step(3)):
        tiny(data, out, **settings, teacher=teachers)
    recorded = tomllib.loads((out / "recipe.toml").read_text())["data"]["teacher"]
    assert recorded == [str(path) for path in teachers]
    monkeypatch.setattr(distillation, "load_teacher", None)  # not needed any more
    tiny(data, out, **settings, resume=True)
    same(out, folder / "student")


def test_interrupted_while_the_teachers_answer(taught, tmp_path, monkeypatch):
    """The run's folder stays with what there is; the rest is asked for when it is resumed."""
    folder, data, teachers = taught
    out = tmp_path / "out"
    settings = STUDENT | {"model__dim": 12, "data__vocab": 300}
    monkeypatch.setattr(distillation, "AT_ONCE", 7)
    model = type(load(teachers[0], "cpu"))
    true, asked = model.answers, []

    def answers(self, texts, **options):
        asked.append(len(texts))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return true(self, texts, **options)

    monkeypatch.setattr(model, "answers", answers)
    with pytest.raises(KeyboardInterrupt):
        tiny(data, out, **settings, teacher=teachers)
    assert len(read_answers(out, 100)) == 14
    file = out / "answers-0.jsonl"
    file.write_text(file.read_text() + '{"row": 20, "ans')  # a line that was not finished
    total = len(load_sources(folder))
    tiny(data, out, **settings, resume=True)
    assert sum(asked[3:]) == total - 14
    same(out, folder / "student")


def load_sources(folder):
    return [
        json.loads(line) for line in (folder / "student" / "answers-0.jsonl").read_text().split("\n") if line
    ]


def test_processes_share_the_sources(taught, tmp_path, monkeypatch):
    _, _, teachers = taught
    model, sources = load(teachers[0], "cpu"), [f"{n} go to North" for n in range(11)]
    for rank in range(3):
        monkeypatch.setattr(distillation.distributed, "RANK", rank)
        monkeypatch.setattr(distillation.distributed, "WORLD", 3)
        answer_sources(tmp_path, model, sources, range(11))
    assert len(list(tmp_path.glob("answers-*.jsonl"))) == 3
    together = read_answers(tmp_path, 11)
    assert [together[row] for row in range(11)] == model.ask(sources)


def test_what_can_not_teach_is_refused(taught, text, tmp_path):
    _, data, teachers = taught
    user_error(lambda: tiny(text, tmp_path / "out", steps=1, teacher=teachers[0]), "--teacher", "write")
    chat = write_data("chat-gru", tmp_path)
    user_error(
        lambda: tiny(chat, tmp_path / "out", case="chat-gru", steps=1, teacher=teachers[0]),
        *("--teacher", teachers[0], "translate", "chat"),
    )
    assert not (tmp_path / "out").exists()
    user_error(lambda: tiny(data, tmp_path / "out", **STUDENT, teacher=tmp_path / "none"), tmp_path / "none")


def test_without_teachers_all_is_as_before(taught, tmp_path):
    _, data, _ = taught
    tiny(data, tmp_path / "out", **STUDENT)
    assert not list((tmp_path / "out").glob("answers*"))
    assert "teacher" not in tomllib.loads((tmp_path / "out" / "recipe.toml").read_text())["data"]
