"""Steps on a CPU in fewer operations are those of the blocks."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from helpers.decoders import MODEL_KINDS, PROMPTS, SOURCES, build
from regard.decode import cpu_steps
from regard.decode.cpu_steps import RoomyKVCache, multiply, next_logits, speed_up
from regard.decode.prompts import read_rows
from regard.describe.watch import watch
from regard.quantize.model import PRECISIONS, quantize_model


def steps(model: Any, fast: bool) -> torch.Tensor:
    """The logits of some steps, also after rows were reordered."""
    pairs = hasattr(model, "decoder")
    _, state = read_rows(model, [[3]] * 3 if pairs else PROMPTS, SOURCES if pairs else None)
    assert state.run is not None
    if not fast:
        state.run = None
    logits = []
    for ids in ([7, 8, 9], [1, 2, 3], [5, 5, 5], [4, 1, 2]):
        step = partial(next_logits, model) if fast else model.step
        logits.append(step(torch.tensor(ids)[:, None], state)[0])
        state.reorder(torch.tensor([2, 0, 1]))
    return torch.stack(logits)


@pytest.mark.parametrize("kind", MODEL_KINDS)
@torch.inference_mode()
def test_steps_are_those_of_the_blocks(kind: str) -> None:
    assert_close(steps(build(kind), True), steps(build(kind), False), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", MODEL_KINDS)
@torch.inference_mode()
def test_steps_with_the_products_of_large_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_steps, "LARGE", 1)
    assert_close(steps(build(kind), True), steps(build(kind), False), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 19])
@pytest.mark.parametrize("shape", [(523, 517), (307, 1031)], ids=["more outputs", "more inputs"])
@pytest.mark.parametrize("biased", [False, True])
@torch.inference_mode()
def test_products_of_a_few_rows(
    rows: int, shape: tuple[int, int], biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, W, b = torch.randn(rows, shape[1]), torch.randn(shape), torch.randn(shape[0]) if biased else None
    expected = nn.functional.linear(x.double(), W.double(), None if b is None else b.double())
    assert shape[0] * shape[1] >= cpu_steps.LARGE
    for has in (cpu_steps.HAS_ONEDNN, False):
        monkeypatch.setattr(cpu_steps, "HAS_ONEDNN", has)
        y = multiply(x, W, b)
        assert y.is_contiguous()
        assert_close(y.double(), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", PRECISIONS)
@torch.inference_mode()
def test_steps_in_fewer_bits(dtype: str) -> None:
    model = build("gpt2")
    quantize_model(model, dtype)
    fast, plain = steps(model, True), steps(model, False)
    assert (fast - plain).norm() <= (1e-5 if dtype == "int8" else 0.01) * plain.norm()


@torch.inference_mode()
def test_models_that_take_the_plain_way() -> None:
    """Those that are watched or trained, and states that are no caches."""
    model = build("gpt2")
    assert read_rows(build("gpt2").train(), PROMPTS)[1].run is None
    with watch(model):
        assert read_rows(model, PROMPTS)[1].run is None
    hook = model.blocks[0].register_forward_hook(lambda *_: None)
    assert read_rows(model, PROMPTS)[1].run is None
    hook.remove()
    assert read_rows(model, PROMPTS)[1].run is not None
    speed_up(nn.Linear(2, 2), object())


@torch.inference_mode()
def test_a_step_writes_to_room_that_is_there() -> None:
    """Earlier keys are copied only when the room grows; what was returned before stays as it was."""
    cache, new = RoomyKVCache(None), torch.randn(2, 3, 50, 5)
    parts = [cache.append(new[:, :, t : t + 1], -new[:, :, t : t + 1]) for t in range(50)]
    for t, (k, v) in enumerate(parts):
        assert torch.equal(k, new[:, :, : t + 1])
        assert torch.equal(v, -k)
    assert len({k.data_ptr() for k, _ in parts}) == 3  # the first step, and two rooms
    cache.reorder(torch.tensor([1, 0, 1]))
    more = torch.randn(3, 3, 2, 5)
    k, _ = cache.extend(lambda: (more, more))
    assert torch.equal(k, torch.cat([new[[1, 0, 1]], more], dim=2))
    assert torch.equal(parts[-1][0], new)
