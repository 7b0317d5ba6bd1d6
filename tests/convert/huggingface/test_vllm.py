"""Exported GPTs load in vLLM: its rules, applied to the names, shapes and settings of each folder.

vLLM itself needs a GPU or a build of its own. The rules are those of vLLM's loader at commit a014e35f38c:
https://github.com/vllm-project/vllm/tree/a014e35f38c/vllm/model_executor, in models/registry.py (classes),
models/utils.py (`AutoWeightsLoader`: a weight without a parameter is an error), models/gpt2.py, llama.py,
mistral.py, qwen2.py and qwen3.py (parameters), layers/linear.py (which weights are fused),
layers/vocab_parallel_embedding.py (rows) and model_loader/default_loader.py (a parameter without a weight is
an error).
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from helpers.exports import train_tokens, trained_model
from regard.runs.export import export

ROTARY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ACTIVATIONS = {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "relu2", "silu"}
FUSED = {  # weights that are rows of one parameter, in this order
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
NORM = ("weight", "bias")
GPT2 = {"positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True}
LLAMA3 = (8.0, 1.0, 4.0, 17.0)


def gpt2_parameters(c: dict[str, Any]) -> dict[str, list[tuple[int, ...]]]:
    """The parameters of vLLM's model, each with the shapes of the weights that make it up, in their order."""
    D, H = c["n_embd"], c["n_inner"] or 4 * c["n_embd"]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "transformer.wte.weight": [(c["vocab_size"], D)],
        "transformer.wpe.weight": [(c["n_positions"], D)],
    }
    for layer in range(c["n_layer"]):
        for name, size in {
            "attn.c_attn": (3 * D, D),
            "attn.c_proj": (D, D),
            "mlp.c_fc": (H, D),
            "mlp.c_proj": (D, H),
        }.items():
            shapes[f"transformer.h.{layer}.{name}.weight"] = [size]
            shapes[f"transformer.h.{layer}.{name}.bias"] = [size[:1]]
        shapes |= {f"transformer.h.{layer}.{norm}.{end}": [(D,)] for norm in ("ln_1", "ln_2") for end in NORM}
    return shapes | {f"transformer.ln_f.{end}": [(D,)] for end in NORM}


def rotary_parameters(c: dict[str, Any]) -> dict[str, list[tuple[int, ...]]]:
    D, H, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    is_qwen2 = c["architectures"] == ["Qwen2ForCausalLM"]
    d = D // heads if is_qwen2 else c.get("head_dim") or D // heads
    rows = [heads * d, *[c["num_key_value_heads"] * d] * 2]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "model.embed_tokens.weight": [(c["vocab_size"], D)],
        "model.norm.weight": [(D,)],
    }
    for layer in (f"model.layers.{n}" for n in range(c["num_hidden_layers"])):
        shapes |= {
            f"{layer}.self_attn.qkv_proj.weight": [(n, D) for n in rows],
            f"{layer}.self_attn.o_proj.weight": [(D, heads * d)],
            f"{layer}.mlp.gate_up_proj.weight": [(H, D), (H, D)],
            f"{layer}.mlp.down_proj.weight": [(D, H)],
            f"{layer}.input_layernorm.weight": [(D,)],
            f"{layer}.post_attention_layernorm.weight": [(D,)],
        }
        if is_qwen2:
            shapes[f"{layer}.self_attn.qkv_proj.bias"] = [(n,) for n in rows]
        if c["architectures"] == ["Qwen3ForCausalLM"]:
            shapes |= {f"{layer}.self_attn.{part}_norm.weight": [(d,)] for part in "qk"}
    return shapes


def load_by_rules(c: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Fill the parameters of vLLM's model with these weights, all of each and no more."""
    is_gpt2 = c["architectures"] == ["GPT2LMHeadModel"]
    expected = gpt2_parameters(c) if is_gpt2 else rotary_parameters(c)
    if not c["tie_word_embeddings"]:  # a tied one is the embedding, and a copy in the file would be skipped
        expected["lm_head.weight"] = [(c["vocab_size"], c["n_embd" if is_gpt2 else "hidden_size"])]
    filled: dict[str, dict[int, tuple[int, ...]]] = {}
    for name, weight in weights.items():
        if is_gpt2 and re.search(r"c_attn|c_proj|c_fc", name) and name.endswith(".weight"):
            weight = weight.t()
        *_, part, _ = name.split(".")
        fused, place = FUSED.get(part, (part, 0))
        parameter = name.replace(part, fused)
        assert parameter in expected, f"{name}: vLLM has no such parameter"
        assert place not in filled.setdefault(parameter, {}), name
        filled[parameter][place] = tuple(weight.shape)
    parts = {name: [several[place] for place in sorted(several)] for name, several in filled.items()}
    assert parts == expected


def check_settings(c: dict[str, Any], sizes: dict[str, Any]) -> None:
    """What vLLM reads of config.json beside the shapes."""
    assert c["dtype"] == c["torch_dtype"] == "float32"
    if c["architectures"] == ["GPT2LMHeadModel"]:
        assert c["activation_function"] in ACTIVATIONS
        assert c["n_embd"] % c["n_head"] == 0
        unknown = ("add_cross_attention", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
        assert not any(c.get(key) for key in unknown)
        return
    assert c["architectures"][0] in ROTARY
    assert c["hidden_act"] == "silu"
    assert not any(c.get(key) for key in ("attention_bias", "mlp_bias", "use_sliding_window"))
    assert c["num_attention_heads"] % c["num_key_value_heads"] == 0
    assert c.get("sliding_window") == sizes.get("sliding_window")
    rope, scaling = c["rope_parameters"], c.get("rope_scaling")  # of transformers 5, and of 4
    assert rope["rope_theta"] == c["rope_theta"] == sizes.get("base", 10_000.0)
    kind = "llama3" if "rope_scaling" in sizes else "default"
    assert rope["rope_type"] == kind
    assert (scaling or {"rope_type": "default"}) == {k: v for k, v in rope.items() if k != "rope_theta"}
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        assert tuple(rope[name] for name in names) == LLAMA3


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("GPT2LMHeadModel", GPT2),
        ("GPT2LMHeadModel", GPT2 | {"tied": False, "hidden": 53}),
        ("LlamaForCausalLM", {}),
        (
            "LlamaForCausalLM",
            {"tied": False, "kv_heads": 2, "head_dim": 6, "base": 5e5, "rope_scaling": LLAMA3},
        ),
        ("MistralForCausalLM", {"tied": False, "kv_heads": 2, "sliding_window": 5}),
        ("Qwen2ForCausalLM", {"qkv_bias": True, "kv_heads": 1, "base": 1e6}),
        ("Qwen3ForCausalLM", {"qk_norm": True, "head_dim": 6, "tied": False}),
    ],
)
def test_every_weight_has_its_place(tmp_path: Path, architecture: str, sizes: dict[str, Any]) -> None:
    export(trained_model("gpt", "write", train_tokens("byte", "write"), {}, **sizes), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert config["architectures"] == [architecture]
    load_by_rules(config, weights)
    check_settings(config, sizes)
    name = next(name for name in weights if name.endswith(("norm.weight", "ln_1.weight")))
    for changed in (weights | {f"{name}2": weights[name]}, {k: v for k, v in weights.items() if k != name}):
        with pytest.raises(AssertionError):
            load_by_rules(config, changed)


def bert_parameters(c: dict[str, Any]) -> dict[str, list[tuple[int, ...]]]:
    """Those of vLLM's BertModel in models/bert.py, at commit 002b4cf80b7; q, k and v are fused."""
    D, H = c["hidden_size"], c["intermediate_size"]
    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    shapes: dict[str, list[tuple[int, ...]]] = {
        f"embeddings.{name}_embeddings.weight": [(c[size], D)] for name, size in tables.items()
    }
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{n}" for n in range(c["num_hidden_layers"])):
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
        for part, size, times in (
            ("attention.self.qkv_proj", (D, D), 3),
            ("attention.output.dense", (D, D), 1),
            ("intermediate.dense", (H, D), 1),
            ("output.dense", (D, H), 1),
        ):
            shapes[f"{layer}.{part}.weight"] = [size] * times
            shapes[f"{layer}.{part}.bias"] = [size[:1]] * times
    return shapes | {f"{norm}.{end}": [(D,)] for norm in norms for end in NORM}


@pytest.mark.parametrize(
    ("task", "section", "architecture"),
    [
        ("classify", {"labels": ["a", "b", "c"]}, "BertForSequenceClassification"),
        ("embed", {}, "BertModel"),
    ],
)
def test_every_weight_of_berts_has_its_place(
    tmp_path: Path, task: str, section: dict[str, Any], architecture: str
) -> None:
    """Of classes, and of embeddings, whose pooler vLLM skips: it reads how texts are pooled from the folder,
    as sentence-transformers does."""
    model = trained_model("bert", task, train_tokens("wordpiece", task), section, depth=2)
    export(model, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert config["architectures"] == [architecture]
    assert config["hidden_act"] in ACTIVATIONS
    assert config.get("position_embedding_type", "absolute") == "absolute"
    expected, size = bert_parameters(config), config["hidden_size"]
    if task == "classify":
        expected = {f"bert.{name}": shapes for name, shapes in expected.items()}
        for name, rows in (("bert.pooler.dense", size), ("classifier", len(config["id2label"]))):
            expected |= {f"{name}.weight": [(rows, size)], f"{name}.bias": [(rows,)]}
    else:
        weights = {name: weight for name, weight in weights.items() if not name.startswith("pooler.")}
        assert json.loads((tmp_path / "out" / "modules.json").read_text())[1]["path"] == "1_Pooling"
    filled: dict[str, list[tuple[int, ...]]] = {}
    for name in weights:
        parameter = re.sub(r"\.(query|key|value)\.", ".qkv_proj.", name)
        filled.setdefault(parameter, []).append(tuple(weights[name].shape))
    assert filled == expected
