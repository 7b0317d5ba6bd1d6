"""ELECTRA against Hugging Face's, and its generator.

Sizes: 61 words, 37 positions, 3 layers, 4 heads, 40 wide, 53 in the feed-forward, 2 segments.
"""

import torch
from torch import nn
from torch.testing import assert_close
from transformers import ElectraConfig, ElectraForPreTraining

from regard.convert.huggingface.bert import NAMES
from regard.convert.huggingface.family import their_name
from regard.models import Bert, BertConfig, Electra

SIZES = {"vocab": 61, "context": 37, "dim": 40, "depth": 3, "heads": 4, "hidden": 53, "dropout": 0.0}
HEAD = {
    "discriminator_predictions.dense.": "transform.",
    "discriminator_predictions.dense_prediction.": "found.",
}


def shaken(model: nn.Module) -> nn.Module:
    """Randomize weights, so that attention is not uniform."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.15 * torch.randn_like(p))
    return model


def test_what_tells_replaced_words_is_hugging_faces() -> None:
    """Logits, and the gradients of every weight."""
    config = ElectraConfig(
        vocab_size=61, embedding_size=40, hidden_size=40, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=53, max_position_embeddings=37, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, pad_token_id=None,
    )  # fmt: skip
    theirs = shaken(ElectraForPreTraining(config))
    ours = Electra(Bert(BertConfig(**SIZES)))
    his = dict(theirs.named_parameters())
    pairs = {}
    for name, p in ours.named_parameters():
        known = (
            f"electra.{their_name(NAMES, name.removeprefix('model.'))}" if name.startswith("model.") else ""
        )
        for their, our in HEAD.items():
            known = their + name.removeprefix(our) if name.startswith(our) else known
        if known in his:
            pairs[known] = p
            p.data.copy_(his[known].data)
    assert pairs.keys() == his.keys()
    attention_mask = torch.arange(13) < torch.tensor([13, 7, 1, 11])[:, None]
    ids, segments = torch.randint(61, attention_mask.shape), torch.randint(2, attention_mask.shape)
    y = theirs(ids, attention_mask.long(), segments).logits
    z = ours.detect(ours.model.encode(ids, attention_mask, segments))
    assert z.std() > 0.1
    assert_close(z[attention_mask], y[attention_mask], atol=1e-5, rtol=1e-5)
    weights = torch.randn_like(z[attention_mask])
    for logits in (y, z):
        (logits[attention_mask] * weights).sum().backward()
    for name, p in pairs.items():
        scale = his[name.replace("key.bias", "key.weight")].grad.abs().max()
        assert_close(p.grad / scale, his[name].grad / scale, atol=1e-4, rtol=1e-4, msg=name)


def test_the_generator_has_layers_of_its_own() -> None:
    model = shaken(Electra(Bert(BertConfig(**SIZES | {"depth": 8}))))
    assert len(model.generator) == 2
    assert len(model.blocks) == 10
    ids = torch.randint(61, (2, 11))
    logits = model(ids)
    assert logits.shape == (2, 11, 61)
    logits.sum().backward()
    assert all(p.grad is None for p in model.model.blocks.parameters())
    assert all(p.grad is not None for p in model.generator.parameters())
    x = model.model.embed_norm(
        model.model.positions.add(model.model.embed(ids), torch.arange(11)) + model.model.segments.weight[0]
    )
    for block in model.generator:
        x = block(x)
    assert_close(model.generator_states(ids, None, None), x)
