"""`regard demo`: train a chatbot in about a minute, ask it a question, and draw its attention."""

import os
import shutil
import sys
from pathlib import Path

from regard.draw.terminal import heat
from regard.runs.model import Model
from regard.training.build import train
from regard.training.job import free_folder
from regard.training.live import stay_open

QUESTION = "Hi how are you"
STEPS = 400


def demo(out: str | None = None, look: bool = False) -> Model:
    """Train, ask and draw; print suggestions to standard error. `look`: with the page open."""
    folder = Path(out) if out else free_folder(Path("runs/demo"))
    model = train("chat", out=folder, steps=STEPS, look=QUESTION if look else False)
    answer = model.ask(QUESTION)
    print(f"\n> {QUESTION}\n{answer}\n", flush=True)
    print(draw_attention(model, QUESTION, answer), flush=True)
    print(next_steps(folder), file=sys.stderr)
    if look:
        stay_open()
    return model


def draw_attention(model: Model, question: str, answer: str) -> str:
    """Draw the attention from the answer to the question as a heat map for this terminal."""
    weights, rows, columns = model.task.cross_attention(model.model, question, answer)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    return heat(weights.tolist(), rows, columns, shutil.get_terminal_size().columns, colour, ascii_only)


def next_steps(folder: Path) -> str:
    """Return commands to try next, for this shell."""
    name = sys.argv[0] if Path(sys.argv[0]).name == "regard" and not shutil.which("regard") else "regard"
    commands = {
        f"ask {folder}": "chat with it; Ctrl-D ends",
        f'ask {folder} "What is your name?"': "one answer",
        "demo --look": "the same again: watch it learn, on a page in the browser",
        "train chat my.tsv": "your own chatbot: lines of question TAB reply",
        "train translate": "English to German, on built-in data",
        "train translate train.en train.de": "your own translator, from two parallel files",
        "train --list": "all recipes",
    }
    lines = [
        "",
        "Each row is a word of the answer; the darker, the more attention to that word of the question.",
        "Try next:",
    ]
    width = max(map(len, commands))
    return "\n".join(lines + [f"  {name} {command:{width}}  {about}" for command, about in commands.items()])
