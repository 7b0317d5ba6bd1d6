"""Take a screenshot of every view of the page for the documents, with Chromium.

    python docs/pictures.py write=RUN answer=RUN see=RUN --write TEXT --answer TEXT --see PICTURE

writes docs/pictures/page-VIEW.png, for a language model, an encoder-decoder and an image classifier.
"""

import argparse
import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, quote

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from regard import load
from regard.serve.page_app import page_app
from regard.serve.server import run_in_thread
from regard.viewer.html import VIEWS
from regard.viewer.session import Session, page

FOLDER = Path(__file__).parent / "pictures"
SIZE: ViewportSize = {"width": 1120, "height": 720}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
COLOURS = 256  # of a picture: files stay small

# Which kind of model shows a view, in which state; without a line, one that writes.
STATES = {
    "look": ("answer", ""),
    "alignment": ("answer", "beams=4&node=3,5"),
    "map": ("answer", ""),
    "picture": ("see", "word=2"),
    "talk": ("answer", ""),
    "next": ("answer", "row=3&temperature=0.8&k=12&p=0.95"),
}
MORE = {  # parts of views that deserve a picture
    "atlas": ("write", "view=attention&form=atlas&by=previous"),
    "lens": ("answer", "view=next&words=layers&row=3"),
}


def states(shown: dict[str, Session]) -> dict[str, tuple[str, str]]:
    """Return the kind of model and the state of the page, by the name of the picture."""
    views = {name: STATES.get(name, ("write", "")) for name in VIEWS}
    views = {name: (kind, f"view={name}&{state}") for name, (kind, state) in views.items()}
    (cross, *_), masked = shown["answer"].manifest["attentions"]["cross"], shown["write"].trace.attentions[-1]
    head, row = cross["heads"] - 1, len(shown["write"].trace.tokens["text"]) - 1
    looked = f"part=cross&layer={cross['layer']}&head={head}&at=1,1&cell={cross['name']}.weights:{head},1,1"
    score = f"step={masked}.scores&head=1&at={row},1&cell={masked}.scores:1,{row},1"
    silent = quote(json.dumps([{"kind": "silence", "part": cross["name"], "head": head}]))
    views |= {
        "attention": ("answer", f"view=attention&{looked}"),
        "cell": ("write", f"view=walk&{score}"),
        "compare": ("write", f"view=compare&other=step:{shown['write'].manifest['steps'][0]}"),
        "whatif": ("answer", f"view=whatif&changes={silent}"),
    }
    return views | MORE


@contextlib.contextmanager
def served(shown: Session) -> Iterator[str]:
    """Serve the page; yield its address."""
    with run_in_thread(page_app(shown.model, shown)) as port:
        yield f"http://127.0.0.1:{port}/"


def take(page: Page, url: str, view: str, state: str, path: Path) -> None:
    page.goto(f"{url}?{view}#{state}")
    page.wait_for_selector(f"main section.{dict(parse_qsl(state))['view']}")
    if view == "talk":  # which has something to show once it was asked
        page.click("#say")
        page.wait_for_selector(".said")
    elif view == "take":  # what was looked at before
        page.click("#view-attention")
        page.wait_for_selector("section.attention")
        page.click("#view-take")
        page.wait_for_selector("section.take")
    page.wait_for_selector("main:not([aria-busy])")
    page.wait_for_timeout(250)  # a canvas is drawn when its size is known
    page.screenshot(path=path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def pictures(browser: Browser, shown: dict[str, Session], folder: Path) -> list[Path]:
    """Save a picture of every view."""
    paths = []
    with contextlib.ExitStack() as stack:
        page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
        stack.callback(page.close)
        page.set_default_timeout(20_000)
        urls = {kind: stack.enter_context(served(one)) for kind, one in shown.items()}
        for name, (kind, state) in states(shown).items():
            path = folder / f"page-{name}.png"
            take(page, urls[kind], name, state, path)
            paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs=3, metavar="KIND=RUN")
    for kind in ("write", "answer", "see"):
        parser.add_argument(f"--{kind}", required=True, help="its input")
    options = parser.parse_args()
    runs = dict(run.split("=", 1) for run in options.runs)
    shown = {kind: page(load(run, "cpu"), getattr(options, kind)) for kind, run in runs.items()}
    with sync_playwright() as play:
        chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        for path in pictures(browser, shown, FOLDER):
            print(path, path.stat().st_size)
        browser.close()


if __name__ == "__main__":
    main()
