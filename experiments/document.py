"""What was measured as a table, and in docs/experiments.md."""

import json
from statistics import mean, pstdev

from experiments import ROOT

DOCUMENT = ROOT / "docs" / "experiments.md"
VALUES = ROOT / "docs" / "experiments.json"

Values = dict[str, dict[str, list[float]]]  # by variant and measure, one for each seed


def table(name: str, values: Values) -> str:
    """A row for each variant, in Markdown: mean ± standard deviation."""
    measures = list(dict.fromkeys(measure for row in values.values() for measure in row))
    rows = [[name, *measures], ["---", *["--:"] * len(measures)]]
    rows += [[variant, *(cell(row.get(measure)) for measure in measures)] for variant, row in values.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(values: list[float] | None) -> str:
    if values is None:
        return ""
    digits = 2 if max(values) < 10 and max(values) % 1 else 1
    return f"{mean(values):.{digits}f} ± {pstdev(values):.{digits}f}"


def write_document(name: str, values: Values) -> None:
    """Replace the values of one experiment in docs/."""
    known = json.loads(VALUES.read_text()) if VALUES.exists() else {}
    known[name] = values
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(each)}" for key, each in known.items())
    VALUES.write_text(f"{{\n{lines}\n}}\n")
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8"), known), encoding="utf-8")


def with_tables(text: str, results: dict[str, Values]) -> str:
    for name, values in results.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = before + begin + table(name, values) + "\n" + end + rest.split(end)[1]
    return text
