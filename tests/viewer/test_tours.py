"""Guided tours of the page: those that it has, and those that somebody wrote."""

import json

import pytest

from helpers.browsing import close, shown
from helpers.serving import serve_session
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


@pytest.mark.parametrize("kind", ["bert", "gru", "vit", "plain"])
def test_every_step_can_be_seen(tab, kind):
    it = tab(kind)
    for tour, count in {"attention": 8, "answer": 6}.items():
        if kind == "plain" and tour == "attention":
            continue
        for stop in range(1, count + 1):
            it.open(f"#tour={tour}&stop={stop}")
            it.wait("#tour", f"{stop} of {count}")
            assert it.page.query_selector("main .wrong") is None


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
