"""The import graph of the package, its floors, and their picture.

`python tests/helpers/imports.py` draws the picture again.

Every import counts: at the top of a file, inside a function, under TYPE_CHECKING, and by name
(`import_module("regard.…")`).
"""

import ast
import functools
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "regard"
PICTURE = ROOT / "docs" / "pictures" / "floors.svg"
FLOORS = {  # lowest first: a package imports from the floors below it, and from itself
    "errors": "UserError, and hints for it",
    "cancel": "work that nobody waits for ends",
    "memory": "freed memory that is kept for the next tensors",
    "describe": "how a module describes itself: values, operations, where to see and to change them",
    "core": "the equations: attention, positions, layers, recurrent cells, caches",
    "vision": "decoding of images, and convolutional encoders",
    "audio": "log-mel spectrograms, and a synthesizer of digits",
    "models": "one file a family: configuration, presets, class",
    "quantize": "weights in fewer bits, and products with them",
    "files": "atomic writes, safetensors, limits for untrusted files",
    "draw": "one scene, its SVG and PNG; curves, heat maps, word maps; the terminal",
    "text": "tokenizers, sentences, chat templates, word vectors",
    "data": "readers, datasets, sampling, shards, augmentation, synthetic data",
    "decode": "generate, beam search, ensembles, states",
    "convert": "models of other tools: Hugging Face, GGUF, ONNX, CTranslate2",
    "tasks": "one file a task: batches, loss, metrics, answers",
    "runs": "a run folder: recipe, checkpoints, load, ask, score, export",
    "training": "the trainer, its checkpointer and reporter, optimizers, processes",
    "tracing": "every intermediate by name, and what if it were another",
    "viewer": "views of a trace, sums, the page",
    "serve": "security, model registry, engine, OpenAI's API",
    "bench": "regard bench",
    "demo": "regard demo",
    "cli": "the command line",
}
EXCEPTIONS: dict[tuple[str, str], str] = {  # imports that go up, and why
    ("regard.tracing.traces", "regard.viewer.session"): "a notebook shows a trace as the whole page",
}
RANK = {package: rank for rank, package in enumerate(FLOORS)}
FILES = sorted(PACKAGE.rglob("*.py"))


def module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path) for path in FILES}


def package(name: str) -> str:
    """The package of a module, such as models of regard.models.gpt; regard and __main__ are on top."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """The syntax tree of a file, from the top down."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def imports(path: Path, types: bool = True) -> list[tuple[str, list[str]]]:
    """(module, names taken from it) of every import of a file, wherever it stands; without `types`, not
    those that only a type checker reads."""
    parents = module(path).split(".")
    if path.name != "__init__.py":
        parents = parents[:-1]
    checked = [
        n for n in nodes(path) if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"
    ]
    hidden = {id(n) for one in checked for n in ast.walk(one)} if not types else set()
    imported: list[tuple[str, list[str]]] = []
    for node in (n for n in nodes(path) if id(n) not in hidden):
        if isinstance(node, ast.Import):
            imported += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            imported.append((name, [a.name for a in node.names]))
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0], ast.Constant):
                imported.append((str(node.args[0].value), []))
    return imported


def regard_imports(path: Path, types: bool = True) -> set[str]:
    """The modules of regard that a file imports."""
    modules = set()
    for name, taken in imports(path, types):
        if name.split(".")[0] == "regard":
            submodules = {f"{name}.{t}" for t in taken if f"{name}.{t}" in MODULES}
            modules |= submodules or {name}
    return modules


def edges() -> Counter[tuple[str, str]]:
    """Count the imports from one package to another."""
    count: Counter[tuple[str, str]] = Counter()
    for path in FILES:
        for other in regard_imports(path):
            if package(module(path)) and package(other) and package(other) != package(module(path)):
                count[package(module(path)), package(other)] += 1
    return count


def picture() -> str:
    """The floors as SVG, the highest on top, with a line for every pair of packages of which one imports the
    other: the thicker, the more imports there are."""
    names, count = list(reversed(FLOORS)), edges()
    row, width, left, right = 34, 980, 24, 300
    top = {name: 20 + i * row for i, name in enumerate(names)}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {40 + row * len(names)}">',
        "<title>The floors of regard/: every package imports from those below it</title>",
        "<style>text { font: 13px system-ui, sans-serif; fill: #1f2328 } .what { fill: #59636e }"
        " rect { fill: #eef2f7; stroke: #b6c2cf } path { fill: none; stroke: #2f6feb; opacity: .45 }"
        " @media (prefers-color-scheme: dark) { text { fill: #e8ebee } .what { fill: #9aa5b1 }"
        " rect { fill: #1d232a; stroke: #3a4450 } path { stroke: #78a9ff } }</style>",
    ]
    for name in names:
        y = top[name]
        lines.append(f'<rect x="{left}" y="{y}" width="110" height="24" rx="4"/>')
        lines.append(f'<text x="{left + 10}" y="{y + 17}">{name}</text>')
        lines.append(f'<text class="what" x="{right}" y="{y + 17}">{FLOORS[name]}</text>')
    for (a, b), n in sorted(count.items()):
        y, z = top[a] + 12, top[b] + 12
        bend = left + 110 + 14 + min(140, abs(RANK[a] - RANK[b]) * 9)
        heavy = min(4.0, 0.6 + n**0.5 / 3)
        lines.append(
            f'<path d="M{left + 110} {y} C{bend} {y} {bend} {z} {left + 110} {z}" stroke-width="{heavy:.1f}">'
            f"<title>{a} imports from {b}: {n}</title></path>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
