"""The house as DESIGN.md draws it: imports go down only, and the core stays small and quiet."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import regard

HERE = Path(regard.__file__).parent
FLOORS = [
    ["errors", "files"],
    ["positions", "cache"],
    ["attention"],
    ["layers", "recurrent"],
    ["models"],
    ["watch", "generate", "beam", "ensemble", "fast", "checkpoint", "convert", "weights"],
    [
        *("text", "sentences", "data", "recipe", "tasks", "loss", "scoring", "optim", "lora", "distributed"),
        *("vectors", "log", "meter", "display", "curve", "run", "trace", "change", "trainer", "train"),
        "template",
    ],
    ["look", "serve", "demo", "bench"],
    ["cli"],
]
RANK = {room: rank for rank, rooms in enumerate(FLOORS) for room in rooms}
CORE = {"positions", "cache", "attention", "layers", "recurrent", "models"}
FILES = sorted(path for path in HERE.rglob("*.py"))
CORE_FILES = [path for path in FILES if path.relative_to(HERE).with_suffix("").parts[0] in CORE]


def room(module: str) -> str:
    """regard.models.gpt is in models; regard itself and regard.__main__ stand above all rooms."""
    return module.split(".")[1] if "." in module else ""


def module(path: Path) -> str:
    parts = path.relative_to(HERE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(module, names taken from it) of every import statement of a file, wherever it stands."""
    package = module(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield ".".join([*base, *([node.module] if node.module else [])]), [a.name for a in node.names]


def regard_imports(path: Path) -> set[str]:
    """The modules of ours that a file imports."""
    known, found = {module(p) for p in FILES}, set()
    for name, taken in imports(path):
        if name.split(".")[0] == "regard":
            inside = {f"{name}.{t}" for t in taken if f"{name}.{t}" in known}
            found |= inside or {name}
    return found


def test_every_room_has_a_floor() -> None:
    rooms = {room(module(path)) for path in FILES} - {"", "__main__"}
    assert rooms - {"builtin", "recipes"} <= set(RANK), "a new room needs its place in FLOORS"


@pytest.mark.parametrize("path", FILES, ids=module)
def test_imports_go_down(path: Path) -> None:
    here = room(module(path))
    if here in RANK:
        for other in regard_imports(path):
            if room(other):  # `from . import __version__` is nobody's room
                assert RANK[room(other)] <= RANK[here], f"{here} imports {other} from above"


def test_imports_never_go_round() -> None:
    graph = {module(path): regard_imports(path) - {"regard"} for path in FILES}
    graph = {name: others - {name} for name, others in graph.items() if name != "regard"}
    list(TopologicalSorter(graph).static_order())  # a cycle raises, and is named


@pytest.mark.parametrize("path", CORE_FILES, ids=module)
def test_core_needs_only_torch(path: Path) -> None:
    allowed = {"math", "collections", "dataclasses", "functools", "itertools", "typing", "torch", "regard"}
    assert {name.split(".")[0] for name, _ in imports(path)} <= allowed
    assert {room(name) for name in regard_imports(path)} <= CORE


@pytest.mark.parametrize("path", CORE_FILES, ids=module)
def test_core_is_quiet(path: Path) -> None:
    """No files, no printing, no losses, no training."""
    loud = re.compile(
        r"(?i)^(open|print|input|exec|eval|load|save|backward|.*loss.*|.*cross_entropy.*|optim)$"
    )
    for node in ast.walk(ast.parse(path.read_text())):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        assert not loud.match(name), f"{path.name}:{getattr(node, 'lineno', 0)}: {name}"


def test_core_is_an_evening_read() -> None:
    assert {path.stem for path in CORE_FILES} >= {"positions", "cache", "attention", "layers", "gpt"}
    lines = {module(path): sum(map(bool, path.read_text().splitlines())) for path in CORE_FILES}
    assert sum(lines.values()) <= 1850, lines


@pytest.mark.parametrize("path", FILES, ids=module)
def test_no_pickles(path: Path) -> None:
    """Loading a pickle runs whatever its author wrote."""
    pickles = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    assert not {name.split(".")[0] for name, _ in imports(path)} & pickles
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            assert node.attr not in {"load", "save"}, f"{path.name}:{node.lineno}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant), f"{path.name}:{node.value.lineno}"
            assert node.value.value is False, f"{path.name}:{node.value.lineno}"


@pytest.mark.parametrize("path", FILES, ids=module)
def test_nothing_is_left_to_do(path: Path) -> None:
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text())


def test_public_names_exist() -> None:
    names = getattr(regard, "__all__", [])
    assert sorted(set(names)) == sorted(names)
    for name in names:
        assert getattr(regard, name) is not None
