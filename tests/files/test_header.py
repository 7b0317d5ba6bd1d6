"""The header of a safetensors file tells what `read_tensors` would give."""

from pathlib import Path

import pytest
import torch

from helpers.errors import user_error
from regard.files.header import read_header
from regard.files.tensors import write_tensors


def test_names_shapes_and_dtypes(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"x": torch.zeros(3, 5), "y": torch.zeros(7, dtype=torch.bfloat16), "n": torch.zeros(2).long()}
    write_tensors(path, tensors)
    header = read_header(path)
    assert header.shapes == {"x": (3, 5), "y": (7,), "n": (2,)}
    assert header.dtypes == {"x": "float32", "y": "bfloat16", "n": "I64"}
    assert (header.weights, header.bytes) == (22, path.stat().st_size)


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]", b"\x02\0\0\0\0\0\0\0{}x"]
)
def test_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    user_error(lambda: read_header(path), str(path), "damaged")


def test_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.zeros(3, 5)})
    path.write_bytes(path.read_bytes()[:-1])
    user_error(lambda: read_header(path), str(path), "damaged")
