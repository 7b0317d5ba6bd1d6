"""A word's vectors in two texts: the same in an embedding, others in layers that read the context."""

import pytest
from torch.nn import functional as F

import regard
from helpers.commands import call, stdout_of
from helpers.errors import user_error
from helpers.looking import reader
from regard.runs import load as loading
from regard.viewer.context import compare_word, find_tokens

ONE, OTHER = "the quick fox jumps over the dog", "a lazy dog sees the brown fox"


def test_a_bert_reads_the_context_and_its_embedding_does_not() -> None:
    model = reader("fill", "bert")
    cosines = compare_word(model, "fox", ONE, OTHER)
    assert cosines["embed"] == pytest.approx(1)
    assert [name for name in cosines if name.startswith("blocks")] == [
        f"blocks.{n}.output" for n in range(model.model.config.depth)
    ]
    assert all(value < 0.9999 for name, value in cosines.items() if name.startswith("blocks"))
    assert compare_word(model, "fox", ONE, ONE) == pytest.approx(dict.fromkeys(cosines, 1.0))


def test_cosines_are_those_of_the_traces_rows() -> None:
    model = reader("fill", "bert")
    rows = [regard.trace(model, text)["blocks.0.output"] for text in (ONE, OTHER)]
    places = [regard.trace(model, text).tokens["text"].index("fox") for text in (ONE, OTHER)]
    x, y = (row[place] for row, place in zip(rows, places, strict=True))
    expected = F.cosine_similarity(x, y, dim=0).item()
    assert compare_word(model, "FOX", ONE, OTHER)["blocks.0.output"] == pytest.approx(expected, abs=1e-6)


def test_word_vectors_have_no_context() -> None:
    assert compare_word(reader("write", "gpt").words(), "fox", ONE, OTHER)["embed"] == pytest.approx(1)


def test_only_whole_words_are_found() -> None:
    model = reader("fill", "bert")
    read = regard.trace(model, "foxes fox").ids["text"]
    (first,) = find_tokens(model, "fox", "foxes fox", read)
    assert first == len(read) - 2  # before [SEP]
    user_error(lambda: compare_word(model, "fox", ONE, "foxes"), "fox", "foxes")
    long = "dog " * 200 + "fox"
    user_error(lambda: compare_word(model, "fox", ONE, long), "fox", "shorten")


def test_the_command_prints_a_line_per_layer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = reader("fill", "bert")
    monkeypatch.setattr(loading, "load", lambda *_, **__: model)
    lines = stdout_of(capsys, "look", "model", ONE, OTHER, "--word", "fox").splitlines()
    assert [line.split("\t") for line in lines] == [
        [f"{value:.4f}", name] for name, value in compare_word(model, "fox", ONE, OTHER).items()
    ]
    assert call("look", "model", ONE, "--word", "fox") == 2
    assert call("look", "model", ONE, OTHER, "--word", "cow") == 2
