"""Direct logit attribution: what the parts add is the logit, and silencing a head takes its part away."""

import pytest
import torch

import regard
from helpers.browsing import WORDS, close, number, shown
from helpers.errors import user_error
from helpers.families import FAMILIES
from helpers.looking import noise, reader, seer
from regard.describe.watch import evaluating
from regard.viewer.model_file import save_model
from regard.viewer.session import Session

GPTS = [
    {},
    {"norm": "layer", "positions": "learned", "ffn": "gelu", "bias": True},
    {"qk_norm": True, "kv_heads": 1},
    {"positions": "alibi", "ffn": "relu", "qkv_bias": True, "tied": False},
    {"positions": "relative", "sliding_window": 2, "norm": "layer"},
    {"positions": "sinusoidal", "head_dim": 2, "ffn": "gelu_tanh"},
]


def check(it, row, token):
    result = it.attribution(row, token)
    logit = float(torch.atleast_2d(it.trace["logits"])[row, token])
    assert result["logit"] == logit
    assert sum(part["value"] for part in result["parts"]) == pytest.approx(logit, rel=1e-4, abs=1e-6)
    assert result["total"] == pytest.approx(logit, rel=1e-4, abs=1e-6)
    heads = sum(part["value"] for part in result["parts"] if part["head"] is not None)
    assert sum(map(sum, result["words"].values())) == pytest.approx(heads, rel=1e-4, abs=1e-6)
    return result


@pytest.mark.parametrize("settings", GPTS, ids=str)
def test_the_parts_of_a_gpt_add_up_to_the_logit(settings):
    torch.manual_seed(5)
    it = Session(reader("write", "gpt", **settings), WORDS)
    for row in range(5):
        for token in (0, 7, 16):
            result = check(it, row, token)
    names = [(part["name"], part["head"]) for part in result["parts"]]
    expected = {(f"blocks.{layer}.attn", head) for layer in (0, 1) for head in range(3)}
    layers = {("blocks.0.ffn.down", None), ("blocks.1.ffn.down", None), ("embed", None)}
    assert expected | layers <= set(names)
    assert (("positions", None) in names) == (settings.get("positions") in ("learned", "sinusoidal"))


def test_encoder_decoders_and_classifiers_of_pictures():
    result = check(shown("t5"), 3, 4)
    assert {part["name"] for part in result["parts"]} >= {
        "decoder.0.cross",
        "decoder.1.attn",
        "decoder.embed",
    }
    assert {side: len(values) for side, values in result["words"].items()} == {"target": 8, "source": 6}
    check(Session(reader("chat", "t5", ffn="geglu"), WORDS), 0, 3)
    result = check(Session(seer(), noise(6)), 0, 1)
    assert {"@first.weight", "positions", "bias"} <= {part["name"] for part in result["parts"]}


SPLIT = {
    *("gpt", "gpt2", "alibi", "relative", "waves", "swiglu", "qk-norm", "qk-norm-learned", "gpt-classes"),
    *("t5", "t5-geglu", "vit", "vit-waves", "vit-larger", "vit-captioner", "hear", "hear-waves"),
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_is_split_exactly_or_refused(kind):
    it = Session(*FAMILIES[kind]())
    outputs = it.outputs()
    if outputs is None:
        return
    assert outputs["parts"] == (kind in SPLIT)
    if kind in SPLIT:
        check(it, 0, 1)
    else:
        assert "can't be split" in user_error(lambda: it.attribution(0, None))


def test_a_head_of_the_last_layer_adds_what_is_missing_without_it():
    """By an independent computation: the model itself, with the head's columns set to 0, at the scale of the
    final norm that the whole model had."""
    model = reader("write", "gpt")
    it = Session(model, WORDS)
    result = it.attribution(4, None)
    (part,) = (one for one in result["parts"] if (one["name"], one["head"]) == ("blocks.1.attn", 2))
    module, norm = model.model, model.model.norm
    x = it.trace["blocks.1.output"][4]
    out = module.blocks[1].attn.f.out if hasattr(module.blocks[1].attn, "f") else module.blocks[1].attn.out
    with evaluating(module), torch.no_grad():
        missing = out.weight[:, 8:12] @ it.trace["blocks.1.attn.heads"][2, 4]
        scale = (x.square().mean() + norm.eps).rsqrt()
        without = module.logits((x - missing) * scale * norm.weight)
    assert part["value"] == pytest.approx(result["logit"] - float(without[result["token"]]), rel=1e-4)


@pytest.mark.parametrize(("kind", "fact"), [("transformer", "post-norm"), ("bert", "transform"), ("gru", "")])
def test_other_models_are_refused_in_one_line(kind, fact):
    it = shown(kind)
    assert not it.manifest["outputs"]["parts"]
    said = user_error(lambda: it.attribution(0, None))
    assert fact in said
    assert "\n" not in said


def test_python():
    model = reader("write", "gpt")
    result = regard.attribute(model, WORDS)
    trace = regard.trace(model, WORDS)
    assert (result["row"], result["token"]) == (4, int(trace["logits"][4].argmax()))
    assert result["total"] == pytest.approx(float(trace["logits"][4].max()), rel=1e-4)
    assert regard.attribute(model, WORDS, token=3, row=1)["logit"] == float(trace["logits"][1, 3])
    assert "row=9" in user_error(lambda: regard.attribute(model, WORDS, row=9))
    assert "token=99" in user_error(lambda: Session(model, WORDS).attribution(0, 99))


# In a browser


def test_the_page_says_which_part_said_this(tab):
    it = tab("gpt", "#view=next")
    it.page.click("#words-parts")
    it.page.wait_for_selector(".parts .tick.right")
    result = shown("gpt").attribution(4, None)
    first = it.text(".parts .total b")
    assert close(first, result["logit"])
    rows = it.table()
    assert sum(number(row[0]) for row in rows) == pytest.approx(result["logit"], rel=1e-2)
    best = max(result["parts"], key=lambda part: abs(part["value"]) if part["head"] is not None else -1)
    layer = best["name"].split(".")[1]
    it.page.click(f"[id='part-{best['name']}-{best['head']}']")
    it.page.wait_for_selector(".layer.model")
    assert f"layer={layer}&head={best['head']}" in it.page.url
    it.page.go_back()
    it.page.wait_for_selector(".parts")
    it.page.select_option("#said", index=2)
    other = int(shown("gpt").trace["logits"][4].topk(3).indices[2])
    it.page.wait_for_function(f"() => location.hash.includes('said={other}')")
    it.page.wait_for_selector(f".parts .total:not(:has-text('{first}'))")
    it.wait(".parts .total", "✓")
    assert close(it.text(".parts .total b"), float(shown("gpt").trace["logits"][4, other]))


def test_a_model_that_cannot_be_split_says_why(tab):
    it = tab("transformer", "#view=next&words=parts")
    assert "post-norm" in it.text("main .note")


def test_parts_in_one_file(tab, tmp_path):
    shown("gpt").save(tmp_path / "a.html", {"view": "next", "words": "parts"})
    it = tab(f"file://{tmp_path / 'a.html'}")
    it.page.wait_for_selector(".parts .tick.right")
    it.open("#view=next&words=parts&row=1", wait="main .note")
    assert "regard look" in it.text("main .note")


def test_a_saved_model_splits_its_logits_and_shows_attention_in_all_ways(tab, tmp_path):
    save_model(shown("gpt").model, tmp_path / "a.html", WORDS)
    it = tab(f"file://{tmp_path / 'a.html'}", "#view=next&words=parts")
    it.page.wait_for_selector(".parts .tick.right")
    it.turn("#view=attention&layer=1&head=1&also=all&sink=without")
    it.wait("h2", "heads 0, 1, 2")
    it.turn("#tour=root&stop=6")
    it.wait("h2", "not divided")
