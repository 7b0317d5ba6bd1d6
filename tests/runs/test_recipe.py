"""Recipes: every key and type is checked and named, and what is written can be read."""

import math
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pytest

from helpers.errors import user_error
from regard.errors import suggest
from regard.models import MODELS, GPTConfig
from regard.runs.recipe import NAMES, Sections, assignments, change, fill, names, read, to_toml
from regard.tasks import TASKS
from regard.training.build import train
from regard.training.config import TrainConfig
from regard.training.plan.built_in import BUILT_IN
from regard.training.settings import FROM_DATA


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """One field of every kind that a configuration may have."""

    integer: int
    number: float = 0.5
    switch: bool = False
    text: str = ""
    maybe: int | None = None
    choice: Literal["one", "two"] = "one"
    choice_or_none: Literal["one", "two"] | None = None
    many: list = field(default_factory=list)
    names: tuple[str, ...] | None = None
    numbers: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.integer < 0:
            raise ValueError(f"integer={self.integer} must not be negative")


# Built-in recipes and files


def test_names_have_descriptions() -> None:
    recipes = names()
    assert "write" in recipes
    assert list(recipes) == sorted(recipes)
    assert all(about and "\n" not in about for about in recipes.values())


def flatten(sections: Sections) -> set[str]:
    return {f"{name}.{key}" for name, section in sections.items() for key in section}


@pytest.mark.parametrize("name", names())
def test_built_in_recipes_fit(name: str) -> None:
    sections = read(name)
    assert list(sections) == ["model", "data", "task", "train"]
    sections = change(sections, {k: v for k, v in BUILT_IN[name].items() if k not in flatten(sections)})
    fill("train", sections["train"], TrainConfig)
    task, config = TASKS[sections["task"]["name"]]
    fill("data", sections["data"], task.data_config)
    fill("task", sections["task"], config)
    kind = sections["model"].pop("kind")
    assert kind in task.kinds
    _, config, presets = MODELS[kind]
    model = presets[sections["model"].pop("preset")] | sections["model"]
    fill("model", model, config, **{f.name: 9 for f in fields(config) if f.name in FROM_DATA})


def test_unknown_recipe_names_the_nearest() -> None:
    user_error(lambda: read("wirte"), "no recipe called wirte", "did you mean write?", ".toml")
    user_error(lambda: read("zzz"), "known are", *names())


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('about = "é"\n[model]\nkind = "gpt"\n[train]\nsteps = 3\n', "utf-8")
    assert read(str(path)) == {"model": {"kind": "gpt"}, "data": {}, "task": {}, "train": {"steps": 3}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[modle]\ndim = 3\n", ["[modle]", "[model] [data] [task] [train]"]),
        (b"steps = 3\n", ["[steps]", "[train]"]),
        (b"model = 3\n", ["[model]"]),
        (b"[model]\ndim 3\n", ["not a readable recipe", "line 2"]),
        (b"[model]\ndim = 3\ndim = 4\n", ["not a readable recipe", "line 3"]),
        (b"\xff", ["UTF-8"]),
    ],
)
def test_a_bad_file(tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    user_error(lambda: read(str(tmp_path / "a.toml")), tmp_path / "a.toml", *words)


def test_no_such_file(tmp_path: Path) -> None:
    user_error(lambda: read(str(tmp_path / "a.toml")), tmp_path / "a.toml", "no such recipe file")
    (tmp_path / "b.toml").mkdir()
    user_error(lambda: read(str(tmp_path / "b.toml")), tmp_path / "b.toml", "not a file")


# Changes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6", 6),
        ("-6", -6),
        ("1_000", 1000),
        ("1e-3", 1e-3),
        ("0.5", 0.5),
        ("inf", math.inf),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("bpe", "bpe"),
        ("", ""),
        ("runs/write-2/tokenizer.json", "runs/write-2/tokenizer.json"),
        ("C:\\texts\\new", "C:\\texts\\new"),
        ("a b=c # d", "a b=c # d"),
        ('"6"', "6"),
        ("'a \\n'", "a \\n"),
        ('"a', '"a'),
        ("2024-01-01", "2024-01-01"),
        ("[1, 2]", [1, 2]),
        ('["a", "b c"]', ["a", "b c"]),
        ("[a, b]", "[a, b]"),  # no TOML
        ("{a = 1}", "{a = 1}"),
    ],
)
def test_assignments(text: str, value: Any) -> None:
    values = assignments([f"model.x={text}", " train.steps =7"])
    assert values == {"model.x": value, "train.steps": 7}
    assert type(values["model.x"]) is type(value)


def test_assignments_need_an_equals_sign() -> None:
    user_error(lambda: assignments(["model.dim"]), "--set model.dim", "KEY=VALUE")


def test_change_replaces_and_leaves_the_recipe() -> None:
    recipe = read("write")
    new = change(recipe, {"train.steps": 5, "model.dim": 64})
    assert new["train"]["steps"] == 5
    assert new["model"] == recipe["model"] | {"dim": 64}
    assert recipe == read("write")


@pytest.mark.parametrize("key", ["dim", "modle.dim", "model", "model.", ".dim", ""])
def test_change_of_no_section(key: str) -> None:
    user_error(
        lambda: change(read("write"), {key: 3}), f"{key}: ", "SECTION.NAME", "model, data, task, train"
    )


def test_a_misspelt_key_names_the_right_one() -> None:
    sections = change(read("write"), assignments(["model.depht=6", "train.stesp=3"]))
    model = {k: v for k, v in sections["model"].items() if k not in ("kind", "preset")}
    user_error(lambda: fill("model", model, GPTConfig, vocab=1), "model.depht", "did you mean model.depth?")
    user_error(
        lambda: fill("train", sections["train"], TrainConfig), "train.stesp", "did you mean train.steps?"
    )
    user_error(
        lambda: fill("model", {"qqq": 1}, GPTConfig, vocab=1), "model.qqq", "known are", "dim, dropout"
    )


def test_nearest() -> None:
    assert suggest("haeds", ["heads", "dim"]) == "did you mean heads?"
    assert suggest("zzz", ["heads", "dim"]) == "known are dim, heads"


# Filling


def test_fill() -> None:
    values = {"integer": 3.0, "number": 2, "switch": True, "maybe": None, "choice": "two", "many": [1]}
    config = fill("s", values | {"choice_or_none": "one", "text": "x"}, Kinds)
    assert config == Kinds(
        integer=3, number=2.0, switch=True, choice="two", many=[1], choice_or_none="one", text="x"
    )
    assert (type(config.integer), type(config.number)) == (int, float)
    assert values["integer"] == 3.0
    assert fill("s", {"text": 7, "choice_or_none": None}, Kinds, integer=1) == Kinds(integer=1, text="7")
    lists = fill("s", {"names": ["a", 7], "numbers": [1, 2.5], "integer": 1}, Kinds)  # of TOML and JSON
    assert lists == Kinds(integer=1, names=("a", "7"), numbers=(1.0, 2.5))
    assert type(lists.numbers[0]) is float
    assert fill("s", {"names": ("a",), "integer": 1}, Kinds).names == ("a",)
    assert fill("s", {"names": "none", "integer": 1}, Kinds).names is None
    without = {"maybe": "none", "choice_or_none": "none", "text": "none"}  # TOML has no word for it
    assert fill("s", without, Kinds, integer=1) == Kinds(integer=1, text="none")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"integer": "3"}, ["s.integer='3'", "a whole number"]),
        ({"integer": 3.5}, ["s.integer=3.5"]),
        ({"integer": True}, ["s.integer=True"]),
        ({"integer": math.inf}, ["s.integer=inf"]),
        ({"integer": 2**63}, ["s.integer=9223372036854775808", "too large"]),
        ({"integer": -(2**70)}, ["s.integer=-1180591620717411303424", "too large"]),
        ({"integer": 1e99}, ["s.integer=1e+99", "too large"]),
        ({"integer": 1, "number": 1e300}, ["s.number=1e+300", "too large"]),
        ({"integer": 1, "number": 10**400}, ["s.number=1000", "too large"]),
        ({"integer": 1, "number": "x"}, ["s.number='x'", "a number"]),
        ({"integer": 1, "number": True}, ["s.number=True"]),
        ({"integer": 1, "switch": 1}, ["s.switch=1", "true or false"]),
        ({"integer": 1, "switch": "True"}, ["s.switch='True'", "true or false"]),
        ({"integer": 1, "maybe": "some"}, ["s.maybe='some'"]),
        ({"integer": "none"}, ["s.integer='none'"]),
        ({"integer": 1, "choice": "tow"}, ["s.choice=tow", "did you mean two?"]),
        ({"integer": 1, "choice": 7}, ["s.choice=7", "one, two"]),
        ({"integer": 1, "choice": ["one"]}, ["s.choice=['one']"]),
        ({"integer": 1, "choice_or_none": "tow"}, ["s.choice_or_none=tow", "did you mean two?"]),
        ({"integer": 1, "names": "a, b"}, ["s.names='a, b'", 'a list, like ["a", "b"]']),
        ({"integer": 1, "numbers": [1, "x"]}, ["s.numbers='x'", "a number"]),
        ({"integer": 1, "numbers": 1.0}, ["s.numbers=1.0", "a list"]),
        ({"integer": -1}, ["s: integer=-1 must not be negative"]),
        ({}, ["s.integer is missing", "--set"]),
        ({"integer": 1, "numbre": 2}, ["s.numbre", "did you mean s.number?"]),
    ],
)
def test_fill_names_what_is_wrong(values: dict[str, Any], words: list[str]) -> None:
    user_error(lambda: fill("s", values, Kinds), *words)


def test_what_is_given_beside_is_no_setting() -> None:
    user_error(lambda: fill("s", {"integer": 2}, Kinds, integer=1), "s.integer is not a setting")


# Writing


def test_to_toml_is_read_back() -> None:
    odd = [
        "",
        'quo"te',
        "back\\slash",
        "new\nline\r",
        "tab\t",
        "\x00\x01\x1f\x7f\x80",
        "é 😀 \u2028",
        "'''",
        "#",
    ]
    sections = {
        "model": {f"s{i}": text for i, text in enumerate(odd)},
        "data": {"files": odd, "none": []},
        "task": {"labels": ["a", "b\x7f"], "weights": [0.5, 1e-7, 2.0]},
        "train": {"a": 1, "b": -0.1, "c": 1e-5, "d": 1e300, "e": True, "f": math.inf, "g": 3.0, "h": 1e22},
    }
    parsed = tomllib.loads(to_toml(sections))
    assert parsed == sections
    assert all(type(parsed["train"][k]) is type(v) for k, v in sections["train"].items())
    assert math.isnan(tomllib.loads(to_toml({"a": {"b": math.nan}}))["a"]["b"])


def test_none_is_left_out() -> None:
    assert tomllib.loads(to_toml({"train": {"steps": None, "lr": 1.0}})) == {"train": {"lr": 1.0}}


def test_a_recipe_comes_back_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(to_toml(read("write")), "utf-8")
    assert read(str(tmp_path / "a.toml")) == read("write")


def test_former_names_of_settings_are_read() -> None:
    """Recipes and config.json of earlier versions say `window` for a GPT's `sliding_window`."""
    config = fill("model", {"vocab": 7, "window": 5, "stretch": [8, 1, 4, 64]}, GPTConfig)
    assert (config.sliding_window, config.rope_scaling) == (5, (8.0, 1.0, 4.0, 64.0))
    user_error(lambda: fill("model", {"vocab": 7, "window": "a"}, GPTConfig), "model.sliding_window='a'")


@pytest.mark.parametrize("value", [[], {"a": 1}])
def test_a_list_where_a_name_belongs(tmp_path: Path, value: Any) -> None:
    """No dictionary can look it up."""
    user_error(lambda: fill("train", {"tracker": value}, TrainConfig), "train.tracker")
    for key in NAMES:
        section, _, name = key.partition(".")
        (tmp_path / "a.toml").write_text(to_toml({section: {name: value}}))
        user_error(lambda: read(str(tmp_path / "a.toml")), tmp_path / "a.toml", key)
        user_error(lambda key=key: train("write", out=tmp_path / "out", set={key: value}), key)
    user_error(lambda: train("write", out=tmp_path / "out", set={"kind": value}), "kind")
