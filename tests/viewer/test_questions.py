"""Five questions that people ask, each answered within three clicks from the opening."""

import pytest
import torch

import regard
from helpers.browsing import WORDS, axe_violations, close, number, shown, trained
from helpers.serving import serve_session
from helpers.slow import slow_after
from regard.viewer.session import Session


class Visitor:
    """Somebody who clicks at most three times."""

    def __init__(self, it):
        self.it, self.clicks = it, 0
        it.page.wait_for_selector(".ribbons.strong path")

    def click(self, selector):
        self.clicks += 1
        assert self.clicks <= 3
        self.it.page.click(selector)
        return self


@pytest.fixture
def visitor(tab):
    return lambda kind="gpt": Visitor(tab(kind))


def opening():
    where = shown("gpt").manifest["opening"]
    name = f"blocks.{where['layer']}.attn"
    return name, where["head"], shown("gpt").trace[f"{name}.weights"][where["head"], -1]


def test_which_word_decided_this(visitor):
    by = visitor().click("#questions").click("#ask-word")
    by.it.page.wait_for_selector(".parts .tick.right")
    words = shown("gpt").attribution(4, None)["words"]["text"]
    best = max(range(5), key=lambda i: abs(words[i]))
    bars = by.it.page.eval_on_selector_all("#read-from .word", "all => all.map(e => e.textContent)")
    assert bars[0] == f"{best} {WORDS.split()[best]}"


def test_what_does_a_head_do(visitor):
    by = visitor().click("#head-1")
    by.it.wait("#sentence", "head 1")
    by.click("#questions").click("#ask-head")
    by.it.page.wait_for_selector("#evidence table")
    rows = by.it.page.eval_on_selector_all(
        "#evidence tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    patterns = shown("gpt").manifest["attentions"]["masked"][-1]["patterns"]
    here = [row for row in rows if row[1]]  # others are of built-in texts alone
    for row, pattern in zip(here, patterns.values(), strict=True):
        assert number(row[1]) == pytest.approx(pattern["weights"][1], abs=1e-4)
    assert "of its attention" in by.it.text("#sentence")


def test_a_head_without_a_name_is_described_too(visitor):
    by = visitor().click("#layer-back")
    by.it.wait("#sentence", "No named pattern fits; the nearest")


def test_why_did_it_say_x(visitor):
    """Of the likeliest token by the menu; of any token of the answer by a click on it."""
    by = visitor().click("#questions")
    said = by.it.text("#ask-why")
    best = shown("gpt").trace["logits"][4].topk(3)
    assert shown("gpt").words([int(best.indices[0])])[0] in said
    by.click("#ask-why")
    by.it.wait(".parts .total", "✓")
    assert close(by.it.text(".parts .total b"), float(best.values[0]))
    by = visitor().click("#leaf-2")
    by.it.wait(".parts .total", "✓")
    assert close(by.it.text(".parts .total b"), float(best.values[2]))


def test_what_if_this_word_were_hidden(visitor):
    by = visitor().click("#questions")
    _, _, weights = opening()
    best = int(weights.argmax())
    assert WORDS.split()[best] in by.it.text("#ask-hide")
    by.click("#ask-hide")
    by.it.page.wait_for_selector(".changes li")
    after = shown("gpt").whatif.changed([{"kind": "hide", "token": best}], None)["top"]
    for word in after[:3]:
        by.it.wait(".versus", f"{100 * word['after']:.1f}" if word["after"] >= 0.01 else word["token"])
    by.it.press("u")  # and it can be undone
    by.it.page.wait_for_selector(".changes li", state="detached")


def test_when_did_it_learn_this(tab, tmp_path):
    model = regard.load(trained(tmp_path / "run"), "cpu")
    with serve_session(Session(model, WORDS)) as server:
        by = Visitor(tab(server.url)).click("#questions").click("#ask-learned")
        by.it.page.wait_for_selector("#when svg")
        by.click("#when .twin summary")
        by.it.page.wait_for_selector("#when table")
        rows = by.it.page.eval_on_selector_all(
            "#when tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        )
        assert [row[0] for row in rows] == ["3", "7", "final"]
        final = regard.trace(model, WORDS)["logits"][4]
        for row, step in zip(rows, (3, 7, None), strict=True):
            at = model if step is None else regard.at_step(model, step)
            logits = regard.trace(at, WORDS)["logits"][4]
            token = int(final.argmax())
            assert number(row[1]) == pytest.approx(float(logits.softmax(-1)[token]), abs=1e-4)
            assert int(row[2]) == 1 + int((logits > logits[token]).sum())
            assert row[3] == model.tokenizer.tokens([int(logits.argmax())])[0]
        assert "step 3" in by.it.text("#when .sentence")
        by.it.visit("look")  # the page is still whole
        by.it.page.wait_for_selector(".ribbons.strong path")
        assert torch.isfinite(final).all()


@pytest.mark.parametrize("kind", slow_after(2, ["vit", "transformer", "plain", "classes"]))
def test_models_offer_the_questions_that_they_can_answer(tab, kind):
    it = tab(kind)
    it.page.click("#questions")
    it.page.wait_for_selector(".drop-down > div")
    asked = it.page.eval_on_selector_all(".drop-down button", "all => all.map(b => b.id.slice(4))")
    assert (
        asked
        == {
            "vit": ["why", "word", "head", "silence"],
            "transformer": ["why", "head", "hide", "silence"],
            "plain": [],
            "classes": ["head", "hide", "silence"],
        }[kind]
    )
    it.press("Escape")
    it.page.wait_for_selector(".drop-down > div", state="hidden")


@pytest.mark.parametrize("scheme", slow_after(1, ["light", "dark"]))
def test_axe_finds_nothing(tab, scheme):
    it = tab("gpt", "#view=look", color_scheme=scheme)
    it.page.click("#questions")
    it.page.wait_for_selector("#ask-why")
    for state in (
        "",
        "#view=next&words=parts",
        "#view=attention&also=1",
        "#tours=1",
        "#view=look&depth=head",
    ):
        if state:
            it.turn(state)
        if "depth" in state:
            it.page.click("#shown")
        it.page.wait_for_function("() => getComputedStyle(document.getElementById('main')).opacity === '1'")
        assert axe_violations(it.page, scheme) == ""
