"""Words as vectors: what a model's tokens are worth as words, neighbours, files, and the map."""

from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from mistakes import mistake

import regard
from regard.models import GPT, Bert, BertConfig, GPTConfig
from regard.run import Model
from regard.tasks import Write, WriteConfig
from regard.text import Tokenizer, train_tokenizer, word_tokenizer
from regard.vectors import Vectors, plane, spelt, vectors, whole_words

TEXT = ["The old bear sleeps. The old bears sleep; a café is open, and bearing it all the while."] * 3
DIM = 7


def placed(groups: int, each: int, dim: int = 11) -> torch.Tensor:
    """Points around some middles, one group after another."""
    dice = torch.Generator().manual_seed(3)
    middles = torch.randn(groups, 1, dim, generator=dice)
    return (middles + 0.1 * torch.randn(groups, each, dim, generator=dice)).flatten(0, 1)


# Which tokens are words


def test_of_byte_level_tokens_those_with_a_space_are_words() -> None:
    tokenizer = train_tokenizer("bpe", TEXT, 400, ["<|endoftext|>"])
    found = whole_words(tokenizer)
    assert {"old", "bear", "café"} <= set(found)
    assert all(tokenizer.decode([id]) == " " + word for word, id in found.items())
    assert spelt("\u2581bear") == " bear"  # as SentencePiece writes it


def test_of_word_pieces_those_without_a_mark_are_words() -> None:
    tokenizer = train_tokenizer("wordpiece", TEXT, 120, ["[PAD]"])
    found = whole_words(tokenizer)
    assert {"the", "old", "bear"} <= set(found)
    assert not any(word.startswith("##") for word in found)
    assert not {"[PAD]", "[UNK]"} & set(found)
    assert all(tokenizer.id(word) == id for word, id in found.items())


def test_words_are_words_and_characters_are_none() -> None:
    tokenizer = word_tokenizer(TEXT, 100, ["<|endoftext|>"], signs=True)
    assert set(whole_words(tokenizer)) == set(tokenizer.inner.get_vocab()) - {"<|endoftext|>", "<unk>"}
    mistake(lambda: whole_words(train_tokenizer("char", TEXT, 100, [])), "no words", "data.tokenizer=bpe")


# Any model has some


def model_of(module: torch.nn.Module, tokenizer: Tokenizer) -> Model:
    return Model(module, Write(WriteConfig(name="write"), tokenizer, module.config.context), {})


def test_any_model_that_reads_tokens_has_some() -> None:
    tokenizer = train_tokenizer("bpe", TEXT, 400, ["<|endoftext|>"])
    gpt = GPT(GPTConfig(vocab=tokenizer.vocab, context=5, dim=8, depth=1, heads=2))
    model = model_of(gpt, tokenizer)
    found = regard.vectors(model)
    id = tokenizer.encode(" bear")[0]
    assert torch.equal(found["bear"], gpt.embed.weight[id].detach())
    asked = model.words()
    cosines = torch.cosine_similarity(gpt.embed.weight[id], gpt.embed.weight, dim=1)
    others = [word for word in found.words if word != "bear"]
    best = max(others, key=lambda word: cosines[tokenizer.encode(" " + word)[0]])
    assert asked.ask("Bear", top_k=1).split()[0] == best == found.nearest("bear", 1)[0][0]
    bert = Bert(BertConfig(vocab=tokenizer.vocab, context=5, dim=8, depth=1, heads=2))
    assert vectors(SimpleNamespace(model=bert, tokenizer=tokenizer)).words == found.words
    headed = torch.nn.Module()
    headed.model = bert
    below = vectors(SimpleNamespace(model=headed, tokenizer=tokenizer))
    assert torch.equal(below.matrix, bert.embed.weight.detach()[list(whole_words(tokenizer).values())])
    none = model_of(gpt, tokenizer)
    none.model = torch.nn.Linear(2, 3)
    mistake(none.words, "no embeddings")


# Using them


def test_analogies_are_sums() -> None:
    corners = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [1, 0, 1]])
    found = Vectors(["man", "king", "woman", "queen", "dog"], corners)
    assert found.analogy("man", "king", "woman", 1)[0][0] == "queen"
    assert found.analogy("man", "king", "woman") == found.nearest("king - man + woman")
    assert [word for word, _ in found.nearest("king", 9, "euclidean")] == ["man", "queen", "dog", "woman"]
    mistake(lambda: found.nearest("kings"), "did you mean king?")


def test_saved_as_everybody_reads_them(tmp_path: Path) -> None:
    found = Vectors(["a", "bär"], torch.tensor([[1.5, -2], [1 / 3, 0]]))
    found.save(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text("utf-8") == "2 2\na 1.5 -2\nbär 0.333333 0\n"


# The map


def test_neighbours_stay_neighbours_in_the_plane() -> None:
    x = placed(groups=7, each=13)
    y = plane(x)
    assert y.shape == (len(x), 2)
    assert torch.equal(y, plane(x))
    group = torch.arange(len(x)) // 13
    far = torch.cdist(y, y).fill_diagonal_(torch.inf)
    assert torch.equal(group[far.argmin(1)], group)
    same = (group[:, None] == group) & far.isfinite()
    assert far[same].mean() < far[group[:, None] != group].mean() / 3


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_few_words_have_a_map_too(tmp_path: Path, count: int) -> None:
    words = Vectors([f"word{n}" for n in range(count)], torch.randn(count, DIM))
    words.map(tmp_path / "map.svg")
    shown = list(ElementTree.parse(tmp_path / "map.svg").iterfind(".//{*}text[@class='word']"))
    assert len(shown) == count
    assert all(0 < float(word.get(axis, "nan")) < 1200 for word in shown for axis in "xy")
    assert plane(torch.ones(count, DIM)).isfinite().all()


def test_a_map_shows_the_most_frequent_words(tmp_path: Path) -> None:
    words = [",", "<b>", "a&b", "\x07c", *(f"w{n}" for n in range(50))]
    found = Vectors(words, placed(groups=len(words), each=1))
    found.map(tmp_path / "map.svg", 17)
    found.map(tmp_path / "again.svg", 17)
    assert (tmp_path / "map.svg").read_text() == (tmp_path / "again.svg").read_text()
    tree = ElementTree.parse(tmp_path / "map.svg")
    shown = [text.text for text in tree.iterfind(".//{*}text[@class='word']")]
    assert shown == ["<b>", "a&b", " c", *(f"w{n}" for n in range(14))]
    assert "prefers-color-scheme: dark" in (tmp_path / "map.svg").read_text()
