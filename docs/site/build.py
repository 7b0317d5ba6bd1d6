"""Turn the Markdown of this repository into a static site, without scripts and without requests to elsewhere.

Links between documents become links between pages. A link to a file of the source leads to a page with that
file. Formulas become MathML, and code is coloured when the site is built.
"""

import html
import itertools
import posixpath
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from docs.site.pages import SECTIONS
from latex2mathml.converter import convert as to_mathml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
STYLE = Path(__file__).with_name("style.css")
COPIED = (".svg", ".png", ".gif", ".jpg", ".ipynb", ".toml", ".json")
HOME = "README.md"
GALLERY_FOLDER = ROOT / "build" / "gallery"  # of `docs.site.gallery`, if it was made
GALLERY_TITLE = "Models that run in the page"
ADDRESS = re.compile(r'\b(href|src|srcset)="([^"]*)"')  # in HTML inside of Markdown


@dataclass
class Page:
    """A document: where it comes from, its address in the site, and its Markdown."""

    source: str  # relative to the root of the repository; of a generated page, where it would be
    text: str
    section: str

    @property
    def address(self) -> str:
        if self.source == HOME:
            return "index.html"
        path = self.source.removeprefix("docs/").removesuffix(".md")
        return f"{path}/index.html".replace("/README/", "/") if path.endswith("/README") else f"{path}.html"

    @property
    def title(self) -> str:
        first = next((line for line in self.text.splitlines() if line.startswith("# ")), "# Regard")
        return re.sub(r"[*`]", "", first[2:]).strip()


class Site:
    """All pages, and the files that they link to; the `gallery` has files of models, and a list of them."""

    def __init__(self, gallery: list[Path]) -> None:
        self.gallery = gallery
        self.pages = {page.source: page for page in collect_pages()}
        self.files: set[str] = set()  # to copy, or to show as source code
        self.folders: set[str] = set()  # whose source code is listed
        self.broken: list[str] = []  # links that lead nowhere, each with its document
        self.markdown = make_markdown(self.link, self.name)
        self.current = HOME

    def find(self, path: str) -> str:
        """The document or file that a path on the current page leads to."""
        source = posixpath.normpath(posixpath.join(posixpath.dirname(self.current), unquote(path)))
        readme = f"{source}/README.md"
        return readme if (ROOT / source).is_dir() and readme in self.pages else source

    def name(self, target: str, text: str) -> str:
        """The text of a link: the title of the page, if it is the name of its file."""
        page = self.pages.get(self.find(urlsplit(target).path))
        return page.title if page and text == posixpath.basename(page.source) else text

    def link(self, target: str) -> str:
        """The address of a link on the current page, relative to it."""
        parts = urlsplit(target)
        if parts.scheme or not parts.path:
            return target
        source = self.find(parts.path)
        if source in self.pages:
            address = self.pages[source].address
        elif (ROOT / source).is_file():
            self.files.add(source)
            address = file_address(source)
        elif (ROOT / source).is_dir():
            self.folders.add(source)
            address = f"source/{source}/index.html"
        else:
            self.broken.append(f"{self.current}: {target}")
            return target
        here = posixpath.dirname(self.pages[self.current].address)
        relative = posixpath.relpath(address, here or ".")
        return relative + (f"#{parts.fragment}" if parts.fragment else "")

    def render(self, page: Page) -> str:
        self.current = page.source
        return layout(self, page, self.markdown.render(page.text))


def collect_pages() -> list[Page]:
    pages = [Page(HOME, (ROOT / HOME).read_text(), "")]
    for section, entries in SECTIONS.items():
        for entry in entries:
            pages += section_pages(section, entry, {page.source for page in pages})
    return pages


def section_pages(section: str, entry: str | Callable[[], str], known: set[str]) -> list[Page]:
    if not isinstance(entry, str):
        return [Page(f"docs/{entry.__name__.removesuffix('_page')}.md", entry(), section)]
    pattern = entry.removeprefix("/") if entry.startswith("/") else f"docs/{entry}"
    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
    if not sources:
        raise ValueError(f"{entry}: no such document")
    return [Page(source, (ROOT / source).read_text(), section) for source in sources if source not in known]


def file_address(source: str) -> str:
    if source.endswith(COPIED):
        return source.removeprefix("docs/")
    return f"source/{source}.html"


def add_anchors(tokens: list[Token]) -> None:
    """Give each heading the anchor that GitHub gives it."""
    known: Counter[str] = Counter()
    for token, inside in itertools.pairwise(tokens):
        if token.type == "heading_open":
            text = "".join(child.content for child in inside.children or [])
            slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            token.attrSet("id", f"{slug}-{known[slug]}" if known[slug] else slug)
            known[slug] += 1


def make_markdown(link: Callable[[str], str], name: Callable[[str, str], str]) -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": True, "highlight": colour}).enable(
        ["table", "strikethrough"]
    )
    markdown.use(dollarmath_plugin, renderer=formula, allow_space=False, allow_digits=False)

    def rewrite(tokens: list[Token]) -> None:
        for n, token in enumerate(tokens):
            if token.type == "link_open" and tokens[n + 1].type == "text":
                tokens[n + 1].content = name(str(token.attrGet("href")), tokens[n + 1].content)
            for attribute in ("href", "src"):
                if isinstance(value := token.attrGet(attribute), str):
                    token.attrSet(attribute, link(value))
            if token.type in ("html_block", "html_inline"):
                token.content = ADDRESS.sub(lambda match: f'{match[1]}="{link(match[2])}"', token.content)
            rewrite(token.children or [])

    def core_rule(state: Any) -> None:
        rewrite(state.tokens)
        add_anchors(state.tokens)
        for start, inside, end in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
            if start.type == "th_open" and not inside.content:
                start.tag = end.tag = "td"  # an empty header says nothing to a screen reader

    markdown.core.ruler.push("links", core_rule)
    rules = markdown.renderer.rules  # type: ignore[attr-defined]
    # Wide tables scroll by themselves; with the keyboard, too.
    rules["table_open"] = lambda *_: '<div class="wide" tabindex="0"><table>\n'
    rules["table_close"] = lambda *_: "</table></div>\n"
    return markdown


def formula(text: str, options: dict[str, Any]) -> str:
    if options["display_mode"]:
        return f'<div class="wide" tabindex="0">{to_mathml(text, display="block")}</div>'
    return to_mathml(text)


def colour(code: str, language: str, _: object) -> str:
    try:
        lexer = get_lexer_by_name({"py": "python", "": "text"}.get(language, language))
    except ClassNotFound:
        lexer = TextLexer()
    inner = highlight(code, lexer, HtmlFormatter(nowrap=True))
    return f'<pre tabindex="0"><code>{inner}</code></pre>'


def layout(site: Site, page: Page, body: str) -> str:
    """A page of the site: the menu, the document, and the style."""
    title = page.title if page.source == HOME else f"{page.title} - Regard"
    home, style = (
        posixpath.relpath(name, posixpath.dirname(page.address) or ".")
        for name in ("index.html", "style.css")
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<link rel="stylesheet" href="{style}">
</head>
<body>
<a class="skip" href="#content">Skip to the text</a>
<header><a class="name" href="{home}">Regard</a> <a class="to-menu" href="#menu">Contents</a></header>
<main id="content">
{body}
</main>
<nav id="menu" aria-label="Pages">
{menu(site, page)}
</nav>
</body>
</html>
"""


def menu(site: Site, page: Page) -> str:
    here, lines = posixpath.dirname(page.address) or ".", []
    for section in SECTIONS:
        lines.append(f"<p>{section}</p>\n<ul>")
        for other in site.pages.values():
            if other.section == section:
                current = ' aria-current="page"' if other is page else ""
                address = posixpath.relpath(other.address, here)
                lines.append(f'<li><a href="{address}"{current}>{html.escape(other.title)}</a></li>')
        if section == next(iter(SECTIONS)) and site.gallery:
            address = posixpath.relpath("gallery/index.html", here)
            lines.append(f'<li><a href="{address}">{GALLERY_TITLE}</a></li>')
        lines.append("</ul>")
    return "\n".join(lines)


def build(folder: Path, gallery: Path = GALLERY_FOLDER) -> Site:
    """Write the site to a folder, which is replaced; with the gallery, if there is one."""
    site = Site(sorted(gallery.glob("*.html")))
    shutil.rmtree(folder, ignore_errors=True)
    rendered = {page.address: site.render(page) for page in site.pages.values()}
    for name in sorted(site.folders):
        rendered[f"source/{name}/index.html"] = show_folder(site, name)
    for source in sorted(site.files):
        if source.endswith(COPIED):
            write(folder / file_address(source), (ROOT / source).read_bytes())
        else:
            rendered[file_address(source)] = show_source(site, source)
    for file in site.gallery:
        write(folder / "gallery" / file.name, file.read_bytes())
    for address, text in rendered.items():
        write(folder / address, text.encode())
    light, dark = (HtmlFormatter(style=name).get_style_defs("code") for name in ("default", "github-dark"))
    style = f"{STYLE.read_text()}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
    write(folder / "style.css", style.encode())
    return site


def show_source(site: Site, source: str) -> str:
    text = (ROOT / source).read_text()
    try:
        lexer = get_lexer_for_filename(source)
    except ClassNotFound:
        lexer = TextLexer()
    page = Page(f"docs/source/{source}.md", f"# {source}", "")
    body = highlight(text, lexer, HtmlFormatter(nowrap=True))
    return layout(site, page, f'<h1>{html.escape(source)}</h1>\n<pre tabindex="0"><code>{body}</code></pre>')


def show_folder(site: Site, name: str) -> str:
    page = Page(f"docs/source/{name}/index.md", f"# {name}", "")
    files = sorted(path.name for path in (ROOT / name).glob("*.py"))
    site.files.update(f"{name}/{file}" for file in files)
    items = "\n".join(f'<li><a href="{file}.html">{file}</a></li>' for file in files)
    return layout(site, page, f"<h1>{html.escape(name)}</h1>\n<ul>\n{items}\n</ul>")


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
