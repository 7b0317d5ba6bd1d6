"""The outcomes as a table, and in docs/reliability.md."""

import json
from typing import Any

from torture import ROOT

DOCUMENT = ROOT / "docs" / "reliability.md"
OUTCOMES = ROOT / "docs" / "reliability.json"
BEGIN, END = "<!-- outcomes -->\n", "<!-- end of outcomes -->\n"
HEADING = (
    "| suite | attacks | of | faults | longest | how they ended | largest |\n|---|--:|--:|--:|--:|---|---|\n"
)


def table(results: dict[str, Any], heading: bool = True) -> str:
    """Return a row for each suite, in Markdown."""
    rows = [
        f"| {name} | {r['attacks']:,} | {r['total']:,} | {len(r['faults'])} "
        f"| {r['longest']} s | {numbers(r['ends'] | r['counts'])} | {numbers(r['peaks'])} |"
        for name, r in results.items()
    ]
    return (HEADING if heading else "") + "\n".join(rows)


def numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{name}: {value:,.4g}" if isinstance(value, float) else f"{name}: {value:,}"
                     for name, value in values.items())  # fmt: skip


def write_document(results: dict[str, Any]) -> None:
    """Replace the outcomes of these suites in docs/."""
    known = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
    known |= results
    OUTCOMES.write_text(json.dumps(known, indent=1) + "\n")
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), known), encoding="utf-8")


def with_table(text: str, results: dict[str, Any]) -> str:
    before, rest = text.split(BEGIN)
    return before + BEGIN + table(results) + "\n" + END + rest.split(END)[1]
