"""T5 against Hugging Face's, for the same weights.

Sizes: 61 words, 37 positions, 3 layers and 2, 4 heads, 40 wide, 53 in the feed-forward.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import T5Config as TheirConfig
from transformers import T5ForConditionalGeneration

from regard.decode.beam import beam_search
from regard.models import Transformer
from regard.models.t5 import T5Config

VOCAB, PAD, END = 61, 0, 1
SIZES = {"vocab": VOCAB, "context": 37, "dim": 40, "depth": 3, "decoder_depth": 2, "heads": 4, "hidden": 53}


@pytest.fixture
def both() -> tuple[T5ForConditionalGeneration, Transformer]:
    torch.manual_seed(3)
    theirs = T5ForConditionalGeneration(
        TheirConfig(
            vocab_size=VOCAB, d_model=40, d_kv=10, d_ff=53, num_layers=3, num_decoder_layers=2, num_heads=4,
            dropout_rate=0.0, decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=END,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.15 * torch.randn_like(p))
    ours = Transformer(T5Config(**SIZES, dropout=0.0)).eval()
    ours.load_state_dict(translated(dict(theirs.state_dict())))
    return theirs, ours


def translated(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert their names and scales: scores are divided by √d here, so queries are √d larger."""
    weights = {"embed.weight": theirs["shared.weight"] / math.sqrt(40)}
    for name, t in theirs.items():
        side, *parts = name.split(".")
        if side not in ("encoder", "decoder") or parts[0] == "embed_tokens":
            continue
        if parts[0] == "final_layer_norm":
            weights[f"{side}_norm.weight"] = t
            continue
        _, block, _, number, what, *rest = parts
        kind = ["attn", "cross", "ffn"][int(number)] if side == "decoder" else ["attn", "ffn"][int(number)]
        if what == "layer_norm":
            weights[f"{side}.{block}.{kind}.norm.weight"] = t
        elif rest[0] == "relative_attention_bias":
            weights[f"{side}_positions.table.weight"] = t
        else:
            inner = {"q": "q", "k": "k", "v": "v", "o": "out", "wi": "up", "wo": "down"}[rest[0]]
            weights[f"{side}.{block}.{kind}.f.{inner}.weight"] = t * math.sqrt(10) if rest[0] == "q" else t
    return weights


def sources(*lengths: int) -> tuple[Tensor, Tensor]:
    attention_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(2, VOCAB, attention_mask.shape).masked_fill(~attention_mask, PAD), attention_mask


def test_logits(both):
    theirs, ours = both
    source, attention_mask = sources(13, 7, 1, 29)
    target = torch.randint(2, VOCAB, (4, 11))
    expected = theirs(input_ids=source, attention_mask=attention_mask, decoder_input_ids=target)
    assert_close(
        ours.encode(source, attention_mask)[attention_mask],
        expected.encoder_last_hidden_state[attention_mask],
        rtol=1e-5,
        atol=1e-5,
    )
    assert_close(ours(source, target, attention_mask), expected.logits, rtol=1e-5, atol=1e-5)


def test_gradients(both):
    theirs, ours = both
    source, attention_mask = sources(13, 7, 1, 29)
    target = torch.randint(2, VOCAB, (4, 11))
    theirs(
        input_ids=source, attention_mask=attention_mask, decoder_input_ids=target
    ).logits.square().mean().backward()
    ours(source, target, attention_mask).square().mean().backward()
    expected = translated({name: p.grad for name, p in theirs.named_parameters()})
    for name, p in ours.named_parameters():
        # a weight that is c times theirs has a gradient that is 1/c times theirs
        scale = 40 if name == "embed.weight" else 1 / 10 if name.endswith(".q.weight") else 1
        assert_close(p.grad, expected[name] * scale, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("beams", [1, 4])
def test_answers(both, beams):
    theirs, ours = (model.double() for model in both)
    source, attention_mask = sources(*torch.randint(1, 30, (50,)).tolist())
    options = {"max_new_tokens": 12, "num_beams": beams, "early_stopping": "never" if beams > 1 else False}
    expected = theirs.generate(
        input_ids=source, attention_mask=attention_mask, do_sample=False, length_penalty=1.0, **options
    )
    logits, state = ours.start(source, torch.full((50, 1), PAD), attention_mask)
    answers = beam_search(ours.step, logits, state, beams=beams, end=END, max_new_tokens=12)
    for row, hypotheses in zip(expected[:, 1:].tolist(), answers, strict=True):
        until = row.index(END) if END in row else len(row)
        assert hypotheses[0].tokens == [i for i in row[:until] if i != PAD or END not in row]
