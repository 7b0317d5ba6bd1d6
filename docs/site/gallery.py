"""Five small models that run in a page: `make gallery`, or `python -m docs.site.gallery [FOLDER]`.

Each is trained with a recipe on built-in data, if FOLDER/runs has it not yet, and saved as one file. The
site has them if it is built afterwards, from the default FOLDER, build/gallery. With --measure, Chromium
opens each file from file://, answers 100 prompts, and the answers are compared with those of the model in
Python: a table shows whether they are equal, the size, and tokens per second.
"""

import argparse
import html
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from docs.site.build import GALLERY_FOLDER, GALLERY_TITLE, ROOT

from regard import load
from regard.data.synthetic import draw_shapes
from regard.runs.layout import WEIGHTS
from regard.runs.model import Model
from regard.training.build import train
from regard.viewer.model_file import save_model

BUILTIN = ROOT / "regard" / "builtin"
PROMPTS = 100


@dataclass(frozen=True)
class Entry:
    """A model of the gallery: its recipe, and what its file opens with."""

    recipe: str
    about: str
    input: str | None
    view: str
    prompts: str  # the file that has some


GALLERY = {
    "chatbot": Entry(
        "chat",
        "Ask it something, and see which words it answers to.",
        "Hi how are you",
        "talk",
        "chat.valid.tsv",
    ),
    "translator": Entry(
        "translate",
        "English to German: the alignment of every word.",
        "A man is walking his dog.",
        "alignment",
        "translate.valid.tsv",
    ),
    "writer": Entry(
        "write",
        "Type a beginning; the likeliest next words are below it.",
        "Once upon a time",
        "next",
        "stories.txt",
    ),
    "masked-words": Entry(
        "fill",
        "What stands in the blank, from both sides.",
        "The fox [MASK] over the dog.",
        "next",
        "stories.txt",
    ),
    "shapes": Entry("see", "Drop a picture: where does it look?", None, "picture", ""),
}


def build_gallery(folder: Path, steps: int, runs: Path) -> dict[str, Model]:
    """Train what is missing, and write a file for each entry and a page that links to them."""
    folder.mkdir(parents=True, exist_ok=True)
    models = {}
    for name, entry in GALLERY.items():
        run = runs / entry.recipe
        if not (run / WEIGHTS).exists():
            train(entry.recipe, out=run, steps=steps)
        models[name] = load(run, device="cpu")
        input = shapes(1)[0] if entry.input is None else entry.input
        save_model(models[name], folder / f"{name}.html", input, view=entry.view)
    links = "".join(
        f'<li><a href="{name}.html">{name.replace("-", " ")}</a>: {html.escape(entry.about)}</li>\n'
        for name, entry in GALLERY.items()
    )
    head = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{GALLERY_TITLE}</title>\n'
    body = f"<h1>{GALLERY_TITLE}</h1>\n<ul>\n{links}</ul>\n"
    (folder / "index.html").write_text(f"{head}{body}", encoding="utf-8")
    return models


def shapes(count: int) -> list[Any]:
    return list(torch.from_numpy(draw_shapes(seed=7, count=count).pixels))


def prompts(entry: Entry) -> list[Any]:
    """Inputs that the model may be asked."""
    if entry.input is None:
        return shapes(PROMPTS)
    files = dict.fromkeys([entry.prompts, entry.prompts.replace(".valid", "")])  # held out first
    lines = [line for file in files for line in (BUILTIN / file).read_text(encoding="utf-8").splitlines()]
    texts = [line.split("\t")[0] for line in lines if len(line.split()) > 4]
    if entry.recipe == "write":
        return [" ".join(text.split()[:5]) for text in texts[:PROMPTS]]
    if entry.recipe == "fill":
        words = [text.split()[:20] for text in texts[:PROMPTS]]
        return [" ".join([*text[:2], "[MASK]", *text[3:]]) for text in words]
    return texts[:PROMPTS]


ASK = """async (inputs) => {
  const begin = performance.now();
  const answers = [];
  for (const input of inputs) answers.push(await regard.ask({ input }));
  return { answers, seconds: (performance.now() - begin) / 1000 };
}"""
SEE = """async (pictures) => {
  const begin = performance.now();
  const answers = [];
  for (const { shape, data } of pictures) {
    answers.push(await regard.ask({ input: { shape, data: Uint8Array.from(data) } }));
  }
  return { answers, seconds: (performance.now() - begin) / 1000 };
}"""


def measure(browser: Any, folder: Path, models: dict[str, Model]) -> list[str]:
    """A row of a table for each file."""
    rows = ["| file | weights | size | opens in | equal answers | tokens/s |", "|---|--:|--:|--:|--:|--:|"]
    for name, model in models.items():
        file, inputs = folder / f"{name}.html", prompts(GALLERY[name])
        page, begin = browser.new_page(), time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_selector("main section")
        opening = time.perf_counter() - begin
        if GALLERY[name].input is None:
            data = [{"shape": list(x.shape), "data": x.flatten().tolist()} for x in inputs]
            result = page.evaluate(SEE, data)
        else:
            result = page.evaluate(ASK, inputs)
        options = {"temperature": 0, "num_beams": 1} if model.task.generates else {}
        want = model.ask(inputs, **options)
        answers = [answer["output"] for answer in result["answers"]]
        equal = sum(a == b for a, b in zip(answers, want, strict=True))
        tokens = sum(len(answer["ids"]) for answer in result["answers"])
        speed = f"{tokens / result['seconds']:,.0f}" if model.task.generates else (
            f"{len(inputs) / result['seconds']:,.0f} answers/s"
        )  # fmt: skip
        weights = sum(p.numel() for p in model.model.parameters())
        size = f"{file.stat().st_size / 1e6:.1f} MB"
        rows.append(
            f"| {name} | {weights:,} | {size} | {opening:.1f} s | {equal} of {len(inputs)} | {speed} |"
        )
        page.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=GALLERY_FOLDER)
    parser.add_argument("--runs", type=Path, help="folder of the runs (default: FOLDER/runs)")
    parser.add_argument("--steps", type=int, default=400, help="of the training of each")
    parser.add_argument("--measure", action="store_true", help="compare with Python, and print a table")
    options = parser.parse_args()
    models = build_gallery(options.folder, options.steps, options.runs or options.folder / "runs")
    if not options.measure:
        print(options.folder / "index.html")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        print("\n".join(measure(browser, options.folder, models)))
        browser.close()


if __name__ == "__main__":
    main()
