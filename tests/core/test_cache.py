"""Key/value caches: growing ones, those of a source, and their reordering for beams."""

import torch
from torch import Tensor
from torch.testing import assert_close

from regard.core.cache import CrossKVCache, KVCache, State

B, G, S, d = 3, 2, 7, 5


def keys_values(length: int = S) -> tuple[Tensor, Tensor]:
    return torch.randn(B, G, length, d), torch.randn(B, G, length, d)


def test_growing_appends() -> None:
    cache, (k, v) = KVCache(), keys_values()
    assert cache.length == 0
    for past, length in (0, 4), (4, 1), (5, 2):
        part = slice(past, past + length)
        now_k, now_v = cache.extend(lambda part=part: (k[:, :, part], v[:, :, part]))
        assert cache.length == past + length
        assert_close(now_k, k[:, :, : past + length])
        assert_close(now_v, v[:, :, : past + length])


def test_fixed_computes_once() -> None:
    cache, calls = CrossKVCache(), []

    def new() -> tuple[Tensor, Tensor]:
        calls.append(1)
        return keys_values()

    first = cache.extend(new)
    assert cache.extend(new) is first
    assert cache.extend(new) is first
    assert len(calls) == 1
    assert cache.length == S


def test_reorder_chooses_repeats_and_drops_rows() -> None:
    for kind in KVCache, CrossKVCache:
        cache, (k, v) = kind(), keys_values()
        cache.reorder(torch.tensor([0]))  # nothing read yet: nothing to do
        cache.extend(lambda k=k, v=v: (k, v))
        cache.reorder(torch.tensor([2, 0, 2, 1]))
        assert cache.kv is not None
        assert_close(cache.kv, (k[[2, 0, 2, 1]], v[[2, 0, 2, 1]]))
        cache.reorder(torch.tensor([3]))
        assert_close(cache.kv, (k[[1]], v[[1]]))


def test_state_reorders_every_layer_and_what_is_real() -> None:
    layers = [KVCache(), KVCache()]
    state = State(layers, torch.rand(B, S) > 0.5)
    parts = [keys_values(), keys_values()]
    for layer, kv in zip(layers, parts, strict=True):
        layer.extend(lambda kv=kv: kv)
    attention_mask, rows = state.attention_mask, torch.tensor([1, 1])
    assert attention_mask is not None
    assert state.length == S
    state.reorder(rows)
    for layer, (k, v) in zip(layers, parts, strict=True):
        assert layer.kv is not None
        assert_close(layer.kv, (k[rows], v[rows]))
    assert state.attention_mask is not None
    assert torch.equal(state.attention_mask, attention_mask[rows])
    State([KVCache()]).reorder(rows)


def test_state_reorders_the_source() -> None:
    past, source, (k, v) = KVCache(), CrossKVCache(), keys_values()
    past.extend(keys_values)
    source.extend(lambda: (k, v))
    attention_mask, rows = torch.rand(B, S) > 0.5, torch.tensor([2, 0, 0, 1])
    state = State([past], source=[source], source_attention_mask=attention_mask)
    state.reorder(rows)
    assert_close(source.kv, (k[rows], v[rows]))
    assert torch.equal(state.source_attention_mask, attention_mask[rows])
    assert state.attention_mask is None
