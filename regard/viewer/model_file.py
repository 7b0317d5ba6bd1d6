"""The file that is the model: the page, with the weights and the program that its engine runs offline."""

import base64
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.quantize.weights import Int8Weight, SmallWeight, dequantized
from regard.runs.model import Model
from regard.viewer.html import html_page
from regard.viewer.program import Program
from regard.viewer.session import Session

MAX_WEIGHTS = 100_000_000  # a browser takes minutes to open a file of more
ENGINE = "local"  # what the names of the engine's modules begin with


def pack_weights(weights: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Weights as base64: float32, or eight bits with a scale for each row if the model was loaded so. One
    that has several names is there once."""
    packed: dict[str, dict[str, Any]] = {}
    names: dict[tuple[Any, ...], str] = {}
    for name, weight in weights.items():
        t = dequantized(weight).detach().float().cpu().contiguous()
        key = (id(weight),) if isinstance(weight, SmallWeight) else (t.data_ptr(), t.shape)
        like = names.setdefault(key, name)
        if like != name and torch.equal(t, dequantized(weights[like]).float()):
            packed[name] = {"shape": list(t.shape), "data": "", "like": like}
        elif isinstance(weight, SmallWeight) and weight.name == "int8":
            integers, scale = Int8Weight.from_float(t).parts
            packed[name] = {"shape": list(t.shape), "data": encode(integers), "scale": encode(scale)}
        else:
            packed[name] = {"shape": list(t.shape), "data": encode(t)}
    return packed


def encode(t: Tensor) -> str:
    return base64.b64encode(t.contiguous().numpy().tobytes()).decode()
