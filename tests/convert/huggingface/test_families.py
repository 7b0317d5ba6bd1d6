"""Load and export every family: the same tensors, logits and texts as in transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from helpers.errors import user_error
from helpers.exports import train_tokens, trained_model
from helpers.folders import MAKERS, PAD, TEXT, VOCAB, save_folder
from helpers.runs import unmeasured
from helpers.slow import slow_after
from regard.cli import main
from regard.decode.sampling import Sampling
from regard.runs.export import export
from regard.runs.load import load
from regard.runs.model import Model
from regard.tasks.answers import generate_tokens
from regard.training.build import train

SEEDS = range(3)
BERTS = ("bert", "roberta", "longformer", "electra", "distilbert", "megatron-bert")


@torch.no_grad()
def logits(theirs: Any) -> Tensor:
    """The logits of fixed random inputs."""
    rng = torch.Generator().manual_seed(3)
    if isinstance(theirs, hf.ViTForImageClassification | hf.SiglipForImageClassification):
        c = getattr(theirs.config, "vision_config", theirs.config)
        return theirs(torch.randn(2, c.num_channels, 15, 15, generator=rng).double()).logits
    ids, target = (torch.randint(3, VOCAB, (3, T), generator=rng) for T in (29, 11))
    attention_mask = torch.arange(29) < torch.tensor([[29], [13], [1]])
    if theirs.config.is_encoder_decoder:
        return theirs(ids, attention_mask.long(), decoder_input_ids=target).logits
    if theirs.config.model_type in BERTS:
        return theirs(ids, attention_mask.long()).logits[attention_mask]
    return theirs(ids).logits


@torch.no_grad()
def own_logits(ours: Model) -> Tensor:
    ours.model.double()
    rng = torch.Generator().manual_seed(3)
    if ours.kind == "vit":
        c = ours.model.config
        return ours.model(torch.randn(2, c.channels, 15, 15, generator=rng).double())
    ids, target = (torch.randint(3, VOCAB, (3, T), generator=rng) for T in (29, 11))
    attention_mask = torch.arange(29) < torch.tensor([[29], [13], [1]])
    if ours.kind in ("t5", "transformer"):
        return ours.model(ids, target, attention_mask)
    return ours.model(ids, attention_mask)[attention_mask] if ours.kind == "bert" else ours.model(ids)


@pytest.mark.parametrize("seed", slow_after(1, SEEDS))
@pytest.mark.parametrize("kind", MAKERS)
def test_round_trip(tmp_path: Path, kind: str, seed: int) -> None:
    theirs = save_folder(tmp_path / "theirs", kind, seed)
    ours = load(tmp_path / "theirs", "cpu")
    y = logits(theirs.double())
    assert y.std() > 0.1
    assert_close(own_logits(ours), y, atol=1e-5, rtol=1e-5)
    ours.model.float()
    export(ours, tmp_path / "ours")
    again, loading = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(loading[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    a, b = (
        load_file(tmp_path / "theirs/model.safetensors"),
        load_file(tmp_path / "ours/model.safetensors"),
    )
    assert a.keys() == b.keys()
    for name in a:
        if kind == "t5" and (name == "shared.weight" or name.endswith(".q.weight")):
            assert_close(a[name], b[name], rtol=2e-7, atol=0)  # a factor and back
        elif kind in ("roberta", "longformer") and ("position" in name or "token_type" in name):
            continue  # the one kind of part has become part of the positions
        elif "embed_positions" in name:
            assert_close(a[name], b[name], rtol=0, atol=1e-5)  # sinusoids, computed again
        else:
            assert torch.equal(a[name], b[name]), name
    assert_close(logits(again.eval().double()), y, atol=1e-5, rtol=1e-5)
    reloaded = load(tmp_path / "ours", "cpu")
    assert_close(own_logits(reloaded), y, atol=1e-5, rtol=1e-5)
    assert reloaded.task.config == ours.task.config
    assert reloaded.generation == ours.generation


UNEQUAL = [
    {"encoder_layers": 3, "decoder_layers": 1},
    {"encoder_attention_heads": 5, "decoder_attention_heads": 2},
    {"encoder_ffn_dim": 53, "decoder_ffn_dim": 31},
]


@torch.no_grad()
@pytest.mark.parametrize(
    "sizes", [*UNEQUAL, UNEQUAL[0] | UNEQUAL[1] | UNEQUAL[2]], ids=lambda s: "-".join(s)[:30]
)
@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_sides_of_unequal_size(tmp_path: Path, kind: str, sizes: dict[str, int]) -> None:
    equal = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    equal |= {"encoder_ffn_dim": 53, "decoder_ffn_dim": 53}
    theirs = save_folder(tmp_path / "theirs", kind, 1, **equal | sizes)
    ours = load(tmp_path / "theirs", "cpu")
    y = logits(theirs.double())
    assert_close(own_logits(ours), y, atol=1e-5, rtol=1e-5)
    ours.model.float()
    export(ours, tmp_path / "out")
    again = type(theirs).from_pretrained(tmp_path / "out").eval()
    assert {key: getattr(again.config, key) for key in sizes} == sizes
    assert_close(logits(again.double()), y, atol=1e-5, rtol=1e-5)


# Generation


WRITERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "marian", "pegasus", "t5")


@torch.no_grad()
@pytest.mark.parametrize("kind", slow_after(4, WRITERS))
def test_generates_as_transformers(tmp_path: Path, kind: str) -> None:
    """Greedily and with beams, from the loaded folder and from the exported one, in double precision."""
    theirs = save_folder(tmp_path / "theirs", kind, 1).double()
    ours = load(tmp_path / "theirs", "cpu")
    export(ours, tmp_path / "ours")
    both = theirs.config.is_encoder_decoder
    auto_class = hf.AutoModelForSeq2SeqLM if both else hf.AutoModelForCausalLM
    models, model = (
        (theirs, auto_class.from_pretrained(tmp_path / "ours").eval().double()),
        ours.model.double(),
    )
    for n in range(3):
        ids = torch.randint(3, VOCAB, (1, 3 + n)).tolist()
        prompts, sources = ([[ours.task.begin]], ids) if both else (ids, None)
        end = None  # at first; then something that it says
        for beams in 1, 4, 1, 4:
            own = {"temperature": 0.0, "num_beams": beams, "max_new_tokens": 11}
            ((mine, *_),) = generate_tokens(
                model, prompts, Sampling(**ours.generation | own), end, 1, sources
            )
            options: dict[str, Any] = {"num_beams": beams, "max_new_tokens": 11, "do_sample": False}
            options |= {"early_stopping": "never"} if beams > 1 else {}
            for each in models:
                each.generation_config.eos_token_id = end
                his = each.generate(torch.tensor(ids), pad_token_id=PAD, **options)[0].tolist()
                his = his[len(prompts[0]) :]
                assert mine.tokens == (his[: his.index(end)] if end in his else his)
            assert end is None or beams > 1 or len(mine.tokens) < 4
            end = mine.tokens[3] if beams == 1 and end is None else end


# Models of our own


MARIAN = {"hidden": 53, "depth": 2, "decoder_depth": 1}
GPT2 = {"positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True, "dropout": 0.1}


@torch.no_grad()
@pytest.mark.parametrize(
    ("tokenizer_kind", "sizes"),
    [
        ("char", {}),
        ("byte", GPT2),
        ("bpe", {"kv_heads": 2, "tied": False}),
        ("wordpiece", GPT2 | {"tied": False, "eps": 1e-3}),
        ("unigram", {"sliding_window": 5}),
        ("word", {"qk_norm": True, "head_dim": 6}),
    ],
)
def test_export_gpt(tmp_path: Path, tokenizer_kind: str, sizes: dict[str, Any]) -> None:
    ours = trained_model("gpt", "write", train_tokens(tokenizer_kind, "write"), {}, **sizes)
    export(ours, tmp_path / "out")
    theirs, tokenizer = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out"), read_tokenizer(tmp_path)
    ids = ours.tokenizer.encode(TEXT[0])
    assert tokenizer(TEXT[0])["input_ids"] == ids
    assert tokenizer.decode(ids) == ours.tokenizer.decode(ids)
    assert tokenizer.eos_token_id == ours.tokenizer.end == theirs.config.eos_token_id
    assert_close(theirs(torch.tensor([ids])).logits, ours.model(torch.tensor([ids])), atol=1e-5, rtol=1e-5)
    back = load(tmp_path / "out", "cpu")
    assert back.generation == ours.generation
    assert back.ask(TEXT[1], seed=3) == ours.ask(TEXT[1], seed=3)
    inputs = tokenizer(TEXT[0], return_tensors="pt")
    his = theirs.generate(**inputs, do_sample=False, max_new_tokens=9)[0, len(ids) :]
    mine = ours.ask(TEXT[0], temperature=0.0, max_new_tokens=9)
    assert tokenizer.decode(his, skip_special_tokens=True) == mine


def test_export_chat_template(tmp_path: Path) -> None:
    save_folder(tmp_path / "theirs", "llama", 1)
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ '\\n' }}{% endfor %}"
    )
    config = {"chat_template": template, "bos_token": "<|endoftext|>"}
    (tmp_path / "theirs/tokenizer_config.json").write_text(json.dumps(config))
    export(load(tmp_path / "theirs", "cpu"), tmp_path / "out")
    assert load(tmp_path / "out", "cpu").task.template.text == template
    turns = [{"role": "user", "content": "Hi"}]
    assert read_tokenizer(tmp_path).apply_chat_template(turns, tokenize=False) == "<|endoftext|>user: Hi\n"


def read_tokenizer(folder: Path) -> Any:
    return hf.AutoTokenizer.from_pretrained(folder / "out")


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "task", "sizes"),
    [
        ("transformer", "translate", MARIAN),
        ("transformer", "chat", {**MARIAN, "ffn": "gelu_tanh"}),
        ("transformer", "translate", {**MARIAN, "ffn": "silu", "output_bias": True}),
        ("transformer", "chat", {**MARIAN, "pre": True, "output_bias": True}),
        ("transformer", "chat", {**MARIAN, "decoder_heads": 2, "decoder_hidden": 29}),
        ("t5", "restore", MARIAN),
        ("t5", "translate", {**MARIAN, "ffn": "geglu", "tied": False, "head_dim": 7}),
    ],
)
def test_export_encoder_decoder(tmp_path: Path, kind: str, task: str, sizes: dict[str, Any]) -> None:
    ours = trained_model(kind, task, train_tokens("bpe", task), {}, **sizes)
    export(ours, tmp_path / "out")
    theirs, tokenizer = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out"), read_tokenizer(tmp_path)
    inputs = tokenizer(TEXT[:2], return_tensors="pt", padding=True, return_token_type_ids=False)
    end = ours.task.end
    assert [row[row != tokenizer.pad_token_id].tolist() for row in inputs["input_ids"]] == [
        [*ours.tokenizer.encode(text), end] for text in TEXT[:2]
    ]
    target, attention_mask = torch.randint(VOCAB - 9, (2, 11)), inputs["attention_mask"].bool()
    y = theirs(**inputs, decoder_input_ids=target).logits
    assert_close(ours.model(inputs["input_ids"], target, attention_mask), y, atol=2e-5, rtol=2e-5)
    back = load(tmp_path / "out", "cpu")
    assert_close(back.model(inputs["input_ids"], target, attention_mask), y, atol=2e-5, rtol=2e-5)
    assert back.task.begin == ours.task.begin
    assert back.generation["max_new_tokens"] == ours.generation["max_new_tokens"]
    if task != "restore":
        his = tokenizer.batch_decode(theirs.generate(**inputs, max_new_tokens=9), skip_special_tokens=True)
        assert his == ours.ask(TEXT[:2], max_new_tokens=9)


READERS = [
    ("fill", {"next": False}, "ForMaskedLM"),
    ("fill", {"next": True}, "ForPreTraining"),
    ("classify", {"labels": ["good", "bad", "neither"]}, "ForSequenceClassification"),
    ("tag", {"labels": ["O", "B-PET"]}, "ForTokenClassification"),
    ("span", {}, "ForQuestionAnswering"),
]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Bert", "DistilBert"])
@pytest.mark.parametrize(("task", "section", "end"), READERS, ids=[end for _, _, end in READERS])
def test_export_bert(tmp_path: Path, kind: str, task: str, section: dict[str, Any], end: str) -> None:
    sizes: dict[str, Any] = {"hidden": 53, "depth": 2}
    sizes |= {"segments": 0, "pooler": "relu"} if kind == "DistilBert" else {"ffn": "relu"}
    ours = trained_model("bert", task, train_tokens("wordpiece", task), section, **sizes)
    export(ours, tmp_path / "out")
    end = "ForMaskedLM" if kind == "DistilBert" and task == "fill" else end
    theirs = getattr(hf, kind + end).from_pretrained(tmp_path / "out")
    tokenizer = read_tokenizer(tmp_path)
    segments = {"return_token_type_ids": kind == "Bert"}
    inputs = tokenizer(TEXT[0], TEXT[1], return_tensors="pt", **segments)
    first, second = (ours.tokenizer.encode(text) for text in TEXT[:2])
    assert inputs["input_ids"][0].tolist() == [2, *first, 3, *second, 3]
    y = theirs(**inputs)
    his = torch.stack([y.start_logits, y.end_logits], -1) if task == "span" else y[0]
    mine = ours.model(inputs["input_ids"], segments=inputs.get("token_type_ids"))
    assert_close(mine, his, atol=1e-5, rtol=1e-5)
    if end == "ForPreTraining":
        x = ours.model.encode(inputs["input_ids"], segments=inputs["token_type_ids"])
        assert_close(ours.model.next_sentence(x), y.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    back = load(tmp_path / "out", "cpu")
    assert_close(back.model(inputs["input_ids"], segments=inputs.get("token_type_ids")), his)
    if "labels" in section:
        assert list(theirs.config.id2label.values()) == section["labels"] == list(back.task.config.labels)


@torch.no_grad()
@pytest.mark.parametrize("normalize", [False, True])
def test_export_sentence_transformers(tmp_path: Path, normalize: bool) -> None:
    section = {"normalize": normalize, "pooling": "first", "longest": 5}
    ours = trained_model("bert", "embed", train_tokens("wordpiece", "embed"), section, depth=2, segments=0)
    export(ours, tmp_path / "out")
    parts = json.loads((tmp_path / "out/modules.json").read_text())
    assert [part["type"].split(".")[-1] for part in parts] == ["Transformer", "Pooling", "Normalize"][
        : 2 + normalize
    ]
    back = load(tmp_path / "out", "cpu")
    assert back.task.config == ours.task.config
    assert_close(back.embed(TEXT[:3]), ours.embed(TEXT[:3]))
    theirs, tokenizer = hf.AutoModel.from_pretrained(tmp_path / "out"), read_tokenizer(tmp_path)
    y = theirs(**tokenizer(TEXT[0], return_tensors="pt", max_length=5, truncation=True)).last_hidden_state[
        0, 0
    ]
    assert_close(ours.embed(TEXT[:1])[0], y / y.norm() if normalize else y, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("pool", ["first", "mean"])
def test_export_vit(tmp_path: Path, pool: str) -> None:
    section = {
        "labels": ["cat", "dog"],
        "size": 15,
        "channels": 3,
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.3, 0.4],
    }
    ours = trained_model("vit", "see", None, section, size=15, channels=3, patch=5, depth=2, pool=pool)
    export(ours, tmp_path / "out")
    theirs = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    bytes = torch.randint(256, (15, 15, 3), dtype=torch.uint8)
    processor = hf.ViTImageProcessorPil.from_pretrained(tmp_path / "out")
    pixels = processor(bytes.numpy(), return_tensors="pt", input_data_format="channels_last")
    mine = ours.task.logits(ours.model, bytes.permute(2, 0, 1)[None])
    assert_close(mine, theirs(**pixels).logits, atol=1e-5, rtol=1e-5)
    assert load(tmp_path / "out", "cpu").task.config == ours.task.config
    assert theirs.config.id2label == {0: "cat", 1: "dog"}


# Heads, and models to start from

WITH_HEADS = [
    ("roberta", "RobertaForSequenceClassification", "classify"),
    ("roberta", "RobertaForTokenClassification", "tag"),
    ("roberta", "RobertaForQuestionAnswering", "span"),
    ("roberta", "RobertaModel", "embed"),
    ("distilbert", "DistilBertForSequenceClassification", "classify"),
    ("distilbert", "DistilBertForTokenClassification", "tag"),
    ("distilbert", "DistilBertForQuestionAnswering", "span"),
    ("distilbert", "DistilBertModel", "embed"),
]


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "architecture", "task"), WITH_HEADS, ids=[name for _, name, _ in WITH_HEADS]
)
def test_load_and_export_heads(tmp_path: Path, kind: str, architecture: str, task: str) -> None:
    labels = {} if task in ("span", "embed") else {"id2label": {0: "O", 1: "B-PET", 2: "I-PET"}}
    theirs = save_folder(tmp_path / "theirs", kind, 2, architecture=architecture, **labels)
    ours = load(tmp_path / "theirs", "cpu")
    assert ours.task.config.name == task
    ids = torch.randint(5, VOCAB, (3, 29))
    attention_mask = torch.arange(29) < torch.tensor([[29], [13], [1]])

    def output(y: Any) -> Tensor:
        if task == "span":
            return torch.stack([y.start_logits, y.end_logits], -1)[attention_mask]
        return y[0] if task == "classify" else y[0][attention_mask]

    def own(model: Any) -> Tensor:
        y = model.encode(ids, attention_mask) if task == "embed" else model(ids, attention_mask)
        return y if task == "classify" else y[attention_mask]

    y = output(theirs(ids, attention_mask.long()))
    assert_close(own(ours.model), y, atol=1e-5, rtol=1e-5)
    export(ours, tmp_path / "ours")
    again = getattr(hf, architecture).from_pretrained(tmp_path / "ours")
    assert_close(output(again.eval()(ids, attention_mask.long())), y, atol=1e-5, rtol=1e-5)
    assert ours.task.config == load(tmp_path / "ours", "cpu").task.config
    if kind == "roberta":
        again_ids = hf.AutoTokenizer.from_pretrained(tmp_path / "ours")
        assert again_ids(TEXT[0])["input_ids"] == [0, *ours.tokenizer.encode(TEXT[0]), 2]
        assert (len(again_ids), again_ids.mask_token_id, again_ids.pad_token_id) == (VOCAB, 4, PAD)
        their_ids = hf.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "theirs/tokenizer.json"))
        assert ours.tokenizer.encode(TEXT[0]) == their_ids(TEXT[0])["input_ids"]
        assert [ours.tokenizer.id(name) for name in ("[CLS]", "[PAD]", "[SEP]", "[MASK]")] == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("kind", "recipe"),
    [("gpt2", "write"), ("qwen3", "write"), ("marian", "translate"), ("t5", "restore"), ("roberta", "fill")],
)
def test_fine_tune_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, recipe: str) -> None:
    unmeasured(monkeypatch)
    save_folder(tmp_path / "theirs", kind, 1)
    text = tmp_path / ("a.tsv" if recipe == "translate" else "a.txt")
    lines = [f"{text}\t{text}" for text in TEXT] if recipe == "translate" else TEXT
    text.write_text("\n".join(lines * 9))
    more = {
        "train.batch": 2,
        "train.device": "cpu",
        "train.tokens": None,
        "train.lr": 1e-12,
        "train.weight_decay": 0.0,
    }
    more |= {"task.next": False} if recipe == "fill" else {}
    base = load(tmp_path / "theirs", "cpu")
    model = train(recipe, str(text), out=tmp_path / "run", base=tmp_path / "theirs", steps=1, set=more)
    assert model.model.config == base.model.config
    options = {
        "max_new_tokens": 7,
        "temperature": 0.0,
        "num_beams": 1,
        "suppress_tokens": base.generation.get("suppress_tokens", ()),
    }
    asked = {"restore": "A ___ barks", "fill": "A [MASK] barks"}.get(recipe, TEXT[1])
    options = {} if recipe == "fill" else options
    if recipe != "fill":  # whose head may be new
        assert model.ask(asked, **options) == base.ask(asked, **options)
    export(model, tmp_path / "out")
    load(tmp_path / "out", "cpu")


# What cannot be exported, and what is left behind


def test_models_without_an_equal_in_transformers(tmp_path: Path) -> None:
    def refused(
        kind: str, task: str, tokenizer_kind: str | None, section: dict[str, Any], *words: str, **sizes: Any
    ) -> None:
        ours = trained_model(
            kind, task, tokenizer_kind and train_tokens(tokenizer_kind, task), section, **sizes
        )
        user_error(lambda: export(ours, tmp_path / "out"), *words)
        assert not list(tmp_path.iterdir())

    for sizes, word in (
        ({"positions": "alibi"}, "model.positions=alibi"),
        ({"norm": "layer"}, "model.norm=layer"),
        ({"ffn": "gelu"}, "model.ffn=gelu"),
        ({"bias": True}, "model.bias=True"),
        ({"qk_norm": True, "sliding_window": 7}, "model.sliding_window=7"),
        ({"positions": "learned"}, "model.norm=rms"),
        (GPT2 | {"kv_heads": 2}, "model.kv_heads=2"),
        (GPT2 | {"ffn": "swiglu"}, "model.ffn=swiglu"),
    ):
        refused("gpt", "write", "char", {}, word, "train with", **sizes)
    for sizes, word in (
        ({"positions": "rotary"}, "model.positions=rotary"),
        ({"positions": "learned", "pre": True}, "model.positions=learned"),
        ({"tied": False}, "model.tied=False"),
        ({"kv_heads": 2}, "model.kv_heads=2"),
        ({"target_vocab": 99}, "data.target_tokenizer"),
    ):
        refused("transformer", "translate", "bpe", {}, word, **sizes)
    refused("t5", "restore", "bpe", {}, "model.norm=layer", norm="layer")
    refused("t5", "restore", "bpe", {}, "model.decoder_heads=2", decoder_heads=2)
    refused("t5", "restore", "bpe", {}, "model.decoder_hidden=53", decoder_hidden=53)
    for sizes, word in (
        ({"pre": True, "pooler": "relu", "segments": 0}, "model.pre"),
        ({"pre": True, "pooler": "gelu"}, "model.pre"),
        ({"pre": True, "window": 5}, "model.window"),
        ({"window": 5}, "model.window"),
        ({"norm": "rms"}, "model.norm"),
    ):
        refused("bert", "fill", "wordpiece", {}, word, **sizes)
    refused("bert", "classify", "wordpiece", {}, "scores")
    refused("gpt", "classify", "wordpiece", {"labels": ["a", "b"]}, "GPT", "classify")
    sees = {"labels": ["cat", "dog"], "size": 15, "channels": 1, "mean": [0.5], "std": [0.2]}
    refused("vit", "see", None, sees, "model.norm=rms", size=15, channels=1, patch=5, norm="rms")
    refused("gru", "translate", "bpe", {}, "Seq2Seq")


def test_whole_folder_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = trained_model("gpt", "write", train_tokens("char", "write"), {})
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    user_error(lambda: export(ours, tmp_path / "full"), tmp_path / "full", "choose another")
    user_error(lambda: export(ours, tmp_path / "full/mine.txt"), "choose another")
    user_error(lambda: export(ours, tmp_path / "full/mine.txt/below"), "choose another")
    monkeypatch.setattr("regard.convert.huggingface.export.huggingface_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(ours, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    monkeypatch.undo()
    (tmp_path / "out").mkdir()  # empty
    export(ours, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors", "special_tokens_map.json",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    said = (tmp_path / "out/README.md").read_text()
    assert all(word in said for word in ("AutoModelForCausalLM", "vllm serve", "regard ask"))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_folder(tmp_path / "theirs", "marian", 1)
    for arguments in (
        ["export", str(tmp_path / "theirs"), str(tmp_path / "out")],
        ["export", str(tmp_path / "out"), str(tmp_path / "again"), "--to", "hf"],
    ):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "out"), str(tmp_path / "again")]
    assert "CTranslate2" in (tmp_path / "out/README.md").read_text()
    with pytest.raises(SystemExit) as left:
        main(["ask", str(tmp_path / "again"), TEXT[0], "--max-new-tokens", "5"])
    assert left.value.code == 0
    with pytest.raises(SystemExit) as left:
        main(["export", str(tmp_path / "theirs"), str(tmp_path / "out")])
    assert left.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
