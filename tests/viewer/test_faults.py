"""Faults that people found on the page, each in a real browser: none may come back."""

import io
import itertools
import urllib.parse

import numpy as np
import pytest
from PIL import Image

from helpers.browsing import VIEWS, WORDS, shown, trained
from helpers.looking import CONTEXT, reader, seer
from helpers.serving import serve_models, serve_session
from helpers.slow import slow_after
from regard.files.locks import lock_folder
from regard.runs.layout import LOG
from regard.runs.load import load
from regard.viewer.session import Session
from regard.viewer.trace_data import max_pool

CONTRAST = """() => {
  const channels = (text) => {
    const [r, g, b, ...alpha] = text.match(/[\\d.e-]+(?=[\\s,)])/g).map(Number);
    return [...[r, g, b].map((x) => (text.startsWith("color(srgb") ? x * 255 : x)), ...alpha];
  };
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((x) => x / 255)
      .map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {  // layers of colour over what is behind them
    const [r, g, b, alpha = 1] = channels(getComputedStyle(e).backgroundColor);
    if (alpha === 1 || !e.parentElement) return [r, g, b];
    return ground(e.parentElement).map((under, i) => alpha * [r, g, b][i] + (1 - alpha) * under);
  };
  const poor = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !e.checkVisibility()) continue;
    if (e.closest("svg, option, :disabled, script, noscript")) continue;
    const [a, b] = [light(channels(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([texts.currentNode.textContent.trim().slice(0, 30), ratio]);
  }
  return poor;
}"""
HEADINGS = "() => [...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))"


def settled(it):
    """Wait until the page shows what its address says."""
    it.page.wait_for_selector("main:not([aria-busy]) section")
    return it


def test_what_does_not_fit_the_context_is_said(tab):
    it = tab("gpt")
    assert it.page.query_selector(".unread") is None
    it.page.fill("#input", "fox " * 40)
    it.press("Enter")
    it.page.wait_for_selector(".unread")
    said = it.text(".unread")
    traced = Session(shown("gpt").model, "fox " * 40)
    assert f"{40 - len(traced.trace.ids['text'])} tokens" in said
    assert str(CONTEXT) in said
    it.page.fill("#input", "fox")
    it.press("Enter")
    it.page.wait_for_selector(".unread", state="detached")


def test_newlines_of_an_input_stay(tab):
    text = "the quick\nbrown\n\nfox"
    it = tab("gpt", "#" + urllib.parse.urlencode({"input": text}))
    assert it.page.input_value("#input") == text
    it.page.focus("#input")
    it.press("End")
    it.page.keyboard.press("Shift+Enter")
    it.page.keyboard.type("dog")
    it.press("Enter")
    it.page.wait_for_function("decodeURIComponent(location.hash).includes('dog')")
    assert it.page.input_value("#input").count("\n") == 4
    it.open("#" + urllib.parse.urlencode({"view": "whatif", "what": "take", "input": text}))
    assert it.page.input_value("#change-input") == text
    it.open("#" + urllib.parse.urlencode({"view": "compare", "input": text}))
    assert it.page.input_value("#with") == text


def test_an_empty_input_says_so_and_leaves_the_picture(tab):
    it = tab("gpt", "#view=attention")
    for text in ("", "  \n"):
        it.page.fill("#input", text)
        it.press("Enter")
        it.wait("#ask .wrong", "nothing to trace")
        assert it.page.query_selector("main #matrix") is not None
    it.page.fill("#input", "lazy dog")
    it.page.wait_for_selector("#matrix[aria-label*='2 × 2']")
    assert it.page.query_selector("#ask .wrong") is None


def test_a_run_that_is_trained_is_followed(tab, tmp_path):
    folder = trained(tmp_path / "run")
    with serve_session(Session(load(folder), WORDS)) as server:
        it = tab(server.url, "#view=training")
        assert it.text("#checkpoint option:last-child") == "final"
        with lock_folder(folder, "OUT"):
            it.open("#view=training")
            assert it.text("#checkpoint option:last-child") == "when opened"
            assert it.text(".replay output") == "the model when the page was opened"
            with (folder / LOG).open("a") as log:
                log.write('{"step": 11, "loss": 0.25, "valid_loss": 0.125}\n')
            it.wait(".scale", "last 0.2500")
            assert "below the training loss" in it.text("#lower")
            (folder / "checkpoints" / "step-7").rename(folder / "checkpoints" / "step-9")
            it.page.wait_for_selector("#checkpoint option[value='9']", state="attached")
        it.wait(".replay output", "the final model")  # the run has ended


def test_cross_attention_has_no_token_itself(tab):
    kinds = shown("transformer").manifest["attentions"]["cross"][0]["kinds"]
    assert kinds[0].keys() == {"entropy", "first"}
    it = tab("transformer", "#form=atlas&part=cross&by=previous")
    assert it.page.query_selector("#by-previous, #by-diagonal") is None
    assert "previous" not in it.text(".readout")
    it.table()
    assert it.page.eval_on_selector_all(".twin thead th", "all => all.length") == 3
    it.open("#form=atlas&part=encoder")
    assert it.page.query_selector("#by-previous") is not None


def test_a_change_is_called_a_change(tab):
    it = tab("gpt", "#view=whatif&rank=1")
    it.page.wait_for_selector("#ranking")
    assert "change of the answer's log-probability" in it.text("#ranking thead")


@pytest.mark.parametrize("state", ["#layer=1", "#form=atlas", "#view=map", "#view=space"])
def test_a_png_is_large_and_has_a_background(tab, state):
    it = tab("gpt", state)
    it.visit("take")
    with it.page.expect_download() as waiting:
        it.page.click("#png")
    with open(waiting.value.path(), "rb") as file:
        image = Image.open(io.BytesIO(file.read())).convert("RGBA")
    assert max(image.size) >= 2000
    assert image.getextrema()[3] == (255, 255)


def test_escape_closes_from_anywhere_and_the_focus_stays(tab):
    it = tab("gpt", "#layer=1&cell=blocks.1.attn.weights:0,2,1")
    for selector in ("#matrix", "#head", "#input"):
        it.turn("#layer=1&cell=blocks.1.attn.weights:0,2,1")
        it.page.focus(selector)
        it.press("Escape")
        it.page.wait_for_selector(".cell", state="detached")
        assert it.page.evaluate("'#' + document.activeElement.id") == selector
    it.turn("#layer=1&cell=blocks.1.attn.weights:0,2,1")
    it.page.focus(".cell .deeper")
    it.press("Enter")
    it.wait(".cell .name", "blocks.1.attn.scaled")
    assert it.page.evaluate("document.activeElement.className") == "cell"
    it.turn("#view=whatif")
    it.page.focus("#rank")
    it.press("Enter")
    it.page.wait_for_selector("#ranked")
    assert it.page.evaluate("document.activeElement.id") == "main"


def test_every_view_has_a_key(tab):
    it = tab("transformer")
    views = VIEWS["transformer"]
    it.press("0")
    it.page.wait_for_selector(f"section.{views[9]}")
    for view in (*views[10:], views[0]):
        it.press("v")
        it.page.wait_for_selector(f"section.{view}")
    it.press("V")
    it.page.wait_for_selector(f"section.{views[-1]}")


def test_a_server_that_is_gone_is_named(tab):
    it = tab("gpt", "#view=attention")
    it.page.route("**/api/**", lambda route: route.abort("connectionrefused"))
    it.page.fill("#input", "lazy dog")
    it.wait("main .wrong", "server")
    assert "does not answer" in it.text("main .wrong")
    it.page.unroute_all()
    it.page.click("#retry")
    it.page.wait_for_selector("#matrix[aria-label*='2 × 2']")
    it.wrong.clear()  # the browser's own word on requests that fail


def test_a_trace_that_the_server_dropped_is_made_again(tab):
    it = tab("gpt")
    for n in range(6):  # more than it keeps
        status = it.page.evaluate(
            """async (n) => (await fetch("/api/trace", { method: "POST", body: JSON.stringify({
              input: "fox ".repeat(n + 1) }), headers: { "Content-Type": "application/json" } })).status""",
            n,
        )
        assert status == 200
    it.visit("next")
    it.page.wait_for_selector("section.next .bars")
    it.wrong.clear()  # the browser's own word on a status of 410


def test_several_models_have_a_switch(tab):
    models = {"writer": reader("write", "gpt"), "filler": reader("fill", "bert"), "seer": seer()}
    with serve_models(models) as server:
        it = tab(server.url)
        names = it.page.eval_on_selector_all("#models option", "all => all.map(o => o.textContent)")
        assert names == list(models)
        it.turn("#layer=1&head=0")
        it.page.click("#silence-head")
        it.page.wait_for_selector("#undo")
        it.page.select_option("#models", "1")
        it.wait("#model", "Bert")
        settled(it)
        assert it.page.query_selector("#undo") is None  # a change of the other model
        it.press("u")
        assert "changes" not in it.page.url
        it.visit("next")
        it.page.wait_for_selector("section.next .bars")
        assert "model=1" in it.page.url
        it.visit("talk")
        it.page.fill("#asked", "the quick [MASK] fox")
        it.press("Enter")
        it.page.wait_for_selector(".said")
        assert it.text(".said") == models["filler"].ask("the quick [MASK] fox")
        it.page.select_option("#models", "2")
        it.wait("#model", "ViT")
        settled(it)
        it.page.select_option("#models", "0")
        it.wait("#model", "GPT")
        it.page.wait_for_selector("#input")


def test_the_future_is_masked_in_long_texts_too(tab):
    """Where cells stand for several, those that are masked as a whole say why."""
    it = tab("gpt")
    script = """async () => {
      const { Server } = await import("/page/source.js");
      const { maskReasons } = await import("/page/selection.js");
      const source = new Server();
      const manifest = await source.trace({});
      const why = await maskReasons({ source, manifest }, manifest.attentions.masked[0], 2);
      return [why(0, 0), why(0, 1), why(1, 0), why(1, 1)];
    }"""
    assert it.page.evaluate(script) == [None, "masked: it comes later (future)", None, None]


def test_peaks_below_zero_stay_and_masked_numbers_hide_none(tab):
    """Pooled by the page, where it was saved with its numbers, as by the server."""
    it = tab("gpt")
    rows = [[1, -3, "-Infinity", "-Infinity"], [2, 0.5, "-Infinity", -0.25], ["NaN", 9, -1, 1]]
    script = """async (rows) => {
      const { takePart } = await import("/page/tensor_part.js");
      const tensor = { shape: [3, 4], data: Float32Array.from(rows.flat(), Number) };
      return Array.from(takePart("x", tensor, { most: 2 }).data, String);
    }"""
    x = np.array(rows, np.float32)
    want = [[-3, -np.inf], [np.nan, -1]]
    assert np.array_equal(max_pool(x, 2), want, equal_nan=True)
    assert [float(one) for one in it.page.evaluate(script, rows)[:2]] == want[0]
    assert it.page.evaluate(script, rows)[2] == "NaN"


def test_labels_are_never_blank(tab):
    it = tab("gpt")
    script = """async (texts) => {
      const { label } = await import("/page/dom.js");
      return texts.map((text) => label(text));
    }"""
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    texts = ["\u200d", "\ufe0f", "\u2060\u200b", "\u0301", "\u3164", " ", family, "e\u0301"]
    labels = it.page.evaluate(script, texts)
    assert labels[:5] == ["\\u200d", "\\ufe0f", "\\u2060\\u200b", "\\u0301", "\\u3164"]
    assert labels[5:] == ["␣", family, "e\u0301"]


@pytest.mark.parametrize("scheme", slow_after(1, ["light", "dark"]))
def test_contrast_and_headings(tab, tmp_path, scheme):
    for kind, views in (
        ("gpt", VIEWS["gpt"] if scheme == "light" else ["look", "attention", "talk"]),
        ("vit", ["look", "picture", "take"]),
        ("transformer", ["look", "alignment", "attention"]),
    ):
        it = tab(kind, color_scheme=scheme)
        for view in views:
            it.turn(f"#view={view}&cell=logits:0,0,0")
            assert it.page.query_selector(f"section.{view}") is not None
            assert it.page.evaluate(CONTRAST) == [], view
            levels = it.page.evaluate(HEADINGS)
            assert levels[:2] == [1, 2], view
            assert levels.count(1) == 1
            assert all(b - a <= 1 for a, b in itertools.pairwise(levels)), (view, levels)
    folder = trained(tmp_path / "run")
    with (folder / LOG).open("a") as log:
        log.write('{"step": 11, "loss": 0.25, "valid_loss": 0.125}\n')
    with serve_session(Session(load(folder), WORDS)) as server:
        it = tab(server.url, "#view=training", color_scheme=scheme)
        assert "validation" in it.text(".scale")
        assert it.page.evaluate(CONTRAST) == []


def test_the_page_does_not_jump(tab):
    it = tab("gpt", "#view=walk", viewport={"width": 700, "height": 360})
    it.page.evaluate("window.scrollTo(0, 400)")
    before = it.page.evaluate("scrollY")
    assert before > 200
    it.press("n")
    it.wait("h2", "Embedding without")
    it.wait_until_drawn()
    assert it.page.evaluate("scrollY") == before
    it.visit("map")
    it.page.wait_for_selector("section.map")
    assert it.page.evaluate("scrollY") == 0
