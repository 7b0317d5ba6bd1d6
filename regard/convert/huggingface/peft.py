"""Adapters in the layout of PEFT: low-rank updates of a model's weights, in separate files.

Shapes: O outputs, I inputs, r rank.
"""

import math
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.convert.export import ExportRequest
from regard.convert.huggingface import gpt2, llama
from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import Family, their_name
from regard.convert.huggingface.files import ADAPTER, ADAPTER_CONFIG
from regard.convert.model_card import adapter_card
from regard.describe.export import layout, without_head
from regard.errors import UserError, shorten
from regard.files.atomic import atomic_folder
from regard.files.tensors import Tensors, read_tensors
from regard.files.untrusted import read_json
from regard.models import GPT

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<matrix>[AB])(?:\.default)?\.weight")
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False,),
    "modules_to_save": (None, []),
    "layer_replication": (None,),
    "megatron_config": (None,),
}

Matrices = dict[str, tuple[Tensor, Tensor]]  # A (r, I) and B (O, r), by our name of the weight W (O, I)


def family_of(model: nn.Module) -> Family | None:
    """The family that a model belongs to in transformers; None for one that is not there, which PEFT knows by
    our names. Raises UserError for what is no language model."""
    if layout(model) != "decoder" or without_head(model) is not model:
        raise UserError("an adapter is for a language model (a GPT); train this one without --adapter")
    if type(model) is not GPT:
        return None
    config: Any = model.config
    family = gpt2.FAMILY if config.positions == "learned" else llama.FAMILY
    family.describe(model)
    return family


# Writing


def adapter_tensors(model: nn.Module, matrices: Matrices) -> Tensors:
    """The low-rank updates of queries and values, by PEFT's names. GPT-2 has queries, keys and values as one
    matrix, whose update stacks those of queries and values."""
    family, tensors = family_of(model), Tensors()
    if family is gpt2.FAMILY:
        by_block = Matrices()
        for name in [name for name in matrices if name.endswith(".q.weight")]:
            (A, B), (A_v, B_v) = matrices[name], matrices[name.replace(".q.", ".v.")]
            zeros = B.new_zeros(2 * len(B), len(A))
            by_block[name] = (
                torch.cat([A, A_v]),
                torch.cat([torch.cat([B, zeros]), torch.cat([zeros, B_v])], 1),
            )
        matrices = by_block
    for ours, (A, B) in matrices.items():
        module = ours.removesuffix(".weight")
        if family is not None:
            module = their_name(family.names, ours).removesuffix(".weight")
            is_gpt2 = family is gpt2.FAMILY
            module = f"transformer.{module.removesuffix('.q')}.c_attn" if is_gpt2 else f"model.{module}"
        for letter, matrix in (("A", A), ("B", B)):
            tensors[f"base_model.model.{module}.lora_{letter}.weight"] = matrix.contiguous()
    return tensors


def adapter_config(model: nn.Module, base: str, rank: int, alpha: float) -> dict[str, Any]:
    family = family_of(model)
    is_gpt2 = family is gpt2.FAMILY
    adapted = ["q", "v"] if family is None else ["c_attn"] if is_gpt2 else ["q_proj", "v_proj"]
    return {
        "peft_type": "LORA",
        "task_type": None if family is None else "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank * (1 + is_gpt2),
        "lora_alpha": alpha * (1 + is_gpt2),
        "lora_dropout": 0.0,
        "target_modules": adapted,
        "fan_in_fan_out": is_gpt2,
        "bias": "none",
        "modules_to_save": None,
        "inference_mode": True,
    }


def export_peft(folder: str | Path, request: ExportRequest) -> str:
    """Write the adapter of a run as a folder that PEFT reads, with the tokenizer and the chat template."""
    if request.adapter is None:
        raise UserError("--to peft writes the adapter of a run that was trained with --adapter; use --to hf")
    with atomic_folder(Path(folder)) as temporary:
        for name in (ADAPTER, ADAPTER_CONFIG, *TEXT_FILES):
            if (request.adapter / name).exists():
                shutil.copyfile(request.adapter / name, temporary / name)
        base = str(read_json(temporary / ADAPTER_CONFIG).get("base_model_name_or_path"))
        text = adapter_card(str(request.task["name"]), base, request.card)
        (temporary / "README.md").write_text(text, encoding="utf-8")
    return ""


# Reading


def read_adapter(folder: Path, model: nn.Module) -> Tensors:
    """Read the updates of an adapter, by Regard's names of the weights."""
    path = folder / ADAPTER_CONFIG
    if not path.is_file() or not (folder / ADAPTER).is_file():
        raise UserError(f"{folder}: no adapter; it should have {ADAPTER} and {ADAPTER_CONFIG}")
    config = read_json(path)
    for key, values in SUPPORTED.items():
        if key in config and config[key] not in values:
            raise UserError(f"{path}: {key}={shorten(config[key])} is not supported; merge it with PEFT")
    family, updates = family_of(model), Tensors()
    room = sum(p.numel() for p in model.parameters())  # a low-rank matrix is small, and its product large
    for module, (A, B) in pair_matrices(folder / ADAPTER).items():
        name = f"{module}.weight"
        room -= len(B) * A.shape[1]
        if room < 0:  # more than the model has, and perhaps more than fits into memory
            raise misplaced(folder, name)
        update = scaling(config, module, len(A), path) * (B.double() @ A.double())  # (O, I)
        updates[name] = update.T if gpt2.TRANSPOSED.search(name) else update
    if family is not None:
        updates = family.unpack(updates, Config({"tie_word_embeddings": False}, path))
    changes = Tensors()
    for ours, W in model.state_dict().items():
        if (name := ours if family is None else their_name(family.names, ours)) in updates:
            update = updates.pop(name)
            changes[ours] = update if family is None else family.from_theirs(ours, update, model.config)
            if changes[ours].shape != W.shape:
                raise misplaced(folder, name)
    for name in updates:
        raise misplaced(folder, name)
    return changes


def misplaced(folder: Path, name: str) -> UserError:
    return UserError(f"{folder / ADAPTER}: {name} does not fit this model; give the one it was trained from")


def pair_matrices(path: Path) -> Matrices:
    """A and B of each module that an adapter changes."""
    tensors = read_tensors(path)
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, t in tensors.items():
        if (match := KEY.fullmatch(key)) is None or t.ndim != 2 or not t.is_floating_point():
            raise UserError(f"{path}: {key} is not supported, only low-rank matrices of linear layers")
        pairs.setdefault(match["module"], {})[match["matrix"]] = t
    for module, pair in pairs.items():
        if len(pair) < 2 or len(pair["A"]) != pair["B"].shape[1] or not len(pair["A"]):
            raise UserError(f"{path}: A and B of {module} don't belong together; copy the adapter again")
    return {module: (pair["A"], pair["B"]) for module, pair in pairs.items()}


def scaling(config: dict[str, Any], module: str, rank: int, path: Path) -> float:
    """α/r, or α/√r of a rank-stabilized one (Kalajdzievski 2023)."""
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise UserError(f"{path}: alpha_pattern={shorten(patterns)} should be an object of numbers by names")
    names = [name for name in patterns if module == name or module.endswith(f".{name}")]
    alpha = patterns[names[0]] if names else config.get("lora_alpha", 8)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise UserError(f"{path}: lora_alpha={shorten(alpha)} is not a number")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
