"""How fast the page draws in Chromium, next to BertViz on the same model and text.

    python bench/page.py [--rounds N] [--demo RUN] [--bertviz PYTHON --libraries FOLDER] [--tokens 32 128 512]

The model is a GPT with random weights and GPT-2's 12 layers of 12 heads. Times are medians of N rounds, from
navigation or a key until the image is drawn, with the server on this machine. PYTHON is an interpreter with
BertViz; FOLDER holds the libraries that BertViz loads from the network: require.min.js, d3.min.js,
jquery.min.js. A dash stands for more than LIMIT seconds. With `--demo RUN`, such as that of `regard demo`,
only its scene is measured: the first paint, beside that of one line of text from the same server, the picture
once its numbers have come, a zoom from the model to a block, and a keystroke until the picture of the new
text is drawn. Ends with one JSON line.
"""

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, Error, Page, Route, sync_playwright
from safetensors.torch import save_file

from regard.models import GPT, GPTConfig
from regard.runs.load import load
from regard.runs.model import Model
from regard.serve.page_app import page_app
from regard.serve.server import keep_objects, run_in_thread
from regard.tasks import Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.viewer.session import Session

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs", "away", "again")
DEPTH, HEADS = 12, 12
VIEWS = (("head", "#view=attention", "#matrix"), ("model", "#form=atlas", "#atlas"))
LIMIT = 90  # seconds for BertViz: to write its page, and to draw it
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

BERTVIZ = """
import sys, warnings
warnings.simplefilter("ignore")
from bertviz import head_view, model_view
from safetensors.torch import load_file
weights = load_file(sys.argv[1])["weights"]  # (layers, heads, T, T)
words = open(sys.argv[2], encoding="utf-8").read().split()
view = {"head": head_view, "model": model_view}[sys.argv[3]]
page = view(list(weights[:, None]), words, html_action="return").data
libraries = "https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js"
with open(sys.argv[4], "w", encoding="utf-8") as file:
    file.write(f'<!doctype html><meta charset="utf-8"><script src="{libraries}"></script>{page}')
"""
# When something is drawn: a canvas that has its size, which it gets before a frame is painted, or lines.
DRAWN = """
window.drawn = (selector) => new Promise((done) => {
  const look = () => {
    const one = document.querySelector(selector);
    if (one?.tagName === "CANVAS" && one.style.width) done(performance.now());
    else requestAnimationFrame(one && one.tagName !== "CANVAS" ? () => done(performance.now()) : look);
  };
  look();
});
"""
# When the last numbers had come.
CAME = """() => Math.max(...performance.getEntriesByType("resource")
  .filter(({ name }) => name.includes("/api/")).map(({ responseEnd }) => responseEnd))"""
# The milliseconds between the frames of a zoom, from the key to the end of its motion.
ZOOM = """async (key) => {
  const times = [performance.now()];
  document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  let [moved, gone] = [false, false]; // the old picture stays until it has grown or shrunk away
  while (!gone && times[times.length - 1] - times[0] < 5000) {
    await new Promise(requestAnimationFrame);
    times.push(performance.now());
    const layers = document.querySelectorAll(".stage > .layer").length;
    gone = moved && layers === 1;
    moved ||= layers > 1;
  }
  return times.slice(1).map((time, i) => time - times[i]);
}"""
# The milliseconds from a letter typed until the scene of the new text is drawn.
TYPED = """async (text) => {
  const [input, before] = [document.getElementById("input"), document.querySelector(".stage .layer")];
  input.value = text;
  const start = performance.now();
  input.dispatchEvent(new InputEvent("input", { bubbles: true }));
  const frame = () => new Promise(requestAnimationFrame);
  while (before.isConnected || !document.querySelector(".stage .ribbons.strong path")) await frame();
  await frame();
  return performance.now() - start;
}"""
PRESSED = """async ([act, gone, selector]) => {
  const before = document.querySelector(gone);
  const start = performance.now();
  if (act.length === 1) document.dispatchEvent(new KeyboardEvent("keydown", { key: act, bubbles: true }));
  else document.querySelector(act).click();
  while (before.isConnected) await new Promise(requestAnimationFrame);
  return (await window.drawn(selector)) - start;
}"""


def model(tokens: int) -> Model:
    torch.manual_seed(1)
    tokenizer = train_tokenizer("word", [" ".join(WORDS)], 211, Write.specials)
    config = GPTConfig(vocab=tokenizer.vocab, context=tokens, dim=96, depth=DEPTH, heads=HEADS)
    gpt = GPT(config).eval()
    with torch.no_grad():
        for p in gpt.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return Model(gpt, Write(WriteConfig(name="write"), tokenizer, tokens), {})


@contextlib.contextmanager
def serve_session(session: Session) -> Iterator[str]:
    """The address of the page, served as by `regard look`."""
    keep_objects()
    with run_in_thread(page_app(session.model, session)) as port:
        yield f"http://127.0.0.1:{port}/"


def text(tokens: int) -> str:
    return " ".join(WORDS[i % len(WORDS)] for i in range(tokens))


def open_page(browser: Browser, url: str, selector: str) -> tuple[Page, dict[str, float]]:
    """A new page, with the milliseconds to its first paint and to the image, its bytes and elements."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(1000 * LIMIT)
    page.add_init_script(DRAWN)
    page.goto(url, wait_until="commit", timeout=1000 * LIMIT)
    picture = page.evaluate("selector => window.drawn(selector)", selector)
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
    start = page.evaluate("""() => ({
      paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
      bytes: [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .reduce((sum, one) => sum + one.encodedBodySize, 0),
      elements: document.querySelectorAll("*").length,
    })""")
    return page, start | {"picture": picture}


def median(rounds: int, once: Callable[[int], float]) -> float:
    once(0)  # warm
    return statistics.median(once(i) for i in range(1, rounds + 1))


def measure_page(browser: Browser, rounds: int) -> dict[str, float]:
    """Milliseconds to draw, by what is drawn."""
    times: dict[str, float] = {}
    with serve_session(Session(model(128), text(128))) as url:
        starts = []
        for _ in range(rounds + 1):
            page, start = open_page(browser, f"{url}#view=attention", "#matrix")
            starts.append(start)
            page.close()
        for name in ("paint", "picture"):
            times[f"{name}, 128 tokens"] = statistics.median(one[name] for one in starts[1:])

        def atlas(_: int) -> float:
            page, _start = open_page(browser, f"{url}#view=attention", "#matrix")
            took = page.evaluate(PRESSED, ["#form-atlas", "#matrix", "#atlas"])
            page.close()
            return float(took)

        times["atlas of 144 heads, 128 tokens"] = median(rounds, atlas)
    for tokens in (512, 4096):
        long = model(tokens)
        with serve_session(Session(long, text(tokens))) as url:
            page, start = open_page(browser, f"{url}#head=0", "#matrix")
            times[f"picture, {tokens} tokens"] = start["picture"]
            shown = min(rounds, HEADS - 2)
            times[f"next head, {tokens} tokens"] = median(
                shown,
                lambda _, page=page: float(page.evaluate(PRESSED, ["n", "#matrix", "#matrix"])),  # type: ignore[misc]
            )
            page.close()
    return times


def measure_scene(browser: Browser, rounds: int, run: str) -> dict[str, float]:
    """Milliseconds of the scene of a trained model, which is what a visitor sees first."""
    trained = load(run, "cpu")
    text = trained.task.example_input()
    starts: list[dict[str, float]] = []
    frames: list[float] = []
    keys: list[float] = []
    blank: list[float] = []
    with serve_session(Session(trained, text)) as url:
        for n in range(rounds + 1):
            page, start = open_page(browser, f"{url}missing", "body")
            page.close()
            blank.append(start["paint"])
            page, start = open_page(browser, url, ".ribbons.strong path")
            came = page.evaluate(CAME)
            starts.append(start | {"after": start["picture"] - came})
            moving = [took for key in "+-" for took in page.evaluate(ZOOM, key)]
            typed = [page.evaluate(TYPED, f"{text} {word}") for word in WORDS[:4]]
            frames, keys = (frames + moving, keys + typed) if n else ([], [])
            page.close()
    frames.sort()
    return {
        "a line of text: first paint": statistics.median(blank[1:]),
        "demo: first paint": statistics.median(one["paint"] for one in starts[1:]),
        "demo: picture": statistics.median(one["picture"] for one in starts[1:]),
        "demo: picture after its numbers": statistics.median(one["after"] for one in starts[1:]),
        "demo: frame of a zoom, median": statistics.median(frames),
        "demo: frame of a zoom, 95 %": frames[int(0.95 * len(frames))],
        "demo: keystroke to picture": statistics.median(keys),
        "demo: keystroke to picture, longest": max(keys),
    }


def measure_bertviz(
    browser: Browser, python: str, libraries: Path, view: str, session: Session
) -> dict[str, Any] | None:
    """Bytes, milliseconds to the first image and elements of BertViz's page; None if it takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        weights, words, html = (Path(folder) / name for name in ("weights", "words", "page.html"))
        every = [session.trace[f"{name}.weights"] for name in session.trace.attentions]
        save_file({"weights": torch.stack(every).float()}, weights)
        words.write_text(" ".join(session.trace.tokens["text"]), "utf-8")
        command = [python, "-c", BERTVIZ, str(weights), str(words), view, str(html)]
        try:
            subprocess.run(command, check=True, timeout=LIMIT, capture_output=True)
        except subprocess.TimeoutExpired:
            return None
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(1000 * LIMIT)
        page.add_init_script(DRAWN)

        def fulfil(route: Route) -> None:
            route.fulfill(path=libraries / Path(route.request.url).name)

        page.route("https://cdnjs.cloudflare.com/**", fulfil)
        try:
            page.goto(html.as_uri(), wait_until="commit", timeout=1000 * LIMIT)
            picture = page.evaluate("() => window.drawn('svg line, svg path')")
            elements = page.evaluate("document.querySelectorAll('*').length")
        except Error:
            return None
        finally:
            with contextlib.suppress(Error):
                page.close()
        more = sum(path.stat().st_size for path in libraries.iterdir())
        return {"bytes": html.stat().st_size + more, "picture": picture, "elements": elements}


def format_row(measured: dict[str, Any] | None) -> str:
    if measured is None:
        return f"{'-':>12} {'-':>10} {'-':>10}"
    return (
        f"{measured['bytes'] / 1e6:>9.2f} MB {measured['picture'] / 1e3:>8.2f} s {measured['elements']:>10,}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--demo", metavar="RUN")
    parser.add_argument("--bertviz", metavar="PYTHON")
    parser.add_argument("--libraries", type=Path, metavar="FOLDER")
    parser.add_argument("--tokens", type=int, nargs="*", default=[32, 128, 512])
    options = parser.parse_args()
    if options.bertviz and not options.libraries:
        parser.error("--bertviz needs --libraries: a page that loads from elsewhere is not measured")
    result: dict[str, Any] = {"side by side": {}}
    with sync_playwright() as play:
        chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        measure = partial(measure_scene, run=options.demo) if options.demo else measure_page
        result["milliseconds"] = measure(browser, options.rounds)
        for name, took in result["milliseconds"].items():
            print(f"{name:34} {took:8.0f} ms", flush=True)
        for tokens in [] if options.demo else options.tokens:
            it = Session(model(tokens), text(tokens))
            each: dict[str, dict[str, Any] | None] = {}
            with serve_session(it) as url:
                for view, state, selector in VIEWS:
                    starts = []
                    for _ in range(options.rounds + 1):
                        page, start = open_page(browser, url + state, selector)
                        starts.append(start)
                        page.close()
                    best = {name: statistics.median(one[name] for one in starts[1:]) for name in starts[0]}
                    each[f"ours, {view}"] = best
            if options.bertviz:
                for view in ("head", "model"):
                    each[f"bertviz, {view}"] = measure_bertviz(
                        browser, options.bertviz, options.libraries, view, it
                    )
            for name, one in each.items():
                print(f"{tokens:>5} tokens, {name:16} {format_row(one)}", flush=True)
            result["side by side"][tokens] = each
        browser.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
