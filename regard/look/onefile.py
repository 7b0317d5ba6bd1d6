"""The page in one file, which needs nothing else and asks for nothing; and in a notebook's frame."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TALL = 720  # pixels of a notebook's frame


def whole(folder: Path, files: Sequence[str], kept: dict[str, Any]) -> str:
    """The page of a folder, with its modules in this order, and what it is to show."""
    script, style = joined(folder, files), (folder / "page.css").read_text(encoding="utf-8")
    hashes = [digest(text) for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src {hashes[0]}; style-src {hashes[1]}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    # Inside a script element, only "<" could end it: there is none.
    data = json.dumps(kept, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    page = (folder / "index.html").read_text(encoding="utf-8")
    meta = f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = re.sub('<link rel="modulepreload"[^>]*>\n', "", page)
    page = page.replace('<meta charset="utf-8">', meta)
    page = page.replace('<link rel="stylesheet" href="/page/page.css">', f"<style>{style}</style>")
    both = f'<script type="application/json" id="kept">{data}</script>'
    both += f'\n<script type="module">{script}</script>'
    return page.replace('<script type="module" src="/page/app.js"></script>', both)


def joined(folder: Path, files: Sequence[str]) -> str:
    """All modules as one script: each a function that gives what it exports."""
    every = []
    for name in files:
        text = (folder / name).read_text(encoding="utf-8")
        exported = re.findall(r"^export (?:const|class|function|async function) (\w+)", text, re.MULTILINE)
        text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
        text = re.sub(r'import\("\./(\w+)\.js"\)', r"Promise.resolve(\1_js)", text)
        text = re.sub(
            r'^import (\{[^}]*\}) from "\./(\w+)\.js";', r"const \1 = \2_js;", text, flags=re.MULTILINE
        )
        every.append(
            f"const {name.replace('.', '_')} = (() => {{\n{text}\nreturn {{ {', '.join(exported)} }};\n}})();"
        )
    return "\n".join(every)


def digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def framed(page: str) -> str:
    """A page as an element of another, with which it shares nothing."""
    inside = html.escape(page, quote=False).replace("'", "&#39;")
    return (
        f"<iframe sandbox='allow-scripts allow-downloads' title='Regard' width='100%' height='{TALL}' "
        f"style='border:0' srcdoc='{inside}'></iframe>"
    )
