"""Runs that keep an adapter: low-rank updates in PEFT's layout, and a pointer to their base model."""

from pathlib import Path

import torch
from torch import nn

from regard.convert.huggingface.files import ADAPTER_CONFIG
from regard.convert.huggingface.hub import HUB, download
from regard.convert.huggingface.peft import adapter_config, read_adapter
from regard.data.digests import file_sha256
from regard.errors import UserError
from regard.files.regular import list_matching
from regard.files.untrusted import read_json, write_json
from regard.quantize.model import dequantize_model
from regard.runs.layout import BASE


def write_base(folder: Path, model: nn.Module, base: str, rank: int, alpha: float) -> None:
    """Write which model an adapter is for, with the SHA-256 of its weights, and the adapter's settings."""
    write_json(folder / BASE, {"path": base, "sha256": digest_base(base)})
    write_json(folder / ADAPTER_CONFIG, adapter_config(model, base, rank, alpha))


def digest_base(base: str) -> dict[str, str]:
    """The SHA-256 of each weight file of an adapter's base model."""
    path = find_path(base)
    if (path / BASE).exists():  # adapters might point at each other
        raise UserError(
            f"{path}: it is an adapter itself; export it to a full model first: regard export {path} FOLDER"
        )
    return digest_weights(base)


def digest_weights(model: str) -> dict[str, str]:
    """The SHA-256 of each weight file of a model."""
    path = find_path(model)
    files = [path] if path.is_file() else list_matching(path, "*.safetensors")
    return {file.name: file_sha256(file) for file in files}


def find_path(model: str) -> Path:
    return download(model) if model.startswith(HUB) else Path(model)


def find_base(folder: Path) -> str:
    """Return the base model of a run's adapter; raise UserError if it is missing or has changed."""
    pointer = read_json(folder / BASE)
    base, digests = pointer.get("path"), pointer.get("sha256")
    if not isinstance(base, str) or not isinstance(digests, dict):
        raise UserError(f"{folder / BASE}: it should have path and sha256; copy the run again")
    if not base.startswith(HUB) and not Path(base).exists():
        raise UserError(
            f"{folder / BASE}: the model that this adapter is for is not at {base}; move it there, or "
            f"give it: regard ask MODEL --adapter {folder}"
        )
    actual = digest_base(base)
    for name in sorted(digests.keys() | actual.keys()):
        if digests.get(name) != actual.get(name):
            raise UserError(
                f"{folder / BASE}: {name} of {base} is not what this adapter was trained with; bring that "
                f"back, or take it as it is: regard ask {base} --adapter {folder}"
            )
    return base


@torch.no_grad()
def merge_adapter(model: nn.Module, folder: Path) -> None:
    """Add an adapter's updates to the weights of a model, which become float32."""
    dequantize_model(model)
    changes = read_adapter(folder, model)
    for name, p in model.named_parameters():
        if name in changes:
            p.data = p + changes[name].to(p)
