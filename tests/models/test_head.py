"""Heads on models that read, against Hugging Face's.

Sizes: 61 words, 37 positions, 3 layers, 4 heads, 40 wide, 53 in the feed-forward, 5 labels.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import BertConfig as TheirConfig
from transformers import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from helpers.berts import bert_weights, head_weights
from helpers.shapes import checked, promises
from regard.describe.watch import watch
from regard.models import GPT, Bert, BertConfig, GPTConfig, ModelWithHead, head

VOCAB, OUTPUTS = 61, 5
SIZES = {"vocab": VOCAB, "context": 37, "dim": 40, "depth": 3, "heads": 4, "hidden": 53}
KINDS = {"bert": (Bert, BertConfig), "gpt": (GPT, GPTConfig)}
every = pytest.mark.parametrize(("kind", "each"), [(kind, each) for kind in KINDS for each in (False, True)])


@torch.no_grad()
def shake(model: nn.Module) -> None:
    """Randomize weights, norms and biases, so that attention is not uniform."""
    for p in model.parameters():
        p.add_(0.15 * torch.randn_like(p))


def build(kind: str, each: bool, **settings: object) -> ModelWithHead:
    cls, config = KINDS[kind]
    model = ModelWithHead(cls(config(**SIZES, **settings)), OUTPUTS, each)
    shake(model)
    return model.eval()


def texts(lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Ids, padded with 0, which does not occur otherwise, and their attention mask."""
    attention_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(1, VOCAB, attention_mask.shape).masked_fill(~attention_mask, 0), attention_mask


# Hugging Face


@pytest.mark.parametrize(
    ("cls", "each", "outputs"),
    [
        (BertForSequenceClassification, False, OUTPUTS),
        (BertForSequenceClassification, False, 1),  # a score
        (BertForTokenClassification, True, OUTPUTS),
        (BertForQuestionAnswering, True, 2),  # where an answer begins and ends
    ],
)
def test_labelled_bert_is_hugging_faces(cls: type[nn.Module], each: bool, outputs: int) -> None:
    theirs = cls(
        TheirConfig(
            vocab_size=VOCAB, max_position_embeddings=37, hidden_size=40, num_hidden_layers=3,
            num_attention_heads=4, intermediate_size=53, num_labels=outputs, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    shake(theirs)
    bert = Bert(BertConfig(**SIZES, dropout=0.0))
    bert.load_state_dict(bert_weights(theirs.state_dict(), bert))
    ours = ModelWithHead(bert, outputs, each, dropout=0.0)
    ours.head.load_state_dict(head_weights(theirs.state_dict()))
    ids, attention_mask = texts([13, 7, 1, 11])
    segments = torch.randint(2, ids.shape)
    y, z = theirs(ids, attention_mask.long(), segments), ours(ids, attention_mask, segments)
    y = torch.stack([y.start_logits, y.end_logits], dim=-1) if outputs == 2 else y.logits
    y, z = (t[attention_mask] if each else t for t in (y, z))
    assert z.shape[-1] == outputs
    assert_close(z, y, atol=1e-5, rtol=1e-5)
    gradient = torch.randn_like(z)
    for logits in y, z:
        logits.backward(gradient)
    mine, his = ours.model.blocks[0].attn.f.q.weight.grad, theirs.bert.encoder.layer[0].attention.self.query
    his = his.weight.grad
    assert_close(mine / his.abs().max(), his / his.abs().max(), atol=1e-4, rtol=1e-4)


LLAMA = {
    "embed_tokens": "embed", "layers": "blocks", "self_attn.q_proj": "attn.f.q",
    "self_attn.k_proj": "attn.f.k", "self_attn.v_proj": "attn.f.v", "self_attn.o_proj": "attn.f.out",
    "input_layernorm": "attn.norm", "post_attention_layernorm": "ffn.norm", "mlp.gate_proj": "ffn.f.gate",
    "mlp.up_proj": "ffn.f.up", "mlp.down_proj": "ffn.f.down",
}  # fmt: skip


@torch.no_grad()
def test_labelled_gpt_is_hugging_faces_llama() -> None:
    """Its texts are also padded on the right; its head has no bias."""
    theirs = LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=VOCAB, max_position_embeddings=37, hidden_size=40, num_hidden_layers=3,
            num_attention_heads=4, intermediate_size=53, rms_norm_eps=1e-6, num_labels=OUTPUTS,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            pad_token_id=0, bos_token_id=None, eos_token_id=None,
        )
    ).eval()  # fmt: skip
    shake(theirs)
    ours, weights = build("gpt", False), {}
    for name, weight in theirs.model.state_dict().items():
        for a, b in LLAMA.items():
            name = name.replace(a, b)
        weights[name] = weight
    ours.model.load_state_dict(weights)
    ours.head.load_state_dict({"weight": theirs.score.weight, "bias": torch.zeros(OUTPUTS)})
    ids, attention_mask = texts([13, 7, 1, 11])
    assert_close(ours(ids, attention_mask), theirs(ids, attention_mask.long()).logits, atol=1e-5, rtol=1e-5)


# What holds for all


@every
@torch.no_grad()
def test_rows_do_not_see_each_other_nor_padding(kind: str, each: bool) -> None:
    model, (ids, attention_mask) = build(kind, each), texts([13, 7, 1])
    y = model(ids, attention_mask)
    assert y.shape == ((3, 13, OUTPUTS) if each else (3, OUTPUTS))
    other = model(torch.where(attention_mask, ids, 59), attention_mask)
    for i, row in enumerate(attention_mask):
        alone = model(ids[i : i + 1, row])[0]
        mine, his = (t[i, row] if each else t[i] for t in (y, other))
        assert torch.equal(mine, his)
        assert_close(mine, alone, atol=1e-5, rtol=1e-4)


@every
def test_one_batch_overfits(kind: str, each: bool) -> None:
    cls, config = KINDS[kind]
    model, (ids, attention_mask) = (
        ModelWithHead(cls(config(**SIZES, dropout=0.0)), OUTPUTS, each, 0.0),
        texts([13, 7, 1]),
    )
    labels = torch.randint(OUTPUTS, ids.shape if each else (3,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, fused=True)

    def loss() -> Tensor:
        y = model(ids, attention_mask)
        return (
            F.cross_entropy(y[attention_mask], labels[attention_mask]) if each else F.cross_entropy(y, labels)
        )

    for _ in range(50):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss() < 0.1


@every
@torch.no_grad()
def test_shape_comments_are_true(kind: str, each: bool) -> None:
    model, path = build(kind, each), Path(head.__file__)
    with checked(path) as checks:
        model(*texts([13, 7]))
    assert checks
    assert len(promises(path)) == 2


@every
def test_compiles_and_is_watched(kind: str, each: bool) -> None:
    torch._dynamo.reset()
    model, batch = build(kind, each), texts([13, 7, 1])
    y = model(*batch)
    assert_close(torch.compile(model, fullgraph=True, backend="eager")(*batch), y, atol=1e-5, rtol=1e-5)
    with watch(model) as records:
        assert_close(model(*batch), y, atol=1e-5, rtol=1e-5)
    assert [len(records) for records in records.values()] == [1] * 3
    assert list(model.blocks) == list(model.model.blocks)
    assert model.config is model.model.config


def test_the_model_keeps_its_weights() -> None:
    """Adding a head does not change the weights of the model."""
    bert = Bert(BertConfig(**SIZES))
    before = {name: t.clone() for name, t in bert.state_dict().items()}
    model = ModelWithHead(bert, OUTPUTS, each=False)
    assert_close(dict(bert.state_dict()), before, atol=0, rtol=0)
    assert not model.head.bias.any()
    assert 0 < model.head.weight.abs().max() <= 0.04


# Mistakes


def test_a_head_without_outputs() -> None:
    with pytest.raises(ValueError, match="outputs=0"):
        ModelWithHead(Bert(BertConfig(**SIZES)), 0)


def test_a_gpt_has_no_segments() -> None:
    ids, attention_mask = texts([13, 7])
    with pytest.raises(TypeError, match="segments"):
        build("gpt", False)(ids, attention_mask, torch.zeros_like(ids))


@pytest.mark.parametrize("kind", ["bert", "gpt"])
@torch.no_grad()
def test_the_mean_of_the_tokens_may_stand_for_a_text(kind: str) -> None:
    """The mean is over tokens that are not padding; BERT's pooler is not used."""
    model = build(kind, False)
    model.mean = True
    ids, attention_mask = texts([13, 7, 1, 11])
    each = (model.model.encode if kind == "bert" else model.model.hidden)(
        ids, *([attention_mask] if kind == "bert" else [])
    )
    means = torch.stack([x[mask].mean(0) for x, mask in zip(each, attention_mask, strict=True)])
    assert_close(model(ids, attention_mask), model.head(means))
    assert_close(model(ids[:1]), model(ids[:1], attention_mask[:1]))
    assert (kind == "bert") == any(part is getattr(model.model, "pooler", None) for part in model.unused)
