"""Muon against torch's own; who is in which group; where the learning rate stands."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from regard.models import GPT, GPTConfig
from regard.optim import SCHEDULES, Muon, optimizers, orthogonal, rate

SHAPES = [(11, 11), (7, 13), (13, 7), (7, 13), (3, 29), (1, 5)]  # two alike, and one alike when turned


def matrices() -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def test_muon_is_torchs() -> None:
    ours, theirs = matrices(), matrices()
    mine = Muon(ours, lr=0.02, weight_decay=0.1)
    torchs = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for step in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape) * 10.0 ** (step - 2)
            b.grad = a.grad.clone()
        before = [w.detach().clone() for w in theirs]
        mine.step()
        torchs.step()
        for a, b, old in zip(ours, theirs, before, strict=True):
            far = (a - b).norm() / (b - old).norm()
            assert far < 0.05, f"step {step}, {tuple(a.shape)}"  # torch's products are in bfloat16
            a.data.copy_(b.data)  # so that steps are compared, not their sums
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.state[a]["momentum"], torchs.state[b]["momentum_buffer"])


def test_muon_leaves_what_has_no_gradient() -> None:
    a, b = matrices()[1:3]
    old = a.detach().clone(), b.detach().clone()
    a.grad = torch.randn(a.shape)
    Muon([a, b], lr=0.02, weight_decay=0.1).step()
    assert not a.equal(old[0])
    assert b.equal(old[1])


def test_muon_step_is_as_large_as_adams() -> None:
    """Its root mean square is about a fifth of the rate, as AdamW's is (Liu et al. 2025)."""
    for w in (nn.Parameter(torch.zeros(shape)) for shape in [(31, 67), (67, 31), (53, 53)]):
        w.grad = torch.randn(w.shape)
        Muon([w], lr=0.01, weight_decay=0.0).step()
        assert 0.15 < w.square().mean().sqrt() / 0.01 < 0.25


@pytest.mark.parametrize("shape", [(2, 17, 17), (3, 7, 29), (1, 1, 5)])
def test_orthogonal_is_nearly_svds(shape: tuple[int, ...]) -> None:
    G = torch.randn(shape) * torch.tensor([1e-3, 1.0, 1e3])[: shape[0], None, None]
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    found = orthogonal(G)
    S = U.mT @ found @ Vh.mT  # would be the identity
    off = S - S.diagonal(dim1=-2, dim2=-1).diag_embed()
    assert off.abs().max() < 1e-3
    kept = torch.linalg.svdvals(G)
    values = S.diagonal(dim1=-2, dim2=-1)[kept > 0.05 * kept.amax(-1, keepdim=True)]
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_orthogonal_of_nothing_is_nothing() -> None:
    assert not orthogonal(torch.zeros(2, 3, 5)).any()


# Groups


def gpt() -> GPT:
    config = GPTConfig(vocab=29, context=11, dim=12, depth=2, heads=3, norm="layer", bias=True, tied=False)
    return GPT(config)


def groups(model: nn.Module, name: str) -> list[tuple[str, dict]]:
    made = optimizers(model, name, lr=0.01, weight_decay=0.1, beta2=0.98)
    return [(type(o).__name__, group) for o in made for group in o.param_groups]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_parameter_is_in_one_group(name: str) -> None:
    model = gpt()
    found = [id(p) for _, group in groups(model, name) for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_vectors_do_not_decay(name: str) -> None:
    for _, group in groups(gpt(), name):
        assert group["params"]
        assert {p.ndim >= 2 for p in group["params"]} == {group["weight_decay"] == 0.1}
        assert group["weight_decay"] in (0.0, 0.1)


def test_muon_takes_the_matrices_inside() -> None:
    model = gpt()
    inside = {id(p) for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim == 2}
    taken = [p for kind, group in groups(model, "muon") if kind == "Muon" for p in group["params"]]
    assert inside == {id(p) for p in taken}
    assert {kind for kind, _ in groups(model, "adamw")} == {"AdamW"}
    assert all(g["betas"] == (0.9, 0.98) for kind, g in groups(model, "muon") if kind == "AdamW")


def test_what_is_frozen_stays() -> None:
    model = gpt()
    model.embed.weight.requires_grad_(False)
    assert all(p is not model.embed.weight for _, group in groups(model, "muon") for p in group["params"])


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_steps_go_down(name: str) -> None:
    model, made = (m := gpt()), optimizers(m, name, lr=0.01, weight_decay=0.1, beta2=0.98)
    ids = torch.randint(29, (3, 11))

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    first = loss()
    for _ in range(40):
        for o in made:
            o.zero_grad()
        loss().backward()
        for o in made:
            o.step()
    assert loss() < 0.3 * first


# The learning rate

STEPS, WARMUP = 1000, 100


def path(schedule: str, warmup: int = WARMUP) -> list[float]:
    """Steps count from 1; before the first, nothing is done."""
    return [rate(schedule, (step - 1) / STEPS, step, warmup) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warm_up_is_a_line_to_the_top(schedule: str) -> None:
    rates = path(schedule)
    assert rates[:WARMUP] == [pytest.approx(n / WARMUP) for n in range(1, WARMUP + 1)]
    assert max(rates) == 1.0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 1, WARMUP])
def test_then_it_never_rises_and_is_never_negative(schedule: str, warmup: int) -> None:
    rates = path(schedule, warmup)[max(0, warmup - 1) :]
    assert all(a >= b >= 0 for a, b in pairwise(rates))
    assert rates[0] == pytest.approx(1.0)
    assert rate(schedule, 1.7, 2000, warmup) >= 0  # a run that goes on beyond its budget


def test_noam_is_the_papers() -> None:
    def paper(step: int) -> float:
        return 512**-0.5 * min(step**-0.5, step * WARMUP**-1.5)

    ratios = [got / paper(step) for step, got in enumerate(path("noam"), 1)]
    assert ratios == [pytest.approx(ratios[0])] * STEPS


def test_cosine() -> None:
    assert rate("cosine", 0.5, 500, WARMUP) == pytest.approx(0.55)
    assert rate("cosine", 0.25, 250, WARMUP) == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2)
    assert rate("cosine", 1.0, 1000, WARMUP) == rate("cosine", 1.5, 1500, WARMUP) == pytest.approx(0.1)


def test_linear() -> None:
    for done in (0.2, 0.5, 0.75, 1.0):
        assert rate("linear", done, 500, WARMUP) == pytest.approx(1 - done)


def test_wsd_is_flat_and_then_a_line_to_zero() -> None:
    rates = path("wsd")
    assert set(rates[WARMUP - 1 : 600]) == {1.0}
    assert rate("wsd", 0.8, 800, WARMUP) == pytest.approx(0.5)
    assert rate("wsd", 1.0, 1000, WARMUP) == 0
    falls = [a - b for a, b in pairwise(rates[600:])]
    assert falls == [pytest.approx(1 / 400)] * len(falls)
