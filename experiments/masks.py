"""Masks: padding gets no attention with the mask, and changes the answers without it.

A BERT of one layer names the last letter of texts that have 3 to 11 letters. It learns from texts padded
to 12, with the mask. Then it reads new texts alone, padded with the mask, and padded without it.

Shapes: B texts, T letters, H heads.
"""

import torch
from torch import Tensor, nn

from experiments.training import Result, cross_entropy, fit, percent
from regard import Bert, BertConfig, watch
from regard.models.head import ModelWithHead

STEPS = 300
PADDING, FIRST, LETTERS, PADDED = 0, 1, 10, 12  # ids: padding, the first token, then the letters
BEFORE = 2  # ids before the letters


def make_model() -> nn.Module:
    config = BertConfig(
        vocab=BEFORE + LETTERS, context=PADDED + 1, dim=32, depth=1, heads=2, segments=0, dropout=0.0
    )
    return ModelWithHead(Bert(config), LETTERS, dropout=0.0)


def draw(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Padded texts, which of their tokens are real, and the last letter of each."""
    lengths = torch.randint(3, PADDED, (count, 1))
    letters = torch.randint(LETTERS, (count, PADDED))  # (B, T)
    attention_mask = torch.arange(PADDED) < lengths
    ids = torch.where(attention_mask, BEFORE + letters, PADDING)
    first = torch.full((count, 1), FIRST)
    return (
        torch.cat([first, ids], dim=1),
        torch.cat([first > 0, attention_mask], dim=1),
        letters.gather(1, lengths - 1)[:, 0],
    )


def attention_to_padding(model: nn.Module, ids: Tensor, mask: Tensor, used: Tensor | None) -> float:
    """The mean weight that the first token gives to padding, in percent."""
    with watch(model) as records:
        model(ids, used)
    weights = records["model.blocks.0.attn.f"][0]["weights"][:, :, 0]  # (B, H, T)
    return 100 * (weights * ~mask[:, None]).sum(-1).mean().item()


@torch.no_grad()
def run(seed: int, steps: int = STEPS) -> Result:
    torch.manual_seed(seed)
    model = make_model()

    def loss() -> Tensor:
        ids, mask, last = draw(64)
        return cross_entropy(model(ids, mask), last)

    with torch.enable_grad():
        fit(model, loss, steps, lr=5e-3)
    ids, mask, last = draw(500)
    alone = torch.cat(
        [model(row[None, attention_mask]) for row, attention_mask in zip(ids, mask, strict=True)]
    ).argmax(-1)
    result = {
        "alone": {"right, %": percent(alone == last), "changed, %": 0.0, "attention to padding, %": 0.0}
    }
    for name, used in (("padded, masked", mask), ("padded, not masked", None)):
        answer = model(ids, used).argmax(-1)
        result[name] = {
            "right, %": percent(answer == last),
            "changed, %": percent(answer != alone),
            "attention to padding, %": attention_to_padding(model, ids, mask, used),
        }
    return result
