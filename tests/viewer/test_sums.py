"""Every number of every family is the sum that its description says it is."""

from pathlib import Path

import pytest

from helpers.families import FAMILIES, load_folder, whole_input
from helpers.folders import MAKERS
from helpers.sums import check_sums
from regard import trace
from regard.runs.model import Model
from regard.tracing import Trace
from regard.viewer.sums import describe_trace

NO_SUMS = {  # by the last part of a name: why it is not opened as a sum
    "mask": "a rule, not a sum",
    "reason": "a rule, not a sum",
    "pixels": "the input itself",
    "segment": "the input itself",
}
EXCEPTIONS = {
    ("span", "probabilities"): "a softmax over places that only the task knows",
    ("elmo-span", "probabilities"): "a softmax over places that only the task knows",
    ("long-span", "probabilities"): "a softmax over places that only the task knows",
    ("vit-larger", "positions"): "interpolated from those of training",
    ("zoom", "image"): "interpolated from the pixels",
}


def check(kind: str, model: Model, run: Trace) -> None:
    errors = check_sums(model, run)
    left = {name.rpartition(".")[2] for name in set(run) - set(errors)}
    assert {name for name in left - NO_SUMS.keys() if (kind, name) not in EXCEPTIONS} == set()
    _, texts = describe_trace(model, run)
    assert {name for name in errors if not texts[name].formula} == set()
    assert {name for name in run if texts[name].title == name or not texts[name].about} == set()


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_sum_is_right(kind: str) -> None:
    model, input = FAMILIES[kind]()
    check(kind, model, trace(model, whole_input(model, input)))


@pytest.mark.parametrize(
    "kind",
    [
        "gpt2",
        "gpt",
        "alibi",
        "waves",
        "relative",
        "t5",
        "gru",
        "lstm",
        "captioner",
        "gru-writer",
        "lstm-writer",
    ],
)
def test_every_sum_of_a_step_is_right(kind: str) -> None:
    """Positions and distances go on where the step before ended; what a step does not compute is no sum."""
    model, input = FAMILIES[kind]()
    steps = trace(model, input, steps=True, max_new_tokens=3, temperature=0.0)
    assert [len(check_sums(model, step)) > 10 for step in steps] == [True] * len(steps)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", MAKERS)
def test_every_sum_of_a_loaded_folder_is_right(tmp_path: Path, kind: str, seed: int) -> None:
    """The settings are random: activations, shared keys, windows, stretched rotations."""
    model, input = load_folder(tmp_path, kind, seed)
    check(kind, model, trace(model, input))
