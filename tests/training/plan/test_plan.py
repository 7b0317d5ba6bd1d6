"""Plans for facts, machines and minutes; what is given stays, and what is planned is trained."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.errors import user_error
from helpers.runs import rows, write_labels, write_pairs, write_text
from regard.runs import recipe
from regard.training import build
from regard.training.build import train
from regard.training.job import make_job
from regard.training.plan import follow
from regard.training.plan.facts import Facts, Side
from regard.training.plan.plan import Plan, make_plan
from regard.training.plan.report import describe, odd_rate_words
from regard.training.plan.sizes import Request
from regard.training.plan.speed import known_machine

KINDS = {"translate": "transformer", "chat": "transformer", "fill": "bert", "classify": "bert", "see": "vit"}
TINY = {"model.dim": 16, "model.depth": 1, "model.heads": 2, "train.device": "cpu"}


def side(characters: int, vocabulary: int = 20_000, alphabet: int = 80, longest: int = 130) -> Side:
    return Side(
        characters=characters,
        words=characters // 5,
        alphabet=alphabet,
        vocabulary=vocabulary,
        longest=longest,
    )


SHAKESPEARE = Facts(rows=1, source=side(1_000_000, alphabet=65, longest=1_000_000))
GIGABYTE = Facts(rows=1, source=side(10**9, vocabulary=500_000, longest=10**6), share=0.004)
MULTI30K = Facts(rows=29_000, source=side(1_770_000), target=side(2_050_000))
FIFTY = Facts(rows=50, source=side(3000, 400), target=side(3000, 400))
REVIEWS = Facts(rows=2, source=side(39_000_000, 200_000, longest=10**6))
PHRASES = Facts(rows=60_000, source=side(3_200_000, 15_000), classes=2, balance=0.56)
CLOTHES = Facts(rows=54_000, classes=10, balance=0.1, size=28, channels=1, mirrored=True)


def plan(
    task: str, facts: Facts, machine: str = "cpu2", minutes: float | None = None, **by_hand: Any
) -> Plan:
    """`train__steps=5` is given by hand."""
    settings = {key.replace("__", "."): value for key, value in by_hand.items()}
    if minutes is not None:
        settings["train.minutes"] = minutes
    return make_plan(Request(task, KINDS.get(task, "gpt"), settings, facts, known_machine(machine)))


@pytest.mark.parametrize(
    ("task", "facts", "machine", "minutes", "weights"),
    [
        ("write", SHAKESPEARE, "cpu2", 3, (0.1e6, 2e6)),
        ("write", SHAKESPEARE, "h200", 1, (5e6, 15e6)),
        ("write", GIGABYTE, "cpu2", 5, (0.5e6, 12e6)),
        ("write", GIGABYTE, "h200", 5, (20e6, 200e6)),
        ("write", GIGABYTE, "h200x8", 60, (100e6, 2e9)),
        ("translate", MULTI30K, "cpu2", 15, (1e6, 5e6)),
        ("translate", MULTI30K, "h200", 5, (5e6, 25e6)),
        ("translate", FIFTY, "h200", 5, (0.1e6, 4e6)),
        ("fill", REVIEWS, "cpu2", 15, (1e6, 8e6)),
        ("fill", REVIEWS, "h200", 5, (12e6, 120e6)),
        ("classify", PHRASES, "cpu2", 5, (0.5e6, 8e6)),
        ("see", CLOTHES, "cpu2", 6, (0.2e6, 3e6)),
        ("see", CLOTHES, "h200", 3, (2e6, 20e6)),
    ],
)
def test_sizes(task: str, facts: Facts, machine: str, minutes: float, weights: tuple[float, float]) -> None:
    chosen = plan(task, facts, machine, minutes)
    assert weights[0] <= chosen.cost.weights <= weights[1], describe(chosen)
    assert chosen.seconds() <= 60 * minutes
    assert chosen.memory() <= known_machine(machine).memory
    bound = "" if task == "write" and minutes == 60 else chosen.bound or "?"  # there is no larger one
    assert describe(chosen)[0].endswith(f"; size limited by {bound}" if bound else ")")


def test_the_two_readings_of_r_drop_take_their_time() -> None:
    plain, doubled = (plan("translate", MULTI30K, "h200", 1, task__r_drop=x) for x in (0, 1))
    assert (plain.readings, doubled.readings) == (1, 2)
    assert doubled.seconds() == pytest.approx(60, rel=0.1)  # not cut off by the clock
    assert doubled.steps < plain.steps
    assert "each read twice (R-Drop)" in describe(doubled)[2]
    assert "R-Drop" not in describe(plain)[2]


@pytest.mark.parametrize(("task", "facts"), [("write", SHAKESPEARE), ("translate", MULTI30K)])
def test_the_faster_the_larger(task: str, facts: Facts) -> None:
    sizes = [plan(task, facts, machine, 5).cost.blocks for machine in ("cpu1", "cpu8", "t4", "h200")]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_few_rows_end_early() -> None:
    """50 pairs don't take five minutes of a GPU, and nobody waits for more than the default."""
    few = plan("translate", FIFTY, "h200")
    assert few.steps == few.settings["train.steps"]
    assert few.seconds() < 200
    assert few.settings["train.minutes"] == 5
    assert "train.steps" not in plan("write", GIGABYTE, "h200").settings  # by the clock


def test_what_is_given_stays_and_the_rest_follows() -> None:
    free = plan("translate", MULTI30K, "h200", 5)
    wide = plan("translate", MULTI30K, "h200", 5, model__dim=512, train__lr=0.123)
    assert not {"model.dim", "train.lr", "train.minutes"} & set(wide.settings)
    assert 512 % wide.settings["model.heads"] == 0
    assert wide.settings["model.hidden"] == 1024
    assert wide.cost.weights > free.cost.weights
    odd = plan("write", SHAKESPEARE, model__dim=36)
    assert 36 % odd.settings["model.heads"] == 0
    batch = plan("write", SHAKESPEARE, "h200", 1, train__batch=64)
    assert "train.tokens" not in batch.settings
    assert batch.batch == 64 * batch.get("model.context")
    preset = plan("fill", REVIEWS, "h200", 5, model__preset="small")
    assert not {"model.dim", "model.depth", "model.heads"} & set(preset.settings)


@pytest.mark.parametrize(
    ("by_hand", "words"),
    [
        ({"train__lr": 0.4}, "100 times"),
        ({"train__lr": 4e-5}, "1/100 of"),
        ({"train__lr": 0.012}, None),
        ({"train__lr": 0.4, "train__optimizer": "adamw"}, None),  # no rate is known for it
        ({}, None),
    ],
)
def test_a_rate_far_from_the_advised_one_is_named(by_hand: dict[str, Any], words: str | None) -> None:
    """Muon learns a little even at 100 times the rate, so that nothing else would be said."""
    said = odd_rate_words(one := plan("write", SHAKESPEARE, minutes=0.5, **by_hand))
    assert (words is None) == (not said)
    assert (words or "") in said
    assert ("advised" in "\n".join(describe(one))) == bool(words)


def test_a_rate_is_named_if_the_steps_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, settings = write_text(tmp_path / "a.txt"), TINY | {"train.lr": 10.0, "train.guard": False}
    train("write", data, out=tmp_path / "run", steps=1, set=settings)
    assert "advised" in capsys.readouterr().err


def test_steps_that_are_given_need_no_machine() -> None:
    request = Request("translate", "transformer", {"train.steps": 500}, MULTI30K)
    chosen = make_plan(request)
    assert chosen.steps == 500
    assert not {"train.steps", "train.minutes", "train.patience"} & set(chosen.settings)
    assert chosen.settings["model.dim"] >= 128


def test_every_recipe_has_a_plan() -> None:
    for name in recipe.names():
        sections = recipe.read(name)
        facts = Facts(
            rows=500, source=side(50_000, 3000), target=side(50_000, 3000), classes=3, size=32, channels=3
        )
        by_hand = {f"{s}.{k}": v for s, values in sections.items() for k, v in values.items()}
        for built_in in (False, True):
            data = replace(facts, built_in=built_in)
            chosen = make_plan(Request(name, sections["model"]["kind"], by_hand, data, known_machine("cpu2")))
            assert chosen.steps > 0
            assert len(describe(chosen)) == 5


def test_products_of_many_shapes_take_memory() -> None:
    """In bf16, where the lengths of texts vary."""
    pairs, text = (
        [
            make_plan(
                Request(
                    task, kind, {"train.minutes": 2, "model.dim": 64}, facts, known_machine("cpu2"), bf16=bf16
                )
            ).memory()
            for bf16 in (False, True)
        ]
        for task, kind, facts in (("translate", "transformer", MULTI30K), ("write", "gpt", SHAKESPEARE))
    )
    assert pairs[1] - pairs[0] > 2e8
    assert text[1] - text[0] < 1e8


def test_the_same_request_the_same_plan() -> None:
    first, second = (plan("translate", MULTI30K, "h200", 5) for _ in range(2))
    assert first.settings == second.settings


def test_evaluations_take_their_part_of_the_time() -> None:
    """The more is evaluated on, the fewer evaluations and steps there are; a short run has one."""
    size = {"model.dim": 64, "train.tokens": 1024}
    plans = [
        make_plan(
            Request(
                "write",
                "gpt",
                size | {"train.minutes": minutes},
                SHAKESPEARE,
                known_machine("cpu2"),
                held=held,
            )
        )
        for minutes, held in ((3, 0.0), (3, 0.1), (3, 1.0), (0.2, 1.0))
    ]
    none, tenth, much, short = plans
    assert none.steps > tenth.steps > much.steps
    assert all(plan.seconds() <= 60 * plan.get("train.minutes") for plan in plans)
    counts = [plan.steps / plan.settings["train.evaluate"] for plan in plans]
    assert counts[1] > counts[2]
    assert short.settings["train.evaluate"] >= 0.6 * short.steps


# In a run


def test_a_run_follows_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data that are small are trained on for fewer minutes; the recipe has the plan with its reasons."""
    data, out = write_pairs(tmp_path / "a.tsv"), tmp_path / "run"
    train("translate", data, out=out, minutes=0.02, set=TINY)
    text = (out / "recipe.toml").read_text("utf-8")
    written = recipe.read_file(out / "recipe.toml")
    assert re.search(r"^# .*train\.lr = .*: ", text, re.M)
    assert written["train"]["minutes"] == 0.02
    assert written["model"]["dim"] == 16
    assert "passes over the data" in capsys.readouterr().err


def test_resuming_plans_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = write_text(tmp_path / "a.txt"), tmp_path / "run"
    train("write", data, out=out, steps=2, set=TINY)
    before = (out / "recipe.toml").read_text("utf-8")
    monkeypatch.setattr(build, "follow_plan", lambda *_: pytest.fail("planned again"))
    train("write", out=out, steps=4, resume=True)
    after = (out / "recipe.toml").read_text("utf-8")
    assert before.replace("steps = 2", "steps = 4") == after  # with its reasons
    assert rows(out)[-1]["step"] == 4


def test_the_recipe_of_a_run_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_text(tmp_path / "a.txt")
    train("write", data, out=tmp_path / "run", steps=2, set=TINY)
    monkeypatch.setattr(follow, "plan_job", lambda *_: pytest.fail("planned again"))
    train(str(tmp_path / "run" / "recipe.toml"), out=tmp_path / "again")
    first, again = (recipe.read_file(tmp_path / name / "recipe.toml") for name in ("run", "again"))
    assert first == again


def test_the_precision_is_chosen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands in the recipe, and a run that goes on asks no processor for it."""
    monkeypatch.setattr(follow, "has_bf16", lambda device: True)
    options = TINY | {"model.dim": 64, "train.batch": 2, "model.context": 8, "train.precision": "auto"}
    train("write", write_text(tmp_path / "a.txt"), out=tmp_path / "out", steps=1, set=options)
    assert "bf16" in capsys.readouterr().err
    written = recipe.read_file(tmp_path / "out" / "recipe.toml")["train"]
    assert (written["precision"], written["compile"]) == ("bf16", "off")
    monkeypatch.setattr(follow, "has_bf16", lambda device: pytest.fail("chosen again"))
    uses = []
    monkeypatch.setattr(torch, "autocast", lambda *how, enabled: uses.append(enabled) or nullcontext())
    train("write", out=tmp_path / "out", resume=True, steps=2)
    assert True in uses


def test_dry_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_labels(tmp_path / "a.tsv")
    monkeypatch.chdir(tmp_path)
    chosen = build.plan("classify", data, machine="h200", minutes=1)
    assert chosen.request.machine == known_machine("h200")
    assert len(describe(chosen)) <= 6
    assert [p.name for p in tmp_path.iterdir()] == ["a.tsv"]


def test_settings_are_checked_before_the_data(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.txt")
    user_error(lambda: train("write", missing, set={"model.dim": "wide"}), "model.dim")
    user_error(lambda: train("write", missing, set={"train.lrr": 1}), "train.lrr")
    user_error(lambda: train("write", missing), "none.txt")
    assert not (tmp_path / "runs").exists()


def test_all_processes_follow_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(
        "write", [write_text(tmp_path / "a.txt")], (), tmp_path / "out", None, (), 7, None, None, TINY, False
    )
    monkeypatch.setattr(follow.distributed, "RANK", 1)
    monkeypatch.setattr(follow, "plan_job", lambda *_: pytest.fail("a plan of its own"))
    monkeypatch.setattr(
        follow.distributed, "broadcast", lambda mine: {"train.lr": 0.5, "model.dropout": 0.25}
    )
    follow.follow_plan(job, "gpt", None, torch.device("cpu"))
    assert (job.sections["train"]["lr"], job.sections["model"]["dropout"]) == (0.5, 0.25)
    monkeypatch.setattr(follow.distributed, "broadcast", lambda mine: None)  # the first one has failed
    with pytest.raises(SystemExit):
        follow.follow_plan(job, "gpt", None, torch.device("cpu"))


def test_bf16_on_a_processor_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled where steps have one shape, and the run is long."""
    monkeypatch.setattr("shutil.which", lambda name: name)

    def chosen(task: str, facts: Facts, bf16: bool = True, **by_hand: Any) -> Any:
        by_hand = {f"train.{key}" if "." not in key else key: value for key, value in by_hand.items()}
        machine = None if "train.steps" in by_hand else known_machine("cpu2")
        settings = make_plan(
            Request(task, KINDS.get(task, "gpt"), by_hand, facts, machine, bf16=bf16)
        ).settings
        return settings.get("train.precision"), settings.get("train.compile")

    assert chosen("write", SHAKESPEARE, minutes=10) == ("bf16", "on")
    assert chosen("write", SHAKESPEARE, minutes=3) == ("bf16", "off")
    assert chosen("write", SHAKESPEARE, minutes=10, compile="off") == ("bf16", None)
    assert chosen("write", SHAKESPEARE, steps=50) == ("bf16", "off")
    assert chosen("write", SHAKESPEARE, steps=10**6) == ("bf16", "on")
    assert chosen("translate", MULTI30K, minutes=100) == ("bf16", "off")
    assert chosen("write", SHAKESPEARE, minutes=10, precision="fp32") == (None, None)
    assert chosen("write", SHAKESPEARE, bf16=False, minutes=10) == (None, None)
    narrow = {"model.dim": 32, "model.heads": 2}
    assert chosen("write", SHAKESPEARE, minutes=10, **narrow) == (None, None)
    by_hand, cpu2 = {"train.minutes": 10, **narrow}, known_machine("cpu2")
    steps = {
        make_plan(Request("write", "gpt", by_hand, SHAKESPEARE, cpu2, bf16=bf16)).steps
        for bf16 in (True, False)
    }
    assert len(steps) == 1  # the speed of bf16 is not counted on
    for preset, expected in (("tiny", (None, None)), ("small", ("bf16", "off"))):  # 128 and 256 wide
        by_hand = {"train.minutes": 10, "model.preset": preset}
        recurrent = [
            make_plan(Request("translate", "gru", by_hand, MULTI30K, cpu2, bf16=bf16))
            for bf16 in (True, False)
        ]
        settings = recurrent[0].settings
        assert (settings.get("train.precision"), settings.get("train.compile")) == expected
        assert recurrent[0].steps == recurrent[1].steps
    cells = {"train.minutes": 60, "model.preset": "small", "model.cell": "lstm"}
    writer = make_plan(Request("write", "recurrent", cells, SHAKESPEARE, cpu2, bf16=True)).settings
    assert (writer["train.precision"], writer["train.compile"]) == ("bf16", "off")
    assert chosen("write", replace(SHAKESPEARE, built_in=True), steps=50) == (None, None)


def test_rare_classes_count_as_much() -> None:
    rare = replace(PHRASES, balance=0.95)
    assert plan("classify", rare, minutes=1).settings["task.balanced"] is True
    assert "task.balanced" not in plan("classify", PHRASES, minutes=1).settings


def test_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("The quick brown fox jumps over the lazy dog.\n")
    model = train("write", str(path), out=tmp_path / "out", steps=2, set={"train.device": "cpu"})
    assert model.model.config.context <= 8
