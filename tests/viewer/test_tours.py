"""Guided tours of the page: those that it has, and those that somebody wrote."""

import json
import math

import pytest
import torch

from helpers.browsing import close, shown
from helpers.serving import serve_session
from helpers.slow import slow_after
from regard.errors import UserError
from regard.viewer.session import Session
from regard.viewer.tours import read_tour

OWN = """
title = "What a mask does"

[[steps]]
address = "http://127.0.0.1:7447/#view=look&depth=head"
words = "Grey cells come later."

[[steps]]
address = "view=next"
words = "And so the answer comes from what came before."
"""


def test_a_tour_goes_from_step_to_step(tab):
    """By keys, on this model; a link to a step opens it."""
    it = tab("gpt")
    it.page.click("#tours")
    it.page.click("#tour-attention")
    it.wait("#tour", "1 of 8")
    it.press("n")
    it.page.wait_for_selector(".layer.block .card-box")
    it.press("n", "p", "n")
    it.wait("#tour", "3 of 8")
    it.page.wait_for_selector(".layer.head")
    it.open("#tour=attention&stop=5")
    it.page.wait_for_selector(".layer.number .tick.right")
    opening = shown("gpt").manifest["opening"]
    scores = shown("gpt").trace[f"blocks.{opening['layer']}.attn.scores"][opening["head"]]
    weights = shown("gpt").trace[f"blocks.{opening['layer']}.attn.weights"][opening["head"]]
    assert close(it.text(".cell .total b"), float(scores[-1, weights[-1].argmax()]))
    for step in range(6, 9):
        it.press("n")
        it.wait("#tour", f"{step} of 8")
    it.page.wait_for_selector("#atlas")
    assert it.page.is_disabled("#tour-next")
    it.page.click("#tour-end")
    it.page.wait_for_selector("#tour", state="hidden")


OFFERED = {
    "gpt": {"attention": 8, "answer": 7, "root": 7, "mask": 7, "heads": 5},
    "transformer": {"attention": 8, "answer": 6, "root": 7, "mask": 6, "heads": 6},
    "bert": {"attention": 8, "answer": 6, "root": 6, "heads": 5},
    "vit": {"attention": 8, "answer": 6, "root": 6, "heads": 5},
    "gru": {"attention": 7, "answer": 5},
    "plain": {"answer": 5},
}
WALKED = {  # each tour by a model to which all of its steps apply; those of a BERT and a ViT are the same
    "gpt": ["heads"],
    "transformer": list(OFFERED["transformer"]),
    "bert": [],
    "vit": ["attention", "root"],
    "gru": ["attention"],
    "plain": ["answer"],
}
DRAWN = """() => document.querySelectorAll(
  "main canvas, main .card-box, main .chip, main .patch, main .cell .total, main .bars .word, main #lens, "
  + "main .bars button, main .versus").length > 0"""


@pytest.mark.parametrize("kind", slow_after(1, OFFERED))
def test_every_step_can_be_seen(tab, kind):
    """Tours are offered where they apply, and each of their steps shows something."""
    it = tab(kind, "#tours=1")
    it.page.wait_for_selector("#tour-answer")
    buttons = it.page.eval_on_selector_all("#tour button", "all => all.map(b => b.id.slice(5))")
    assert buttons == [*OFFERED[kind], "end"]
    for tour, count in OFFERED[kind].items():
        if tour not in WALKED[kind]:
            continue
        it.turn(f"#tour={tour}&stop=1")
        urls = []
        for stop in range(1, count + 1):
            it.wait("#tour", f"{stop} of {count}")
            it.page.wait_for_selector("main:not([aria-busy])")
            it.page.wait_for_function(DRAWN)
            assert it.page.query_selector("main .wrong") is None
            assert "{" not in it.text("#tour p")
            urls.append(it.page.url)
            it.press("n")
        assert len(set(urls)) == count


def test_a_step_opens_by_its_link_alone(tab):
    """Also one that changes the model, which is changed back when it is left."""
    it = tab("gpt", "#tour=heads&stop=5")
    it.wait("#tour", "5 of 5")
    opening = shown("gpt").manifest["opening"]
    it.wait(".changes", f"head {opening['head']}")
    it.page.wait_for_selector("#changes-note")
    it.press("p")
    it.page.wait_for_selector("#atlas")
    it.page.wait_for_selector("#changes-note", state="detached")
    it.press("n")
    it.page.wait_for_selector("#changes-note")
    it.page.click("#tour-end")
    it.page.wait_for_selector("#changes-note", state="detached")


def test_the_tour_of_the_root_shows_the_softmax_of_undivided_scores(tab):
    it = tab("gpt", "#tour=root&stop=6")
    it.wait("h2", "not divided")
    opening, trace = shown("gpt").manifest["opening"], shown("gpt").trace
    name, head = f"blocks.{opening['layer']}.attn", opening["head"]
    scores = trace[f"{name}.scores"][head].masked_fill(trace[f"{name}.reason"] > 0, -torch.inf)
    weights = scores.softmax(-1)
    bits = -(torch.xlogy(weights, weights).sum(-1) / math.log(2)).mean()
    assert f"{bits:.1f} bits" in it.text("h2 small")
    assert float(bits) < shown("gpt").manifest["attentions"]["masked"][-1]["kinds"][head]["entropy"]
    for row, want in zip(it.table(), weights, strict=True):
        assert all(cell == "masked" or close(cell, float(w)) for cell, w in zip(row, want, strict=True))


def test_the_tour_of_heads_finds_the_heads(tab):
    it = tab("bert")
    for stop, pattern in {2: "first", 3: "previous"}.items():
        it.open(f"#tour=heads&stop={stop}")
        it.wait("#tour", f"{stop} of 5")
        best = max(
            (weight, attention["layer"], head)
            for attention in shown("bert").manifest["attentions"]["self"]
            for head, weight in enumerate(attention["patterns"][pattern]["weights"])
        )
        assert f"layer={best[1]}&head={best[2]}" in it.page.url


def test_a_tour_that_somebody_wrote(tab, tmp_path):
    (tmp_path / "mask.toml").write_text(OWN, "utf-8")
    session = Session(shown("gpt").model, shown("gpt").input)
    session.tour = read_tour(tmp_path / "mask.toml")
    with serve_session(session) as server:
        it = tab(server.url, "#tour=own&stop=1")
        it.wait("#tour", "Grey cells come later.")
        it.page.wait_for_selector(".layer.head")
        it.press("n")
        it.page.wait_for_selector("section.next")
    session.save(tmp_path / "a.html", {"tour": "own", "stop": "2"})
    it = tab(f"file://{tmp_path / 'a.html'}")
    it.wait("#tour", "2 of 2")


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("title = ", "TOML"),
        ('title = "a"', "steps"),
        ("[[steps]]\nwords = 'a'", "step 1"),
        ("[[steps]]\nwords = 'a'\naddress = 'depth=head'", "view"),
    ],
)
def test_a_tour_with_faults_names_them(tmp_path, text, fact):
    (tmp_path / "a.toml").write_text(text, "utf-8")
    with pytest.raises(UserError, match=fact):
        read_tour(tmp_path / "a.toml")
    with pytest.raises(UserError, match="no such file"):
        read_tour(tmp_path / "none.toml")
    assert json.dumps(shown("gpt").manifest["tours"]) == "{}"
