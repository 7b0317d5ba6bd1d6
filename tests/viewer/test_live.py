"""Type, and everything moves: live traces, Talk, changes that carry into all views; in a real browser."""

import json
import threading
import time
import urllib.parse

import pytest
from torch import nn

from helpers.browsing import WORDS, shown
from helpers.looking import reader
from helpers.serving import serve_session
from regard.cancel import Cancelled, check_cancelled
from regard.tracing import trace
from regard.tracing.intervene import change
from regard.viewer.session import Session

TEXTS = "all => all.map(one => one.textContent)"


def quote(changes):
    return urllib.parse.quote(json.dumps(changes))


@pytest.fixture(scope="module")
def slow():
    """A model whose runs wait, once they have begun, until they are cancelled."""
    model = reader("write", "gpt")
    session = Session(model, WORDS)
    waiting, cancelled, block = threading.Event(), threading.Event(), threading.Event()

    def hook(*_):
        if not block.is_set():
            return
        waiting.set()
        try:
            while block.is_set():
                time.sleep(0.005)
                check_cancelled()
        except Cancelled:
            cancelled.set()
            raise

    next(m for m in model.model.modules() if isinstance(m, nn.Embedding)).register_forward_pre_hook(hook)
    with serve_session(session) as server:
        yield server, block, waiting, cancelled


def test_a_keystroke_traces_and_the_focus_stays(tab):
    it = tab("gpt", "#layer=0&head=1")
    it.page.focus("#input")
    it.press("End")
    it.page.keyboard.type(" lazy")
    it.page.wait_for_selector("#matrix[aria-label*='6 × 6']")
    it.page.keyboard.type(" dog")
    it.page.wait_for_selector("#matrix[aria-label*='7 × 7']")
    assert it.page.evaluate("document.activeElement.id") == "input"
    assert it.page.input_value("#input") == f"{WORDS} lazy dog"
    assert it.text("h2").startswith("Masked self attention, layer 0, head 1")
    length = it.page.evaluate("history.length")
    it.page.keyboard.type(" fox")
    it.page.wait_for_selector("#matrix[aria-label*='8 × 8']")
    assert it.page.evaluate("history.length") == length  # one step back leads before the typing


def test_what_is_typed_is_written_on(tab):
    """The model's own continuation, below the field; Tab takes it over, and more typing takes it away."""
    model = shown("gpt").model
    text = next(text for text in ("the lazy", "over the", "den Hund", "fox dog") if model.ask(text).strip())
    it = tab("gpt", "#view=look")
    assert it.page.query_selector("#suggestion") is None  # before anybody types
    it.page.fill("#input", text)
    it.page.wait_for_selector("#suggestion")
    more = it.text("#suggestion bdi")
    assert model.ask(text).strip().startswith(more.strip())
    it.page.keyboard.press("Tab")
    assert it.page.input_value("#input") == f"{text} {more.strip()}"  # between words that are tokens
    assert it.page.evaluate("document.activeElement.id") == "input"
    it.page.wait_for_selector(f"#strip button:has-text('{more.split()[-1]}')")
    it.page.fill("#input", text)
    it.page.wait_for_selector("#suggestion")
    it.page.keyboard.press("Escape")
    assert it.page.query_selector("#suggestion") is None


def test_the_same_input_is_not_computed_again(tab):
    it = tab("gpt")
    ids = []
    for words in ("lazy dog", "lazy fox", "lazy dog"):
        with it.page.expect_response("**/api/trace") as response:
            it.page.fill("#input", words)
        ids.append(response.value.json()["id"])
    assert ids[0] == ids[2] != ids[1]


def test_abandoned_traces_stop(tab, slow):
    server, block, waiting, cancelled = slow
    it = tab(server.url, "#view=attention")
    block.set()
    it.page.fill("#input", "lazy dog")
    assert waiting.wait(60)  # the model runs
    it.page.fill("#input", "lazy brown fox")
    assert cancelled.wait(60)  # and stops, because nobody waits for it any more
    block.clear()
    it.page.wait_for_selector("#matrix[aria-label*='3 × 3']")
    it.wrong.clear()


def test_an_answer_streams_and_can_be_stopped(tab, slow):
    server, block, waiting, cancelled = slow
    cancelled.clear()
    it = tab(server.url, "#view=talk")
    block.set()
    waiting.clear()
    it.page.fill("#asked", "the lazy")
    it.press("Enter")
    assert waiting.wait(60)
    it.page.click("#stop")
    assert cancelled.wait(60)
    block.clear()
    it.page.wait_for_selector("#stop", state="hidden")
    it.page.fill("#asked", "the lazy dog")
    it.press("Enter")
    it.page.wait_for_selector(".said")
    assert it.text(".said") == "the lazy dog" + server.first.model.ask("the lazy dog")


def test_every_token_of_an_answer_opens_as_it_was_computed(tab):
    it = tab("gpt", "#view=talk")
    it.page.fill("#asked", "the lazy dog")
    it.press("Enter")
    it.page.wait_for_selector(".said .token")
    model = shown("gpt").model
    count = it.page.eval_on_selector_all(".said .token", "all => all.length")
    assert count > 2
    it.page.click(".said .token >> nth=2")
    it.page.wait_for_selector("section.next .bars")
    ids = model.tokenizer.encode("the lazy dog")
    read = [
        int(id)
        for id in it.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('ids')").split(",")
    ]
    assert read[: len(ids)] == ids
    assert len(read) == len(ids) + 2
    assert it.text(".exact")
    session = Session(model, read)
    best = model.tokenizer.tokens([int(session.trace["logits"][-1].argmax())])[0]
    assert it.text(".bars button").strip() == best.strip()
    it.visit("talk")
    it.page.wait_for_selector(".said")  # what was said is still there
    it = tab("transformer", "#view=talk")
    it.page.fill("#asked", "the lazy dog")
    it.press("Enter")
    it.page.wait_for_selector(".said .token")
    it.page.click(".said .token >> nth=1")
    it.page.wait_for_selector("section.next .bars")
    assert it.page.input_value("#row") == "1"
    assert it.page.input_value("#input") == "the lazy dog"


def test_turns_are_remembered(tab):
    model = reader("chat", "t5", task_turns=3)
    with serve_session(Session(model, WORDS)) as server:
        it = tab(server.url, "#view=talk")
        bodies = []
        it.page.on("request", lambda r: bodies.append(r.post_data) if r.url.endswith("talk") else None)
        for n, words in enumerate(("the lazy dog", "brown fox"), 1):
            it.page.fill("#asked", words)
            it.press("Enter")
            it.page.wait_for_selector(f".turn:nth-child({n}) .said")
        first = model.ask("the lazy dog")
        assert json.loads(bodies[1])["turns"] == ["the lazy dog", first, "brown fox"]
        said = it.page.eval_on_selector_all(".said", "all => all.map(one => one.textContent)")
        assert said == [first, model.ask(f"the lazy dog\n{first}\nbrown fox")]
        it.page.click("#clear")
        it.page.wait_for_selector(".said", state="detached")


def test_a_change_carries_into_all_views_and_can_be_undone(tab):
    model, part = shown("gpt").model, "blocks.1.attn"
    it = tab("gpt", "#layer=1&head=2")
    it.page.click("#silence-head")
    it.wait("#changes-note", "1 change")
    it.wait("#silence-head", "undo it")
    with change(model, silence={part: [2]}):
        changed = trace(model, WORDS)
    it.open(
        f"#view=walk&step={part}.heads&head=2&changes={quote([{'kind': 'silence', 'part': part, 'head': 2}])}"
    )
    assert all(cell == "0" for row in it.table() for cell in row)
    it.visit("next")
    it.page.wait_for_selector("section.next .bars")
    best = changed["probabilities"][-1].topk(3)
    assert [one.strip() for one in it.page.eval_on_selector_all(".bars button", TEXTS)[:3]] == [
        token.strip() for token in model.tokenizer.tokens(best.indices.tolist())
    ]
    it.page.click("#unchange")
    it.page.wait_for_selector("#changes-note", state="detached")
    it.page.click("#undo")
    it.wait("#changes-note", "1 change")
    it.visit("whatif")
    it.page.wait_for_selector("section.whatif")
    it.press("u")  # nothing is left to take back
    it.wait(".changes li", "Head 2 of masked self attention, layer 1 is silenced")


def test_a_cell_is_changed_where_one_looks(tab):
    it = tab("gpt", "#layer=1&head=0")
    it.page.focus("#matrix")
    it.press("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight")
    it.wait("#hide-key", "quick")
    it.page.click("#look-only")
    it.wait("#changes-note", "1 change")
    rows = it.table()
    assert [float(cell) for cell in rows[2][:3]] == [0, 1, 0]
    it.visit("next")
    it.page.wait_for_selector("section.next .bars")
    it.page.click("#unchange")
    it.page.wait_for_selector("#changes-note", state="detached")
    it.page.go_back()  # to before it was taken back
    it.wait("#changes-note", "1 change")
    it.page.wait_for_selector("#matrix")
    it.press("u")
    it.page.wait_for_selector("#changes-note", state="detached")
    it.page.click("#hide-key")
    it.wait("#changes-note", "1 change")
    assert "hide" in it.page.url


def test_an_invalid_change_says_so_and_the_others_apply(tab):
    good = {"kind": "silence", "part": "blocks.1.attn", "head": 2}
    bad = {"kind": "weights", "part": "blocks.1.attn", "head": 0, "query": 4, "to": [1, 2]}
    it = tab("gpt", f"#view=whatif&changes={quote([bad, good])}")
    it.wait(".changes li:nth-child(1) .wrong", "give 5 weights")
    assert it.page.query_selector(".changes li:nth-child(2) .wrong") is None
    mean = shown("gpt").whatif.changed([good])["mean"]
    assert float(it.text("#moved").split()[0]) == pytest.approx(mean, rel=1e-3)
    it.visit("attention")
    it.page.wait_for_selector("section.attention #matrix")
    assert it.page.query_selector("main .wrong") is None


def test_a_ranking_shows_its_progress_and_can_be_cancelled(tab, slow):
    server, block, waiting, cancelled = slow
    it = tab(server.url, "#view=whatif")
    cancelled.clear()
    waiting.clear()

    def hold(route):
        block.set()  # only now: What if itself has run the model before
        route.continue_()

    it.page.route("**/api/effects*", hold)
    it.page.click("#rank")
    it.page.wait_for_selector("#ranking-progress")
    while not waiting.is_set():
        it.page.wait_for_timeout(10)  # the browser goes on meanwhile
    assert it.page.get_attribute("#ranking-progress", "max") == "6"
    it.page.click("#cancel-rank")
    assert cancelled.wait(60)
    block.clear()
    it.page.unroute_all()
    it.page.wait_for_selector("#rank")
    it.page.click("#rank")
    it.page.wait_for_selector("#ranking")
