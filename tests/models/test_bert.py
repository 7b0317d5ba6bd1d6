"""BERT against Hugging Face's, its presets and settings.

Sizes: 61 words, 37 positions, 3 layers, 4 heads, 40 wide, 53 in the feed-forward, 2 segments.
"""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import BertConfig as TheirConfig
from transformers import BertForPreTraining

from helpers.berts import bert_weights, plain_name
from regard.convert.huggingface.bert import NAMES
from regard.convert.huggingface.family import their_name
from regard.describe.watch import watch
from regard.models.bert import Bert, BertConfig

VOCAB = 61
POSITIONS = ["none", "sinusoidal", "learned", "rotary", "relative"]
SIZES = {"vocab": VOCAB, "context": 37, "dim": 40, "depth": 3, "heads": 4, "hidden": 53}


@torch.no_grad()
def shake(model: nn.Module) -> None:
    """Randomize weights, norms and biases, so that attention is not uniform."""
    for p in model.parameters():
        p.add_(0.15 * torch.randn_like(p))


def build(**changes: object) -> Bert:
    model = Bert(BertConfig(**{**SIZES, **changes}))
    shake(model)
    return model.eval()


def texts(lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, their attention mask, and their segments."""
    attention_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(VOCAB, attention_mask.shape), attention_mask, torch.randint(2, attention_mask.shape)


# Hugging Face


def their_config(**changes: object) -> TheirConfig:
    return TheirConfig(
        vocab_size=VOCAB, max_position_embeddings=37, hidden_size=40, num_hidden_layers=3,
        num_attention_heads=4, intermediate_size=53, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, pad_token_id=None, **changes,
    )  # fmt: skip


def both(**changes: object) -> tuple[BertForPreTraining, Bert]:
    """Two models with the same weights, theirs and ours."""
    theirs = BertForPreTraining(their_config(**changes)).eval()
    shake(theirs)
    ours = Bert(BertConfig(**SIZES, dropout=0.0)).eval()
    ours.load_state_dict(bert_weights(theirs.state_dict(), ours))
    return theirs, ours


def test_bert_is_hugging_faces() -> None:
    """Logits of words and of the next sentence, and the gradients of every weight, in training."""
    theirs, ours = (model.train() for model in both())
    ids, attention_mask, segments = texts([13, 7, 1, 11])
    y = theirs(ids, attention_mask.long(), segments, output_hidden_states=True)
    x, z = ours.encode(ids, attention_mask, segments), ours(ids, attention_mask, segments)
    assert z.std() > 0.1
    assert_close(x[attention_mask], y.hidden_states[-1][attention_mask], atol=1e-5, rtol=1e-5)
    assert_close(z[attention_mask], y.prediction_logits[attention_mask], atol=1e-5, rtol=1e-5)
    assert_close(ours.next_sentence(x), y.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    words, follows = torch.randn_like(z[attention_mask]), torch.randn(4, 2)
    for logits, next_logits in (y.prediction_logits, y.seq_relationship_logits), (z, ours.next_sentence(x)):
        ((logits[attention_mask] * words).sum() + (next_logits * follows).sum()).backward()
    mine = {their_name(NAMES, name): p.grad for name, p in ours.named_parameters()}
    his = {plain_name(name): p.grad for name, p in theirs.named_parameters()}
    assert mine.keys() == his.keys()
    assert len(his) == 3 * 16 + 5 + 2 + 5 + 2
    for name, grad in his.items():
        scale = grad.abs().max()
        if name.endswith("key.bias"):  # adds the same to all scores of a query: nothing but rounding
            scale = his[name.replace("bias", "weight")].abs().max()
        assert scale > 0, name
        assert_close(mine[name] / scale, grad / scale, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize(("act", "ffn"), [("relu", "relu"), ("gelu_new", "gelu_tanh")])
@torch.no_grad()
def test_activations_are_hugging_faces(act: str, ffn: str) -> None:
    """The masked-word head has the same activation function."""
    theirs, ours = both(hidden_act=act)[0], Bert(BertConfig(**SIZES, ffn=ffn)).eval()
    ours.load_state_dict(bert_weights(theirs.state_dict(), ours))
    ids, attention_mask, segments = texts([13, 7])
    y = theirs(ids, attention_mask.long(), segments).prediction_logits
    assert_close(ours(ids, attention_mask, segments)[attention_mask], y[attention_mask], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_attention_is_hugging_faces() -> None:
    theirs, ours = both()
    theirs.set_attn_implementation("eager")
    ids, attention_mask, segments = texts([13, 7, 1])
    y = theirs(ids, attention_mask.long(), segments, output_attentions=True).attentions
    with watch(ours) as records:
        ours(ids, attention_mask, segments)
    assert list(records) == [f"blocks.{i}.attn.f" for i in range(3)]
    for calls, weights in zip(records.values(), y, strict=True):
        assert_close(calls[0]["weights"], weights, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_without_segments_all_is_the_first() -> None:
    theirs, ours = both()
    ids, _, _ = texts([13, 13])
    assert_close(ours(ids), theirs(ids).prediction_logits, atol=1e-5, rtol=1e-5)
    assert torch.equal(ours(ids), ours(ids, segments=torch.zeros_like(ids)))
    assert torch.equal(ours(ids), ours(ids, torch.ones_like(ids).bool()))


# Sizes


def count(**changes: object) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in Bert(BertConfig(**changes)).parameters())


@pytest.mark.parametrize(
    ("name", "published"), [("tiny", 4.4e6), ("mini", 11.3e6), ("small", 29.1e6), ("base", 110.1e6)]
)
def test_presets_have_the_published_sizes(name: str, published: float) -> None:
    """Turc et al. 2019, table 1, who count all 512 positions."""
    preset = {**BertConfig.PRESETS[name], "vocab": 30_522, "context": 512}
    assert count(**preset) == pytest.approx(published, rel=0.02)
    with torch.device("meta"):
        theirs = BertForPreTraining(
            TheirConfig(
                hidden_size=preset["dim"], num_hidden_layers=preset["depth"],
                num_attention_heads=preset["heads"], intermediate_size=4 * preset["dim"],
            )
        )  # fmt: skip
    assert count(**preset) == sum(p.numel() for p in theirs.parameters())


def test_presets_name_only_settings() -> None:
    settings = {field.name for field in dataclasses.fields(BertConfig)}
    for name, preset in BertConfig.PRESETS.items():
        assert set(preset) <= settings - {"vocab"}, name


def test_output_is_the_embedding_and_the_bias() -> None:
    model, (ids, attention_mask, segments) = build(), texts([13, 7])
    assert model.output is model.embed.weight
    assert model.output_bias is model.bias
    hidden = model.hidden(ids, attention_mask, segments)
    assert hidden.shape == (2, 13, 40)
    assert_close(model(ids, attention_mask, segments), hidden @ model.embed.weight.T + model.bias)
    x = model.encode(ids, attention_mask, segments)
    assert_close(model.lm_head(x[attention_mask]), hidden[attention_mask])  # as only for masked words


def test_starts_near_uniform() -> None:
    """The loss of a new model is about log(vocab)."""
    for pre in False, True:
        model, ids = Bert(BertConfig(**SIZES, pre=pre)), torch.randint(VOCAB, (7, 37))
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), torch.randint(VOCAB, (7 * 37,)))
        assert loss.item() == pytest.approx(math.log(VOCAB), rel=0.02)
        assert not model.bias.any()


def test_norms_have_their_epsilon() -> None:
    for norm in "layer", "rms":
        for pre in False, True:
            model = build(norm=norm, eps=0.1, pre=pre)
            norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)]
            assert [m.eps for m in norms] == [0.1] * (2 * 3 + 2)
            assert isinstance(model.norm, nn.Identity) != pre
            assert isinstance(model.embed_norm, nn.Identity) == pre


# Texts


@pytest.mark.parametrize("positions", POSITIONS)
@torch.no_grad()
def test_positions_tell_order(positions: str) -> None:
    """Without positions a text is a set; with positions its order matters."""
    model, ids = build(positions=positions), torch.randint(VOCAB, (1, 13))
    same = torch.allclose(model(ids), model(ids.flip(1)).flip(1), atol=1e-4)
    assert same == (positions == "none")


@torch.no_grad()
def test_relative_positions_look_both_ways() -> None:
    bias = build(positions="relative").positions.bias(5, 5)
    assert len(torch.cat([bias[0, 0], bias[0, :, 0]]).unique()) == 9  # each distance, before and after


@torch.no_grad()
def test_a_text_of_nothing_gives_no_nan() -> None:
    model, (ids, attention_mask, segments) = build(), texts([13, 7])
    attention_mask[1] = False
    assert model(ids, attention_mask, segments).isfinite().all()


@pytest.mark.parametrize("positions", POSITIONS)
def test_gradients_through_padding_are_finite(positions: str) -> None:
    model = build(positions=positions)
    (1e3 * model(*texts([13, 7, 1]))).sum().backward()
    heads = "pooler", "next"  # which the words do not need
    for name, p in model.named_parameters():
        assert (p.grad is None) == name.startswith(heads), name
        assert p.grad is None or p.grad.isfinite().all(), name


# Windows

WINDOWED = [position for position in POSITIONS if position != "relative"]


@pytest.mark.parametrize("positions", WINDOWED)
@torch.no_grad()
def test_a_window_on_everything_is_none(positions: str) -> None:
    full, (ids, attention_mask, segments) = build(positions=positions), texts([37, 23, 1])
    wide = build(positions=positions, window=36)
    wide.load_state_dict(full.state_dict())
    assert_close(
        wide(ids, attention_mask, segments)[attention_mask],
        full(ids, attention_mask, segments)[attention_mask],
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.parametrize("positions", WINDOWED)
@torch.no_grad()
def test_windows_of_every_length_are_as_their_watched_selves(positions: str) -> None:
    """From one block to many: computed by blocks, and with full weights and a mask."""
    model, (ids, _, segments) = build(positions=positions, window=3, globals=2), texts([37, 37])
    for T in range(1, 38):
        logits = model(ids[:, :T], segments=segments[:, :T])
        with watch(model) as records:
            watched = model(ids[:, :T], segments=segments[:, :T])
        assert_close(logits, watched, atol=2e-5, rtol=1e-4)
        assert all(records[0]["weights"].shape[2:] == (T, T) for records in records.values())


@torch.no_grad()
def test_padding_does_not_leak_into_windows() -> None:
    model, lengths = build(window=3), [37, 36, 23, 11, 10, 2, 1]
    ids, attention_mask, segments = texts(lengths)
    logits, other = model(ids, attention_mask, segments), torch.where(attention_mask, ids, (ids + 1) % VOCAB)
    assert torch.equal(model(other, attention_mask, segments)[attention_mask], logits[attention_mask])
    for row, T in enumerate(lengths):  # as if alone
        alone = model(ids[row : row + 1, :T], segments=segments[row : row + 1, :T])
        assert_close(logits[row, :T], alone[0], atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_what_a_token_sees_through_windows() -> None:
    """Each layer attends `window` tokens farther; with a global token, two layers attend to all."""
    ids = torch.randint(VOCAB, (1, 37))
    other = ids.clone()
    other[0, 20] = (ids[0, 20] + 1) % VOCAB
    for settings, reach in (
        ({"depth": 1, "globals": 0}, {*range(17, 24)}),
        ({"depth": 3, "globals": 0}, {*range(11, 30)}),
        ({"depth": 1, "globals": 1}, {0, *range(17, 24)}),
        ({"depth": 2, "globals": 1}, {*range(37)}),
    ):
        model = build(window=3, **settings)
        changed = (model.encode(ids) != model.encode(other)).any(-1)[0]
        assert {*changed.nonzero()[:, 0].tolist()} == reach, settings


def test_windows_train() -> None:
    model, (ids, attention_mask, segments) = build(window=3, dropout=0.1).train(), texts([37, 23, 1])
    (1e3 * model(ids, attention_mask, segments)).sum().backward()
    assert all(p.grad.isfinite().all() for block in model.blocks for p in block.parameters())


# Mistakes


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"vocab": 0}, "vocab=0 must be more than 0"),
        ({"context": -1}, "context=-1 must be more than 0"),
        ({"segments": -1}, "segments=-1 must be 0 or more"),
        ({"dim": 10, "heads": 3}, r"dim=10.*heads=3"),
        ({"dim": 36, "heads": 12, "positions": "rotary"}, r"dim=36.*heads=12.*even"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"positions": "alibi"}, "alibi.*mirror"),
        ({"window": 0}, "window=0 must be more than 0"),
        ({"window": 3, "globals": -1}, "globals=-1 must be 0 or more"),
        ({"window": 3, "positions": "relative"}, "window=3.*positions=relative"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        build(**settings)


def test_too_many_tokens_are_counted() -> None:
    with pytest.raises(ValueError, match=r"38 tokens .*context=37"):
        build()(torch.zeros(1, 38, dtype=torch.long))


def test_segments_that_the_model_does_not_know() -> None:
    ids, attention_mask, segments = texts([13, 7])
    with pytest.raises(ValueError, match="segments=0"):
        build(segments=0)(ids, attention_mask, segments)


def test_configuration_is_frozen_and_by_keyword() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BertConfig(vocab=5).vocab = 6  # type: ignore[misc]
    with pytest.raises(TypeError):
        BertConfig(5)  # type: ignore[misc]
