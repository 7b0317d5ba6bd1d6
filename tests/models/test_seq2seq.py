"""Recurrent sequence to sequence, for every cell, attention, depth and direction.

Sizes: 61 source and 53 target words, 3 rows, 5 source and 7 target tokens, 17 at most, 22 wide.
"""

import dataclasses
import itertools
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.testing import assert_close

import regard
from helpers.shapes import checked, promises
from regard.describe.watch import watch
from regard.models import MODELS
from regard.models.seq2seq import GRUConfig, LSTMConfig, RNNConfig, Seq2Seq, Seq2SeqConfig

B, S, T = 3, 5, 7
CONFIGS = {"rnn": RNNConfig, "gru": GRUConfig, "lstm": LSTMConfig}
CELLS, ATTENTIONS = tuple(CONFIGS), ("none", "additive", "dot", "general")
SIZES = {"vocab": 61, "target_vocab": 53, "context": 17, "dim": 22, "depth": 2}
MASK = torch.arange(S) < torch.tensor([[2], [S], [1]])
every_cell = pytest.mark.parametrize("cell", CELLS)
every_attention = pytest.mark.parametrize("attention", ATTENTIONS)
every_kind = pytest.mark.parametrize(
    "kind",
    [
        {"cell": cell, "attention": attention, "depth": depth, "bidirectional": both}
        for cell, attention, depth, both in itertools.product(CELLS, ATTENTIONS, (1, 3), (False, True))
    ],
    ids=lambda kind: "-".join(map(str, kind.values())),
)


def build(cell: str = "gru", **changes: object) -> Seq2Seq:
    """Return a model in evaluation mode, with weights so large that all of them matter."""
    model = Seq2Seq(CONFIGS[cell](**{**SIZES, **changes}))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.15 * torch.randn_like(p))
    return model.eval()


def pairs() -> tuple[Tensor, Tensor]:
    return torch.randint(61, (B, S)), torch.randint(53, (B, T))


# What every kind of it promises


@every_kind
@torch.no_grad()
def test_stepwise_is_full(kind: dict[str, object]) -> None:
    model, (source, target) = build(**kind), pairs()
    full = model(source, target, MASK)
    assert full.shape == (B, T, 53)
    logits, state = model.start(source, target[:, :3], MASK)
    assert_close(logits, full[:, 2], atol=1e-5, rtol=1e-4)
    for t in range(3, T):
        logits, state = model.step(target[:, t : t + 1], state)
        assert state.length == t + 1
        assert_close(logits, full[:, t], atol=1e-5, rtol=1e-4)


@every_kind
@torch.no_grad()
def test_batched_is_alone_whatever_stands_in_the_padding(kind: dict[str, object]) -> None:
    model, (source, target) = build(**kind), pairs()
    batched = model(source, target, MASK)
    other = torch.where(MASK, source, (source + 1) % 61)
    assert torch.equal(batched, model(other, target, MASK))
    assert torch.equal(model.encode(source, MASK), model.encode(other, MASK))
    for row in range(B):
        alone = model(source[row : row + 1, MASK[row]], target[row : row + 1])
        assert_close(batched[row : row + 1], alone, atol=1e-5, rtol=1e-4)


@every_kind
@torch.no_grad()
def test_no_leak_from_the_future(kind: dict[str, object]) -> None:
    model, (source, target) = build(**kind), pairs()
    before = model(source, target)
    for t in 1, 4, T - 1:
        other = target.clone()
        other[:, t:] = (other[:, t:] + 1) % 53
        after = model(source, other)
        assert torch.equal(before[:, :t], after[:, :t])
        assert (before[:, t:] != after[:, t:]).any(-1).all()


@every_kind
def test_every_weight_learns(kind: dict[str, object]) -> None:
    model, (source, target) = build(**kind, tied=False), pairs()
    (1e3 * model(source, target, MASK)).logsumexp(-1).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


@every_attention
@every_cell
@torch.no_grad()
def test_every_word_of_the_source_matters(cell: str, attention: str) -> None:
    model, (source, target) = build(cell=cell, attention=attention), pairs()
    for s in range(S):
        other = source.clone()
        other[:, s] = (other[:, s] + 1) % 61
        changed = (model(source, target, MASK) != model(other, target, MASK)).any(-1)
        assert changed.all(1).tolist() == changed.any(1).tolist() == MASK[:, s].tolist()


@every_attention
def test_watched_is_unwatched(attention: str) -> None:
    model, (source, target) = build(attention=attention), pairs()
    alone = model(source, target, MASK)
    with watch(model) as records:
        watched = model(source, target, MASK)
    assert torch.equal(watched, alone)
    assert list(records) == ([] if attention == "none" else ["decoder.look"])
    for calls in records.values():
        weights = torch.cat([record["weights"] for record in calls], dim=2)
        assert weights.shape == (B, 1, T, S)
        assert_close(weights.sum(-1), torch.ones(B, 1, T))
        assert not weights.masked_select(~MASK[:, None, None]).any()
        chosen = [record["weights"] for record in calls]
        for gradient in torch.autograd.grad(watched.logsumexp(-1).sum(), chosen):
            assert gradient.isfinite().all()
            assert gradient.abs().max() > 0


@every_attention
@every_cell
@torch.no_grad()
def test_reordered_state_goes_on_as_another_row(cell: str, attention: str) -> None:
    model, (source, target) = build(cell=cell, attention=attention), pairs()
    _, state = model.start(source, target[:, :4], MASK)
    state.reorder(torch.tensor([2, 0, 0, 1]))
    ids = torch.tensor([[7], [7], [11], [7]])
    logits, _ = model.step(ids, state)
    for i, row in enumerate([2, 0, 0, 1]):
        written = torch.cat([target[row, :4], ids[i]])[None]
        alone = model(source[row : row + 1, MASK[row]], written)[0, -1]
        assert_close(logits[i], alone, atol=1e-5, rtol=1e-4)


@every_attention
@every_cell
@torch.no_grad()
def test_save_and_load_is_exact(cell: str, attention: str, tmp_path: Path) -> None:
    kind = {"cell": cell, "attention": attention}
    model, again, (source, target) = build(**kind), build(**kind), pairs()
    assert not torch.equal(model(source, target), again(source, target))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(model(source, target), again(source, target))


@every_attention
@every_cell
def test_runs_in_half_precision_and_under_autocast(cell: str, attention: str) -> None:
    model, (source, target) = build(cell=cell, attention=attention), pairs()
    exact = model(source, target, MASK)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(source, target, MASK)
        mixed.float().logsumexp(-1).sum().backward()
        _, state = model.start(source, target[:, :-1], MASK)
        last, _ = model.step(target[:, -1:], state)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    half = model.bfloat16()(source, target, MASK)
    assert half.dtype == torch.bfloat16
    for rough in mixed, half:
        assert F.cosine_similarity(rough.float(), exact, dim=-1).min() > 0.99
    assert F.cosine_similarity(last.float(), exact[:, -1], dim=-1).min() > 0.99


@every_attention
def test_compiles_where_torch_is_allowed_to(attention: str) -> None:
    """Sources without padding only: packing reads lengths."""
    torch._dynamo.reset()
    model, (source, target) = build(attention=attention), pairs()
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert_close(compiled(source, target), model(source, target), atol=1e-5, rtol=1e-5)


@every_attention
@every_cell
def test_weights_can_be_shared_out(cell: str, attention: str) -> None:
    """Like the trainer with `blocks`: a block's weights are gathered only while its forward runs."""
    model, (source, target) = build(cell=cell, attention=attention), pairs()
    alone = model(source, target, MASK)
    alone.logsumexp(-1).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings():  # of what nobody may write into
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
            mesh = init_device_mesh("cpu", (1,))
            for block in (*model.blocks, model):
                fully_shard(block, mesh=mesh)
            shared = model(source, target, MASK)
            shared.logsumexp(-1).sum().backward()
        assert_close(shared, alone)
        assert_close([p.grad.full_tensor() for p in model.parameters()], gradients)
    finally:
        dist.destroy_process_group()


# Learning

GO, END = 27, 28


def words(count: int = 16) -> tuple[Tensor, Tensor]:
    """Words of four letters, to be copied."""
    letters = torch.randint(1, 27, (count, 4))
    edge = torch.ones(count, 1, dtype=torch.long)
    return letters, torch.cat([GO * edge, letters, END * edge], dim=1)


def learn(model: Seq2Seq, source: Tensor, target: Tensor, steps: int, **options: float) -> float:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    for _ in range(steps):
        logits = model(source, target[:, :-1], **options)
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return loss.item()


@every_attention
@every_cell
def test_one_batch_overfits_and_is_written_from_memory(cell: str, attention: str) -> None:
    model = Seq2Seq(CONFIGS[cell](vocab=29, dim=32, attention=attention, dropout=0.0))
    source, target = words()
    assert learn(model, source, target, steps=70) < 0.05
    with torch.no_grad():
        logits, state = model.start(source, target[:, :1])
        for t in range(1, 6):
            ids = logits.argmax(-1, keepdim=True)
            assert torch.equal(ids, target[:, t : t + 1])
            logits, state = model.step(ids, state)


def test_starts_near_uniform() -> None:
    """The loss of a new model is about log(vocab)."""
    for cell, attention in itertools.product(CELLS, ATTENTIONS):
        model = Seq2Seq(CONFIGS[cell](**SIZES, attention=attention))
        logits = model(torch.randint(61, (29, S)), torch.randint(53, (29, T)))
        loss = F.cross_entropy(logits.flatten(0, 1), torch.randint(53, (29 * T,)))
        assert loss.item() == pytest.approx(torch.tensor(53.0).log().item(), rel=0.05)


# Teacher forcing


@every_attention
@torch.no_grad()
def test_without_forcing_it_reads_what_it_wrote(attention: str) -> None:
    model, (source, target) = build(attention=attention, dropout=0.0).train(), pairs()
    free = model(source, target, MASK, teacher_forcing=0.0)
    nonsense = torch.cat([target[:, :1], torch.randint(53, (B, T - 1))], dim=1)
    assert torch.equal(free, model(source, nonsense, MASK, teacher_forcing=0.0))
    written = torch.cat([target[:, :1], free[:, :-1].argmax(-1)], dim=1)
    assert_close(free, model(source, written, MASK), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(free, model(source, target, MASK))


@torch.no_grad()
def test_with_some_forcing_each_word_of_each_row_is_one_or_the_other() -> None:
    model, taught, rows = build(attention="dot", dropout=0.0).train(), [], 97
    source, target = torch.randint(61, (rows, S)), torch.randint(53, (rows, T))
    read = []
    decode = model.decode
    model.decode = lambda ids, state: (read.append(ids), decode(ids, state))[1]  # type: ignore[method-assign]
    x = model(source, target, teacher_forcing=0.75)
    for t in range(1, T):
        own = x[:, t - 1 : t].argmax(-1)
        differ = own != target[:, t : t + 1]
        assert ((read[t] == own) | (read[t] == target[:, t : t + 1])).all()
        taught.append((read[t] == target[:, t : t + 1])[differ])
        assert taught[-1].any()
        assert not taught[-1].all()
    assert torch.cat(taught).float().mean().item() == pytest.approx(0.75, abs=0.06)


@torch.no_grad()
def test_forcing_is_for_training_only() -> None:
    model, (source, target) = build(), pairs()
    assert torch.equal(model(source, target, teacher_forcing=0.0), model(source, target))
    model = build(dropout=0.0).train()
    assert torch.equal(model(source, target, teacher_forcing=1.0), model.eval()(source, target))


def test_learns_from_its_own_mistakes() -> None:
    model = Seq2Seq(GRUConfig(vocab=29, dim=32, dropout=0.0))
    assert learn(model, *words(), steps=90, teacher_forcing=0.5) < 0.05


# Shapes and settings


def test_shape_comments_are_true() -> None:
    here = Path(regard.__file__).parent
    files = [here / "core" / "recurrent.py", here / "models" / "seq2seq.py"]
    with checked(*files) as checks:
        for cell, attention, both in itertools.product(CELLS, ATTENTIONS, (False, True)):
            model, (source, target) = build(cell=cell, attention=attention, bidirectional=both), pairs()
            model(source, target)
            with watch(model):
                model(source, target, MASK)
            _, state = model.start(source, target, MASK)
            model.step(target[:, :1], state)
            model.train()(source, target, teacher_forcing=0.5)
    comments = {(str(path), promise.last) for path in files for promise in promises(path)}
    assert comments
    assert not {f"{Path(path).name}:{line}" for path, line in comments if not checks[path, line]}


def test_embeddings_are_shared_or_not() -> None:
    joint, apart, untied = build(target_vocab=None), build(), build(tied=False)
    assert joint.output is joint.embed.weight
    assert joint.output.shape == (61, 22)
    assert apart.target_embed is not None
    assert apart.output is apart.target_embed.weight
    assert untied.head is not None
    assert untied.output is untied.head.weight
    source, target = pairs()
    for model in joint, apart, untied:
        x = model.hidden(source, target, MASK)
        assert x.shape == (B, T, 22)
        assert_close(model(source, target, MASK), x @ model.output.T)


def test_encoded_sources_are_as_long_as_they_came() -> None:
    source, _ = pairs()
    encoded = build().encode(source, MASK)
    assert encoded.shape == (B, S, 22)
    assert encoded[MASK].any(-1).all()
    assert not encoded[~MASK].any()


def test_the_kind_names_the_cell() -> None:
    torchs = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
    for cell, config in CONFIGS.items():
        cls, known, presets = MODELS[cell]
        assert (cls, known, presets) == (Seq2Seq, config, Seq2SeqConfig.PRESETS)
        assert issubclass(config, Seq2SeqConfig)
        assert "cell" not in dataclasses.asdict(config(vocab=5))
        model = build(cell=cell)
        assert [type(block.rnn) for block in model.blocks] == [torchs[cell]] * 2
        assert model.blocks == [model.encoder, model.decoder]


def test_presets_name_only_settings_and_build() -> None:
    settings = {field.name for field in dataclasses.fields(Seq2SeqConfig)}
    sizes = []
    for preset in Seq2SeqConfig.PRESETS.values():
        assert set(preset) <= settings - {"vocab", "target_vocab"}
        with torch.device("meta"):
            model: nn.Module = Seq2Seq(GRUConfig(vocab=8000, **preset))
        sizes.append(sum(p.numel() for p in model.parameters()))
    assert list(Seq2SeqConfig.PRESETS) == ["tiny", "small", "base"]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"vocab": 0}, "vocab=0 must be more than 0"),
        ({"target_vocab": 0}, "target_vocab=0 must be more than 0"),
        ({"depth": -1}, "depth=-1 must be more than 0"),
        ({"dim": 7}, "dim=7 must be even"),
        ({"dropout": 1.0}, r"dropout=1\.0 must be from 0"),
    ],
)
def test_impossible_settings(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        LSTMConfig(**{**SIZES, **changes})
    LSTMConfig(**{**SIZES, "dim": 7, "bidirectional": False})


def test_configuration_is_frozen_and_by_keyword() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RNNConfig(vocab=5).vocab = 6  # type: ignore[misc]
    with pytest.raises(TypeError):
        RNNConfig(5)  # type: ignore[misc]


def test_too_many_tokens_are_counted() -> None:
    model, long, short = build(), torch.zeros(1, 18, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long)
    for source, target in (long, short), (short, long):
        with pytest.raises(ValueError, match=r"18 tokens .*context=17"):
            model(source, target)
    _, state = model.start(short, long[:, :17])
    with pytest.raises(ValueError, match=r"18 tokens .*context=17"):
        model.step(short[:, :1], state)


def test_padding_on_the_left_is_refused() -> None:
    source, target = pairs()
    with pytest.raises(ValueError, match="padded on the right"):
        build()(source, target, MASK.flip(1))
