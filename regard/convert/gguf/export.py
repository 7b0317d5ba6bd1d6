"""Export a Llama-like model as a GGUF file, for llama.cpp and the programs that are built on it.

The file is written by the package gguf. It is kept only if Regard's own reader, an independent program, finds
the same tokens in it and, without quantisation, the same logits.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor, nn

from regard.convert.export import ExportRequest, import_extra
from regard.convert.gguf.llamacpp import FREQUENCIES, INTERLEAVED, KEYS, NAMES, read_gguf
from regard.convert.gguf.tokenizer import BYTE, CONTROL, USER_DEFINED, byte_level_steps
from regard.convert.huggingface import llama
from regard.convert.huggingface.family import export_weights, require_settings
from regard.core.positions import scale_frequencies
from regard.describe.export import ExportedModel
from regard.errors import UserError
from regard.files.atomic import atomic_file, is_missing
from regard.models import GPT

TYPES = {"auto": "F16", "float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
EXACT = {"F32": 1e-4, "F16": 2e-2, "BF16": 0.1}  # tolerance of the logits, relative to the largest
SPLITS = {"gpt2": "gpt-2", "digits": "smollm", "llama3": "llama-bpe", "qwen2": "qwen2"}  # their names
NORMAL, UNKNOWN = 1, 2  # types of tokens
CHECKED = 64  # tokens of each text whose logits are compared
NO_TOKENIZER = (
    "a GGUF file cannot hold this model's tokenizer; train with --set data.tokenizer=bpe, or use --to hf"
)


def export_gguf(path: str | Path, request: ExportRequest) -> str:
    """Write a new file; return the result of its check."""
    package, path = import_extra("gguf"), Path(path)
    if path.suffix != ".gguf":
        raise UserError(f"{path}: --to gguf writes a file; name it something.gguf")
    if not is_missing(path):
        raise UserError(f"{path} exists; choose another name, or delete it if you don't need it")
    model = request.model
    if type(model) is not GPT:
        kind = type(getattr(model, "model", model)).__name__
        raise UserError(f"--to gguf is for GPTs in Llama's shape, not for a {kind}; use --to hf or --to onnx")
    require_settings(model.config, "llama.cpp", sliding_window=None)
    config = llama.describe(model)
    with atomic_file(path) as partial:
        write_file(package, partial, request, config)
        return check_file(partial, request)


def write_file(package: Any, path: Path, request: ExportRequest, config: dict[str, Any]) -> None:
    kind, model = str(config["model_type"]), request.model
    writer = package.GGUFWriter(str(path), kind)
    writer.add_quantization_version(package.GGML_QUANT_VERSION)
    for key, theirs in KEYS.items():
        if (value := config.get(theirs)) is not None:
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(f"{kind}.{key}", value)
    head_dim = model.config.head_dim or model.config.dim // model.config.heads
    writer.add_rope_dimension_count(head_dim)
    if "head_dim" in config:
        writer.add_value_length(head_dim)
    write_tokenizer(writer, request)
    if request.card.name:
        writer.add_name(request.card.name)
    if request.card.license:
        writer.add_license(request.card.license)
    family = replace(
        llama.FAMILY,
        names=NAMES,
        to_theirs=interleave if kind in INTERLEAVED else llama.FAMILY.to_theirs,
    )
    tensors = export_weights(family, model)
    if model.config.rope_scaling:
        frequencies = model.config.base ** (-torch.arange(0, head_dim, 2) / head_dim)
        tensors[FREQUENCIES] = frequencies / scale_frequencies(frequencies, *model.config.rope_scaling)
    for name, t in tensors.items():
        type_name = TYPES[request.dtype] if t.ndim == 2 else "F32"
        if t.shape[-1] % 32 and type_name.startswith("Q"):
            type_name = "F16"  # blocks have 32 numbers of a row
        quant = package.GGMLQuantizationType[type_name]
        data = package.quants.quantize(np.ascontiguousarray(t.float().numpy()), quant)
        writer.add_tensor(name, data, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave(name: str, t: Tensor, config: Any) -> Tensor:
    """Queries and keys whose rotary pairs are half a head apart, with the pairs as neighbours instead."""
    if not name.rpartition(".")[0].endswith(("attn.f.q", "attn.f.k")):
        return t
    heads = config.heads if ".q." in name else config.kv_heads or config.heads
    return t.reshape(heads, 2, -1, *t.shape[1:]).transpose(1, 2).reshape(t.shape)


# The tokenizer


def write_tokenizer(writer: Any, request: ExportRequest) -> None:
    if request.tokenizer is None:
        raise UserError(NO_TOKENIZER)
    content = json.loads(request.tokenizer)
    inner = content["model"]
    if inner["type"] != "BPE":
        raise UserError(NO_TOKENIZER)
    added = {token["content"]: token["special"] for token in content["added_tokens"]}
    vocab = inner["vocab"] | {token["content"]: token["id"] for token in content["added_tokens"]}
    pieces = list_pieces(vocab, request.model.config.vocab)
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in inner["merges"]]
    if inner.get("byte_fallback"):
        writer.add_tokenizer_model("llama")
        rank = {left + right: -float(i) for i, (left, right) in reversed(list(enumerate(merges, 1)))}
        writer.add_token_scores([rank.get(piece, 0.0) for piece in pieces])
        steps = json.dumps([content["normalizer"], content["pre_tokenizer"]])
        writer.add_add_space_prefix('"Prepend"' in steps or '"always"' in steps or '"first"' in steps)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(SPLITS[name_split(content)])
        writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_token_list(pieces)
    writer.add_token_types([token_type(piece, added, inner.get("unk_token")) for piece in pieces])
    write_special_tokens(writer, request, vocab)


def list_pieces(vocab: dict[str, int], count: int) -> list[str]:
    """The tokens in the order of their ids; ids without a token get names that occur in no text."""
    by_id = {id: piece for piece, id in vocab.items()}
    return [by_id.get(id, f"[unused{id}]") for id in range(count)]


def token_type(piece: str, added: dict[str, bool], unknown: str | None) -> int:
    if piece == unknown:
        return UNKNOWN
    if piece in added:
        return CONTROL if added[piece] else USER_DEFINED
    return BYTE if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">") else NORMAL


def name_split(content: dict[str, Any]) -> str:
    """How a byte-level tokenizer splits a text before it encodes the words."""
    mine = flat_steps(content["pre_tokenizer"])
    for name in SPLITS:
        steps, normalizer = byte_level_steps(name)
        probe = tokenizers.Tokenizer(tokenizers.models.BPE())
        probe.pre_tokenizer, probe.normalizer = steps, normalizer
        other = json.loads(probe.to_str())
        if mine == flat_steps(other["pre_tokenizer"]) and content["normalizer"] == other["normalizer"]:
            return name
    raise UserError(NO_TOKENIZER)


def flat_steps(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer, without steps that only change offsets."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [inner for one in step["pretokenizers"] for inner in flat_steps(one)]
    return [{key: value for key, value in step.items() if key != "trim_offsets"}]


def write_special_tokens(writer: Any, request: ExportRequest, vocab: dict[str, int]) -> None:
    roles = {role.removesuffix("_token"): vocab.get(name) for role, name in request.special_tokens.items()}
    first = request.first[0] if len(request.first) == 1 else roles.get("bos")
    ends = [*request.ends] or ([] if request.end is None else [request.end])
    ids = {"bos": first, "pad": roles.get("pad"), "unk": roles.get("unk")}
    ids |= dict(zip(("eos", "eot", "eom"), ends, strict=False))
    for role, id in ids.items():
        if id is not None:
            getattr(writer, f"add_{role}_token_id")(id)
    writer.add_add_bos_token(bool(request.first))
    if request.chat_template is not None:
        writer.add_chat_template(request.chat_template)


# The check


def check_file(path: Path, request: ExportRequest) -> str:
    """Read the file again, and check the tokens and, within its precision, the logits."""
    there = read_gguf(path)
    assert request.tokenizer is not None
    here = tokenizers.Tokenizer.from_str(request.tokenizer)
    texts = [here.decode(list(ids), skip_special_tokens=False) for ids in request.samples]
    for text in texts:
        mine = here.encode(text, add_special_tokens=False).ids
        if mine != there.tokenizer.encode(text, add_special_tokens=False).ids:
            raise UserError(f"{NO_TOKENIZER}: it splits {text[:40]!r} in another way")
    kind = TYPES[request.dtype]
    worst = largest_difference(request.model, there.model, request.samples)
    if worst > EXACT.get(kind, np.inf):
        raise UserError(f"the logits of the file differ by {worst:.2g} of the largest, so it was not kept")
    size = path.stat().st_size / 2**20
    return f"{kind}, {size:.1f} MiB; the same tokens, logits within {worst:.1%} of the largest"


def largest_difference(model: ExportedModel, other: nn.Module, samples: Sequence[Sequence[int]]) -> float:
    """The largest difference of two models' logits, relative to the largest logit."""
    worst = 0.0
    with torch.no_grad():
        for ids in samples[:8]:
            row = torch.tensor([list(ids[: min(CHECKED, model.config.context)])])
            mine, theirs = model(row), other(row)
            worst = max(worst, float((mine - theirs).abs().max() / mine.abs().max()))
    return worst
