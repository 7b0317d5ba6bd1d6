"""The model of word vectors: sizes, initial values and logits."""

import pytest
import torch

from regard.models.words import Word2Vec, WordsConfig

VOCAB, DIM = 23, 7


def test_begins_as_word2vec_does() -> None:
    model = Word2Vec(WordsConfig(vocab=1009, dim=DIM))
    v = model.embed.weight.detach()
    assert v.abs().max() <= 0.5 / DIM
    assert float(v.std()) == pytest.approx(1 / DIM / 12**0.5, rel=0.05)  # of a uniform variable
    assert float(v.mean()) == pytest.approx(0, abs=4 * float(v.std()) / v.numel() ** 0.5)
    assert not model.near.weight.any()
    assert not model(torch.arange(5)[None]).any()


def test_logits_are_products_of_both_vectors() -> None:
    model = Word2Vec(WordsConfig(vocab=VOCAB, dim=DIM))
    torch.nn.init.normal_(model.near.weight)
    ids = torch.randint(VOCAB, (3, 5))
    logits = model(ids)
    assert logits.shape == (3, 5, VOCAB)
    v, u = model.embed.weight[ids[2, 4]], model.near.weight[11]
    torch.testing.assert_close(logits[2, 4, 11], v @ u)


def test_has_two_vectors_a_word_and_no_blocks() -> None:
    model = Word2Vec(WordsConfig(vocab=VOCAB, dim=DIM))
    assert sum(p.numel() for p in model.parameters()) == 2 * VOCAB * DIM
    assert list(model.blocks) == []


@pytest.mark.parametrize("preset", WordsConfig.PRESETS.values())
def test_presets_build(preset: dict[str, int]) -> None:
    assert Word2Vec(WordsConfig(vocab=VOCAB, **preset)).embed.weight.shape == (VOCAB, preset["dim"])


@pytest.mark.parametrize("name", ["vocab", "context", "dim"])
def test_sizes_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0"):
        WordsConfig(**{"vocab": VOCAB} | {name: 0})
