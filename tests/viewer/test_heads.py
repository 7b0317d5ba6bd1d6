"""Heads are named by what they do on an input."""

import pytest
import torch

from helpers.browsing import shown
from regard.viewer.heads import choose_opening, find_patterns, name_heads

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
