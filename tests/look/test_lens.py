"""What each layer would have said: the last one what the model says, others what their vectors come to."""

import pytest
import torch
from browsing import MODELS, WORDS, close, number, shown
from looking import reader
from mistakes import mistake

from regard.look import page
from regard.look.lens import layers, lens
from regard.look.page import Shown

DEEP = ["gpt", "gpt2", "bert", "window", "transformer", "t5", "vit-captioner"]


@pytest.mark.parametrize("kind", DEEP)
def test_the_last_layer_says_what_the_model_says(kind):
    it = shown(kind)
    assert it.manifest["outputs"]["lens"]
    for row in range(len(it.trace["logits"])):
        final, each = lens(it.model.model, it.trace, row)
        shares = it.trace["logits"][row].softmax(-1)
        assert final == int(shares.argmax())
        assert each[-1]["ids"] == shares.topk(5).indices.tolist()
        assert each[-1]["p"] == pytest.approx(shares.topk(5).values.tolist(), rel=1e-4)
        assert each[-1]["rank"] == 1
    assert each[0]["layer"] == "embedding"
    assert len(each) == 1 + len([name for name in layers(it.trace) if name != "embedding"])


def test_a_layer_says_what_a_model_of_so_many_layers_would():
    """The same weights without the last block: its answer is the lens's at the layer before."""
    model = reader("write", "gpt")
    it = Shown(model, WORDS)
    _, each = lens(model.model, it.trace, 4)
    ids = torch.tensor([it.trace.ids["text"]])
    del model.model.blocks[1]
    with torch.no_grad():
        shares = model.model(ids)[0, 4].softmax(-1)
    assert each[1]["ids"] == shares.topk(5).indices.tolist()
    assert each[1]["p"] == pytest.approx(shares.topk(5).values.tolist(), rel=1e-5)
    final = int(it.trace["logits"][4].argmax())
    assert each[1]["rank"] == 1 + int((shares > shares[final]).sum())
    assert each[1]["its"] == pytest.approx(float(shares[final]), rel=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in (*DEEP, "alibi")])
def test_others_have_none(kind):
    it = shown(kind)
    assert not (it.manifest["outputs"] or {}).get("lens")
    assert "can't be asked for words" in mistake(lambda: it.lens(0))


def test_no_such_place():
    assert "row=5: there are 0 to 4" in mistake(lambda: shown("gpt").lens(5))


# In a browser


def test_layers_are_shown(tab):
    it = tab("gpt", "#view=next")
    it.page.click("#words-layers")
    it.wait("h2", "What each layer would have said after")
    told = shown("gpt").lens(4)
    rows = it.table()
    assert [row[-2] for row in rows] == [str(one["rank"]) for one in told["layers"]]
    for row, one in zip(rows, told["layers"], strict=True):
        assert row[0:10:2] == one["words"]
        assert all(close(cell, p) for cell, p in zip(row[1:10:2], one["p"], strict=True))
    it.page.focus("#lens")
    it.press("ArrowDown")
    said = it.text(".lens .readout")
    assert said.startswith(f"layer 1: {told['final']} ")
    assert said.endswith(f"“{told['final']}” is number 1, {100 * told['layers'][-1]['its']:.1f} %")
    it.page.click("#row-1")  # the token before
    it.wait("h2", f"after “{WORDS.split()[3]}”")
    assert number(it.table()[2][1]) == pytest.approx(shown("gpt").lens(3)["layers"][2]["p"][0], rel=1e-3)


def test_a_large_vocabulary_leaves_the_last_token_in_the_file(tab, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "IN_FILE", 400)
    it = Shown(reader("write", "gpt"), WORDS)
    kept = it.kept()
    assert kept["tensors"]["logits"]["shape"] == [1, 17]
    assert list(kept["lenses"]) == [4]
    it.save(tmp_path / "a.html", {"view": "next"})
    opened = tab(f"file://{tmp_path / 'a.html'}")
    shares = it.trace["probabilities"][4].sort(descending=True).values
    assert all(close(row[1], float(p)) for row, p in zip(opened.table(), shares, strict=True))
    opened.page.click("#words-layers")
    opened.page.wait_for_selector("#lens")
    opened.open("#view=next&row=2", wait="main .wrong")
    assert "not in this file" in opened.text("main .wrong")
