"""Draw the demo as an animated SVG: the question enters, and each word of the answer attends to it.

    python docs/animate.py runs/demo

writes docs/pictures/demo-animated.svg, with the weights of that model. The animation is CSS. It runs three
times and ends with everything visible; where a reader has asked for less motion, it does not run.
"""

import sys
from html import escape
from pathlib import Path

from regard import demo, load

PICTURE = Path(__file__).parent / "pictures" / "demo-animated.svg"
SIZE = 760, 330
TOP, BOTTOM = 96, 236  # y of the question's words and of the answer's
ENTER, STEP, HOLD = 0.4, 1.5, 3.0  # seconds: a word of the question, one of the answer, at the end
COLOURS = ("#0b57a4", "#b3261e", "#1b7a43", "#8a4b08", "#6a3fa0")

STYLE = """text { font: 600 19px ui-monospace, Menlo, monospace; text-anchor: middle; fill: #1d2430 }
text.note { font: 14px system-ui, sans-serif; fill: #4a5568 }
rect.word { fill: #eef2f8; stroke: #c3ccd9 }
line { stroke-linecap: round }
@media (prefers-reduced-motion: reduce) { * { animation: none !important } }"""


def draw(weights: list[list[float]], rows: list[str], columns: list[str]) -> str:
    """Return the animated picture of an answer's attention, with a row of weights for each of its words."""
    start = ENTER * len(columns) + 0.4
    length = start + STEP * len(rows) + HOLD
    styles, parts = [STYLE], []
    for j, word in enumerate(columns):
        styles.append(keyframes(f"q{j}", ENTER * j, length))
        parts.append(group(f"q{j}", length, box(place(j, len(columns)), TOP, word)))
    for i, (word, row) in enumerate(zip(rows, weights, strict=True)):
        x, colour, begin = place(i, len(rows)), COLOURS[i % len(COLOURS)], start + STEP * i
        lines = [
            f'<line x1="{x}" y1="{BOTTOM - 20}" x2="{place(j, len(columns))}" y2="{TOP + 20}" '
            f'stroke="{colour}" stroke-width="{1 + 7 * weight:.1f}" opacity="{weight:.2f}"/>'
            for j, weight in enumerate(row)
        ]
        best = max(range(len(row)), key=row.__getitem__)
        note = f'<text class="note" x="{x}" y="{BOTTOM + 42}">{escape(columns[best])} {row[best]:.2f}</text>'
        styles += [
            keyframes(f"a{i}", begin, length, begin + STEP),
            keyframes(f"w{i}", begin + STEP / 2, length),
        ]
        parts.append(group(f"a{i}", length, "".join(lines)))
        parts.append(group(f"w{i}", length, box(x, BOTTOM, word) + note))
    about = (
        f"{' '.join(columns)}: for each word of the answer {' '.join(rows)}, lines to the words it attends to"
    )
    width, height = SIZE
    middle = width // 2
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>{escape(about)}</title>
<style>
{chr(10).join(styles)}
</style>
<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>
<text class="note" x="{middle}" y="40">the question</text>
<text class="note" x="{middle}" y="{height - 14}">the answer; below each word, where it attends most</text>
{chr(10).join(parts)}
</svg>
"""


def place(index: int, count: int) -> int:
    return round(SIZE[0] * (index + 0.5) / count)


def box(x: int, y: int, word: str) -> str:
    width = 26 + 12 * len(word)
    shape = f'<rect class="word" x="{x - width // 2}" y="{y - 20}" width="{width}" height="40" rx="8"/>'
    return f'{shape}<text x="{x}" y="{y + 6}">{escape(word)}</text>'


def group(name: str, length: float, inner: str) -> str:
    return f'<g style="animation: {name} {length:.1f}s 3">{inner}</g>'


def keyframes(name: str, begin: float, length: float, dim: float | None = None) -> str:
    """Visible from `begin` on; from `dim` on only faintly, until all are shown at the end."""
    at, fade = 100 * begin / length, 100 * 0.3 / length
    steps = f"0%, {at:.1f}% {{ opacity: 0 }} {at + fade:.1f}% {{ opacity: 1 }}"
    if dim is not None and dim < length - HOLD:
        at, end = 100 * dim / length, 100 * (length - HOLD) / length
        steps += f" {at:.1f}% {{ opacity: 1 }} {at + fade:.1f}%, {end:.1f}% {{ opacity: .15 }}"
    return f"@keyframes {name} {{ {steps} 98%, 100% {{ opacity: 1 }} }}"


def main(run: str) -> None:
    model = load(run, "cpu")
    weights, rows, columns = model.task.cross_attention(model.model, demo.QUESTION, model.ask(demo.QUESTION))
    words = [[word.strip() for word in side] for side in (rows, columns)]
    PICTURE.write_text(draw(weights.tolist(), *words))
    print(PICTURE, PICTURE.stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1])
