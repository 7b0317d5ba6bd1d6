"""The logit lens: the last layer predicts what the model predicts."""

import pytest
import torch

from helpers.browsing import MODELS, WORDS, close, number, shown
from helpers.errors import user_error
from helpers.looking import reader
from regard.viewer import html
from regard.viewer.lens import layers, lens
from regard.viewer.session import Session

DEEP = ["gpt", "gpt2", "bert", "window", "transformer", "t5", "vit-captioner"]


@pytest.mark.parametrize("kind", DEEP)
def test_the_last_layer_predicts_what_the_model_predicts(kind):
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


def test_a_layer_predicts_what_a_model_of_so_many_layers_predicts():
    """The same weights without the last block predict what the lens shows at the layer before."""
    model = reader("write", "gpt")
    it = Session(model, WORDS)
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
def test_other_models_have_no_lens(kind):
    it = shown(kind)
    assert not (it.manifest["outputs"] or {}).get("lens")
    assert "words" in user_error(lambda: it.lens(0))


def test_an_unknown_row():
    assert "row=5: there are 0 to 4" in user_error(lambda: shown("gpt").lens(5))


# In a browser


def test_layers_are_shown(tab):
    it = tab("gpt", "#view=next")
    it.page.click("#words-layers")
    it.wait("h2", "What each layer would predict after")
    lens = shown("gpt").lens(4)
    rows = it.table()
    assert [row[-2] for row in rows] == [str(one["rank"]) for one in lens["layers"]]
    for row, one in zip(rows, lens["layers"], strict=True):
        assert row[0:10:2] == one["words"]
        assert all(close(cell, p) for cell, p in zip(row[1:10:2], one["p"], strict=True))
    it.page.focus("#lens")
    it.press("ArrowDown")
    said = it.text(".lens .readout")
    assert said.startswith(f"layer 1: {lens['final']} ")
    assert said.endswith(f"“{lens['final']}” is number 1, {100 * lens['layers'][-1]['its']:.1f} %")
    it.page.click("#row-previous")  # the token before
    it.wait("h2", f"after “{WORDS.split()[3]}”")
    assert number(it.table()[2][1]) == pytest.approx(shown("gpt").lens(3)["layers"][2]["p"][0], rel=1e-3)


def test_a_large_vocabulary_leaves_the_last_token_in_the_file(tab, tmp_path, monkeypatch):
    monkeypatch.setattr(html, "MAX_TENSOR_BYTES", 400)
    it = Session(reader("write", "gpt"), WORDS)
    data = it.data()
    assert data["tensors"]["logits"]["shape"] == [1, 17]
    assert list(data["lenses"]) == [4]
    it.save(tmp_path / "a.html", {"view": "next"})
    opened = tab(f"file://{tmp_path / 'a.html'}")
    shares = it.trace["probabilities"][4].sort(descending=True).values
    assert all(close(row[1], float(p)) for row, p in zip(opened.table(), shares, strict=True))
    opened.page.click("#words-layers")
    opened.page.wait_for_selector("#lens")
    opened.open("#view=next&row=2", wait="main .wrong")
    assert "not in this file" in opened.text("main .wrong")
