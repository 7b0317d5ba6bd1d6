"""The header of a safetensors file: its list of tensors, without reading them. Needs no torch."""

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

from regard.errors import UserError, os_reason
from regard.files.regular import regular_stat

MAX_HEADER = 100_000_000  # bytes, as in the safetensors library
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Header:
    """The tensors of a file: dtype and shape by name."""

    dtypes: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    bytes: int  # of the file

    @property
    def weights(self) -> int:
        """The total size of the floating-point tensors."""
        return sum(prod(self.shapes[name]) for name, dtype in self.dtypes.items() if dtype in DTYPES.values())


def read_header(path: Path) -> Header:
    """Return the contents of a safetensors file. Raise UserError if it is damaged or has the wrong length."""
    try:
        size = regular_stat(path).st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, MAX_HEADER):
                raise ValueError("no header")
            tensors = json.loads(file.read(length))
        tensors.pop("__metadata__", None)
        last = max((t["data_offsets"][1] for t in tensors.values()), default=0)
        if 8 + length + last != size:
            raise ValueError(f"{size} bytes instead of {8 + length + last}")
        dtypes = {name: DTYPES.get(t["dtype"], str(t["dtype"])) for name, t in tensors.items()}
        return Header(dtypes, {name: tuple(map(int, t["shape"])) for name, t in tensors.items()}, size)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({os_reason(e)})") from None
    except UserError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as e:
        raise UserError(f"{path}: damaged or not safetensors ({e}); copy it again") from None
