"""Hostile model folders: an error is one line, memory and time are limited, and no code is run."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helpers import hostile
from helpers.damaged import CASES, DEEP, REPLACE
from helpers.errors import user_error
from helpers.hostile import (
    KINDS,
    WEIGHTS,
    Damage,
    copy_folder,
    limit_memory,
    link,
    make_good,
    put_file,
    put_pickle,
    set_json,
    try_mutation,
    use_model,
)
from regard.files.tensors import write_tensors
from regard.models import MODELS
from regard.runs import recipe
from regard.runs.folder import begin
from regard.runs.load import load
from regard.tasks.write import Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid folder of each kind, which tests do not change."""
    top = make_good(tmp_path_factory.mktemp("good"))
    for kind in KINDS:
        use_model(top / kind)
    return top


@pytest.mark.parametrize(
    ("kind", "damage", "word"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_is_wrong_is_reported(tmp_path: Path, good: Path, kind: str, damage: Damage, word: str) -> None:
    folder = copy_folder(good, kind, tmp_path / "bad")
    damage(folder)
    with limit_memory(folder):
        said = user_error(lambda: use_model(folder))
    assert any(choice in said for choice in word.split("|")), said


BROKEN = {
    "deep": "a = " + "[" * DEEP,
    "half": "[model",
    "not-utf8": b"\xff",
    "other": "[evil]\na = 1",
    "flat": "model = 3",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_recipes(tmp_path: Path, content: Any) -> None:
    put_file("recipe.toml", content)(tmp_path)
    user_error(lambda: recipe.read_file(tmp_path / "recipe.toml"), "recipe.toml")


def test_pickles_beside_are_left_alone(tmp_path: Path, good: Path) -> None:
    folder = copy_folder(good, "llama", tmp_path / "a")
    for name in ("training_args.bin", "pytorch_model.bin", "tokenizer.pkl", "optimizer.pt"):
        put_pickle(name)(folder)
    with limit_memory(folder):
        use_model(folder)


def test_links_are_followed_to_files(tmp_path: Path, good: Path) -> None:
    """As in the hub's cache."""
    folder = copy_folder(good, "llama", tmp_path / "a")
    link(WEIGHTS, str(good / "llama" / WEIGHTS))(folder)
    use_model(folder)


def test_a_regex_without_an_end(tmp_path: Path, good: Path) -> None:
    """Refused by the time it takes or by the library's own limit, whichever comes first on this processor."""
    folder = copy_folder(good, "llama", tmp_path / "a")
    set_json("tokenizer.json", "normalizer", to=REPLACE | {"pattern": {"Regex": "(a+)+(a+)+$"}})(folder)
    with limit_memory(folder):
        message = user_error(lambda: use_model(folder), "tokenizer.json", "the tokenizer")
        assert "retry-limit" in message or "(a+)+(a+)+$" in message


def test_memory_of_a_good_one(tmp_path: Path) -> None:
    """At most twice the size of the file, for a valid folder too."""
    sizes = {"positions": "learned", "context": 2**15, "dim": 512, "depth": 1, "heads": 2, "vocab": 11}
    module, config, _ = MODELS["gpt"]
    sections = {"model": {"kind": "gpt"}, "task": {"name": "write"}, "data": {}, "train": {}}
    model = module(config(**sizes))
    tokenizer = train_tokenizer("char", ["The cats"], 11, ("<|endoftext|>",))
    begin(tmp_path / "a", model, Write(WriteConfig(name="write"), tokenizer, 2**15), sections)
    write_tensors(tmp_path / "a" / WEIGHTS, model.state_dict())
    del model
    with limit_memory(tmp_path / "a"):
        load(tmp_path / "a", "cpu")


def test_mutations(tmp_path: Path, good: Path) -> None:
    """As below, but fewer; some have an effect, and some have none."""
    results = [try_mutation(good, tmp_path, number) for number in range(120)]
    assert 40 < sum(map(bool, results)) < 120


@pytest.mark.slow
def test_many_mutations(tmp_path: Path, good: Path) -> None:
    """20,000: each gives a UserError of one line, or has no effect; none hangs or crashes."""
    many, workers = 20_000, os.cpu_count() or 1
    running = []
    for n in range(workers):
        (tmp_path / str(n)).mkdir()
        bounds = [str(n * many // workers), str((n + 1) * many // workers)]
        args = [sys.executable, hostile.__file__, str(good), str(tmp_path / str(n)), *bounds]
        running.append(
            subprocess.Popen(
                args, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            )
        )
    results = [json.loads(process.communicate()[0]) for process in running]
    outcomes = sum((Counter(result["outcomes"]) for result in results), Counter())
    print(outcomes, f"{max(result['peak'] for result in results) >> 20} MiB")
    assert set(outcomes) == {"mistakes", "loads"}
    assert outcomes.total() == many
