"""Recipes: a short TOML with [model] [data] [task] [train], and changes to it, checked key by key.

Each part of the program owns a dataclass; a section of the recipe holds its fields.
"""

import json
import re
import tomllib
import types
import typing
from collections.abc import Hashable, Iterable
from dataclasses import MISSING, fields
from itertools import takewhile
from pathlib import Path
from typing import Any

from regard.errors import UserError, shorten, suggest
from regard.files.regular import check_name
from regard.files.untrusted import read_text

RECIPES = Path(__file__).parents[1] / "recipes"
T = typing.TypeVar("T")
UNWRITABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # that TOML does not allow in comments
LARGEST = {int: 2**63 - 1, float: 1e30}  # the integers that torch can compute with
KINDS = {bool: "true or false", int: "a whole number", float: "a number"}
NAMES = "model.kind", "model.preset", "task.name"  # settings that choose a part of Regard by its name
Sections = dict[str, dict[str, Any]]


def names() -> dict[str, str]:
    """Return the built-in recipes, each with its one-line description."""
    return {p.stem: tomllib.loads(p.read_text("utf-8"))["about"] for p in sorted(RECIPES.glob("*.toml"))}


def read(recipe: str) -> Sections:
    """Read a recipe's sections, from its name or its file."""
    path = RECIPES / f"{recipe}.toml"
    if not path.is_file():
        path = Path(recipe)
        if path.suffix != ".toml":
            raise UserError(f"no recipe called {recipe}; {suggest(recipe, names())} (or give a .toml file)")
    return read_file(path)


def read_file(path: Path) -> Sections:
    try:
        sections = tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe file") from None
    except (OSError, tomllib.TOMLDecodeError) as e:
        raise UserError(f"{path}: not a readable recipe: {e}") from None
    except RecursionError:
        raise UserError(f"{path}: not a readable recipe: nested too deeply") from None
    sections.pop("about", None)
    for name, section in sections.items():
        if name not in ("model", "data", "task", "train") or not isinstance(section, dict):
            raise UserError(f"{path}: [{name}] is not a recipe's section; use [model] [data] [task] [train]")
    for key in NAMES:
        section, _, name = key.partition(".")
        require_name(f"{path}: {key}", sections.get(section, {}).get(name, ""))
    return {"model": {}, "data": {}, "task": {}, "train": {}} | sections


def require_name(key: str, value: Any) -> None:
    """Raise UserError unless a setting that chooses a part of Regard is a text."""
    if not isinstance(value, str):
        raise UserError(f"{key}={value!r} should be a name")


def change(sections: Sections, changes: dict[str, Any]) -> Sections:
    """Return the recipe with `section.key` values replaced."""
    new = {name: dict(section) for name, section in sections.items()}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if section not in new or not name:
            raise UserError(f"{key}: a key is SECTION.NAME, like model.dim; sections are {', '.join(new)}")
        name, _, inner = name.partition(".")
        new[section][name] = {**_table(key, new[section].get(name)), inner: value} if inner else value
    return new


def _table(key: str, value: Any) -> dict[str, Any]:
    """Return the value of a setting that is itself a table, such as data.columns."""
    if not isinstance(value, dict | None):
        raise UserError(f"{key}: {key.rpartition('.')[0]} is {value!r}, which has no settings of its own")
    return value or {}


def take_sources(sections: Sections, where: str | Path) -> tuple[list[str], list[str], str | None, list[str]]:
    """Take the training and validation data, the base model and the teachers out of a run's recipe."""
    names = ("files", "valid", "from", "teacher")
    files, held_out, base, teachers = (sections["data"].pop(name, None) for name in names)
    for key, value in (("files", files), ("valid", held_out), ("from", [base]), ("teacher", teachers)):
        if value and not (isinstance(value, list) and all(isinstance(v, str | None) for v in value)):
            raise UserError(f"{where}: data.{key}={value!r} should name files")
    return files or [], held_out or [], base, teachers or []


def assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Parse KEY=VALUE from the command line: numbers, true, false and lists, or else text."""
    assigned = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set {text}: write it as KEY=VALUE, like --set model.dim=256")
        try:
            read = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            read = value
        assigned[key.strip()] = read if isinstance(read, bool | int | float | str | list) else value
    return assigned


def fill(section: str, values: dict[str, Any], config_class: type[T], **more: Any) -> T:
    """Make a `config_class` from a section's values; errors name the key and the type that it should have."""
    aliases: dict[str, str] = getattr(config_class, "ALIASES", {})  # former names of settings
    former: dict[str, dict[Any, Any]] = getattr(config_class, "FORMER_VALUES", {})
    values = {aliases.get(name, name): value for name, value in values.items()}
    values |= {
        name: former[name].get(value, value)
        for name, value in values.items()
        if name in former and isinstance(value, Hashable)
    }
    known = {f.name: f for f in fields(config_class) if f.name not in more}  # type: ignore[arg-type]
    hints = typing.get_type_hints(config_class)
    for name, value in values.items():
        if name not in known:
            raise UserError(f"{section}.{name} is not a setting; {suggest(name, known, f'{section}.')}")
        values = values | {name: fit(f"{section}.{name}", value, hints[name])}
    for name, f in known.items():
        if f.default is f.default_factory is MISSING and name not in values:
            raise UserError(f"{section}.{name} is missing from the recipe; give it with --set")
    try:
        return config_class(**values, **more)
    except ValueError as e:
        raise UserError(f"{section}: {e}") from None


def restore_types(values: dict[str, Any], config: Any) -> None:
    """Convert the numbers of a section to the types of its dataclass: 1e2 may be 100."""
    for name, value in values.items():
        if type(value) in (int, float):
            values[name] = getattr(config, name, value)


def fit(key: str, value: Any, kind: Any) -> Any:
    """Return the value as the annotated type, or raise UserError that names the key."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        if value is None or value == "none":  # TOML has no null
            return None
        (kind,) = (k for k in typing.get_args(kind) if k is not types.NoneType)
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            hint = suggest(str(value), map(str, choices))
            raise UserError(f"{key}={value} is not a choice; {hint}")
        return value
    if typing.get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise UserError(f'{key}={value!r} should be a table, like {{text = "review"}}')
        return {name: fit(f"{key}.{name}", one, typing.get_args(kind)[1]) for name, one in value.items()}
    if typing.get_origin(kind) is tuple:  # TOML and JSON have lists
        if not isinstance(value, list | tuple):
            raise UserError(f'{key}={value!r} should be a list, like ["a", "b"]')
        return tuple(fit(key, one, typing.get_args(kind)[0]) for one in value)
    if kind in LARGEST and isinstance(value, int | float) and not abs(value) <= LARGEST[kind]:
        what = "not a number; give one" if value != value else "too large a number; give a smaller one"
        raise UserError(f"{key}={shorten(value)} is {what}")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is str and not isinstance(value, str):
        return str(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise UserError(f"{key}={value!r} should be {KINDS.get(kind, f'a {kind.__name__}')}")
    return value


def read_comments(path: Path) -> list[str]:
    """Return the lines of comments that a recipe begins with."""
    lines = read_text(path).splitlines()
    return [
        line.removeprefix("#").removeprefix(" ") for line in takewhile(lambda x: x.startswith("#"), lines)
    ]


def to_toml(sections: Sections, comments: Iterable[str] = ()) -> str:
    """Format sections of plain values as TOML, after comments."""
    lines = [f"# {UNWRITABLE.sub('�', ' '.join(comment.splitlines()))}".rstrip() for comment in comments]
    for name, section in sections.items():
        lines += [f"[{name}]"]
        lines += [f"{key} = {format_value(value)}" for key, value in section.items() if value is not None]
        lines += [""]
    return "\n".join(lines)


def format_value(value: Any) -> str:
    """Format a value: JSON writes most values as TOML does, but not infinity and the delete character."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        pairs = (f"{format_value(name)} = {format_value(one)}" for name, one in value.items())
        return f"{{{', '.join(pairs)}}}"
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    check_name(text)
    return text
