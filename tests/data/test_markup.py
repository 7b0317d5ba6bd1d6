"""The text of web pages and subtitles, alone and in folders."""

from pathlib import Path

import pytest

from regard.data.documents import read_documents, text_size
from regard.data.markup import html_to_text, read_page, read_subtitles
from regard.data.reading import read_together
from regard.errors import UserError

PAGE = """<!DOCTYPE html><html><head><title>Title</title><style>p {color: red}</style>
<script>if (a < b) { document.write("<p>no</p>") }</script></head>
<body><nav><ul><li>Home</li></ul></nav>
<h1>Cats &amp;\ndogs</h1><p>First <b>bold</b> line.<br>Second&nbsp;one<p>Not closed
<table><tr><td>a</td><td>1</td></tr><tr><td>b</td><td>2</td></tr></table>
<pre>x = 1
  y = 2</pre><!-- a comment --><footer>Imprint</footer>the end"""


def test_a_page() -> None:
    assert html_to_text(PAGE).split("\n") == [
        *("Cats & dogs", "First bold line.", "Second one", "Not closed", "a 1", "b 2", "x = 1", "  y = 2"),
        *("the end", ""),
    ]


@pytest.mark.parametrize("part", ["<!--", "<![CDATA[", "<a ", "</", "&", "<", "<!", "<?", "<p a='", "<nav>"])
def test_hostile_pages_take_no_time(part: str) -> None:
    assert html_to_text("<p>text</p>" + part * 20_000).startswith("text\n")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("<meta charset=iso-8859-1><p>Käse".encode("latin-1"), "Käse\n"),
        ("<meta http-equiv=x content='text/html; charset=koi8-r'><p>мир".encode("koi8-r"), "мир\n"),
        ("<p>Käse".encode("utf-16"), "Käse\n"),
        ("\ufeff<p>Käse".encode(), "Käse\n"),
        (b"<meta charset=unheard-of><p>text", "text\n"),
    ],
)
def test_encodings_of_pages(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "a.html").write_bytes(data)
    assert read_page(str(tmp_path / "a.html")) == text


def test_a_page_in_another_encoding_than_it_says(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_bytes("<p>\nKäse".encode("latin-1"))
    with pytest.raises(UserError, match=r"a\.html:2: byte 0xe4 is not UTF-8"):
        read_page(str(tmp_path / "a.html"))


SRT = """1
00:00:01,000 --> 00:00:04,000
<i>Good morning,</i>
everybody!

2
00:00:05,000 --> 00:00:06,000
- Who's there?
- {\\an8}Me.
3
00:00:06,500 --> 00:00:07,000
42

4
00:00:07,500 --> 00:00:08,000
42
"""
VTT = """WEBVTT - a title
Kind: captions

STYLE
::cue { color: red }

intro
00:01.000 --> 00:04.000 align:start
<v Ann>Good <c.loud>morning</c>

NOTE a comment
of two lines

00:05.000 --> 00:06.000
Bye
"""


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("a.srt", SRT, ["Good morning, everybody!", "- Who's there?", "- Me.", "42"]),
        ("a.srt", SRT.replace("\n", "\r\n"), ["Good morning, everybody!", "- Who's there?", "- Me.", "42"]),
        ("a.vtt", VTT, ["Good morning", "Bye"]),
    ],
)
def test_subtitles(tmp_path: Path, name: str, content: str, lines: list[str]) -> None:
    (tmp_path / name).write_text(content, newline="")
    assert read_subtitles(str(tmp_path / name)).splitlines() == lines


def test_subtitles_without_times(tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text("just text\n")
    with pytest.raises(UserError, match=r"a\.srt: no times"):
        read_subtitles(str(tmp_path / "a.srt"))


def write_folder(folder: Path) -> str:
    folder.mkdir()
    for name, text in {
        "1.txt": "text",
        "2.md": "# md",
        "3.html": "<p>page",
        "4.srt": SRT,
        "5.vtt": VTT,
        "6.rst": "rst\n===",
        "7.htm": "<script>1</script>",
        "8.tex": "\\LaTeX",
    }.items():
        (folder / name).write_text(text)
    return str(folder)


def test_a_folder_of_all(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "texts")
    with read_together() as reading:
        documents = list(read_documents([folder]))
    assert [text.split("\n")[0] for text in documents] == [
        *("text", "# md", "page", "Good morning, everybody!", "Good morning", "rst")
    ]
    assert any("1 .tex" in note for note in reading.notes)
    assert reading.sources[f"{folder}/7.htm"].left_out
    assert text_size([folder]) is None


def test_runs_that_began_earlier_read_folders_as_before(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "texts")
    with read_together(version=2):
        assert list(read_documents([folder])) == ["text", "# md"]
        assert list(read_documents([f"{folder}/3.html"])) == ["<p>page"]


def test_a_page_without_text(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text("<script>1</script>")
    with pytest.raises(UserError, match=r"a\.html: empty"):
        list(read_documents([str(path)]))
