"""Models whose layers have weights in few bits."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.memory import allocator
from regard.models.base import LanguageModel
from regard.quantize.weights import (
    GROUP,
    WEIGHTS,
    BFloat16Weight,
    Int4Weight,
    Int8Weight,
    SmallWeight,
    pack_int8,
)

PRECISIONS = tuple(WEIGHTS)
FEWEST = 16  # outputs: a head with few classes takes no time, and is not quantised
LARGEST_COPY = 2**24  # integers of the largest output layer that has a second, packed copy
SCALE = ".scale"  # the end of the name of a weight's scales in a file


def layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """The layers whose weights are quantised, with their names: linear layers, and embeddings of tokens."""
    embeddings = [
        e for m in model.modules() if isinstance(m, LanguageModel) for e in (m.embed, m.target_embed)
    ]
    for name, m in model.named_modules():
        looks_up = any(m is e for e in embeddings)
        if looks_up or (type(m) is nn.Linear and m.out_features >= FEWEST):
            yield name, m, looks_up


def shrink(W: Tensor, dtype: str, looks_up: bool) -> SmallWeight:
    """Quantise a weight. Four bits are too few for embeddings, and need inputs in whole groups."""
    if dtype == Int4Weight.name and (looks_up or W.shape[1] % GROUP):
        dtype = Int8Weight.name
    return WEIGHTS[dtype].from_float(W.detach().float())


@torch.no_grad()
def quantize_model(model: nn.Module, dtype: str) -> None:
    """Quantise the weights of a model's layers, one after another; quantised ones stay unchanged."""
    for _, m, looks_up in layers(model):
        if not is_small(m):
            set_weight(m, shrink(m.weight, dtype, looks_up), looks_up)  # type: ignore[arg-type]
    pack_outputs(model)
    allocator.release()


def pack_outputs(model: nn.Module) -> None:
    """Give output layers that are also embeddings a packed copy, which multiplies a few rows up to twice as
    fast; large ones, which would take most memory, stay as they are."""
    for m in model.modules():
        weight = m.output if isinstance(m, LanguageModel) else None
        if isinstance(weight, Int8Weight) and weight.parts and weight.numel() <= LARGEST_COPY:
            weight.packed = pack_int8(*weight.parts)


def pack_layers(model: nn.Module) -> None:
    """Convert the quantised weights of a model to the layout for products."""
    if not is_quantized(model):
        return
    for _, m, looks_up in layers(model):
        if isinstance(m.weight, SmallWeight):
            set_weight(m, m.weight, looks_up)
    allocator.release()


def is_small(m: nn.Module) -> bool:
    return isinstance(m.weight, SmallWeight)


def is_quantized(model: nn.Module) -> bool:
    return any(isinstance(p, SmallWeight) for p in model.parameters())


def precision_of(model: nn.Module) -> str:
    """The precision that a model was converted to; some layers of one in int4 are in int8."""
    names = {p.name for p in model.parameters() if isinstance(p, SmallWeight)}
    plain = str(next(model.parameters()).dtype).removeprefix("torch.")
    return next((name for name in PRECISIONS if name in names - {"int8"}), "int8" if names else plain)


def set_weight(m: nn.Module, weight: SmallWeight, looks_up: bool) -> None:
    if not looks_up:
        weight.pack()
    m.weight = nn.Parameter(weight, requires_grad=False)


def dequantize_model(model: nn.Module) -> None:
    """Convert a model's weights back to float32, so that they can be trained."""
    for m in model.modules():
        if isinstance(getattr(m, "weight", None), SmallWeight):
            m.weight = nn.Parameter(m.weight.dequantize())  # type: ignore[operator]


# Files: the integers have the weight's name, and the scales have that name with SCALE.


@torch.no_grad()
def quantized_tensors(model: nn.Module, dtype: str) -> dict[str, Tensor]:
    """A model's tensors for a file, with its layers' weights in a precision."""
    tensors = dict(model.state_dict())
    for name, m, looks_up in layers(model):
        weight = m.weight if is_small(m) else shrink(m.weight, dtype, looks_up)  # type: ignore[arg-type]
        assert isinstance(weight, SmallWeight)
        if not weight.parts:  # the layer has them packed
            weight = shrink(weight.dequantize(), dtype, looks_up)
        for end, part in zip(("", SCALE), weight.parts, strict=False):
            tensors[f"{name}.weight{end}"] = part
    return tensors


def join_parts(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, with a `SmallWeight` for each quantised layer of this model."""
    weights = dict(tensors)
    for name in [f"{layer}.weight" for layer, _, _ in layers(model)]:
        q, scale = tensors.get(name), tensors.get(name + SCALE)
        if q is not None and q.dim() == 2 and q.dtype == torch.bfloat16:
            weights[name] = BFloat16Weight(q)
        elif q is not None and scale is not None and (kind := kind_of(q, scale)):
            weights[name] = kind(q, weights.pop(name + SCALE))
    return weights


def kind_of(q: Tensor, scale: Tensor) -> type[SmallWeight] | None:
    """The kind of weight that has these parts."""
    N, n = q.shape if q.dim() == 2 else (0, 0)
    if (q.dtype, scale.dtype, scale.shape) == (torch.int8, torch.float32, (N,)):
        return Int8Weight
    G, rest = divmod(2 * n, GROUP)
    groups = (q.dtype, scale.dtype, scale.shape) == (torch.uint8, torch.bfloat16, (N, G, 2))
    return Int4Weight if groups and not rest else None
