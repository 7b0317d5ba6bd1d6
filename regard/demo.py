"""The main job in a minute: a chatbot is trained from nothing, asked, and shows what it looked at."""

import os
import shutil
import sys
from pathlib import Path

from .display import heat
from .run import Model
from .train import free_folder, train

QUESTION = "Hi how are you"
STEPS = 400


def demo(out: str | None = None) -> Model:
    """Trains, asks, shows; what to try next goes to standard error."""
    folder = Path(out) if out else free_folder(Path("runs/demo"))
    model = train("chat", out=folder, steps=STEPS)
    answer = model.ask(QUESTION)
    print(f"\n> {QUESTION}\n{answer}\n", flush=True)
    print(picture(model, QUESTION, answer), flush=True)
    print(advice(folder), file=sys.stderr)
    return model


def picture(model: Model, question: str, answer: str) -> str:
    """The attention from the answer to the question, as a heat map for this terminal."""
    weights, rows, columns = model.task.looked(model.model, question, answer)
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    narrow = "utf" not in (sys.stdout.encoding or "").lower()
    return heat(weights.tolist(), rows, columns, shutil.get_terminal_size().columns, coloured, narrow)


def advice(folder: Path) -> str:
    """What to try next, as it can be typed here."""
    name = sys.argv[0] if Path(sys.argv[0]).name == "regard" and not shutil.which("regard") else "regard"
    commands = {
        f"ask {folder}": "a conversation; Ctrl-D ends it",
        f'ask {folder} "What is your name?"': "one answer",
        "train chat my.tsv": "your own chatbot: utterance TAB reply",
        "train translate": "English to German, built in",
        "train translate train.en train.de": "your own translator: two files of parallel lines",
        "train --list": "what else there is",
    }
    lines = [
        "",
        "Each row is a word of the answer; the darker, the more it looked at that word of the question.",
        "Try next:",
    ]
    wide = max(map(len, commands))
    return "\n".join(lines + [f"  {name} {c:{wide}}  {what}" for c, what in commands.items()])
