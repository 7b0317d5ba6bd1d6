"""The pictures of docs/story.md: BLEU by the length of the source, and gradients by distance.

    python bench/story.py --source test.de --reference test.en --gradients gradients.txt --out docs/pictures
        "LSTM=lstm.txt" "GRU + attention=bahdanau.txt" "Transformer=transformer.txt"

A file of answers is what `regard ask RUN < test.de` printed, gradients.txt what bench/gradients.py did. Ends
with one JSON line.
"""

import argparse
import gzip
import json
import math
from pathlib import Path
from xml.sax.saxutils import escape

from regard.curve import ticks
from regard.scoring import by_length

EDGES = [1, 8, 11, 14, 17, 21, 100]  # words
COLOURS = ["#999999", "#0072b2", "#56b4e9", "#d55e00", "#009e73"]  # after Okabe and Ito
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 72, 728, 88, 364

Series = dict[str, list[tuple[float, float]]]


def lines_svg(
    series: Series, title: str, x_name: str, y_name: str, names: dict[float, str] | None = None
) -> str:
    """Several lines over one axis; where the values span decades, the axis is in powers of ten."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    decades = min(ys) > 0 and max(ys) / min(ys) > 100
    high = math.log10 if decades else float
    marks = (
        [10.0**i for i in range(math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys))) + 1)]
        if decades
        else ticks(0, max(ys), 6)
    )
    low, top = high(marks[0]), high(marks[-1])

    def px(x: float) -> float:
        return LEFT + 18 + (RIGHT - LEFT - 36) * (x - min(xs)) / (max(xs) - min(xs))

    def py(y: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (high(y) - low) / (top - low)

    def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, Helvetica, Arial, sans-serif" '
        'font-size="13" fill="#59636e">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        text(LEFT, 31, title, "start", 'font-size="16" font-weight="600" fill="#1f2328"'),
    ]
    for mark in marks:
        svg.append(f'<path d="M{LEFT} {py(mark):.1f}H{RIGHT}" stroke="#e4e8ec"/>')
        svg.append(text(LEFT - 8, py(mark) + 4, f"{mark:g}", "end"))
    for x in names or ticks(min(xs), max(xs), 8):
        if min(xs) <= x <= max(xs):
            svg.append(text(px(x), BOTTOM + 20, names[x] if names else f"{x:g}"))
    svg.append(text((LEFT + RIGHT) / 2, HEIGHT - 14, x_name))
    svg.append(text(LEFT - 8, TOP - 12, y_name, "start"))
    at = LEFT
    for (name, points), colour in zip(series.items(), COLOURS, strict=False):
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in points)
        svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        svg += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3" fill="{colour}"/>' for x, y in points]
        svg.append(f'<path d="M{at} 52h20" stroke="{colour}" stroke-width="2.5"/>')
        svg.append(text(at + 26, 56.5, name, "start"))
        at += 44 + 7 * len(name)
    return "\n".join([*svg, "</svg>"]) + "\n"


def read(path: str) -> list[str]:
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", nargs="+", metavar="NAME=FILE")
    for name in ("source", "reference", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--gradients")
    options = parser.parse_args()
    sources, references = read(options.source), read(options.reference)
    named = dict(pair.split("=", 1) for pair in options.answers)
    lengths = {name: by_length(read(file), references, sources, EDGES) for name, file in named.items()}
    for name, rows in lengths.items():
        print(f"{name:24}", *(f"{row['from']}-{row['to'] - 1}: {row['bleu']:.1f}" for row in rows))
    print("sentences", *(row["count"] for row in next(iter(lengths.values()))))
    spans = {float(i): f"{row['from']}–{row['to'] - 1}" for i, row in enumerate(next(iter(lengths.values())))}
    spans[len(spans) - 1.0] = f"{EDGES[-2]}+"
    bleu: Series = {
        name: [(float(i), row["bleu"]) for i, row in enumerate(rows)] for name, rows in lengths.items()
    }
    title = "BLEU by the length of the source sentence"
    picture = lines_svg(bleu, title, "words in the source", "BLEU", spans)
    Path(options.out, "bleu-by-length.svg").write_text(picture, encoding="utf-8")
    if options.gradients:
        found = json.loads(Path(options.gradients).read_text().splitlines()[-1])
        norms: Series = {
            name: [(float(d), n) for d, n in each.items() if int(d) <= 50] for name, each in found.items()
        }
        title = "How much of the gradient comes back to a word, before training"
        picture = lines_svg(norms, title, "words read after it", "norm, relative to the last word's")
        Path(options.out, "gradient-by-distance.svg").write_text(picture, encoding="utf-8")
    print(json.dumps({"bleu_by_length": lengths}))


if __name__ == "__main__":
    main()
