"""Recurrent language models and classifiers against torch's own modules with the same weights.

Sizes: 3 rows, 7 tokens, 61 words, 22 wide (11 each way), 2 layers, 5 classes.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.testing import assert_close

from regard.core.recurrent import CELLS
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.models import ModelWithHead, RecurrentLM, RecurrentLMConfig

VOCAB, T, D, L, CLASSES = 61, 7, 22, 2, 5
LENGTHS = (4, T, 1)
MASK = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
every_cell = pytest.mark.parametrize("cell", CELLS)
both_ways = pytest.mark.parametrize("bidirectional", [False, True], ids=["forwards", "both_ways"])


def build(cell: str, **settings: Any) -> RecurrentLM:
    config = RecurrentLMConfig(cell=cell, vocab=VOCAB, context=11, dim=D, depth=L, **settings)  # type: ignore[arg-type]
    model = RecurrentLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def torch_layers(ours: RecurrentLM, bidirectional: bool = False) -> tuple[nn.Embedding, Any]:
    """torch's modules, with the weights copied in under their own names."""
    embed = nn.Embedding(VOCAB, D)
    rnn = getattr(nn, ours.config.cell.upper())(
        D, D // (1 + bidirectional), L, batch_first=True, bidirectional=bidirectional
    )
    weights = ours.state_dict()
    embed.load_state_dict({"weight": weights["embed.weight"]})
    rnn.load_state_dict({name[4:]: t for name, t in weights.items() if name.startswith("rnn.")})
    return embed, rnn


@every_cell
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@torch.no_grad()
def test_logits_are_torchs(cell: str, tied: bool) -> None:
    ours, ids = build(cell, tied=tied), torch.randint(VOCAB, (3, T))
    embed, rnn = torch_layers(ours)
    output = nn.Linear(D, VOCAB, bias=False)
    output.weight.copy_(embed.weight if tied else ours.state_dict()["head.weight"])
    assert_close(ours(ids), output(rnn(embed(ids))[0]))


@every_cell
@both_ways
@torch.no_grad()
def test_a_text_is_classified_by_its_last_states(cell: str, bidirectional: bool) -> None:
    """Of each direction, the state after its last token; rows of unequal length, packed by torch."""
    ours = ModelWithHead(build(cell, bidirectional=bidirectional), CLASSES).eval()
    ids = torch.randint(VOCAB, (3, T))
    embed, rnn = torch_layers(ours.model, bidirectional)
    rows = [embed(row[:n]) for row, n in zip(ids, LENGTHS, strict=True)]
    _, last = rnn(pack_sequence(rows, enforce_sorted=False))
    last = last[0] if cell == "lstm" else last
    vectors = torch.cat([*last[-1 - bidirectional :]], dim=-1)
    assert_close(ours(ids, MASK), ours.head(vectors))


@every_cell
@both_ways
@torch.no_grad()
def test_the_mean_of_a_text_leaves_padding_out(cell: str, bidirectional: bool) -> None:
    ours = ModelWithHead(build(cell, bidirectional=bidirectional), CLASSES, mean=True).eval()
    ids = torch.randint(VOCAB, (3, T))
    for i, n in enumerate(LENGTHS):
        assert_close(ours(ids, MASK)[i : i + 1], ours(ids[i : i + 1, :n]), atol=1e-5, rtol=1e-4)


@every_cell
def test_prompts_of_unequal_length_are_continued_as_alone(cell: str) -> None:
    model = build(cell)
    prompts = [torch.randint(VOCAB, (n,)).tolist() for n in LENGTHS]
    options = Sampling(max_new_tokens=9, temperature=0.9, seed=5)  # longer than the context

    def texts(prompts: list[list[int]], **how: Any) -> list[list[int | None]]:
        return [list(row) for row in zip(*generate(model, prompts, options, **how), strict=True)]

    together = texts(prompts)
    assert together == [texts([prompt])[0] for prompt in prompts]
    assert together == texts(prompts, cached=False)


def test_dropout_is_between_the_layers_and_around_them() -> None:
    """A single layer has none inside, and torch has nothing to warn of."""
    assert build("lstm", dropout=0.3).rnn.dropout == 0.3
    config = RecurrentLMConfig(vocab=VOCAB, dim=D, depth=1, dropout=0.3)
    model = RecurrentLM(config)
    assert model.rnn.dropout == 0
    ids = torch.randint(VOCAB, (3, T))
    assert not torch.equal(model(ids), model(ids))


def test_wrong_sizes_and_inputs() -> None:
    with pytest.raises(ValueError, match="dim=23 must be even"):
        RecurrentLMConfig(vocab=VOCAB, dim=23, bidirectional=True)
    with pytest.raises(ValueError, match="12 tokens do not fit context=11"):
        build("gru")(torch.zeros(1, 12, dtype=torch.long))
    ids = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(TypeError, match="segments"):
        ModelWithHead(build("gru"), CLASSES)(ids, segments=ids)


def test_every_weight_of_a_classifier_is_trained() -> None:
    """The output layer over words is not, which would keep other processes waiting."""
    classifier = ModelWithHead(build("lstm", tied=False), CLASSES)
    loss: Tensor = classifier(torch.randint(VOCAB, (3, T)), MASK).square().sum()
    loss.backward()
    unused = {id(p) for part in classifier.unused for p in part.parameters()}  # type: ignore[union-attr]
    assert {name for name, p in classifier.named_parameters() if p.grad is None} == {"model.head.weight"}
    assert unused == {id(classifier.model.head.weight)}
