"""Put what was measured into docs/performance.md, between the comments that name it."""

from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"


def fill(text: str, name: str, content: str) -> str:
    """Replace what stands between `<!-- NAME -->` and `<!-- end of NAME -->`."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    return before + begin + content.rstrip("\n") + "\n" + end + rest.split(end, 1)[1]


def document(name: str, content: str) -> None:
    DOCUMENT.write_text(fill(DOCUMENT.read_text(encoding="utf-8"), name, content), encoding="utf-8")
