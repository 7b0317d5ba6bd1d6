"""How many answers are generated at once follows from a GPU's memory, and the API's limit from it."""

import json

import pytest
import torch

from helpers.looking import reader
from helpers.serving import serve_models
from regard.decode.steps import MEMORY
from regard.models import MODELS
from regard.serve import engine as engines
from regard.serve.engine import Engine
from regard.serve.places import MAX_PLACES, PLACES, cache_bytes, places_for
from regard.serve.registry import ServerLimits

SIZES = {"vocab": 31, "context": 13, "dim": 24, "depth": 2, "heads": 6}
CUDA = torch.device("cuda")


def build(name, **settings):
    cls, config, _ = MODELS[name]
    return cls(config(**SIZES | settings)).eval()


@pytest.mark.parametrize(
    ("name", "settings", "values"),
    [
        ("gpt", {}, 2 * 24 * 2),
        ("gpt", {"kv_heads": 2}, 2 * 8 * 2),
        ("gpt", {"depth": 3, "kv_heads": 1}, 2 * 4 * 3),
        ("transformer", {}, 2 * 24 * 2 * 2),  # keys and values of the source too, but none of the encoder
    ],
)
def test_bytes_of_a_full_context(name, settings, values):
    model = build(name, **settings)
    assert cache_bytes(model) == values * 13 * 4
    assert cache_bytes(model.bfloat16()) == values * 13 * 2


def test_places_follow_from_free_memory(monkeypatch):
    model = build("gpt", depth=12)
    weights, size = sum(4 * p.numel() for p in model.parameters()), cache_bytes(model)

    def places(free, model=model):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free), 0))
        return places_for(model, CUDA)

    assert places_for(model, torch.device("cpu")) == PLACES
    assert places(weights + 100.5 * size / MEMORY) == 100
    assert places(weights + 256.5 * size / MEMORY) == 256
    assert places(1e12) == MAX_PLACES
    assert places(0) == PLACES  # they share pages
    plain = build("gpt", sliding_window=3)
    for block in plain.modules():
        if hasattr(block, "global_qkv"):
            block.global_qkv = True  # nothing that a runner computes
    assert places(0, plain) == 1
    assert places(1e12, plain) == MAX_PLACES


def test_limit_of_requests_follows_the_places(monkeypatch):
    monkeypatch.setattr(engines, "places_for", lambda model, device: 7)
    engine = Engine(build("gpt"))
    assert engine.places == 7
    engine.close()
    models = {"writer": reader("write", "gpt"), "embed": reader("embed", "bert")}
    with serve_models(models, ServerLimits(queue=3)) as server:
        assert server.registry.limits.requests == 10
        status, _, data = server.ask("/v1/completions", {"prompt": ["the"] * 10, "max_tokens": 2})
        assert (status, len(json.loads(data)["choices"])) == (200, 10)
        many = {"prompt": ["the"] * 60, "max_tokens": 12}  # none of them ends before the last one comes
        server.check_error(429, "places", "/v1/completions", many)
    with serve_models(models, ServerLimits(places=5)) as server:
        assert server.registry.limits.requests == 5 + ServerLimits.queue
    with serve_models({"embed": models["embed"]}) as server:
        assert server.registry.limits.requests == PLACES + ServerLimits.queue
