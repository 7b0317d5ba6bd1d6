"""Marian's folders without tokenizer.json: sentencepiece's files give the tokens that transformers gives."""

import json
import random
import warnings
from pathlib import Path

import pytest
import torch

import regard
from helpers.errors import user_error
from regard.convert.huggingface.sentencepiece import marian_tokenizers, read_spm

ENGLISH = "the quick brown fox jumps over lazy dogs a green house with red windows and cats ran 123"
GERMAN = "der schnelle braune Fuchs springt über faule Hunde ein grünes Haus mit roten Fenstern 123"
spm = pytest.importorskip("sentencepiece")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny Marian with random weights, and different pieces for source and target."""
    from transformers import MarianConfig, MarianMTModel

    path, rng = tmp_path_factory.mktemp("marian"), random.Random(7)
    vocab: dict[str, int] = {}
    for name, words in (("source", ENGLISH), ("target", GERMAN)):
        lines = [" ".join(rng.choice(words.split()) for _ in range(9)) for _ in range(211)]
        (path / "lines.txt").write_text("\n".join(lines), "utf-8")
        spm.SentencePieceTrainer.train(
            input=str(path / "lines.txt"),
            model_prefix=str(path / name),
            vocab_size=71,
            hard_vocab_limit=False,
            bos_id=-1,
            pad_id=-1,
            eos_id=0,
            unk_id=1,
            minloglevel=2,
        )
        (path / f"{name}.model").rename(path / f"{name}.spm")
        pieces = spm.SentencePieceProcessor(model_file=str(path / f"{name}.spm"))
        for id in range(pieces.vocab_size()):
            vocab.setdefault(pieces.id_to_piece(id), len(vocab))
    vocab |= {">>de<<": len(vocab), "<pad>": len(vocab) + 1}
    (path / "vocab.json").write_text(json.dumps(vocab), "utf-8")
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
             {"layers": 1, "attention_heads": 2, "ffn_dim": 13}.items()}  # fmt: skip
    sizes |= {"vocab_size": len(vocab), "d_model": 12, "max_position_embeddings": 37, "max_length": 23}
    tokens = {"eos_token_id": 0, "pad_token_id": vocab["<pad>"], "decoder_start_token_id": vocab["<pad>"]}
    config = MarianConfig(**sizes, **tokens, forced_eos_token_id=None, scale_embedding=True)
    MarianMTModel(config).save_pretrained(path)
    return path


def test_as_transformers(folder):
    from transformers import MarianTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like another package
        files = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
        theirs = MarianTokenizer(**{name: str(folder / file) for name, file in files.items()})
    model = regard.load(folder, "cpu")
    source, target = model.tokenizers
    for said in ("the quick fox", "  two  spaces ﬁne ½", "über a ☃☃ cat", ">>de<< the dog", "", "\n"):
        want = theirs(said, add_special_tokens=False).input_ids
        assert source.encode(said) == want
    for said in ("der schnelle Fuchs", "Fenstern und Hunde 123"):
        assert target.encode(said) == theirs(text_target=said, add_special_tokens=False).input_ids
        assert target.decode(target.encode(said)) == said
    said = "the quick dogs ran"
    row = theirs(said, return_tensors="pt")
    from transformers import MarianMTModel

    reference = MarianMTModel.from_pretrained(folder).eval()
    begin = torch.tensor([[model.task.begin]])
    with torch.inference_mode():
        want = reference(**row, decoder_input_ids=begin).logits
        ids = torch.tensor([[*source.encode(said), 0]])
        torch.testing.assert_close(model.model(ids, begin), want, atol=1e-5, rtol=1e-4)
    asked = reference.generate(**row, num_beams=1, do_sample=False, max_new_tokens=7)
    want = theirs.decode(asked[0], skip_special_tokens=True)
    assert model.ask(said, num_beams=1, temperature=0, max_new_tokens=7).split() == want.split()


def test_scores_are_sentencepiece_own(folder):
    pieces = spm.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    ours, _ = read_spm(folder / "source.spm")
    ids = [id for id in range(pieces.vocab_size()) if not (pieces.is_control(id) or pieces.is_unknown(id))]
    assert ours == {pieces.id_to_piece(id): pieces.get_score(id) for id in ids}


def test_damaged(folder, tmp_path):
    """Any file gives pieces, or a UserError that names it."""
    good, path, rng = (folder / "source.spm").read_bytes(), tmp_path / "source.spm", random.Random(1)
    (tmp_path / "vocab.json").write_bytes((folder / "vocab.json").read_bytes())
    for raw in (
        b"",
        b"\xff" * 99,
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        good[:777],
        b"\x0a\x02\x0a\x00",
    ):
        path.write_bytes(raw)
        try:
            read_spm(path)
        except regard.UserError as e:
            assert str(path) in str(e)  # noqa: PT017
    for _ in range(99):
        place = rng.randrange(3000)
        path.write_bytes(good[:place] + bytes([rng.randrange(256)]) + good[place + 1 :])
        try:
            marian_tokenizers(tmp_path)
        except regard.UserError as e:
            assert str(path) in str(e)  # noqa: PT017
    path.write_bytes(good)
    for vocab in ({"a": 0}, {"<unk>": 1}, {"<unk>": 0, "a": "b"}):
        (tmp_path / "vocab.json").write_text(json.dumps(vocab))
        user_error(lambda: marian_tokenizers(tmp_path), tmp_path / "vocab.json", "<unk>")
