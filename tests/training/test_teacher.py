"""Teachers' answers are a student's targets: written once, gone on with, and learned."""

import json
import shutil
import tomllib

import pytest
import torch
from torch import nn

from helpers.errors import user_error
from helpers.runs import at_step, rows, same, stopped, tiny, write_data
from helpers.slow import slow_after
from regard import cli
from regard.runs.load import load
from regard.training import teacher as distillation
from regard.training.objective import TEMPERATURE, Objective
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
    corpora, true = [], Trainer.__init__

    def init(self, folder, task, model, corpus, *more):
        corpora.append(corpus)
        true(self, folder, task, model, corpus, *more)

    monkeypatch.setattr(Trainer, "__init__", init)
    return corpora


def test_the_targets_are_the_ensembles_beams(taught, tmp_path, monkeypatch):
    """Also of a student of another size and vocabulary; what it is evaluated on stays."""
    from regard.runs.ensemble import ensemble

    folder, data, teachers = taught
    corpora = watch(monkeypatch)
    tiny(data, tmp_path / "out", **STUDENT, teacher=teachers, model__dim=12, data__vocab=300)
    tiny(data, tmp_path / "plain", **STUDENT, model__dim=12, data__vocab=300)
    with_teachers, plain = corpora
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
    corpora = watch(monkeypatch)
    tiny(data, tmp_path / "out", **STUDENT, teacher=teachers[0], data__keep_targets=True)
    train = corpora[0].train
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
    monkeypatch.setattr(distillation, "load_teachers", None)  # not needed any more
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
    sources = watch(monkeypatch)
    tiny(data, tmp_path / "plain", **settings)
    sources = sources[0].train.sources
    assert len(read_answers(out, sources)) == 14
    assert len(read_answers(out, [f"{source}!" for source in sources])) == 0  # other data, by now
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
    together = read_answers(tmp_path, sources)
    assert [together[row] for row in range(11)] == model.ask(sources)


def test_what_can_not_teach_is_refused(taught, text, tmp_path):
    _, data, teachers = taught
    restore = {"case": "restore-t5", "steps": 1}
    message = user_error(lambda: tiny(text, tmp_path / "out", **restore, teacher=teachers[0]), "--teacher")
    assert all(name in message for name in ("restore", "translate", "chat", "write", "classify", "see"))
    chat = write_data("chat-gru", tmp_path)
    user_error(
        lambda: tiny(chat, tmp_path / "out", case="chat-gru", steps=1, teacher=teachers[0]),
        *("--teacher", teachers[0], "translate", "chat"),
    )
    assert not (tmp_path / "out").exists()
    user_error(lambda: tiny(data, tmp_path / "out", **STUDENT, teacher=tmp_path / "none"), tmp_path / "none")


def test_the_command_line_takes_several(taught, tmp_path, monkeypatch):
    _, data, teachers = taught
    calls = []
    monkeypatch.setattr("regard.training.build.train", lambda *args, **options: calls.append(options))
    words = ["train", "translate", data, "--teacher", str(teachers[0]), "--teacher", str(teachers[1])]
    with pytest.raises((SystemExit, AttributeError)):  # there is no model to name the folder of
        cli.main([*words, "--out", str(tmp_path / "out")])
    assert calls[0]["teacher"] == [str(path) for path in teachers]


def test_without_teachers_all_is_as_before(taught, tmp_path):
    _, data, _ = taught
    tiny(data, tmp_path / "out", **STUDENT)
    assert not list((tmp_path / "out").glob("answers*"))
    assert "teacher" not in tomllib.loads((tmp_path / "out" / "recipe.toml").read_text())["data"]


# --------------------------------------------------------------------------------------- probabilities


PROBABILITIES = ["write", "write-lstm-cells", "classify-bert", "classify-t5", "see-vit"]


@pytest.mark.parametrize("case", slow_after(2, PROBABILITIES))
def test_a_student_comes_to_predict_what_its_teachers_do(case, tmp_path):
    """Its divergence from the mean of two falls, and it is resumed bit for bit."""
    data = write_data(case, tmp_path)
    plain = {"case": case, "steps": 6, "train__evaluate": 3, "train__save": 3}
    for n in (1, 2):
        tiny(data, tmp_path / f"t{n}", **plain, train__seed=n, train__lr=0.05)
    settings = plain | {"teacher": [tmp_path / "t1", tmp_path / "t2"], "steps": 12}
    tiny(data, tmp_path / "out", **settings)
    with stopped(Trainer, "train_step", at_step(5)):
        tiny(data, tmp_path / "again", **settings)
    del settings["teacher"]
    tiny(data, tmp_path / "again", **settings, resume=True)
    same(tmp_path / "out", tmp_path / "again")
    shutil.copy(tmp_path / "t2" / "model.safetensors", tmp_path / "t1")
    user_error(
        lambda: tiny(data, tmp_path / "again", **settings | {"steps": 14}, resume=True),
        *(tmp_path / "t1", "model.safetensors"),
    )
    losses = [row["loss"] for row in rows(tmp_path / "out") if "loss" in row]
    assert all(loss > 0 for loss in losses)
    assert sum(losses[-3:]) < sum(losses[:3])


def test_the_divergence_is_that_of_soft_probabilities():
    """By hand; positions that do not count add nothing, and gradients reach the student alone."""
    teachers = [nn.Linear(5, 7), nn.Linear(5, 7)]
    student = nn.Linear(5, 7)
    x, counts = torch.randn(3, 5), torch.tensor([True, True, False])

    class Rows:
        loss = measure = None

        def predictions(self, model, x, counts):
            return model(x), counts

    objective = Objective(student, Rows())
    objective.teachers = teachers
    loss = objective(x, counts)
    p = sum((t(x) / TEMPERATURE).softmax(-1) for t in teachers) / 2
    q = (student(x) / TEMPERATURE).softmax(-1)
    expected = TEMPERATURE**2 * (p * (p / q).log()).sum(-1)[:2].sum()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert student.weight.grad is not None
    assert all(t.weight.grad is None for t in teachers)
    assert len(list(objective.parameters())) == 2
    student.load_state_dict(teachers[0].state_dict())
    objective.teachers = teachers[:1]
    assert objective(x, counts).item() == pytest.approx(0, abs=1e-5)


def test_teachers_that_predict_something_else_are_refused(text, tmp_path):
    tiny(text, tmp_path / "t", steps=1)
    student = lambda **more: tiny(text, tmp_path / "out", steps=1, teacher=tmp_path / "t", **more)  # noqa: E731
    user_error(lambda: student(model__context=12), "--teacher", "context", 11, 12)
    assert not (tmp_path / "out").exists()
    labels = write_data("classify-bert", tmp_path)
    tiny(labels, tmp_path / "c", case="classify-bert", steps=1)
    other = tmp_path / "other.tsv"
    other.write_text("text\tlabel\n" + "".join(f"{n} foxes\t{'ab'[n % 2]}\n" for n in range(20)))
    again = {"case": "classify-bert", "steps": 1, "teacher": tmp_path / "c"}
    user_error(lambda: tiny(str(other), tmp_path / "out", **again), "--teacher", "classes")
