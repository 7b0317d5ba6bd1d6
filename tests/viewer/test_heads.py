"""Heads are named by what they do on an input, and on texts of the package."""

import pytest
import torch

from helpers.browsing import shown
from helpers.looking import reader, seer
from regard.errors import UserError
from regard.tracing import trace
from regard.viewer.head_corpus import HeadCorpus, corpus_texts, measure_heads, repeated_tokens
from regard.viewer.heads import choose_opening, find_patterns, name_heads
from regard.viewer.session import Session

CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
IDS = [5, 7, 9, 5, 7, 9]  # the second half repeats the first


def rows(*keys):
    """A head that gives all weight of each query to one key."""
    return torch.nn.functional.one_hot(torch.tensor(keys), 6).float()


def test_every_pattern_has_its_name():
    heads = {
        "previous": rows(0, 0, 1, 2, 3, 4),
        "first": rows(0, 0, 0, 0, 0, 0),
        "itself": rows(0, 1, 2, 3, 4, 5),
        "induction": rows(0, 0, 0, 1, 2, 3),  # the token after the earlier one
        "duplicate": rows(0, 1, 2, 0, 1, 2),
        "positional 2": rows(0, 0, 0, 1, 2, 3),
    }
    ids = [1, 2, 3, 4, 5, 6]
    for name, head in heads.items():
        text = ids if name == "positional 2" else IDS
        patterns = find_patterns(head[None], CAUSAL, (text, text), None)
        assert name_heads(patterns, 1) == [name]
        assert patterns[name]["weights"] == [1.0]
    even = CAUSAL / CAUSAL.sum(-1, keepdim=True)
    patterns = find_patterns(even[None], CAUSAL, (IDS, IDS), None)
    assert name_heads(patterns, 1) == [None]
    for pattern in patterns.values():
        assert pattern["weights"] == [pytest.approx(pattern["chance"])]


def test_alignment_and_neighbouring_patches():
    weights = torch.eye(6)[None]
    patterns = find_patterns(weights, torch.ones(6, 6, dtype=torch.bool), ([1] * 6, [2] * 6), None)
    assert name_heads(patterns, 1) == ["alignment"]
    allowed = torch.ones(10, 10, dtype=torch.bool)  # a class token and 3 x 3 patches
    near = torch.zeros(10, 10)
    near[0, 0] = 1
    for patch in range(9):
        near[1 + patch, 1 + (patch - 1 if patch % 3 else patch + 1)] = 1
    ids = list(range(10))
    assert name_heads(find_patterns(near[None], allowed, (ids, ids), (3, 3)), 1) == ["near"]


@pytest.mark.parametrize("kind", ["gpt", "transformer", "vit", "gru"])
def test_the_page_opens_on_the_most_telling_head(kind):
    manifest = shown(kind).manifest
    opening, parts = manifest["opening"], manifest["attentions"]
    (attention,) = (one for one in parts[opening["part"]] if one["layer"] == opening["layer"])
    assert 0 <= opening["head"] < attention["heads"]
    for one in (one for layers in parts.values() for one in layers):
        weights = shown(kind).trace[f"{one['name']}.weights"]
        for name in one["patterns"].keys() & {"first", "class"}:
            assert one["patterns"][name]["weights"] == pytest.approx(weights[:, 1:, 0].mean(-1).tolist())


def test_a_named_head_is_more_telling_than_a_sink():
    def attention(layer, **weights):
        patterns = {name: {"weights": [w], "chance": 0.1, "rows": 5} for name, w in weights.items()}
        return {"layer": layer, "patterns": patterns, "kinds": [{"entropy": 1.0}], "bits": 2.0}

    layers = [attention(0, first=0.99), attention(1, previous=0.8), attention(2, previous=0.3)]
    assert choose_opening({"masked": layers}) == {"part": "masked", "layer": 1, "head": 0}
    assert choose_opening({}) is None


def induction_model():
    """A GPT in which head 0 attends to the previous token. By what it reads there, head 1 of the next layer
    finds the token that followed this one earlier."""
    model = reader("write", "gpt", positions="relative", dim=48, depth=2, heads=3, tied=False)
    embed, (first, second) = model.model.embed.weight, (block.attn.f for block in model.model.blocks)
    own, before = slice(0, 16), slice(16, 32)  # of the residual stream: the token, and the one before it
    with torch.no_grad():
        for block in model.model.blocks:
            for p in block.parameters():
                p.zero_()
            block.attn.norm.weight.fill_(1)
        embed.zero_()
        embed[:, own] = torch.nn.functional.normalize(torch.randn(len(embed), 16), dim=-1)
        model.model.positions.table.weight.zero_()[1, 0] = 50.0  # distance 1, head 0
        first.v.weight[own, own] = first.out.weight[before, own] = torch.eye(16)
        second.q.weight[own.stop : before.stop, own] = 30 * torch.eye(16)
        second.k.weight[own.stop : before.stop, before] = torch.eye(16)
    return model


def test_heads_are_named_on_built_in_inputs():
    model = induction_model()
    measured = measure_heads(model)
    assert measured["texts"] == 20
    assert measured["repeats"] == 4
    attentions = measured["attentions"]
    assert attentions["blocks.0.attn"]["roles"][0] == "previous"
    assert attentions["blocks.1.attn"]["roles"] == ["previous", "induction", None]
    assert attentions["blocks.1.attn"]["patterns"]["induction"]["weights"][1] > 0.9
    here = Session(model, "the quick brown fox").manifest["attentions"]["masked"]
    assert here[1]["roles"][1] != "induction"  # nothing comes twice


def test_figures_of_built_in_inputs():
    """They are means over all tokens, computed here by hand."""
    model = reader("write", "gpt")
    heads = measure_heads(model)["attentions"]["blocks.1.attn"]["patterns"]
    rows = {"previous": [], "induction": []}
    for name, inputs in {"previous": corpus_texts(model), "induction": repeated_tokens(model)}.items():
        for input in inputs:
            run = trace(model, input)
            weights, ids = run["blocks.1.attn.weights"], run.ids["text"]
            for i, id in enumerate(ids):
                after = [j for j in range(1, i + 1) if ids[j - 1] == id]
                keys = [i - 1] if name == "previous" and i else after if name == "induction" else []
                rows[name] += [weights[:, i, keys].sum(-1)] if keys else []
    for name, each in rows.items():
        assert heads[name]["rows"] == len(each)
        torch.testing.assert_close(torch.tensor(heads[name]["weights"]), torch.stack(each).mean(0))
    assert all(len(set(ids)) * 2 == len(ids) == 18 for ids in repeated_tokens(model))


def test_built_in_inputs_of_other_models():
    heads = measure_heads(reader("translate", "transformer"))["attentions"]
    assert heads["decoder.0.cross"]["patterns"].keys() == {"alignment"}
    assert "induction" in heads["encoder.0.attn"]["patterns"]
    assert "pictures" in measure_heads(seer())["reason"]
    assert "no attention" in measure_heads(reader("write", "recurrent"))["reason"]
    classifier = reader("classify", "t5", task_labels=("fox", "lazy dog"))
    corpus = HeadCorpus(classifier)
    assert "fits" in corpus.to_json()["reason"]  # as long as none was read
    corpus.inputs = corpus.inputs[:1]
    corpus.step(classifier)
    assert corpus.to_json()["texts"] == 1
    with pytest.raises(UserError, match="give this one a text"):
        trace(classifier, [3, 4])
