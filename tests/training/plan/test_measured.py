"""Rules that rest on the sweeps of docs/plan.md."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bench.rows import plan_page
from bench.rows.sweeps import SWEEPS

from regard.training.compilation import should_compile
from regard.training.config import TrainConfig
from regard.training.plan import rules
from regard.training.plan.facts import TURNS, Facts, read_facts, stay_mirrored

DOCS = Path(__file__).parents[3] / "docs"
WRITE = rules.ADVICE["write"]


def test_one_rate_for_all_widths_and_more_for_large_batches() -> None:
    assert {rules.choose_lr(WRITE, dim, 4096) for dim in (64, 128, 256, 512)} == {4e-3}
    assert rules.choose_lr(WRITE, 128, 1024) == 4e-3
    assert 6e-3 <= rules.choose_lr(WRITE, 384, 16384) <= 8e-3


def test_pressure_grows_with_passes_and_size() -> None:
    assert rules.pressure_to_memorise(4, 100) == 0
    assert rules.pressure_to_memorise(1000, 0.5) == 0
    assert rules.pressure_to_memorise(32, 8) == 1
    assert 0 < rules.pressure_to_memorise(10, 4) < rules.pressure_to_memorise(20, 4) < 1


def test_small_models_have_no_dropout_and_large_ones_have_weight_decay() -> None:
    small, large = rules.pressure_to_memorise(16, 0.75), rules.pressure_to_memorise(10, 10)
    assert rules.choose_dropout(WRITE, small, 16) <= 0.05
    assert rules.choose_dropout(WRITE, large, 10) == pytest.approx(0.1)
    assert rules.choose_weight_decay(WRITE, large) == 1
    assert rules.choose_weight_decay(WRITE, 0.0) == 0.1
    assert (rules.choose_schedule("write", 0.0), rules.choose_schedule("write", large)) == ("linear", "wsd")


def test_small_sets_are_repeated_more_often() -> None:
    passes = [
        rules.choose_passes(rules.ADVICE["classify"], units, float("inf")) for units in (1e3, 1e5, 1e6, 1e8)
    ]
    assert passes == sorted(passes, reverse=True)
    assert passes[-1] == passes[-2] < passes[0] / 5


def test_warm_up_is_never_most_of_a_run() -> None:
    assert all(rules.choose_warmup(steps) <= steps / 4 for steps in (1, 10, 30, 1000))


def test_symmetric_pictures_may_be_mirrored_and_others_not() -> None:
    rng, labels = np.random.default_rng(0), np.arange(400) % 4
    shapes = np.zeros((4, 8, 8))
    shapes[0, :, :3] = shapes[1, :, 5:] = shapes[2, :4, :3] = shapes[3, :4, 5:] = 200  # left and right
    sided = np.clip(shapes[labels] + rng.normal(0, 30, (400, 8, 8)), 0, 255).astype(np.uint8)
    assert not stay_mirrored(sided, labels)
    even = np.maximum(sided, sided[:, :, ::-1])
    even[labels % 2 == 1] = 255 - even[labels % 2 == 1]
    assert stay_mirrored(even, labels)


def test_conversations_are_read_with_the_turns_before(tmp_path: Path) -> None:
    turns = [f"turn {i}" for i in range(30)]
    talk = tmp_path / "talk.tsv"
    talk.write_text("".join(f"{a}\t{b}\n" for a, b in itertools.pairwise(turns)))
    alone = tmp_path / "alone.tsv"
    alone.write_text("".join(f"question {t}\tanswer {t}\n" for t in turns))
    assert read_facts("chat", [str(talk)]).turns == TURNS
    assert read_facts("chat", [str(talk)], turns=1).turns == 1
    assert read_facts("chat", [str(alone)]).turns == 1
    assert rules.other_settings("chat", Facts(turns=3), 1.0, gpu=False)["task.turns"] == 3


@pytest.mark.parametrize(
    ("settings", "static", "compiled"),
    [
        ({"minutes": 5}, True, True),
        ({"minutes": 5}, False, False),
        ({"minutes": 20}, False, True),
        ({"minutes": 5, "steps": 1200}, True, False),  # done long before
        ({"minutes": 5, "steps": 6000}, True, True),
        ({"minutes": 5, "steps": 6000}, False, False),
    ],
)
def test_short_runs_are_not_compiled(settings: dict[str, Any], static: bool, compiled: bool) -> None:
    task = SimpleNamespace(static_shapes=static)
    assert should_compile(task, TrainConfig(**settings), torch.device("cuda"), graphs=True) == compiled


def test_the_page_has_what_was_measured() -> None:
    rows = [row for row in json.loads((DOCS / "plan.json").read_text()) if not row.get("unfinished")]
    text = (DOCS / "plan.md").read_text()
    tables = [table for table in plan_page.TABLES if f"<!-- {table.name} -->" in text]
    assert tables
    assert all(plan_page.markdown(table, rows) in text for table in tables if table.cells(rows))
    assert {row["sweep"] for row in rows} <= {job.sweep for jobs in SWEEPS.values() for job in jobs}
