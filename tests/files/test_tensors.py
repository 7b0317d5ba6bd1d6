"""Safetensors files: readable by the library, checked when read, and the same bytes for the same tensors."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from helpers.disks import MODEL, counted, damages, equal, every_kind
from helpers.errors import user_error
from regard.errors import UserError
from regard.files import tensors
from regard.files.tensors import read_tensors, write_tensors


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", every_kind()
    write_tensors(path, tensors)
    assert equal(safetensors.torch.load_file(path), tensors)
    assert equal(read_tensors(path), tensors)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "pt"
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0  # so that numbers are aligned


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", {n: t.contiguous() for n, t in every_kind().items()}
    safetensors.torch.save_file(tensors, path)
    assert equal(read_tensors(path), tensors)


def test_nothing_to_write(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {})
    assert read_tensors(tmp_path / "a") == safetensors.torch.load_file(tmp_path / "a") == {}


def test_the_same_tensors_are_the_same_bytes(tmp_path: Path) -> None:
    tensors = every_kind()
    write_tensors(tmp_path / "a", tensors)
    write_tensors(tmp_path / "b", dict(reversed(tensors.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_tensors(tmp_path / "b", tensors | {"turned": tensors["turned"] + 1})
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_no_damage_to_a_file_gives_other_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, MODEL)
    content, noticed = path.read_bytes(), 0
    for bad in (all_bad := damages(content)):
        path.write_bytes(bad)
        try:
            assert equal(read_tensors(path), MODEL)  # "format": "pt" may have become something else
        except UserError:
            noticed += 1
    assert noticed > 0.8 * len(all_bad)
    n = sum(t.nbytes for t in MODEL.values())
    for bad in damages(content[-n:])[: 4 * n]:  # those in the numbers are all noticed
        path.write_bytes(content[:-n] + bad)
        user_error(lambda: read_tensors(path), path, "SHA-256")


def test_changes_of_the_file_do_not_reach_tensors_that_were_read(tmp_path: Path) -> None:
    path, before = tmp_path / "a.safetensors", {"w": torch.ones(3, 5), "b": torch.ones(7)}
    write_tensors(path, before)
    tensors = read_tensors(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size - 88)
        file.write(b"\0" * 88)
    assert equal(tensors, before)
    with path.open("r+b") as file:
        file.truncate(1)  # reading a mapped file would end the process
    assert equal(tensors, before)


def test_file_that_is_truncated_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"w": torch.ones(3, 50_021)})

    def truncating(like: torch.Tensor) -> torch.Tensor:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 1)
        return torch.empty(like.shape, dtype=like.dtype)

    monkeypatch.setattr(torch, "empty_like", truncating)
    user_error(lambda: read_tensors(path), path, "truncated")


def test_no_such_file(tmp_path: Path) -> None:
    user_error(lambda: read_tensors(tmp_path / "a"), tmp_path / "a", "no such file")
    user_error(lambda: read_tensors(tmp_path), tmp_path, "a folder, not a file")


def test_tensors_are_replaced_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_tensors(path, MODEL)
    monkeypatch.setattr(
        tensors, "raw_bytes", counted(tensors.raw_bytes, fails_at=4)
    )  # 2 for the digest, 2 to write
    with pytest.raises(OSError, match="No space"):
        write_tensors(path, {"w": torch.zeros(2), "b": torch.zeros(3)})
    monkeypatch.undo()
    assert equal(read_tensors(path), MODEL)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
