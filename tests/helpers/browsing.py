"""The page in a real browser: how to open it, and how to read it."""

import base64
import functools
import json
from urllib.parse import urlsplit

import pytest
import torch

from helpers.looking import captioner, noise, reader, seer
from helpers.serving import BEFORE_STOP
from regard.files.tensors import write_tensors
from regard.runs.checkpoints import save
from regard.runs.folder import begin
from regard.runs.layout import CHECKPOINTS, GENERATION, LOG, WEIGHTS
from regard.viewer.session import Session

WORDS = "the quick brown fox jumps"
HOSTILE = [
    "</script><script>window.harmed=1</script>",
    '<img src=x onerror="window.harmed=1">',
    "\u202eright to left\u202c",
    "שלום",
    "a" * 10_000,
]
MODELS = {
    "gpt": lambda: (reader("write", "gpt"), WORDS),
    "gpt2": lambda: (reader("write", "gpt", positions="learned", norm="layer", ffn="gelu", bias=True), WORDS),
    "alibi": lambda: (reader("write", "gpt", positions="alibi", kv_heads=1), WORDS),
    "transformer": lambda: (reader("translate", "transformer"), WORDS),
    "t5": lambda: (reader("chat", "t5"), WORDS),
    "gru": lambda: (reader("translate", "gru", attention="additive"), WORDS),
    "lstm": lambda: (reader("chat", "lstm", attention="general", depth=2), WORDS),
    "plain": lambda: (reader("chat", "gru", attention="none"), WORDS),
    "bert": lambda: (reader("fill", "bert"), WORDS),
    "window": lambda: (reader("fill", "bert", pre=True, window=1), WORDS),
    "classes": lambda: (reader("classify", "bert", task_labels=("a", "b")), WORDS),
    "vit": lambda: (seer(), noise(6)),
    "captioner": lambda: (captioner(), noise(12)),
    "vit-captioner": lambda: (captioner(encoder="vit", decoder="transformer"), noise(12)),
}
MORE = ["space", "whatif", "compare"]
TEXT = ["look", "attention", "map", "walk", "next", *MORE, "talk", "take"]
PAIRS = ["look", "attention", "alignment", "map", "walk", "next", *MORE, "talk", "take"]
PICTURE_VIEWS = ["look", "attention", "picture", "map", "walk", "next", *MORE, "take"]
VIEWS = {
    "gpt": TEXT,
    "transformer": PAIRS,
    "gru": PAIRS,
    "bert": TEXT,
    "vit": PICTURE_VIEWS,
    "captioner": PICTURE_VIEWS,
}
MODES = {"walk": "walk", "whatif": "try", "compare": "try", "talk": "try", "training": "train"}
MODES |= dict.fromkeys(["look", "attention", "alignment", "picture", "map", "next", "space"], "look")

# What is shown now is marked, so that one can wait for what comes.
TURN = """(state) => {
  for (const one of document.querySelector("main").children) one.dataset.left = "";
  history.pushState(null, "", state || location.pathname + location.search);
  dispatchEvent(new PopStateEvent("popstate"));
}"""

DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

# One cell of every tensor, of the page's own run or of a saved one.
OPEN_CELLS = """async (saved) => {
  const { Saved, Server } = await import("/page/source.js");
  const { openCell } = await import("/page/cell.js");
  const source = saved ? new Saved(saved) : new Server();
  const app = { source, manifest: await source.trace({}), go() {} };
  let seed = 7; // the same cells in every run
  const below = (n) => { seed = (seed * 16807) % 2147483647; return seed % n; };
  const cells = {};
  for (const [name, { shape }] of Object.entries(app.manifest.tensors)) {
    const at = [shape.length > 2 ? shape.at(-3) : 1, shape.at(-2) ?? 1, shape.at(-1)].map(below);
    const panel = await openCell(app, `${name}:${at}`);
    const tick = panel.querySelector(".tick");
    cells[name] = {
      fits: tick?.dataset.fits ?? null,
      total: tick?.parentNode.textContent ?? null,
      title: panel.querySelector("h3").firstChild.textContent,
      formula: panel.querySelector("math")?.textContent ?? null,
      text: panel.textContent,
    };
  }
  return cells;
}"""


@functools.cache
def shown(kind):
    torch.manual_seed(0)  # the same model, whichever test asks for it first
    model, input = MODELS[kind]()
    answer = {"transformer": "der Fuchs springt", "gru": "der Fuchs springt", "captioner": "the fox"}.get(
        kind
    )
    return Session(model, input, answer)


def hostile():
    """A run whose vocabulary consists of hostile HTML."""
    model = reader("write", "gpt")
    it = Session(model, WORDS)
    it.trace.tokens["text"] = HOSTILE
    it.input = HOSTILE[0]
    it.words = lambda ids: [HOSTILE[i % 5] for i in ids]
    return it


def saved_tensors(tensors):
    """Tensors as a page of one file holds them."""
    return {
        name: {
            "shape": list(torch.atleast_2d(t).shape),
            "type": "float32",
            "data": base64.b64encode(t.detach().float().contiguous().numpy().tobytes()).decode(),
        }
        for name, t in tensors.items()
    }


class Tab:
    """A page on which errors and requests to other hosts fail the test."""

    def __init__(self, browser, url, **options):
        options = {"reduced_motion": "reduce"} | options  # fewer pictures to draw
        self.page, self.url, self.wrong, self.opened = browser.new_page(**options), url, [], 0
        self.viewport = self.page.viewport_size
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.wrong.append(said.text))
        self.page.on("request", self.requested)

    def requested(self, request):
        if not request.url.startswith((self.url, "blob:", "data:", "about:")):
            self.wrong.append(request.url)

    def open(self, state="", wait="main section"):
        """Load the page anew."""
        if self.url.startswith("http:"):
            BEFORE_STOP[urlsplit(self.url).port].add(self.leave)
        self.opened += 1  # a new address, or only the part after # would change
        self.page.goto(f"{self.url}?{self.opened}{state}")
        self.page.wait_for_selector(wait)
        return self

    def turn(self, state):
        """Go to another address of the page that is open, as its links do: a fifth of the time of `open`."""
        self.page.evaluate(TURN, state)
        self.page.wait_for_selector("main:not([aria-busy]) > :not([data-left])")
        return self

    def views(self):
        """All views that the bar leads to, by going through its modes."""
        panels = set()
        for mode in self.page.eval_on_selector_all(".modes a", "all => all.map(a => a.id)"):
            self.page.click(f"#{mode}")
            self.page.wait_for_selector(f"#{mode}[aria-current]")
            panels |= set(self.page.eval_on_selector_all(".panels a", "all => all.map(a => a.id.slice(5))"))
        return panels

    def visit(self, view):
        """Open a view as people do: its mode in the bar, and then its panel."""
        if not self.page.query_selector(f"#view-{view}"):
            self.page.click(f"#mode-{MODES[view]}")
            self.page.wait_for_selector(f"#view-{view}", state="attached")
        if not self.page.query_selector(f"#view-{view}[aria-current]"):
            self.page.click(f"#view-{view}")

    def clear(self):
        """Leave the page, and everything that a test may have changed."""
        self.page.unroute_all()
        self.page.mouse.move(0, 0)
        self.page.set_viewport_size(self.viewport)
        self.page.emulate_media(media="screen")
        self.page.goto("about:blank")

    def leave(self):
        """Ask the server for nothing more, as it stops."""
        if not self.page.is_closed() and self.page.url.startswith(self.url):
            self.page.goto("about:blank")

    def table(self):
        """The rows of the table that accompanies the picture, without the labels."""
        self.page.click(".twin summary")
        self.page.wait_for_selector(".twin table")
        script = "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
        return self.page.eval_on_selector_all(".twin tbody tr", script)

    def text(self, selector):
        return self.page.text_content(selector)

    def wait(self, selector, text):
        """Wait until there is an element with this text."""
        self.page.wait_for_selector(f'{selector}:has-text("{text}")')

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.wait_until_still()

    def wait_until_still(self):
        """Wait until the page shows what its address says; what it showed before is gone then."""
        self.page.wait_for_selector("main:not([aria-busy])", state="attached")

    def wait_until_drawn(self):
        """Wait for what the page draws in the next frame: canvases, once their size is known."""
        self.page.evaluate(DRAWN)


def axe_violations(page, scheme="light"):
    """What axe finds that people with a screen reader or weak eyes can't use, as text."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs: axe-playwright-python")
    options = {"resultTypes": ["violations"]}
    if scheme == "dark":  # only colours differ
        options["runOnly"] = ["color-contrast"]
    result = axe.Axe().run(page, options=options)  # the rest would take longer
    return result.generate_report() if result.violations_count else ""


def number(text):
    return float(text.replace("−", "-"))


def close(text, want):
    """Format a number as the page does, with four digits."""
    return number(text) == pytest.approx(want, rel=6e-4, abs=1e-9)


def trained(folder):
    """The folder of a run of ten steps with two checkpoints, which have different weights."""
    model = reader("write", "gpt")
    sections = {"model": {"kind": "gpt"}, "data": {}, "task": {"name": "write"}, "train": {"lora_alpha": 5.0}}
    begin(folder, model.model, model.task, sections)
    (folder / GENERATION).write_text('{"temperature": 0.0, "max_new_tokens": 5}', "utf-8")
    rows = [{"step": n, "loss": 3.0 - n / 5} for n in range(1, 11)]
    (folder / LOG).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    write_tensors(folder / WEIGHTS, model.model.state_dict())
    for step in (3, 7):
        weights = {name: t * step / 5 for name, t in model.model.state_dict().items()}
        save(folder / CHECKPOINTS, step, weights, {}, {"step": step})
    return folder
