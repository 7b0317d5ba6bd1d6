"""The text of web pages and subtitles, without their markup."""

import codecs
import re
from html.parser import HTMLParser

from regard.data.files import decode_utf8, open_file, read_lines
from regard.errors import UserError

MAX_PAGE = 2**25  # bytes
TAIL = (
    10_000  # characters of an unfinished tag at the end of a page: parsing takes the square of their number
)
SKIPPED = {
    *("aside", "button", "footer", "head", "iframe", "math", "nav", "noscript", "object", "script"),
    *("select", "style", "svg", "template", "textarea"),
}
BLOCKS = {
    *("address", "article", "blockquote", "body", "br", "caption", "center", "dd", "details", "dialog"),
    *("div", "dl", "dt", "fieldset", "figcaption", "figure", "form", "h1", "h2", "h3", "h4", "h5", "h6"),
    *("header", "hr", "legend", "li", "main", "ol", "option", "p", "pre", "section", "summary", "table"),
    *("tbody", "tfoot", "thead", "title", "tr", "ul"),
}
CELLS = {"td", "th"}
CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?([\w.:-]{1,40})""", re.IGNORECASE)
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
ARROW = "-->"  # between the two times of a subtitle
SUBTITLE_TAG = re.compile(r"<[^<>]{0,200}>|\{\\[^{}]{0,200}\}")
NOTES = ("WEBVTT", "NOTE", "STYLE", "REGION")  # begin parts of a .vtt that are not subtitles


# Web pages


class _TextOfPage(HTMLParser):
    """Collects the text: a line for each block."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.line: list[str] = []  # pieces of the last line
        self.skipped = 0  # the depth in elements that are left out
        self.verbatim = 0  # and in <pre>

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "body":
            self.skipped = 0  # a head that was not closed
        self.skipped += tag in SKIPPED
        if tag in BLOCKS:
            self.end_line()
        elif tag in CELLS:
            self.line.append(" ")
        self.verbatim += tag == "pre"

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        if tag in BLOCKS:
            self.end_line()

    def handle_endtag(self, tag: str) -> None:
        if tag in SKIPPED:
            self.skipped = max(0, self.skipped - 1)
        if tag in BLOCKS:
            self.end_line()
        if tag == "pre":
            self.verbatim = max(0, self.verbatim - 1)

    def handle_data(self, data: str) -> None:
        if self.skipped:
            return
        if not self.verbatim:
            self.line.append(data)
            return
        first, *lines = data.split("\n")
        self.line.append(first)
        for line in lines:
            self.end_line()
            self.line = [line]

    def end_line(self) -> None:
        text = "".join(self.line)
        text = text.rstrip() if self.verbatim else " ".join(text.split())
        if text:
            self.lines.append(text)
        self.line = []


def html_to_text(page: str) -> str:
    """Return the text of a page, a line for each block; without scripts, styles and navigation."""
    parser = _TextOfPage()
    parser.feed(page + "</body>")
    if len(parser.rawdata) < TAIL:
        parser.close()
    parser.end_line()
    return "".join(line + "\n" for line in parser.lines)


def page_encoding(page: bytes) -> str | None:
    """Return the encoding that a page states; None if it states no known one."""
    for mark, name in MARKS.items():
        if page.startswith(mark):
            return name
    stated = CHARSET.search(page[:4096])
    return known_encoding(stated[1].decode("ascii", "replace")) if stated else None


def known_encoding(name: str) -> str | None:
    """Return a name of the encoding that Python knows, or None."""
    try:
        "".encode(name)
    except (LookupError, UnicodeError, ValueError):
        return None
    return "cp1252" if codecs.lookup(name).name in ("iso8859-1", "ascii") else name  # as browsers do


def read_page(path: str) -> str:
    """Return the text of a .html file."""
    with open_file(path) as file:
        page = file.read(MAX_PAGE + 1)
    if len(page) > MAX_PAGE:
        raise UserError(f"{path}: over {MAX_PAGE:,} bytes, too large for a page; divide it")
    encoding = page_encoding(page)
    if encoding is None or codecs.lookup(encoding).name.startswith("utf-8"):
        return html_to_text(decode_utf8(page.removeprefix(codecs.BOM_UTF8), path))
    try:
        return html_to_text(page.decode(encoding))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: says that it is {encoding}, but byte {error.start:,} is not; save it as UTF-8"
        ) from None


# Subtitles


def read_subtitles(path: str) -> str:
    """Return the text of a .srt or .vtt file, a line for each subtitle, without numbers and times."""
    lines: list[str] = []
    cue: list[str] = []  # lines of the last subtitle
    has_times = is_open = is_note = False  # `is_open`: after the times of a subtitle

    def end_cue() -> None:
        text = " ".join(" ".join(cue).split())
        if text and (not lines or lines[-1] != text):  # subtitles that scroll are repeated
            lines.append(text)
        cue.clear()

    for number, raw in enumerate(read_lines(path), 1):
        line = decode_utf8(raw, path, number).strip()
        if ARROW in line:
            if cue and (not is_open or cue[-1].isdigit()):
                cue.pop()  # its number or name
            end_cue()
            has_times, is_open, is_note = True, True, False
        elif not line:
            end_cue()
            is_open = is_note = False
        elif is_note or (not is_open and line.split()[0] in NOTES):
            is_note = True
        else:
            text = SUBTITLE_TAG.sub("", line)
            if text.startswith(("- ", "– ")) and cue:  # another speaker
                end_cue()
            cue.append(text)
    end_cue()
    if lines and not has_times:
        raise UserError(f"{path}: no times ({ARROW}), so these are not subtitles; name it .txt")
    return "".join(line + "\n" for line in lines)
