"""Word vectors: which tokens are words, neighbours, files, and the map."""

from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import regard
from helpers.errors import user_error
from regard.models import GPT, Bert, BertConfig, GPTConfig
from regard.runs.model import Model
from regard.tasks import Write, WriteConfig
from regard.text.projection import PCA, tsne
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import train_tokenizer, word_tokenizer
from regard.text.vectors import Vectors, token_text, vectors, whole_words

TEXT = ["The old bear sleeps. The old bears sleep; a café is open, and bearing it all the while."] * 3
DIM = 7


def clusters(groups: int, each: int, dim: int = 11) -> torch.Tensor:
    """Points around random centres, one group after another."""
    rng = torch.Generator().manual_seed(3)
    centres = torch.randn(groups, 1, dim, generator=rng)
    return (centres + 0.1 * torch.randn(groups, each, dim, generator=rng)).flatten(0, 1)


# Which tokens are words


def test_byte_level_tokens_with_a_space_are_words() -> None:
    tokenizer = train_tokenizer("bpe", TEXT, 400, ["<|endoftext|>"])
    words = whole_words(tokenizer)
    assert {"old", "bear", "café"} <= set(words)
    assert all(tokenizer.decode([id]) == " " + word for word, id in words.items())
    assert token_text("\u2581bear") == " bear"  # as SentencePiece writes it


def test_word_pieces_without_a_mark_are_words() -> None:
    tokenizer = train_tokenizer("wordpiece", TEXT, 120, ["[PAD]"])
    words = whole_words(tokenizer)
    assert {"the", "old", "bear"} <= set(words)
    assert not any(word.startswith("##") for word in words)
    assert not {"[PAD]", "[UNK]"} & set(words)
    assert all(tokenizer.id(word) == id for word, id in words.items())


def test_words_are_words_and_characters_are_not() -> None:
    tokenizer = word_tokenizer(TEXT, 100, ["<|endoftext|>"], signs=True)
    assert set(whole_words(tokenizer)) == set(tokenizer.inner.get_vocab()) - {"<|endoftext|>", "<unk>"}
    user_error(lambda: whole_words(train_tokenizer("char", TEXT, 100, [])), "words", "data.tokenizer=bpe")


# Any model that reads tokens


def model_of(module: torch.nn.Module, tokenizer: Tokenizer) -> Model:
    return Model(module, Write(WriteConfig(name="write"), tokenizer, module.config.context), {})


def test_any_model_that_reads_tokens_has_vectors() -> None:
    tokenizer = train_tokenizer("bpe", TEXT, 400, ["<|endoftext|>"])
    gpt = GPT(GPTConfig(vocab=tokenizer.vocab, context=5, dim=8, depth=1, heads=2))
    model = model_of(gpt, tokenizer)
    learned = regard.vectors(model)
    id = tokenizer.encode(" bear")[0]
    assert torch.equal(learned["bear"], gpt.embed.weight[id].detach())
    asked = model.words()
    cosines = torch.cosine_similarity(gpt.embed.weight[id], gpt.embed.weight, dim=1)
    neighbours = [word for word in learned.words if word != "bear"]
    best = max(neighbours, key=lambda word: cosines[tokenizer.encode(" " + word)[0]])
    assert asked.ask("Bear", top_k=1).split()[0] == best == learned.nearest("bear", 1)[0][0]
    bert = Bert(BertConfig(vocab=tokenizer.vocab, context=5, dim=8, depth=1, heads=2))
    assert vectors(SimpleNamespace(model=bert, tokenizer=tokenizer)).words == learned.words
    add_head = torch.nn.Module()
    add_head.model = bert
    below = vectors(SimpleNamespace(model=add_head, tokenizer=tokenizer))
    assert torch.equal(below.matrix, bert.embed.weight.detach()[list(whole_words(tokenizer).values())])
    none = model_of(gpt, tokenizer)
    none.model = torch.nn.Linear(2, 3)
    user_error(none.words, "no embeddings")


# Using them


def test_analogies_are_sums() -> None:
    corners = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [1, 0, 1]])
    vectors = Vectors(["man", "king", "woman", "queen", "dog"], corners)
    assert vectors.analogy("man", "king", "woman", 1)[0][0] == "queen"
    assert vectors.analogy("man", "king", "woman") == vectors.nearest("king - man + woman")
    assert [word for word, _ in vectors.nearest("king", 9, "euclidean")] == ["man", "queen", "dog", "woman"]
    user_error(lambda: vectors.nearest("kings"), "did you mean king?")


def test_saved_in_the_format_of_word2vec(tmp_path: Path) -> None:
    vectors = Vectors(["a", "bär"], torch.tensor([[1.5, -2], [1 / 3, 0]]))
    vectors.save(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text("utf-8") == "2 2\na 1.5 -2\nbär 0.333333343 0\n"


# The map


def components(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The two principal components by NumPy, with any sign, and their shares of the variance."""
    centred = x.double().numpy() - x.double().numpy().mean(0)
    values, vectors = np.linalg.eigh(np.cov(centred, rowvar=False))
    return centred @ vectors[:, :-3:-1], values[:-3:-1] / values.sum()


@pytest.mark.parametrize("shape", [(29, 7), (5, 11), (3, 1), (1, 4)])
def test_pca_finds_the_principal_components(shape: tuple[int, int]) -> None:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(7)) * torch.arange(1, shape[1] + 1)
    pca = PCA(x)
    places = pca(x).numpy()
    assert places.shape == (shape[0], 2)
    if min(shape) > 1:
        expected, shares = components(x)
        assert np.abs(places) == pytest.approx(np.abs(expected), rel=1e-4, abs=1e-6)
        assert pca.shares == pytest.approx(shares.tolist())
        assert PCA(x.flip(0))(x).numpy() == pytest.approx(places, rel=1e-4, abs=1e-6)
    elif shape[1] == 1:
        assert places[:, 1] == pytest.approx(0)


def test_neighbours_stay_neighbours_in_the_tsne() -> None:
    x = clusters(groups=7, each=13)
    y = tsne(x)
    assert y.shape == (len(x), 2)
    assert torch.equal(y, tsne(x))
    group = torch.arange(len(x)) // 13
    far = torch.cdist(y, y).fill_diagonal_(torch.inf)
    assert torch.equal(group[far.argmin(1)], group)
    same = (group[:, None] == group) & far.isfinite()
    assert far[same].mean() < far[group[:, None] != group].mean() / 3


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_few_words_have_a_map_too(tmp_path: Path, count: int) -> None:
    words = Vectors([f"word{n}" for n in range(count)], torch.randn(count, DIM))
    words.map(tmp_path / "map.svg")
    labels = list(ElementTree.parse(tmp_path / "map.svg").iterfind(".//{*}text[@text-anchor='middle']"))
    assert [label.text for label in labels] == words.words
    assert all(0 < float(label.get(axis, "nan")) < 1200 for label in labels for axis in "xy")
    assert tsne(torch.ones(count, DIM)).isfinite().all()


def test_a_map_shows_the_most_frequent_words(tmp_path: Path) -> None:
    words = [",", "<b>", "a&b", "\x07c", *(f"w{n}" for n in range(50))]
    vectors = Vectors(words, clusters(groups=len(words), each=1))
    vectors.map(tmp_path / "map.svg", 17)
    vectors.map(tmp_path / "again.svg", 17)
    assert (tmp_path / "map.svg").read_text() == (tmp_path / "again.svg").read_text()
    tree = ElementTree.parse(tmp_path / "map.svg")
    labels = [text.text for text in tree.iterfind(".//{*}text[@text-anchor='middle']")]
    assert labels == ["<b>", "a&b", " c", *(f"w{n}" for n in range(14))]
    assert "prefers-color-scheme: dark" in (tmp_path / "map.svg").read_text()
