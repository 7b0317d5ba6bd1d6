"""`python -m experiments` in short: one seed and fewer steps show each effect; texts are as committed."""

import json
import sys

import pytest
import torch
from experiments import distance, heads, masks, memory, order, pretraining, pronouns, temperature, vectors
from experiments.__main__ import NAMES, main
from experiments.document import DOCUMENT, VALUES, table, with_tables
from experiments.texts.__main__ import BUILTIN, make_files
from experiments.texts.grammar import expand
from experiments.texts.pronouns import EXAMPLES


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_without_positions_no_sequence_is_reversed():
    result = order.run(0, steps=150, variants=("none", "sinusoidal"))
    assert result["positions=none"]["letters right, %"] < 40
    assert result["positions=sinusoidal"]["letters right, %"] > 80


def test_four_heads_fetch_four_letters_and_one_does_not():
    result = heads.run(0, steps=250, variants=(1, 4))
    assert result["heads=1"]["all four right, %"] < 30
    assert result["heads=4"]["all four right, %"] > 90


def test_padding_gets_no_attention_with_the_mask_and_most_of_it_without():
    result = masks.run(0, steps=200)
    assert result["alone"]["right, %"] > 95
    assert result["padded, masked"]["changed, %"] == 0
    assert result["padded, masked"]["attention to padding, %"] == 0
    assert result["padded, not masked"]["attention to padding, %"] > 50
    assert result["padded, not masked"]["changed, %"] > 50


@pytest.mark.slow
def test_a_head_decides_what_it_is():
    result = pronouns.run(0)
    assert result["all heads"]["right, %"] > 95
    last = result["without the head of layer 1"]
    assert last["right, %"] < 60
    assert last["its attention from it to the right noun, %"] > 45
    assert last["to the other noun, %"] < 10


@pytest.mark.slow
def test_pre_training_is_worth_many_labels():
    result = pretraining.run(0)
    assert result["from scratch"]["right, %"] < 70
    assert result["pre-trained"]["right, %"] > 90


@pytest.mark.slow
def test_vectors_of_words_know_king_and_queen():
    result = vectors.run(0, steps=100)
    assert result["king - man + woman"]["analogies right, %"] == 100
    assert result["man, woman"]["analogies right, %"] > 80


@pytest.mark.slow
def test_temperature_trades_mistakes_for_variety():
    low, middle, high = temperature.run(0).values()
    assert low["different texts, %"] < middle["different texts, %"] - 20
    assert high["words that exist, %"] < middle["words that exist, %"] - 5
    assert low["bits per letter"] < middle["bits per letter"] < high["bits per letter"]


def test_attention_copies_what_a_fixed_vector_loses():
    result = distance.run(0, steps=200, lengths=(9,))
    of = {name: measures["9 letters: right, %"] for name, measures in result.items()}
    assert of["attention"] > of["fixed vector"] + 8


@torch.no_grad()
def test_a_window_ends_where_it_is_said_to():
    """The question mark reads a letter 16 tokens back with either window, 17 back only with the long one."""
    for variant, farthest in (("GPT, 17 tokens", 16), ("GPT, all tokens", 64)):
        torch.manual_seed(0)
        model, _ = memory.make_model(variant)
        for back in (16, 17, 64):
            x = memory.draw(1, back)[:, : back + 1]
            other = x.clone()
            other[:, 0] = (x[:, 0] + 1) % memory.LETTERS
            changed = not torch.equal(model(x)[:, -1], model(other)[:, -1])
            assert changed == (back <= farthest), (variant, back)


@pytest.mark.slow
def test_a_window_is_worth_what_lies_in_it():
    result = memory.run(0)
    of = {name: list(measures.values()) for name, measures in result.items()}
    assert min(of["GPT, all tokens"]) > 95
    assert min(of["GPT, 17 tokens"][:2]) > 80
    assert max(of["GPT, 17 tokens"][3:]) < 20
    assert of["LSTM"][-1] > of["RNN"][-1] + 20


# The command and its document


def test_the_command_prints_a_table_and_a_line_of_json(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["experiments", "masks", "--seeds", "2", "--steps", "2"])
    threads = torch.get_num_threads()
    main()
    torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    values = json.loads(lines[-1])["masks"]
    assert "\n".join(lines[:-1]) == table("masks", values)
    assert all(len(each) == 2 for row in values.values() for each in row.values())


def test_a_table_has_means_and_deviations():
    text = table("name", {"a": {"x": [1.0, 3.0]}, "b": {"y": [50.0, 50.0]}})
    assert text.splitlines()[0] == "| name | x | y |"
    assert text.splitlines()[2:] == ["| a | 2.0 ± 1.0 |  |", "| b |  | 50.0 ± 0.0 |"]


def test_the_document_has_the_values_of_every_experiment():
    results, text = json.loads(VALUES.read_text()), DOCUMENT.read_text(encoding="utf-8")
    assert set(results) == set(NAMES)
    assert with_tables(text, results) == text, "run: python -m experiments NAME --document"
    assert all(
        len(each) == 5 for values in results.values() for row in values.values() for each in row.values()
    )


# Texts


def test_the_built_in_texts_are_those_of_the_rules():
    for name, text in make_files().items():
        assert (BUILTIN / name).read_text(encoding="utf-8") == text, "run: python -m experiments.texts"


def test_the_well_known_sentences_are_held_out():
    trained, held_out = (
        (BUILTIN / name).read_text("utf-8").splitlines() for name in ("it.tsv", "it.valid.tsv")
    )
    assert not set(trained) & set(held_out)
    assert held_out[:2] == ["\t".join(row) for row in EXAMPLES]


def test_a_rule_may_use_others():
    class First:
        choice = staticmethod(lambda texts: texts[0])

    assert expand("{a}!", {"a": ["{b} and {b}"], "b": ["x", "y"]}, First()) == "x and x!"
