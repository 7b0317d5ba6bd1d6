"""Operation counts against the formula, and rates with a fake clock."""

import math

import pytest
import torch

from regard.models import GPT, MODELS, GPTConfig
from regard.tasks import Translate, TranslateConfig, Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training import distributed
from regard.training import throughput as meter
from regard.training.objective import Objective
from regard.training.throughput import Pace, flops, peak

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
    assert flops(model, batch()) == 6 * n + 6 * DEPTH * 2 * T * D


def test_flops_do_not_depend_on_the_batch_and_compute_nothing() -> None:
    model = objective()
    before = {name: p.clone() for name, p in model.named_parameters()}
    ids, targets = batch()
    assert flops(model, (ids, targets)) == flops(model, (ids[:1], targets[:1]))
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
    assert flops(model, pairs()) == 6 * n + 6 * attentions * 2 * T * D


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_flops_of_recurrent_models_are_not_known(kind: str) -> None:
    assert math.isnan(flops(pair_objective(kind), pairs()))


def test_a_pace_without_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "peak", lambda device, bf16: 1e6)
    pace = Pace(math.nan, torch.device("cpu"), bf16=False)
    pace.add(300)
    assert pace.rates().keys() == {"tokens_per_second"}


def test_peak() -> None:
    assert peak(torch.device("cpu"), bf16=False) > 1e8  # any machine of this century


def test_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(meter, "peak", lambda device, bf16: 1e6)
    pace = Pace(500.0, torch.device("cpu"), bf16=False)
    pace.add(300)
    pace.add(100)
    now[0] += 2
    assert pace.rates() == {"tokens_per_second": 200.0, "mfu": 0.1}
    now[0] += 4
    pace.add(40)
    assert pace.rates()["tokens_per_second"] == 10.0  # since it was last asked
    now[0] += 50
    pace.start()  # what lay between was something else
    pace.add(30)
    now[0] += 1
    monkeypatch.setattr(distributed, "WORLD", 2)
    assert pace.rates() == {"tokens_per_second": 30.0, "mfu": 30 * 500 / 2e6}
