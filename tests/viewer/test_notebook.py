"""In a notebook, a run is shown as the page in a frame, which is small and makes no requests."""

import html
import re

import pytest
import torch

import regard
from helpers.browsing import MODES, WORDS, close, shown
from helpers.looking import reader
from helpers.slow import slow_after
from regard.models import GPT, GPTConfig
from regard.runs.model import Model
from regard.tasks import Write, WriteConfig
from regard.tracing import Trace
from regard.viewer import session
from regard.viewer.session import Session


class Frame:
    """A page like a notebook's, in an encoding of its own, with the output of a cell."""

    def __init__(self, browser, path, cell):
        head = "<!doctype html><meta charset=windows-1252><title>notebook</title>"
        path.write_text(f"{head}<p>before</p>{cell}<p>after</p>", "utf-8")
        self.asked, self.wrong = [], []
        self.page = browser.new_page()
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.wrong.append(said.text))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(f"file://{path}")
        self.inside = self.page.frame_locator("iframe")

    def close(self):
        self.page.close()
        assert self.wrong == []
        rest = [url for url in self.asked[1:] if not url.startswith(("about:srcdoc", "blob:", "data:"))]
        assert rest == []


def test_a_frame_is_the_page_and_stays_by_itself(browser, tmp_path):
    it = regard.page(shown("gpt").model, WORDS, view="attention", layer=1, head=2)
    cell = it._repr_html_()
    assert re.match(r"<iframe sandbox='allow-scripts allow-downloads' ", cell)
    source = re.search(r"srcdoc='([^']*)'></iframe>$", cell)[1]
    assert html.unescape(source) == it.html()
    frame = Frame(browser, tmp_path / "a.html", cell)
    inside = frame.inside
    inside.locator(".twin summary").click()
    w = it.trace["blocks.1.attn.weights"][2]
    assert close(inside.locator(".twin tbody tr").nth(4).locator("td").nth(1).text_content(), float(w[4, 1]))
    for view in ("next", "walk", "map", "take"):
        if view in MODES:
            inside.locator(f"#mode-{MODES[view]}").click()
        inside.locator(f"#view-{view}").click()
        inside.locator(f"section.{view}").wait_for()
    inside.locator("#view-attention").click()
    inside.locator("#matrix").focus()
    frame.page.keyboard.press("ArrowRight")
    frame.page.keyboard.press("Enter")
    inside.locator(".cell .tick.right").wait_for()
    inside.locator("#skip").focus()
    frame.page.keyboard.press("Enter")
    assert frame.page.url == f"file://{tmp_path / 'a.html'}"
    assert frame.page.evaluate("document.querySelector('iframe').contentDocument") is None  # another origin
    frame.close()


def test_a_trace_shows_itself(browser, tmp_path):
    model = shown("transformer").model
    traced = regard.trace(model, (WORDS, "der Fuchs springt"))
    frame = Frame(browser, tmp_path / "a.html", traced._repr_html_())
    frame.inside.locator("#view-alignment").click()
    frame.inside.locator("#tree .node").first.wait_for()
    assert "der Fuchs springt" in frame.inside.locator("#ask").text_content()
    frame.close()
    traced.save(tmp_path / "a.safetensors")
    assert Trace.load(tmp_path / "a.safetensors")._repr_html_() is None


def test_hostile_tokens_stay_in_the_frame(browser, tmp_path):
    it = Session(reader("write", "gpt"), WORDS)
    it.trace.tokens["text"] = [
        "</script>",
        "'><img src=x onerror=alert(1)>",
        "&quot;'",
        "</iframe>",
        "\u202e",
    ]
    it.input = "'></iframe><script>window.harmed = 1</script>"
    frame = Frame(browser, tmp_path / "a.html", it._repr_html_())
    frame.inside.locator("section.look").wait_for()
    assert frame.page.evaluate("window.harmed") is None
    assert len(frame.page.query_selector_all("iframe")) == 1
    assert frame.page.query_selector("img, script") is None
    frame.close()


@pytest.mark.parametrize(("tokens", "vocab"), [*slow_after(1, [(37, 20_011), (1024, 1009), (4096, 1009)])])
def test_a_frame_is_below_8_megabytes(browser, tmp_path, tokens, vocab):
    """For any input: all of it is shown, with a limited number of values (1,024 tokens have more)."""
    tokenizer = reader("write", "gpt").tokenizer
    torch.manual_seed(7)
    config = GPTConfig(vocab=vocab, context=4096, dim=16, depth=5, heads=1)
    model = Model(GPT(config).eval(), Write(WriteConfig(name="write"), tokenizer, 4096), {})
    tokenizer.tokens = lambda ids: [f"word {i}" for i in ids]  # as many as a large vocabulary has
    it = session.page(model, " ".join(["fox", "dog"] * (tokens // 2) + ["fox"] * (tokens % 2)))
    assert len(it.trace.tokens["text"]) == tokens
    cell = it._repr_html_()
    assert len(cell.encode()) < 8_000_000
    if tokens < 100:  # other tests open frames of short texts
        return
    frame = Frame(browser, tmp_path / "a.html", cell)
    frame.inside.locator(".layer.model").wait_for()
    frame.inside.locator("#view-attention").click()
    frame.inside.locator("#matrix").wait_for()
    frame.inside.locator("#view-next").click()
    frame.inside.locator(".bars").wait_for()
    assert frame.inside.locator("#matrix").count() == 0
    frame.close()
