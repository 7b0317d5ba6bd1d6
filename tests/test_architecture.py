"""The architecture: imports go down only, the core is small and has no I/O, and the picture is up to date."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import regard
from helpers.imports import (
    EXCEPTIONS,
    FILES,
    FLOORS,
    PICTURE,
    RANK,
    imports,
    module,
    nodes,
    package,
    picture,
    regard_imports,
)
from regard import models

CORE = {"core", "models"}
CORE_FILES = [path for path in FILES if package(module(path)) in CORE]
LINES = 1400  # of code in core/ and models/


def test_every_package_has_a_floor() -> None:
    folders = {path.name for path in Path(regard.__file__).parent.iterdir() if path.is_dir()}
    assert folders - {"builtin", "recipes", "__pycache__"} <= set(FLOORS)
    assert {package(module(path)) for path in FILES} - {""} == set(FLOORS)


def test_imports_go_down() -> None:
    up = [
        f"{module(path)} imports {other}, which is not below it"
        for path in FILES
        for other in regard_imports(path)
        if (here := package(module(path))) and (there := package(other)) and there != here
        if (module(path), other) not in EXCEPTIONS and RANK[there] >= RANK[here]
    ]
    assert not up


def test_every_exception_is_needed() -> None:
    assert {(module(path), other) for path in FILES for other in regard_imports(path)} >= set(EXCEPTIONS)
    assert all(EXCEPTIONS.values())


def test_imports_never_go_round() -> None:
    graph = {module(path): regard_imports(path, types=False) - {"regard"} for path in FILES}
    graph = {name: imports - {name} for name, imports in graph.items() if name != "regard"}
    for importer, imported in EXCEPTIONS:
        graph[importer] = graph[importer] - {imported}
    list(TopologicalSorter(graph).static_order())  # a cycle raises, and is named


def test_the_picture_is_up_to_date() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run: python tests/helpers/imports.py"


@pytest.mark.parametrize("path", CORE_FILES, ids=module)
def test_core_needs_only_torch(path: Path) -> None:
    standard = {
        "math",
        "collections",
        "contextlib",
        "dataclasses",
        "functools",
        "itertools",
        "types",
        "typing",
    }
    assert {name.split(".")[0] for name, _ in imports(path)} <= standard | {"torch", "regard"}
    assert {package(name) for name in regard_imports(path)} <= CORE | {"vision", "describe"}


@pytest.mark.parametrize("path", CORE_FILES, ids=module)
def test_core_is_quiet(path: Path) -> None:
    """No files, no printing, no losses, no training."""
    loud = re.compile(
        r"(?i)^(open|print|input|exec|eval|load|save|backward|.*loss.*|.*cross_entropy.*|optim)$"
    )
    for node in nodes(path):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        assert not loud.match(name), f"{path.name}:{getattr(node, 'lineno', 0)}: {name}"


def code_lines(path: Path) -> int:
    """Lines with code: no blank ones, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings: set[int] = set()
    for node in nodes(path):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    empty = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in empty:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def test_core_is_an_evening_read() -> None:
    assert {path.stem for path in CORE_FILES} >= {"positions", "cache", "attention", "layers", "gpt"}
    lines = {module(path): code_lines(path) for path in CORE_FILES}
    assert sum(lines.values()) <= LINES, lines


LONG_FUNCTIONS = {  # with a reason
    "_attention_kernel",  # Triton kernels are one function each
    "_linear_kernel",
    "__post_init__",  # of `Sampling`: one check for each option
    "search_by_runner",  # beam search, whose steps share all their state
    "beam_search",
}


def test_files_and_functions_are_short() -> None:
    """At most 400 lines a file and 60 a function."""
    assert [module(path) for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = {
        node.name
        for path in FILES
        for node in nodes(path)
        if isinstance(node, functions) and (node.end_lineno or 0) - node.lineno >= 60
    }
    assert long <= LONG_FUNCTIONS


def pickles_of(path: Path) -> list[str]:
    """The places of a file that could read or write a pickle."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    places = [f"{module(path)}: {name}" for name, _ in imports(path) if name.split(".")[0] in modules]
    for node in nodes(path):
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save" as name):
                places.append(f"{module(path)}:{node.lineno}: torch.{name}")
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=False)):
                pass
            case ast.keyword(arg="allow_pickle"):
                places.append(f"{module(path)}:{node.value.lineno}: allow_pickle")
    return places


def test_no_pickles() -> None:
    """Loading a pickle runs whatever its author wrote."""
    assert [place for path in FILES for place in pickles_of(path)] == []


# What fails now and then on a busy machine, where anything may take seconds
DEADLINE = re.compile(r"= time\.monotonic\(\) \+|monotonic\(\) [<>]")
SECONDS = re.compile(
    r"(?:\.(?:wait|join|result|communicate|acquire)\((?:timeout=)?|(?<!ServerLimits\()\btimeout=)(\d[\d_.]*)"
)
PATIENT = 20.0  # seconds
PAUSES = {  # of a browser
    "it.page.wait_for_timeout(700)  # one depth at a time",
    "it.page.wait_for_timeout(10)  # the browser goes on meanwhile",
}


def test_tests_wait_for_what_they_need() -> None:
    """By `wait_until`, by `Tab`, or with a `Clock` that is turned; with limits that a busy machine keeps."""
    tests = Path(__file__).parent
    paths = sorted({*tests.rglob("*.py")} - {Path(__file__), tests / "helpers" / "waiting.py"})
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            where = f"{path.relative_to(tests)}:{number}: {line.strip()}"
            limits = [float(match[1].rstrip(".")) for match in SECONDS.finditer(line)]
            assert all(n / (1000 if n >= 1000 else 1) >= PATIENT for n in limits), (
                where
            )  # the page's are in ms
            assert not DEADLINE.search(line), where
            assert "wait_for_timeout(" not in line or line.strip() in PAUSES, where


def test_nothing_is_left_to_do() -> None:
    left = [module(path) for path in FILES if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text())]
    assert left == []


BARE = re.compile(
    r"(?i)_*(found|made|kept|given|told|whole|others|spelt|some|judged|joined|worth|sound|most|seen|real|headed"
    r"|steady|settle|twice|widened|pays|mend|tell|teller|dice|soften)_*"
)
BARE_EXCEPTIONS = {
    ("regard/models/electra.py", "found"),  # part of the names of saved weights
    ("tests/serve/test_schema.py", "given"),  # of hypothesis
}
FOLDERS = ("regard", "bench", "docs", "experiments", "tests", "torture")


def bound_names(tree: Iterable[ast.AST]) -> set[str]:
    """The names that a file gives: to variables, attributes, parameters, functions, classes and imports."""
    names = set()
    for node in tree:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
    return names


def test_names_say_what_they_name() -> None:
    """No participle or pronoun alone: `loaded_model`, not `found`; in tests, too."""
    root = Path(__file__).parent.parent
    bare = {
        (path.relative_to(root).as_posix(), name)
        for folder in FOLDERS
        for path in (root / folder).rglob("*.py")
        for name in bound_names(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        if BARE.fullmatch(name)
    }
    assert bare == BARE_EXCEPTIONS


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "found: int = 1",
        "_, *found = x",
        "self.found = 1",
        "f(found := 1)",
        "for found in x: pass",
        "with x as found: pass",
        "[0 for found in x]",
        "lambda found: 0",
        "def f(*, found=0): pass",
        "async def found(): pass",
        "class found: pass",
        "import x as found",
        "try: pass\nexcept E as found: pass",
        "match x:\n    case [*found]: pass",
    ],
)
def test_every_way_to_bind_a_name_is_seen(code: str) -> None:
    assert "found" in bound_names(ast.walk(ast.parse(code)))


# Where parts of a model are named, of any class that has them.
UNTYPED = {"regard.convert.onnx.recurrent", "regard.describe.export", "regard.describe.values"}
UNTYPED |= {"regard.bench.peers"}


def test_models_and_tasks_have_types() -> None:
    """No parameter `model` or `task` is `Any`."""
    untyped = {
        module(path)
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.arg)
        and node.arg in ("model", "task")
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id == "Any"
    }
    assert untyped == UNTYPED


LADDERS = {  # where the class of a model counts
    "regard.convert.gguf.export",  # layouts of files, each of one family
    "regard.convert.huggingface.export",
    "regard.convert.huggingface.peft",
    "regard.runs.foreign",
    "regard.tasks.fill",  # ELECTRA and ELMo learn from other losses
}


def test_models_are_asked_what_they_declare() -> None:
    """No `isinstance(model, GPT)`, which would refuse a new family."""
    classes = {name for name in models.__all__ if isinstance(getattr(models, name), type)}

    def names(node: ast.AST) -> set[str]:
        return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & classes

    ladders = set()
    for path in FILES:
        for node in nodes(path) if package(module(path)) not in CORE else ():
            match node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, classinfo]) if names(classinfo):
                    ladders.add(module(path))
                case ast.Compare(left=ast.Call(func=ast.Name(id="type"))) if names(node):
                    ladders.add(module(path))
    assert ladders == LADDERS


def test_public_names_exist() -> None:
    names = getattr(regard, "__all__", [])
    assert sorted(set(names)) == sorted(names)
    for name in names:
        assert getattr(regard, name) is not None
