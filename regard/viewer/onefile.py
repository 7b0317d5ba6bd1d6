"""The page as one self-contained HTML file, and as a frame in a notebook."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FRAME_HEIGHT = 720  # pixels


START = "app.js"  # the module that starts the page
EXPORT = re.compile(r"^export (?:const|class|(?:async )?function\*?) (\w+)", re.MULTILINE)
ENGINE = "local"  # the prefix of modules that run a model in the page
IMPORT = re.compile(r'^(?:import|\}) .*from "\./(\w+\.js)";', re.MULTILINE)


def modules(folder: Path, *starts: str) -> list[str]:
    """These modules of the page and those that they import, each after its imports."""
    order: list[str] = []

    def add(name: str) -> None:
        if name not in order:
            for other in IMPORT.findall((folder / name).read_text(encoding="utf-8")):
                add(other)
            order.append(name)

    for name in starts:
        add(name)
    return order


def all_modules(folder: Path, engine: bool = False) -> list[str]:
    """All modules, also those that are loaded when a view is opened; the one that starts the page is last.

    The engine's modules, which run a model, are included only on request.
    """
    names = [path.name for path in sorted(folder.glob("*.js")) if path.name != START]
    return modules(folder, *(name for name in names if engine or not name.startswith(ENGINE)), START)


def index(folder: Path) -> str:
    """The page as the server sends it: the modules that it starts with are loaded at once."""
    links = "".join(
        f'<link rel="modulepreload" href="/page/{name}">\n' for name in modules(folder, START)[:-1]
    )
    return (folder / "index.html").read_text(encoding="utf-8").replace("</head>", f"{links}</head>")


def build_html(folder: Path, content: dict[str, Any]) -> str:
    """The page in one file, with its data, and with the engine if it contains a model."""
    script = bundle_modules(folder, all_modules(folder, engine="model" in content))
    style = (folder / "page.css").read_text(encoding="utf-8")
    hashes = [csp_hash(text) for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src {hashes[0]}; style-src {hashes[1]}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    # Without "<", the data can't end its script element.
    data = json.dumps(content, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    page = (folder / "index.html").read_text(encoding="utf-8")
    meta = f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = page.replace('<meta charset="utf-8">', meta)
    page = page.replace('<link rel="stylesheet" href="/page/page.css">', f"<style>{style}</style>")
    scripts = f'<script type="application/json" id="kept">{data}</script>'
    scripts += f'\n<script type="module">{script}</script>'
    return page.replace('<script type="module" src="/page/app.js"></script>', scripts)


def bundle_modules(folder: Path, files: Sequence[str]) -> str:
    """All modules as one script: each a function that returns its exports."""
    modules = []
    for name in files:
        text = (folder / name).read_text(encoding="utf-8")
        exported = EXPORT.findall(text)
        text = EXPORT.sub(lambda match: match[0].removeprefix("export "), text)
        assert "\nexport " not in text, f"{name}: a kind of export that is not known here"
        text = re.sub(r'import\("\./(\w+)\.js"\)', r"Promise.resolve(\1_js)", text)
        text = re.sub(
            r'^import (\{[^}]*\}) from "\./(\w+)\.js";', r"const \1 = \2_js;", text, flags=re.MULTILINE
        )
        modules.append(
            f"const {name.replace('.', '_')} = (() => {{\n{text}\nreturn {{ {', '.join(exported)} }};\n}})();"
        )
    return "\n".join(modules)


def csp_hash(text: str) -> str:
    """The hash that a Content-Security-Policy allows an inline script or style by."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def frame_html(page: str) -> str:
    """A page as a sandboxed frame of another, in ASCII, so that the outer page may have any encoding."""
    escaped = html.escape(page, quote=False).replace("'", "&#39;")
    inside = escaped.encode("ascii", "xmlcharrefreplace").decode()
    return (
        f"<iframe sandbox='allow-scripts allow-downloads' title='Regard' width='100%' "
        f"height='{FRAME_HEIGHT}' style='border:0' srcdoc='{inside}'></iframe>"
    )
