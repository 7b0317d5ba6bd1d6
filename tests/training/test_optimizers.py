"""Muon against torch's own, parameter groups, and learning rate schedules."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from helpers.errors import user_error
from regard.models import (
    GPT,
    MODELS,
    Bert,
    BertConfig,
    GPTConfig,
    GRUConfig,
    ModelWithHead,
    Seq2Seq,
    Transformer,
    TransformerConfig,
)
from regard.runs.layers import layer_index
from regard.training.optimizers import SCHEDULES, Muon, freeze, lr_factor, make_optimizers, orthogonalise

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
    result = orthogonalise(G)
    S = U.mT @ result @ Vh.mT  # would be the identity
    off = S - S.diagonal(dim1=-2, dim2=-1).diag_embed()
    assert off.abs().max() < 1e-3
    singular = torch.linalg.svdvals(G)
    values = S.diagonal(dim1=-2, dim2=-1)[singular > 0.05 * singular.amax(-1, keepdim=True)]
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_orthogonal_of_nothing_is_nothing() -> None:
    assert not orthogonalise(torch.zeros(2, 3, 5)).any()


# Groups


def gpt() -> GPT:
    config = GPTConfig(vocab=29, context=11, dim=12, depth=2, heads=3, norm="layer", bias=True, tied=False)
    return GPT(config)


def groups(model: nn.Module, name: str) -> list[tuple[str, dict]]:
    optimizers = make_optimizers(model, name, lr=0.01, weight_decay=0.1, beta2=0.98)
    return [(type(o).__name__, group) for o in optimizers for group in o.param_groups]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_parameter_is_in_one_group(name: str) -> None:
    model = gpt()
    ids = [id(p) for _, group in groups(model, name) for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in model.parameters())


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
    model, optimizers = (m := gpt()), make_optimizers(m, name, lr=0.01, weight_decay=0.1, beta2=0.98)
    ids = torch.randint(29, (3, 11))

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    first = loss()
    for _ in range(40):
        for o in optimizers:
            o.zero_grad()
        loss().backward()
        for o in optimizers:
            o.step()
    assert loss() < 0.3 * first


# Layers that learn more slowly, and layers that don't learn


def transformer(**more: object) -> Transformer:
    sizes = {"vocab": 29, "context": 11, "dim": 12, "depth": 2, "decoder_depth": 3, "heads": 3}
    return Transformer(TransformerConfig(**sizes | more))


def labelled() -> ModelWithHead:
    """A BERT with a head, its own heads frozen, as in its task."""
    model = ModelWithHead(Bert(BertConfig(vocab=29, context=11, dim=12, depth=3, heads=3)), outputs=5)
    for part in model.unused:
        part.requires_grad_(False)
    return model


def scaled(model: nn.Module, name: str, decay: float) -> dict[str, float]:
    """The scale of every trainable weight, by its name."""
    optimizers = make_optimizers(model, name, 0.01, 0.1, 0.98, layer_decay=decay)
    scales = {p: group["scale"] for o in optimizers for group in o.param_groups for p in group["params"]}
    return {n: scales[p] for n, p in model.named_parameters() if p in scales}


def by_hand(names: list[str], *scales: tuple[str, float]) -> dict[str, float]:
    """The scale of the first prefix that a name starts with."""
    return {n: next(scale for beginning, scale in scales if n.startswith(beginning)) for n in names}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_scales_of_a_gpt(name: str) -> None:
    model = GPT(GPTConfig(vocab=29, context=11, dim=12, depth=3, heads=3, positions="learned", tied=False))
    expected = [("embed", 1 / 8), ("positions", 1 / 8), ("blocks.0.", 1 / 4), ("blocks.1.", 1 / 2)]
    scales = scaled(model, name, 0.5)
    assert scales == by_hand([n for n, _ in model.named_parameters()], *expected, ("", 1.0))
    assert {n for n in scales if not n.startswith(("embed", "pos", "blocks"))} == {
        "norm.weight",
        "head.weight",
    }


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_scales_of_a_transformer(name: str) -> None:
    """Encoder and decoder count as five blocks in a row."""
    model = transformer(target_vocab=31, pre=True, positions="relative")
    expected = [("embed", 1 / 32), ("target_embed", 1 / 32), ("encoder_pos", 1 / 32), ("decoder_pos", 1 / 32)]
    expected += [("encoder.0.", 1 / 16), ("encoder.1.", 1 / 8), ("decoder.0.", 1 / 4), ("decoder.1.", 1 / 2)]
    expected += [("decoder.2.", 1.0), ("encoder_norm", 1.0), ("decoder_norm", 1.0)]
    assert scaled(model, name, 0.5) == by_hand([n for n, _ in model.named_parameters()], *expected)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_scales_of_a_labelled_bert(name: str) -> None:
    model = labelled()
    expected = [("model.embed", 1 / 27), ("model.segments", 1 / 27), ("model.positions", 1 / 27)]
    expected += [("model.blocks.0.", 1 / 9), ("model.blocks.1.", 1 / 3), ("model.blocks.2.", 1.0)]
    expected += [("model.pooler", 1.0), ("head", 1.0)]  # what else there is, is not used
    learning = [n for n, p in model.named_parameters() if p.requires_grad]
    assert scaled(model, name, 1 / 3) == pytest.approx(by_hand(learning, *expected))
    assert {"model.embed_norm.weight", "model.pooler.bias", "head.bias"} < set(learning)


def test_a_berts_own_bias_is_above() -> None:
    model = Bert(BertConfig(vocab=29, context=11, dim=12, depth=2, heads=3))
    assert layer_index(model)[model.bias] == layer_index(model)[model.next.weight] == 3


def test_scales_of_a_recurrent_model() -> None:
    model = Seq2Seq(GRUConfig(vocab=29, context=11, dim=12, tied=False))
    expected = [("embed", 1 / 4), ("encoder", 1 / 2), ("decoder", 1.0), ("head", 1.0)]
    assert scaled(model, "adamw", 0.5) == by_hand([n for n, _ in model.named_parameters()], *expected)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_without_decay_there_are_matrices_and_vectors(kind: str, name: str) -> None:
    """In the order in which the model has them."""
    cls, config, _ = MODELS[kind]
    sizes = {"vocab": 29, "dim": 12, "heads": 3, "size": 8, "channels": 1}
    model = cls(config(**{k: v for k, v in sizes.items() if k in config.__dataclass_fields__}))
    muons = [
        p for o in make_optimizers(model, name, 0.01, 0.1, 0.98) if isinstance(o, Muon) for p in weights(o)
    ]
    rest = [p for p in model.parameters() if all(p is not m for m in muons)]
    adamw, *more = make_optimizers(model, name, 0.01, 0.1, 0.98)
    expected = [[p for p in rest if p.ndim >= 2], [p for p in rest if p.ndim < 2]]
    ids = [[id(p) for p in group["params"]] for group in adamw.param_groups]
    assert ids == [[id(p) for p in parameters] for parameters in expected if parameters]
    assert all(len(o.param_groups) == 1 for o in more)
    assert {group["scale"] for o in (adamw, *more) for group in o.param_groups} == {1.0}


def weights(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def test_frozen_is_what_lies_below() -> None:
    model = gpt()
    freeze(model, 1)
    assert {n.split(".")[0] + n[6:8] for n, p in model.named_parameters() if not p.requires_grad} == {
        "embedwe",
        "blocks.0",
    }
    model = transformer()
    freeze(model, 3)  # the encoder, and one block of the decoder
    still = {n for n, p in model.named_parameters() if p.requires_grad}
    assert still == {n for n, _ in model.named_parameters() if n.startswith(("decoder.1.", "decoder.2."))}


def test_what_a_task_has_frozen_stays_so() -> None:
    model = labelled()
    rest = [
        p for part in model.unused for p in (part.parameters() if isinstance(part, nn.Module) else [part])
    ]
    freeze(model, 3)
    assert not any(p.requires_grad for p in rest)
    learning = {n for n, p in model.named_parameters() if p.requires_grad}
    assert learning == {"model.pooler.weight", "model.pooler.bias", "head.weight", "head.bias"}


def test_too_much_frozen() -> None:
    user_error(lambda: freeze(gpt(), 3), "train.freeze=3", "2 blocks")
    freeze(gpt(), 2)  # norm and head are left
    user_error(lambda: freeze(transformer(), 5), "train.freeze=5", "nothing to train")
    freeze(transformer(tied=False), 5)


# The learning rate

STEPS, WARMUP = 1000, 100


def path(schedule: str, warmup: int = WARMUP) -> list[float]:
    """Steps count from 1."""
    return [lr_factor(schedule, (step - 1) / STEPS, step, warmup) for step in range(1, STEPS + 1)]


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
    assert lr_factor(schedule, 1.7, 2000, warmup) >= 0  # a run that goes on beyond its budget


def test_noam_is_the_papers() -> None:
    def paper(step: int) -> float:
        return 512**-0.5 * min(step**-0.5, step * WARMUP**-1.5)

    ratios = [got / paper(step) for step, got in enumerate(path("noam"), 1)]
    assert ratios == [pytest.approx(ratios[0])] * STEPS


def test_cosine() -> None:
    assert lr_factor("cosine", 0.5, 500, WARMUP) == pytest.approx(0.55)
    assert lr_factor("cosine", 0.25, 250, WARMUP) == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2)
    assert (
        lr_factor("cosine", 1.0, 1000, WARMUP) == lr_factor("cosine", 1.5, 1500, WARMUP) == pytest.approx(0.1)
    )


def test_linear() -> None:
    for done in (0.2, 0.5, 0.75, 1.0):
        assert lr_factor("linear", done, 500, WARMUP) == pytest.approx(1 - done)


def test_wsd_is_flat_and_then_a_line_to_zero() -> None:
    rates = path("wsd")
    assert set(rates[WARMUP - 1 : 600]) == {1.0}
    assert lr_factor("wsd", 0.8, 800, WARMUP) == pytest.approx(0.5)
    assert lr_factor("wsd", 1.0, 1000, WARMUP) == 0
    falls = [a - b for a, b in pairwise(rates[600:])]
    assert falls == [pytest.approx(1 / 400)] * len(falls)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warm_up_by_time_is_at_most_a_share_of_the_run(schedule: str) -> None:
    """A run of 60 steps, which nobody knew before."""
    rates = [lr_factor(schedule, (step - 1) / 60, step, WARMUP, 0.25) for step in range(1, 61)]
    assert all(a < b for a, b in pairwise(rates[:15]))
    assert rates[1] == pytest.approx(max(2 / WARMUP, 1 / 15))
    assert max(rates) <= 1
    assert all(a >= b for a, b in pairwise(rates[15:]))
    late = lr_factor(schedule, 0.5, 500, WARMUP)
    assert lr_factor(schedule, 0.5, 500, WARMUP, 0.25) == late  # a long run, as ever
