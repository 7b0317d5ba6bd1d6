"""The cost of models, and the time and memory of their steps."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.errors import user_error
from regard.models import MODELS
from regard.runs import recipe
from regard.training.plan import speed
from regard.training.plan.speed import (
    PROCESS,
    Cost,
    Row,
    cost_of,
    cpu,
    known_machine,
    memory_of,
    step_seconds,
    this_machine,
    work_seconds,
)

has_bf16 = speed.has_bf16  # runs of the other tests have another one
GPT = {"dim": 48, "depth": 3, "heads": 3, "context": 32}


def gpt_cost(muon: bool = False) -> Cost:
    return cost_of("gpt", GPT, {"vocab": 61}, Row(32, [(1, 32)], 32), muon)


def test_weights_and_operations() -> None:
    model = MODELS["gpt"][0](recipe.fill("model", dict(GPT), MODELS["gpt"][1], vocab=61))
    cost = gpt_cost()
    assert cost.weights == sum(p.numel() for p in model.parameters())
    assert (cost.blocks, cost.layers, cost.width) == (cost.weights - 61 * 48, 3, 48)
    matrices = sum(p.numel() for p in model.blocks.parameters() if p.ndim == 2)
    scores = 3 * 2 * 2 * 32 * 48 * 3  # forward and backward: QKᵀ and AV, of all tokens
    assert cost.body == pytest.approx(6 * matrices + scores, rel=0.02)
    assert cost.output == 6 * 61 * 48


@pytest.mark.parametrize(
    ("kind", "sizes", "shapes"),
    [
        ("bert", {"vocab": 61}, [(1, 16)]),
        ("transformer", {"vocab": 61, "target_vocab": None}, [(1, 16), (1, 16)]),
        ("t5", {"vocab": 61, "target_vocab": None}, [(1, 16), (1, 16)]),
        ("gru", {"vocab": 61, "target_vocab": None}, [(1, 16), (1, 16)]),
        ("recurrent", {"vocab": 61}, [(1, 16)]),
        ("vit", {"size": 8, "channels": 1, "mels": 0}, [(1, 1, 8, 8)]),
        ("captioner", {"vocab": 61, "size": 16, "channels": 3}, [(1, 3, 16, 16), (1, 8)]),
    ],
)
def test_every_kind_has_a_cost(kind: str, sizes: dict[str, int], shapes: list[tuple[int, ...]]) -> None:
    heads = {} if kind in ("gru", "recurrent") else {"heads": 2}
    cost = cost_of(kind, {"dim": 32, "depth": 1, **heads}, sizes, Row(16, shapes, 0), muon=False)
    assert cost.flops > cost.blocks / 16
    assert cost.activations > 0


def test_memory_of_known_sizes() -> None:
    """Weights, gradients and the optimizer's state: 16 bytes a weight with AdamW, 12 in Muon's blocks."""
    cpu, cost = known_machine("cpu2"), gpt_cost()
    assert memory_of(cpu, cost, 0, 61, muon=False) == PROCESS + 16 * cost.weights
    assert memory_of(cpu, cost, 0, 61, muon=True) == PROCESS + 12 * cost.blocks + 16 * 61 * 48
    more = memory_of(cpu, cost, 64, 61, muon=False) - PROCESS - 16 * cost.weights
    assert more == 64 * cost.activations + 8 * 64 * 61


def test_memory_kept_is_what_autograd_saves() -> None:
    """What the pass on the meta device counts is what a real one saves."""
    model = MODELS["gpt"][0](recipe.fill("model", dict(GPT), MODELS["gpt"][1], vocab=61))
    own = {t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers()]}
    saved: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        saved[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = model.hidden(torch.zeros(2, 32, dtype=torch.long))
    saved_bytes = sum(n for key, n in saved.items() if key not in own)
    assert result.requires_grad
    assert gpt_cost().activations * 64 == pytest.approx(saved_bytes, rel=0.1)


def test_time_grows_with_units_and_falls_with_processes() -> None:
    cost, one, eight = gpt_cost(), known_machine("h200"), known_machine("h200x8")
    large, small = (step_seconds(one, cost, units) for units in (2**24, 2**10))
    assert large > 10 * small > 0
    assert step_seconds(eight, cost, 2**24) < large / 4
    assert step_seconds(one, cost, 2**24, compiled=False) > large


@pytest.mark.parametrize(
    ("dim", "depth", "context", "batch", "milliseconds", "mebibytes"),
    [
        (128, 4, 64, 256, 3.15, 534),
        (384, 6, 256, 64, 9.95, 2029),
        (768, 12, 512, 64, 79.0, 14964),
    ],
)
def test_as_measured_on_an_h200(
    dim: int, depth: int, context: int, batch: int, milliseconds: float, mebibytes: float
) -> None:
    """GPTs of 65 characters with Muon, not compiled: the estimates that --dry-run prints."""
    settings = {"dim": dim, "depth": depth, "heads": dim // 64, "context": context}
    cost = cost_of("gpt", settings, {"vocab": 65}, Row(context, [(1, context)], context), muon=True)
    h200, units = known_machine("h200"), batch * context
    assert 1000 * step_seconds(h200, cost, units, compiled=False) == pytest.approx(milliseconds, rel=0.15)
    assert memory_of(h200, cost, units, 65, muon=True) / 2**20 == pytest.approx(mebibytes, rel=0.1)


def captioner_cost(zoom: int, frozen: bool = False) -> Cost:
    settings = {"dim": 384, "depth": 2, "heads": 6, "context": 48, "encoder": "efficientnet", "zoom": zoom}
    sizes = {"vocab": 4000, "size": 112, "channels": 3}
    row = Row(1, [(1, 3, 112, 112), (1, 14)], 14)
    return cost_of("captioner", settings, sizes, row, muon=False, frozen=frozen)


def test_convolutions_are_slower_than_large_products() -> None:
    """EfficientNet-lite0 has 385 M products forward at 224 pixels (Tan & Le 2019). One core of 95.5 GFLOP/s
    took 0.11 s for a picture, forward and back."""
    cost, core = captioner_cost(2), cpu("core", 95.5e9, 8e9)
    assert cost.convolved == pytest.approx(3 * 2 * 385e6, rel=0.05)
    assert cost.convolutions == 49
    assert captioner_cost(2, frozen=True).convolved == pytest.approx(cost.convolved / 3)
    assert captioner_cost(1).convolved < cost.convolved / 2
    seconds = work_seconds(core, cost, 8, False)
    assert seconds == pytest.approx(0.90, rel=0.3)
    small = {"dim": 64, "depth": 1, "heads": 2, "encoder": "cnn"}
    sizes = {"vocab": 4000, "size": 112, "channels": 3}
    assert cost_of("captioner", small, sizes, Row(1, [(1, 3, 112, 112), (1, 14)], 14), False).convolved == 0
    h200 = known_machine("h200")
    plain = replace(cost, convolved=0.0, convolutions=0, body=cost.body + cost.convolved)
    assert step_seconds(h200, cost, 64, False) > 4 * step_seconds(h200, plain, 64, False)


def test_known_machines() -> None:
    assert known_machine("cpu8").peak == 4 * known_machine("cpu2").peak
    assert (known_machine("h200x8").processes, known_machine("h200x8").peak) == (
        8,
        known_machine("h200").peak,
    )
    for name in ("h2000", "cpu", "cpu0", "h200x0", "x", ""):
        user_error(lambda name=name: known_machine(name), "--for", "h200")


def test_this_machine_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = iter([1.234e11, 1.3e11, 1e9, 2e11, 3e11])
    monkeypatch.setattr(speed, "peak", lambda device, bf16: next(measured))
    monkeypatch.setattr(speed, "has_bf16", lambda device: False)
    peaks = [this_machine(torch.device("cpu")).peak for _ in range(4)]
    assert peaks == [1.2e11, 1.2e11, 1.2e11, 2e11]  # not by chance, nor while others use the machine
    path = tmp_path / "regard" / "machines.json"
    (key,) = json.loads(path.read_text())
    assert torch.__version__ in key
    path.write_text("[]")  # another program's
    assert this_machine(torch.device("cpu")).peak == 3e11


def test_fast_bf16_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    rates = iter([1.5e9, 1e9, 4e9, 1e9])  # at first something else slowed it down
    monkeypatch.setattr(speed, "peak", lambda device, bf16: next(rates))
    assert [has_bf16(torch.device("cpu")) for _ in range(3)] == [False, True, True]
    assert not has_bf16(torch.device("cuda"))
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda: False, raising=False)
    assert not has_bf16(torch.device("cpu"))
