"""Operation counts against the formula, and rates with a fake clock."""

import math

import numpy as np
import pytest
import torch

from regard.models import GPT, MODELS, GPTConfig
from regard.tasks import Translate, TranslateConfig, Write, WriteConfig, idle
from regard.tasks.loss import IGNORED
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training import distributed
from regard.training import throughput as meter
from regard.training.objective import Objective
from regard.training.throughput import Pace, flops, flops_per_token, peak

B, T, V, D, DEPTH = 3, 11, 29, 12, 2


def objective(**more: object) -> Objective:
    words = train_tokenizer("char", ["abc"], 300, Write.specials)
    sizes = {"vocab": V, "context": T, "dim": D, "depth": DEPTH, "heads": 3, "hidden": 20}
    return Objective(GPT(GPTConfig(**sizes | more)), Write(WriteConfig(name="write"), words, T))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(B, T, dtype=torch.long), torch.zeros(B, T, dtype=torch.long)


@pytest.mark.parametrize("tied", [True, False])
def test_flops_are_the_formulas(tied: bool) -> None:
    """2 for a multiplication and an addition, 3 for forward and both gradients: 6 a weight and token; and as
    many for every layer's scores and pooled values, T * D each (Chowdhery et al. 2022, appendix B)."""
    model = objective(tied=tied)
    n = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name)
    n += V * D if tied else 0  # the output layer
    assert flops(model, batch()) == B * T * (6 * n + 6 * DEPTH * 2 * T * D)


def test_flops_grow_with_the_batch_and_compute_nothing() -> None:
    model = objective()
    before = {name: p.clone() for name, p in model.named_parameters()}
    ids, targets = batch()
    assert flops(model, (ids, targets)) == B * flops(model, (ids[:1], targets[:1]))
    for name, p in model.named_parameters():
        assert p.device.type == "cpu"
        assert p.grad is None
        assert p.equal(before[name])


def test_flops_of_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = flops(objective(), batch())
    monkeypatch.setattr("regard.tasks.loss.LOGITS_AT_ONCE", 7 * V)
    assert flops(objective(), batch()) == plain


def pairs() -> tuple[torch.Tensor, ...]:
    """A batch of whole pairs, without padding."""
    ids = torch.zeros(B, T, dtype=torch.long)
    return ids, torch.ones(B, T, dtype=torch.bool), ids, ids


def pair_objective(kind: str) -> Objective:
    cls, config, _ = MODELS[kind]
    tokenizer = train_tokenizer("byte", [], 0, Translate.specials)
    task = Translate(TranslateConfig(name="translate"), tokenizer, T)
    return Objective(cls(config(vocab=V, context=T, dim=D, depth=DEPTH)), task)


def test_flops_of_a_transformer() -> None:
    model = pair_objective("transformer")
    n = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name)
    n += V * D  # the output layer
    attentions = 3 * DEPTH  # the encoder's, the decoder's own, and its over the source
    assert flops(model, pairs()) == B * T * (6 * n + 6 * attentions * 2 * T * D)


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_flops_of_recurrent_models_are_not_known(kind: str) -> None:
    assert math.isnan(flops(pair_objective(kind), pairs()))


def test_a_pace_without_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "peak", lambda device, bf16: 1e6)
    pace = Pace(math.nan, torch.device("cpu"), bf16=False)
    pace.add({"tokens": 300})
    assert pace.rates().keys() == {"tokens_per_second", "first_step_seconds"}


def test_peak() -> None:
    assert peak(torch.device("cpu"), bf16=False) > 1e8  # any machine of this century


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(meter, "peak", lambda device, bf16: 1e6)
    return now


def test_pace(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(500.0, torch.device("cpu"), bf16=False)
    clock[0] += 20  # compiling
    pace.add({"tokens": 200})
    assert pace.rates() == {"tokens_per_second": 10.0, "mfu": 0.005, "first_step_seconds": 20.0}
    pace.add({"tokens": 300})
    pace.add({"tokens": 100})
    clock[0] += 2
    assert pace.rates() == {"tokens_per_second": 200.0, "mfu": 0.1}
    clock[0] += 4
    pace.add({"tokens": 40})
    assert pace.rates()["tokens_per_second"] == 10.0  # since it was last asked
    clock[0] += 50
    pace.start()  # what lay between was something else
    pace.add({"images": 3, "tokens": 30})
    clock[0] += 1
    monkeypatch.setattr(distributed, "WORLD", 2)
    monkeypatch.setattr(distributed, "all_sum", lambda x: x + x)
    assert pace.rates() == {"images_per_second": 6, "tokens_per_second": 60.0, "mfu": 60 * 500 / 2e6}


def test_the_first_step_is_in_no_later_rate(clock: list[float]) -> None:
    pace = Pace(500.0, torch.device("cpu"), bf16=False)
    clock[0] += 20
    pace.add({"tokens": 200})  # a resumed run logs only some later step
    pace.add({"tokens": 300})
    clock[0] += 3
    assert pace.rates()["tokens_per_second"] == 100.0


def test_no_more_than_the_peak_is_used(clock: list[float]) -> None:
    """The peak was measured while others used the machine."""
    pace = Pace(500.0, torch.device("cpu"), bf16=False)
    shares = []
    for tokens in (1, 4000, 3000):
        clock[0] += 1
        pace.add({"tokens": tokens})
        shares.append(pace.rates()["mfu"])
    assert shares == [0.0005, 1.0, 0.75]


def test_a_short_target_does_not_stand_for_all() -> None:
    """The first pair has a source of 9 tokens and a target of one; that of the others has 9 as well."""
    model = pair_objective("transformer")
    task = model.loss.__self__  # type: ignore[attr-defined]

    class Samples:
        data = None

        def rows(self, step: int) -> np.ndarray:
            return np.arange(8)

    def batch(samples: Samples, rows: np.ndarray) -> tuple[torch.Tensor, ...]:
        ids = torch.zeros(len(rows), 9, dtype=torch.long)
        following = ids.clone()
        following[0, 1:] = IGNORED
        return ids, torch.ones_like(ids, dtype=torch.bool), ids, following

    task.batch = batch
    total = flops(model, batch(Samples(), np.arange(8)))
    assert flops_per_token(model, task, Samples()) == total / (8 * 9 + 1 + 7 * 9)


def test_what_is_read_is_counted_and_idle_batches_are_not() -> None:
    task = pair_objective("transformer").loss.__self__  # type: ignore[attr-defined]
    source, mask, target, following = pairs()
    mask[0, 3:] = False
    following = following.clone()
    following[1, 5:] = IGNORED
    counts = meter.count_read(task, [(source, mask, target, following), idle(pairs())])
    read = B * T - (T - 5)
    assert counts == {"target_tokens": read, "tokens": read + B * T - (T - 3)}
