"""What is refused in a folder, in one line that names it: settings, tensors, damaged and hostile files."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from helpers.errors import user_error
from helpers.folders import MAKERS, save_folder
from regard.runs.export import export
from regard.runs.load import load


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each kind, which tests do not change."""
    top = tmp_path_factory.mktemp("folders")
    for kind in MAKERS:
        save_folder(top / kind, kind, 0)
    return top


def changed(folders: Path, kind: str, to: Path, file: str = "config.json", **changes: Any) -> Path:
    """Copy a folder with other values in a JSON file; None removes a key."""
    to.mkdir(exist_ok=True)
    for path in (folders / kind).iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    values = json.loads((to / file).read_text()) if (to / file).exists() else {}
    values = {k: v for k, v in (values | changes).items() if v is not None}
    (to / file).write_text(json.dumps(values))
    return to


WRITERS = ("gpt2", "marian", "t5")
LLAMAS = ("llama", "mistral", "qwen2", "qwen3")
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
REFUSED: list[tuple[str, str, Any]] = [
    ("gpt2", "activation_function", "silu"),
    ("gpt2", "scale_attn_weights", False),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ("gpt2", "add_cross_attention", True),
    *((kind, "hidden_act", "gelu") for kind in LLAMAS),
    *((kind, "rope_parameters", YARN) for kind in LLAMAS),
    *((kind, "rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}) for kind in LLAMAS),
    *((kind, "rope_parameters", {"rope_type": "default", "mscale": 2}) for kind in LLAMAS),
    *((kind, "rope_parameters", {"rope_type": "default", "rope_theta": -1}) for kind in LLAMAS),
    *((kind, "rope_parameters", [1]) for kind in LLAMAS),
    ("llama", "rope_scaling", {"type": "dynamic", "factor": 2.0}),
    ("llama", "attention_bias", True),
    ("llama", "mlp_bias", True),
    ("llama", "pretraining_tp", 2),
    ("qwen2", "use_sliding_window", True),
    ("qwen3", "layer_types", ["sliding_attention"]),
    ("mistral", "sliding_window", -3),
    ("t5", "feed_forward_proj", "gated-relu"),
    ("t5", "relative_attention_num_buckets", 16),
    ("t5", "relative_attention_max_distance", 64),
    ("t5", "layer_norm_epsilon", 1e-5),
    ("marian", "scale_embedding", False),
    ("marian", "share_encoder_decoder_embeddings", False),
    ("marian", "decoder_vocab_size", 7),
    ("marian", "normalize_before", True),
    ("marian", "activation_function", "tanh"),
    ("bert", "position_embedding_type", "relative_key"),
    ("roberta", "type_vocab_size", 2),
    ("roberta", "hidden_act", "relu"),
    ("distilbert", "activation", "silu"),
    ("vit", "qkv_bias", False),
    ("vit", "hidden_act", "silu"),
]


@pytest.mark.parametrize(("kind", "key", "value"), REFUSED)
def test_unsupported_settings(tmp_path: Path, folders: Path, kind: str, key: str, value: Any) -> None:
    old = {"rope_parameters": None} if key == "rope_scaling" else {}
    folder = changed(folders, kind, tmp_path / "a", **{key: value}, **old)
    inner = ("type", "partial_rotary_factor", "mscale", "rope_theta", "rope_parameters")
    said = user_error(lambda: load(folder, "cpu"), folder / "config.json")
    assert any(f"{name}=" in said for name in (key, *(inner if key.startswith("rope") else ()))), said


@pytest.mark.parametrize("kind", MAKERS)
def test_unknown_keys_and_tensors(tmp_path: Path, folders: Path, kind: str) -> None:
    folder = changed(folders, kind, tmp_path / "a", logit_scale_of_mine=3)
    user_error(lambda: load(folder, "cpu"), folder / "config.json", "logit_scale_of_mine=3", "model_type")
    changed(folders, kind, folder, auto_map={"AutoModel": "modeling.Mine"})
    user_error(lambda: load(folder, "cpu"), folder / "config.json", "auto_map", "never run")
    changed(folders, kind, folder, switched_off_of_mine=False)
    load(folder, "cpu")
    weights = load_file(folder / "model.safetensors")
    for name in weights:  # one missing, one of another shape, one too many
        if ".0." in name or "embeddings" in name or "shared" in name:
            break
    rest = {k: t for k, t in weights.items() if k != name}
    for wrong in (
        rest,
        rest | {name: weights[name][..., :-1].contiguous()},
        weights | {"classifier.bias" if kind in WRITERS else "mine": torch.ones(3)},
    ):
        save_file(wrong, folder / "model.safetensors")
        user_error(lambda: load(folder, "cpu"), folder / "model.safetensors")


@pytest.mark.parametrize(
    ("key", "value"), [("decoder_ffn_dim", 7), ("encoder_ffn_dim", 7), ("decoder_layers", 2)]
)
def test_sizes_of_one_side_that_are_not_the_weights(
    tmp_path: Path, folders: Path, key: str, value: int
) -> None:
    folder = changed(folders, "marian", tmp_path / "a", **{key: value})
    side = key.split("_")[0]
    user_error(lambda: load(folder, "cpu"), folder / "model.safetensors", f"{side}.layers", "config.json")


SIZES = {
    "gpt2": ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"),
    "t5": ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads"),
    "marian": ("vocab_size", "d_model", "encoder_layers", "decoder_layers", "max_position_embeddings"),
    "distilbert": ("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim"),
    "vit": ("image_size", "patch_size", "num_channels", "hidden_size", "num_hidden_layers"),
}
SIZES["marian"] += ("encoder_attention_heads", "decoder_attention_heads", "decoder_ffn_dim")
SIZES |= {"pegasus": SIZES["marian"], "siglip": SIZES["vit"]}
USUAL = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
ODD = (-1, 0, 2.5, float("nan"), float("inf"), "7", True, [3], 10**6, 2**31, 2**62, 10**40)


@pytest.mark.parametrize("kind", MAKERS)
def test_impossible_sizes(tmp_path: Path, folders: Path, kind: str) -> None:
    """Refused in one line, before any memory is allocated."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for n, key in enumerate(SIZES.get(kind, (*USUAL, "max_position_embeddings"))):
        for value in ODD[(len(kind) + n) % 3 :: 3]:  # all of them, spread over keys and kinds
            if key == "max_position_embeddings" and value == 10**6:
                continue  # a table of positions may be as long
            values = {key: value}
            if kind == "siglip":
                inner = json.loads((folders / kind / "config.json").read_text())["vision_config"]
                values = {"vision_config": inner | values}
            folder = changed(folders, kind, tmp_path / "a", **values)
            user_error(lambda folder=folder: load(folder, "cpu"), folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # KiB


@pytest.mark.parametrize("kind", ["gpt2", "marian", "t5"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("penalty_alpha", 0.6),
        ("bad_words_ids", [[3, 4]]),
        ("suppress_tokens", [10**6]),
        ("suppress_tokens", ["a"]),
        ("temperature", -1),
        ("num_beams", 1.5),
        ("forced_bos_token_id", 3),
    ],
)
def test_unsupported_generation(tmp_path: Path, folders: Path, kind: str, key: str, value: Any) -> None:
    folder = changed(
        folders, kind, tmp_path / "a", "generation_config.json", **{key: value, "do_sample": None}
    )
    user_error(lambda: load(folder, "cpu"), f"{key}=")


def test_generation_options(tmp_path: Path, folders: Path) -> None:
    options = {
        "do_sample": True,
        "top_p": 0.9,
        "temperature": 0.6,
        "max_new_tokens": 7,
        "eos_token_id": [5, 6],
    }
    folder = changed(folders, "llama", tmp_path / "a", "generation_config.json", **options)
    model = load(folder, "cpu")
    assert model.generation == {"top_p": 0.9, "temperature": 0.6, "max_new_tokens": 7}
    assert (model.tokenizer.end, model.task.ends) == (5, (5, 6))
    export(model, tmp_path / "out")
    assert load(tmp_path / "out", "cpu").task.ends == (5, 6)
    folder = changed(folders, "llama", folder, "generation_config.json", do_sample=False, temperature=0.6)
    assert load(folder, "cpu").generation["temperature"] == 0
    marian = load(folders / "marian", "cpu")
    expected = {"max_new_tokens": 22, "num_beams": 3, "suppress_tokens": [1], "temperature": 0.0}
    assert marian.generation == expected
    # where they stood before there was a file for them
    folder = changed(folders, "marian", tmp_path / "b", num_beams=5, bad_words_ids=[[1]], max_length=9)
    (folder / "generation_config.json").unlink()
    assert load(folder, "cpu").generation == expected | {"num_beams": 5, "max_new_tokens": 8}


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def test_tied_copies_that_differ(tmp_path: Path, folders: Path) -> None:
    for kind, copy in (
        ("marian", "lm_head.weight"),
        ("marian", "model.encoder.embed_tokens.weight"),
        ("marian", "model.decoder.embed_positions.weight"),
        ("t5", "encoder.embed_tokens.weight"),
        ("distilbert", "vocab_projector.weight"),
        ("roberta", "lm_head.decoder.weight"),
    ):
        folder = changed(folders, kind, tmp_path / kind)
        shape = (37, 40) if "positions" in copy else (293, 40)
        change_weights(folder, lambda w, copy=copy, shape=shape: w.update({copy: torch.ones(shape)}))
        name = copy.removeprefix("model.")
        user_error(lambda folder=folder: load(folder, "cpu"), folder / "model.safetensors", name)
    for seed in range(9):  # until one is tied
        folder = tmp_path / f"llama{seed}"
        if save_folder(folder, "llama", seed).config.tie_word_embeddings:
            break
    change_weights(folder, lambda w: w.update({"lm_head.weight": torch.ones(293, 40)}))
    user_error(
        lambda: load(folder, "cpu"), folder / "model.safetensors", "lm_head.weight", "tie_word_embeddings"
    )
    change_weights(folder, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
    load(folder, "cpu")


def test_old_names_of_rotary_settings(tmp_path: Path, folders: Path) -> None:
    new = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    new["original_max_position_embeddings"] = 19
    a = changed(folders, "llama", tmp_path / "a", rope_parameters=new)
    old = {k: v for k, v in new.items() if k != "rope_theta"} | {"type": "llama3"}
    b = changed(folders, "llama", tmp_path / "b", rope_parameters=None, rope_scaling=old, rope_theta=5e5)
    ids = torch.arange(37)[None]
    first, second = load(a, "cpu").model, load(b, "cpu").model
    assert first.config.rope_scaling == (8.0, 1.0, 4.0, 19.0)
    assert torch.equal(first(ids), second(ids))
    plain = changed(folders, "llama", tmp_path / "c", rope_parameters=None, rope_theta=5e5)
    assert not torch.equal(load(plain, "cpu").model(ids), first(ids))


@pytest.mark.parametrize("kind", MAKERS)
def test_shards(tmp_path: Path, kind: str) -> None:
    model = save_folder(tmp_path / "one", kind, 0)
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    for name in ("tokenizer.json",) if kind not in ("vit", "siglip") else ():
        (tmp_path / "many" / name).write_bytes((tmp_path / "one" / name).read_bytes())
    one, many = (
        load(tmp_path / "one", "cpu").model.state_dict(),
        load(tmp_path / "many", "cpu").model.state_dict(),
    )
    untrained = "pooler", "next"  # of encoders that predict masked tokens
    assert all(torch.equal(one[k], many[k]) for k in one if not k.startswith(untrained))
    index = tmp_path / "many" / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    name, shard = next(iter(places.items()))
    for wrong in ({name: "../x"}, {name: "/etc/passwd"}, {name: 3}, {"more": shard}):
        index.write_text(json.dumps({"weight_map": places | wrong}))
        user_error(lambda: load(tmp_path / "many", "cpu"), index)
    index.write_text(json.dumps({"weight_map": places}))
    (tmp_path / "many" / shard).unlink()
    user_error(lambda: load(tmp_path / "many", "cpu"), index, shard, "not there")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\0" * 99,
        b'{"a": 1' + b"0" * 9999,
    ],
    ids=range(10),
)
def test_invalid_json(tmp_path: Path, folders: Path, file: str, content: bytes) -> None:
    folder = changed(folders, "gpt2", tmp_path / "a")
    (folder / file).write_bytes(content)
    user_error(lambda: load(folder, "cpu"), folder / file)


@pytest.mark.parametrize("cut", [0, 5, 8, 100, 3000])
def test_truncated_weights(tmp_path: Path, folders: Path, cut: int) -> None:
    folder = changed(folders, "llama", tmp_path / "a")
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(raw[:cut])
    user_error(lambda: load(folder, "cpu"), folder / "model.safetensors", "safetensors")
    (folder / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + raw[8:])
    user_error(lambda: load(folder, "cpu"), folder / "model.safetensors", "safetensors")


def test_missing_tokenizers(tmp_path: Path, folders: Path) -> None:
    folder = changed(folders, "gpt2", tmp_path / "a")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")
    user_error(lambda: load(folder, "cpu"), folder, "no tokenizer.json", "AutoTokenizer.from_pretrained")
    folder = changed(folders, "marian", tmp_path / "b")
    (folder / "tokenizer.json").unlink()
    (folder / "source.spm").write_bytes(b"")
    user_error(lambda: load(folder, "cpu"), folder, "no vocab.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": {"height": 9, "width": 15}}, ["size="]),
        ({"do_resize": False}, ["do_resize=False"]),
        ({"do_center_crop": True}, ["do_center_crop=True"]),
        ({"rescale_factor": 1.0}, ["rescale_factor=1.0"]),
        ({"image_mean": [0.5, 0.5, 0.5, 0.5]}, ["image_mean"]),
        ({"image_std": 3}, ["image_std"]),
        ({"image_std": [0.0]}, ["image_std"]),
    ],
)
def test_unsupported_image_preprocessing(
    tmp_path: Path, folders: Path, changes: Any, words: list[str]
) -> None:
    folder = changed(folders, "vit", tmp_path / "a", "preprocessor_config.json", **changes)
    user_error(lambda: load(folder, "cpu"), folder / "preprocessor_config.json", *words)
