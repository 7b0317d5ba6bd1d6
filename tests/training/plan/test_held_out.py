"""As much text is held out as is enough, and as there is time to evaluate on."""

from dataclasses import replace
from pathlib import Path

import pytest

from regard.training.build import plan
from regard.training.plan import held_out
from regard.training.plan.facts import Facts, Side
from regard.training.plan.held_out import ENOUGH, LEAST, limit_held_out
from regard.training.plan.plan import Plan, make_plan
from regard.training.plan.sizes import Request
from regard.training.plan.speed import known_machine


def of_text(characters: int, minutes: float, machine: str = "cpu2", held: float = 0.1) -> Plan:
    side = Side(characters=characters, words=characters // 5, alphabet=90, vocabulary=50_000, longest=900)
    by_hand = {"train.minutes": minutes}
    return make_plan(
        Request("write", "gpt", by_hand, Facts(rows=9, source=side), known_machine(machine), held=held)
    )


def test_a_tenth_of_a_short_text_and_less_of_a_long_one() -> None:
    assert limit_held_out(0.1, 1_000_000) == 0.1
    assert limit_held_out(0.1, 10**9) * 10**9 == pytest.approx(ENOUGH)


def test_an_evaluation_takes_a_small_part_of_the_time() -> None:
    shares = [limit_held_out(0.1, 10**8, of_text(10**8, minutes)) for minutes in (0.05, 2)]
    assert shares[0] < shares[1] < 0.1
    assert shares[0] * 10**8 >= 0.99 * LEAST
    assert limit_held_out(0.1, 10**8, of_text(10**8, 5, "h200")) == pytest.approx(ENOUGH / 10**8)


def test_short_runs_on_long_texts_train_instead_of_evaluating() -> None:
    """Otherwise, a tenth of a gigabyte leaves time for a few steps only."""
    share = limit_held_out(limit_held_out(0.1, 10**9), 10**9, of_text(10**9, 5, held=0.002))
    assert of_text(10**9, 5, held=share).passes > 2 * of_text(10**9, 5, held=0.1).passes


def test_the_plan_chooses_the_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "ENOUGH", 1e5)
    text = tmp_path / "long.txt"
    text.write_text("The cat sat on the mat, and the dog did not.\n" * 30_000)
    planned = plan("write", str(text), minutes=5, machine="h200")
    share = planned.settings["data.holdout"]
    assert share * text.stat().st_size == pytest.approx(1e5, rel=0.05)
    assert f"{100 * share:.2g}% held out" in " ".join(planned.data)
    by_hand = plan("write", str(text), minutes=5, machine="h200", set={"data.holdout": 0.2})
    assert "data.holdout" not in by_hand.settings
    assert replace(by_hand.request.facts, rows=1).characters < planned.request.facts.characters
