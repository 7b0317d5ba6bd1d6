"""The tree of an answer is that of beam search, and every token has the attention row of its beam."""

import json
import math

import pytest
import torch

import regard
from helpers.browsing import WORDS, close, number, shown
from helpers.errors import user_error
from helpers.looking import reader
from regard.viewer import tree
from regard.viewer.session import Session

KINDS = {
    "transformer": lambda: reader("translate", "transformer"),
    "t5": lambda: reader("chat", "t5"),
    "gru": lambda: reader("translate", "gru", attention="additive"),
    "lstm": lambda: reader("chat", "lstm", attention="general", depth=2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_chosen_path_is_the_answer(kind):
    model = KINDS[kind]()
    result = tree.search(model, WORDS, 3)
    ((best,),) = model.answers([WORDS], num_beams=3)
    words = [result.steps[n][i] for n, i in enumerate(result.chosen)]
    ids = [model.task.output_tokenizer.inner.token_to_id(one["token"]) for one in words if not one["ended"]]
    assert model.task.output_tokenizer.decode(ids) == best.text
    assert result.score == pytest.approx(best.score, rel=1e-5)
    total = sum(math.log(one["p"]) for one in words)
    assert total == pytest.approx(words[-1]["score"], rel=1e-5)
    assert total / len(words) == pytest.approx(best.score, rel=1e-4)
    for before, step in zip(result.steps[:-1], result.steps[1:], strict=True):
        rows = [i for i, one in enumerate(before) if one["kept"]]
        assert len(rows) == 3
        assert {one["from"] for one in step} <= set(rows)


@pytest.mark.parametrize("kind", ["transformer", "gru", "lstm"])
def test_rows_are_those_of_a_full_forward_pass(kind):
    """The weights of the chosen path, against a trace of the same answer with teacher forcing."""
    model = KINDS[kind]()
    result = tree.search(model, WORDS, 3)
    ((best,),) = model.answers([WORDS], num_beams=3)
    full = regard.trace(model, (WORDS, best.text))
    path = [(n, result.steps[n][i]) for n, i in enumerate(result.chosen)]
    assert [one["token"] for _, one in path] == full.tokens["written"][: len(path)]
    assert set(result.rows) == {name for name in full.attentions if name.endswith(("cross", "look"))}
    for name, rows in result.rows.items():
        w = rows[:, [n * 3 + one["parent"] for n, one in path]]
        torch.testing.assert_close(w, full[f"{name}.weights"][:, : len(path)], rtol=1e-4, atol=1e-5)


def test_one_beam_is_the_trace():
    it = shown("transformer")
    result = it.tree(1)
    words = [result.steps[n][i] for n, i in enumerate(result.chosen)]
    assert [one["token"] for one in words] == it.trace.tokens["written"]
    shares = it.trace["probabilities"][range(4), it.trace.ids["written"]]
    assert [one["p"] for one in words] == pytest.approx(shares.tolist(), rel=1e-5)
    assert words[-1]["score"] == pytest.approx(float(shares.log().sum()), rel=1e-5)


def test_errors():
    assert "beams=17: give a number from 2 to 16" in user_error(
        lambda: tree.search(KINDS["gru"](), WORDS, 17)
    )
    assert "beam" in user_error(lambda: tree.search(reader("write", "gpt"), WORDS, 2))
    assert "does not write answers" in user_error(lambda: Session(reader("write", "gpt"), WORDS).tree(1))


def test_requests_of_a_browser(server):
    at = server("gru")
    id = at.first.id
    for beams in ("0", "17", "-1", "x", "4.5", "9" * 30):
        assert at.ask("/api/tree", trace=id, beams=beams)[0] == 400, beams
    for row in ("-1", "99", "x"):
        assert at.ask("/api/lens", trace=id, row=row)[0] == 400, row
    assert at.ask("/api/tree", trace="none", beams=1)[0] == 410
    assert at.ask("/api/tensor", trace=id, name="beams.9.decoder.look")[0] == 400  # not searched for
    assert json.loads(at.ask("/api/tree", trace=id, beams=2)[2])["beams"] == 2


# In a browser


@pytest.mark.parametrize("kind", ["transformer", "gru"])
def test_a_word_shows_its_row(tab, kind):
    it = tab(kind, "#view=alignment&beams=4&layer=0")
    tree = shown(kind).tree(4)
    nodes = it.page.query_selector_all("#tree .node")
    assert len(nodes) == sum(map(len, tree.steps))
    n, i = 2, next(i for i, one in enumerate(tree.steps[2]) if not one["kept"] and not one["ended"])
    it.page.click(f'.node[data-step="{n}"][data-number="{i}"]')
    it.wait("section p b", tree.steps[n][i]["token"])
    rows = it.table()
    assert len(rows) == 3
    name = "decoder.0.cross" if kind == "transformer" else "decoder.look"
    w = tree.rows[name].mean(0)[n * 4 + tree.steps[n][i]["parent"]]
    assert all(close(cell, float(x)) for cell, x in zip(rows[n], w, strict=True))
    said = it.page.text_content(".tree .readout")
    assert said.startswith(f"step 3, {tree.steps[n][i]['token']}: ")
    assert said.endswith("dropped")


def test_keys_go_along_the_tree_and_a_link_comes_back(tab):
    it = tab("gru", "#view=alignment&beams=2")
    tree = shown("gru").tree(2)
    it.page.focus("#tree")
    it.press("ArrowRight")
    it.page.wait_for_url("**node=0%2C**")
    it.press("ArrowRight")
    it.page.wait_for_url("**node=1%2C**")
    it.wait(".tree .readout", f"step 2, {tree.steps[1][tree.chosen[1]]['token']}")
    it.press("ArrowDown")
    other = tree.chosen[1] + 1
    it.page.wait_for_url(f"**node=1%2C{other}**")
    it.wait(".tree .readout", f"step 2, {tree.steps[1][other]['token']}")
    it.press("ArrowLeft")
    it.page.wait_for_url("**node=0%2C**")
    it.turn(f"#view=alignment&beams=2&node=1,{other}")
    rows = it.page.eval_on_selector_all(".tree .node", "all => all.length")
    assert rows == sum(map(len, tree.steps))
    it.page.click(".tree .twin summary")
    it.page.wait_for_selector(".tree table")
    cells = it.page.eval_on_selector_all(
        ".tree tbody tr", "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    want = [one for step in tree.steps for one in step]
    assert [number(row[4]) for row in cells] == pytest.approx([one["score"] for one in want], rel=1e-3)


def test_the_search_goes_into_the_file(tab, tmp_path):
    it = Session(shown("gru").model, WORDS, "der Fuchs springt")
    it.tree(4)
    it.save(tmp_path / "a.html", {"view": "alignment", "beams": "4"})
    opened = tab(f"file://{tmp_path / 'a.html'}")
    assert opened.page.input_value("#beams") == "4"
    assert len(opened.page.query_selector_all("#tree .node")) == sum(map(len, it.tree(4).steps))
    for state in ("beams=8&node=9,9", "node=x", "beams=1&node=0,3"):
        opened.turn(f"#view=alignment&{state}")
        assert opened.page.query_selector("main .wrong") is None
