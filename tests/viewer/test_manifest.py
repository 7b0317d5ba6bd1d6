"""What the manifest says of an input and of the model's run."""

import pytest
import tokenizers

from helpers.browsing import WORDS, shown, trained
from helpers.looking import CONTEXT, reader, spelled
from regard.files.locks import lock_folder
from regard.runs.load import load
from regard.text.tokenizer import Tokenizer
from regard.viewer.manifest import spell_bytes
from regard.viewer.session import Session


@pytest.mark.parametrize(
    ("task", "kind"),
    [("write", "gpt"), ("converse", "gpt"), ("fill", "bert"), ("embed", "bert"), ("chat", "t5")],
)
def test_tokens_that_do_not_fit_are_counted(task, kind):
    model = reader(task, kind)
    long = Session(model, "fox " * 50)
    side = "source" if task == "chat" else "text"
    read = [id for id in long.trace.ids[side] if id == model.tokenizer.encode("fox")[0]]
    assert long.manifest["unread"] == 50 - len(read) > 0
    assert long.manifest["context"] == CONTEXT
    assert Session(model, "fox fox").manifest["unread"] == 0


def test_an_answer_that_does_not_fit_is_counted():
    assert Session(reader("translate", "transformer"), "fox", "fox " * 50).manifest["unread"] > 0
    assert Session(reader("classify", "bert", task_labels=("a", "b")), "fox " * 50).manifest["unread"] > 0


def test_what_stands_between_tokens():
    assert shown("gpt").manifest["outputs"]["between"] == " "  # they are words
    assert Session(spelled(), WORDS).manifest["outputs"]["between"] == ""


def test_bytes_of_a_character():
    tokens = ["a", "<0xF0><0x9F>", "<0x98>", "<0x80>", "b", "<0xC3>", "c", "<0xA9>", "<0x20><0xC3>", "<0xA9>"]
    labels = ["a", "<0xF0><0x9F>", "<0x98>", "😀", "b", "<0xC3>", "c", "<0xA9>", "<0x20><0xC3>", " é"]
    assert spell_bytes(tokens)[:8] == labels[:8]
    assert spell_bytes(tokens)[-1].endswith("é")


def test_bytes_of_vocabularies_that_fall_back_to_them():
    vocab = {"<unk>": 0, "a": 1} | {f"<0x{n:02X}>": 2 + n for n in range(256)}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    inner.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    ids = [2 + byte for byte in "é".encode()]
    assert Tokenizer(inner).tokens([1, *ids]) == ["a", "<0xC3>", "<0xA9>"]
    assert spell_bytes(Tokenizer(inner).tokens([1, *ids])) == ["a", "<0xC3>", "é"]


def test_only_rotary_models_speak_of_a_rotation():
    for kind, rotates in (("gpt", True), ("gpt2", False), ("alibi", False), ("bert", False), ("t5", False)):
        titles = [text["title"] for text in shown(kind).manifest["texts"].values()]
        assert any("rotation" in title for title in titles) == rotates, kind
    normed = Session(reader("write", "gpt", qk_norm=True, positions="rotary"), WORDS).manifest["texts"]
    assert normed["blocks.0.attn.Wq"]["title"] == "Queries before the norm"


def test_whether_a_run_is_being_trained(tmp_path):
    session = Session(load(trained(tmp_path / "run")), WORDS)
    assert session.progress() == {
        "logged": True,
        "step": None,
        "steps": [3, 7],
        "film": [],
        "training": False,
    }
    with lock_folder(tmp_path / "run", "OUT"):
        assert session.progress()["training"]
    assert not Session(reader("write", "gpt"), WORDS).progress()["training"]
