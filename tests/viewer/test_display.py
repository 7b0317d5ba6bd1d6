"""How attention is shown: scales, without the first token, whole words, several heads, as in torch."""

import pytest
import torch

from helpers.browsing import Session, close, shown
from helpers.looking import spelled
from helpers.serving import serve_session
from regard.viewer.manifest import number_words

NAME = "blocks.1.attn"


def check(it, want):
    """The table has these numbers (T, S); what has none is masked."""
    rows = it.table()
    assert (len(rows), len(rows[0])) == tuple(want.shape)
    for row, numbers in zip(rows, want.tolist(), strict=True):
        for cell, x in zip(row, numbers, strict=True):
            assert close(cell, x) if cell != "masked" else x == 0, (cell, x)


def colours(it):
    """The colour in the middle of every cell of the heat map, from its image."""
    it.wait_until_drawn()
    script = "async ([name]) => { const c = document.getElementById(name); return c.toDataURL() }"
    return it.page.evaluate(script, ["matrix"])


@pytest.mark.parametrize("scale", ["one", "log"])
def test_scales_change_colours_and_not_numbers(tab, scale):
    it = tab("gpt", "#view=attention&layer=1&head=1")
    before = colours(it)
    it.page.focus("#scale-head")
    it.press("ArrowRight", *(["ArrowRight"] if scale == "log" else []))
    it.page.wait_for_selector(f"#scale-{scale}[aria-selected=true]")
    assert f"scale={scale}" in it.page.url
    assert "≤ 0.0001" in it.text(".scale") if scale == "log" else it.text(".scale").startswith("01.000")
    check(it, shown("gpt").trace[f"{NAME}.weights"][1])
    assert scale == "one" or colours(it) != before  # a causal head has a 1


def test_without_the_first_token(tab):
    it = tab("gpt", "#view=attention&layer=1&head=1")
    it.page.focus("#sink")
    it.press("Enter")
    it.wait("h2", "rows add up to 1 again")
    weights = shown("gpt").trace[f"{NAME}.weights"][1].clone()
    weights[:, 0] = 0
    check(it, (weights / weights.sum(-1, keepdim=True)).nan_to_num())
    it.page.focus("#matrix")
    it.press("Home")
    assert it.text(".readout").endswith("left out: the first token")
    it.press("ArrowRight", "Enter")
    assert it.page.query_selector(".cell") is None  # its sum is another
    it.page.reload()
    it.wait("h2", "rows add up to 1 again")


def test_several_heads_in_colours_and_their_mean(tab):
    it = tab("gpt", "#view=attention&layer=1&head=0&also=2")
    weights = shown("gpt").trace[f"{NAME}.weights"]
    it.wait("h2", "heads 0, 2")
    check(it, weights[[0, 2]].mean(0))
    it.page.focus("#matrix")
    it.press("Shift+End", "Home")
    mean, each = weights[[0, 2], 4, 0].mean(), weights[[0, 2], 4, 0]
    said = it.text(".readout")
    assert said.endswith(f"mean {mean:.2f} (head 0: {each[0]:.2f}, head 2: {each[1]:.2f})")
    coloured = colours(it)
    it.page.click("#blend-mean")
    it.page.wait_for_selector("#blend-mean[aria-selected=true]")
    assert colours(it) != coloured
    it.page.click("#also-all")
    it.wait("h2", "heads 0, 1, 2")
    check(it, weights.mean(0))
    it.page.click("#also-1")
    it.page.click("#also-2")
    it.wait("h2", "layer 1, head 0")
    assert it.page.query_selector("#blend-mean") is None


def test_sub_words_are_merged_to_words(tab):
    session = Session(spelled(), "the lazy fox springt")
    numbers, tokens = session.manifest["words"]["text"], session.trace.tokens["text"]
    assert len(tokens) > numbers[-1] + 1 == 4
    merge = torch.zeros(4, len(tokens))  # (words, tokens)
    merge[numbers, range(len(tokens))] = 1
    weights = session.trace[f"{NAME}.weights"][2]
    with serve_session(session) as server:
        it = tab(server.url, "#view=attention&layer=1&head=2")
        it.page.click("#merge")
        it.wait("h2", "sub-words merged")
        check(it, merge / merge.sum(-1, keepdim=True) @ weights @ merge.T)
        heads = it.page.eval_on_selector_all(".twin thead th", "all => all.map(one => one.textContent)")
        assert [word.strip(" ␣·") for word in heads[1:]] == ["the", "lazy", "fox", "springt"]
        it.page.click("#form-arcs")
        it.page.wait_for_selector("#arcs")


def rows_of(it):
    """The numbers of the last table of the page."""
    it.page.click(".twin:last-child summary")
    it.page.wait_for_selector(".twin:last-child table")
    script = "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => Number(cell.textContent)))"
    return torch.tensor(it.page.eval_on_selector_all(".twin:last-child tbody tr", script))


def painted(it):
    """The image of the weights in the scene of a head, once it is there."""
    script = "() => document.querySelectorAll('.stage .layer.head canvas.pixels')[4]?.toDataURL()"
    return it.page.wait_for_function(script).json_value()


def test_the_scene_of_a_head_has_the_same_choices(tab):
    it = tab("gpt", "#view=look&depth=head&part=masked&layer=1&head=1")
    it.page.wait_for_selector(".layer.head canvas")
    plain = painted(it)
    it.page.click("#shown")
    it.page.click("#sink")
    it.wait(".sentence", "rows add up to 1 again")
    assert it.page.evaluate("document.activeElement.id") == "sink"  # and the menu is still open
    weights = shown("gpt").trace[f"{NAME}.weights"].clone()
    weights[..., 0] = 0
    without = (weights / weights.sum(-1, keepdim=True)).nan_to_num()
    assert torch.allclose(rows_of(it), without[1], atol=1e-4)
    assert painted(it) != plain
    it.page.click("#also-2")
    it.wait(".matrix-title", "heads 1, 2")
    coloured = painted(it)
    it.page.click("#blend-mean")
    it.wait(".matrix-title", "their mean")
    assert painted(it) != coloured
    assert torch.allclose(rows_of(it), without[1:].mean(0), atol=1e-4)
    it.page.click("#scale-log")
    it.page.wait_for_selector("#scale-log[aria-selected=true]")
    assert painted(it) != coloured
    it.page.focus("#scale-log")
    it.press("Escape")
    assert not it.page.is_visible("#sink")
    assert "depth=head" in it.page.url  # Escape closed the menu alone


def test_the_scene_of_a_head_shows_words(tab):
    session = Session(spelled(), "the lazy fox springt")
    numbers, tokens = session.manifest["words"]["text"], session.trace.tokens["text"]
    merge = torch.zeros(4, len(tokens))  # (words, tokens)
    merge[numbers, range(len(tokens))] = 1
    weights = session.trace[f"{NAME}.weights"][2]
    with serve_session(session) as server:
        it = tab(server.url, "#view=look&depth=head&part=masked&layer=1&head=2&merge=words")
        it.wait(".sentence", "sub-words merged")
        assert torch.allclose(rows_of(it), merge / merge.sum(-1, keepdim=True) @ weights @ merge.T, atol=1e-4)


def test_words_of_tokens():
    assert number_words(["un", "##believ", "##able", "news"]) == [0, 0, 0, 1]
    assert number_words(["<s>", "▁the", "▁fo", "x", "</s>"]) == [0, 1, 2, 2, 3]
    assert number_words(["the", "fox"]) is None  # each is a word
    assert number_words(["▁the", "▁fox"]) is None
    assert number_words([]) is None


def test_arcs_show_the_same_numbers(tab):
    it = tab("gpt", "#view=attention&form=arcs&layer=1&head=1&sink=without")
    weights = shown("gpt").trace[f"{NAME}.weights"][1].clone()
    weights[:, 0] = 0
    check(it, (weights / weights.sum(-1, keepdim=True)).nan_to_num())


def test_in_one_file(tab, tmp_path):
    shown("gpt").save(tmp_path / "a.html", {"view": "attention", "layer": "1", "head": "0", "also": "1"})
    it = tab(f"file://{tmp_path / 'a.html'}")
    check(it, shown("gpt").trace[f"{NAME}.weights"][[0, 1]].mean(0))
