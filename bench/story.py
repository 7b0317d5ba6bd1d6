"""Draw the figures of docs/story.md: BLEU by source length, and gradients by distance.

    python bench/story.py --source test.de --reference test.en --gradients gradients.txt --out docs/pictures
        "LSTM=lstm.txt" "GRU + attention=bahdanau.txt" "Transformer=transformer.txt"

The files hold the output of `regard ask RUN < test.de`, and gradients.txt that of bench/gradients.py. Prints
one JSON line at the end.
"""

import argparse
import gzip
import json
import math
from pathlib import Path

from regard.draw.axes import ticks
from regard.draw.scene import Circle, Polyline, Scene, Shape, Text
from regard.draw.svg import svg
from regard.tasks.text_metrics import by_length

EDGES = [1, 8, 11, 14, 17, 21, 100]  # words
COLOURS = ["#999999", "#0072b2", "#56b4e9", "#d55e00", "#009e73"]  # after Okabe and Ito
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 72, 728, 88, 364

Series = dict[str, list[tuple[float, float]]]


def lines_svg(
    series: Series, title: str, x_name: str, y_name: str, names: dict[float, str] | None = None
) -> str:
    """Draw several lines in one plot; the y axis is logarithmic if the values span decades."""
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

    shapes: list[Shape] = [Text(LEFT, 25.4, title, 16, bold=True)]
    for mark in marks:
        shapes.append(Polyline(((LEFT, py(mark)), (RIGHT, py(mark))), "grid", 1))
        shapes.append(Text(LEFT - 8, py(mark), f"{mark:g}", anchor="end", pale=True))
    for x in names or ticks(min(xs), max(xs), 8):
        if min(xs) <= x <= max(xs):
            words = names[x] if names else f"{x:g}"
            shapes.append(Text(px(x), BOTTOM + 15.5, words, anchor="middle", pale=True))
    shapes.append(Text((LEFT + RIGHT) / 2, HEIGHT - 18.5, x_name, anchor="middle", pale=True))
    shapes.append(Text(LEFT - 8, TOP - 16.5, y_name, pale=True))
    left = LEFT
    for (name, points), colour in zip(series.items(), COLOURS, strict=False):
        shapes.append(Polyline(tuple((px(x), py(y)) for x, y in points), colour, 2.5))
        shapes += [Circle(px(x), py(y), 3, colour) for x, y in points]
        shapes.append(Polyline(((left, 52), (left + 20, 52)), colour, 2.5))
        shapes.append(Text(left + 26, 52, name, pale=True))
        left += 44 + 7 * len(name)
    return svg(Scene(WIDTH, HEIGHT, title, shapes, corner=8))


def read(path: str) -> list[str]:
    open_file = gzip.open if path.endswith(".gz") else open
    with open_file(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", nargs="+", metavar="NAME=FILE")
    for name in ("source", "reference", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--gradients")
    options = parser.parse_args()
    sources, references = read(options.source), read(options.reference)
    files = dict(pair.split("=", 1) for pair in options.answers)
    lengths = {name: by_length(read(file), references, sources, EDGES) for name, file in files.items()}
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
        gradients = json.loads(Path(options.gradients).read_text().splitlines()[-1])
        norms: Series = {
            name: [(float(d), n) for d, n in each.items() if int(d) <= 50] for name, each in gradients.items()
        }
        title = "How much of the gradient comes back to a word, before training"
        picture = lines_svg(norms, title, "words read after it", "norm, relative to the last word's")
        Path(options.out, "gradient-by-distance.svg").write_text(picture, encoding="utf-8")
    print(json.dumps({"bleu_by_length": lengths}))


if __name__ == "__main__":
    main()
