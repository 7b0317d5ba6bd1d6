"""What is written of a private model or a private corpus is as private: never readable for more users."""

import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import regard
from helpers.commands import call
from helpers.runs import tiny
from regard.data.encoding import DataConfig
from regard.data.shards import prepare
from regard.files.atomic import DRAFT
from regard.runs.export import EXPORTS, export

BPE = {"data__tokenizer": "bpe", "data__vocab": 300, "model__dim": 32, "model__heads": 2, "train__micro": 3}


@pytest.fixture(scope="module", autouse=True)
def umask() -> Iterator[None]:
    old = os.umask(0o022)
    yield
    os.umask(old)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data") / "a.txt"
    data.write_text("The quick brown fox jumps over the lazy dog, again and again.\n" * 99)
    return data


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    tiny(str(data), data.parent / "run", steps=2, **BPE)
    return hidden(data.parent / "run")


@pytest.fixture(scope="module")
def adapted(data: Path) -> Path:
    """A public adapter of a private model."""
    base, run = data.parent / "base", data.parent / "adapter"
    tiny(str(data), base, steps=2, **BPE)
    tiny(str(data), run, base=str(base), steps=2, train__lora=2, train__adapter=True, **BPE)
    hidden(base)
    return run


def hidden(folder: Path) -> Path:
    (folder / "model.safetensors").chmod(0o600)
    return folder


def visible(*paths: Path) -> list[Path]:
    """The files among these, and in these folders, that other users can read."""
    files = [p for path in paths for p in (path, *path.rglob("*")) if p.is_file()]
    assert files
    return [file for file in files if file.stat().st_mode & 0o077]


@pytest.mark.parametrize("to", EXPORTS)
def test_exports(run: Path, adapted: Path, tmp_path: Path, to: str) -> None:
    model = regard.load(adapted if to == "peft" else run, "cpu")
    name = {"gguf": "a.gguf", "word2vec": "a.txt"}.get(to, "a")
    export(model, tmp_path / name, to)
    assert not visible(tmp_path)
    if name == "a":
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
    if to == "hf":
        (tmp_path / "disk").mkdir()
        export(model, tmp_path / "disk", to)
        assert not visible(tmp_path)
        assert stat.S_IMODE((tmp_path / "disk").stat().st_mode) == 0o755  # somebody else's folder


def test_an_export_in_fewer_bits(run: Path, tmp_path: Path) -> None:
    assert call("export", run, tmp_path / "a", "--dtype", "int8") == 0
    assert not visible(tmp_path)


def test_what_looking_saves(run: Path, tmp_path: Path) -> None:
    for name, *words in (("model.html",), ("a.html", "the fox"), ("a.safetensors", "the fox")):
        assert call("look", run, *words, "--save", tmp_path / name) == 0
    assert not visible(*(tmp_path / name for name in ("model.html", "a.html", "a.safetensors")))


def test_a_merged_adapter_is_as_private_as_its_base_and_itself(
    run: Path, adapted: Path, data: Path, tmp_path: Path
) -> None:
    export(regard.load(adapted, "cpu"), tmp_path / "merged")
    updates = data.parent / "updates"
    export(regard.load(adapted, "cpu"), updates, "peft")
    public = data.parent / "base" / "model.safetensors"
    public.chmod(0o644)
    try:
        export(regard.load(public.parent, "cpu", adapter=updates), tmp_path / "added")
        export(regard.load(public.parent, "cpu"), tmp_path / "public")
    finally:
        public.chmod(0o600)
    assert not visible(tmp_path / "merged", tmp_path / "added")
    assert len(visible(tmp_path / "public")) > 3


def test_a_private_folder_hides_its_files(run: Path, tmp_path: Path) -> None:
    weights = run / "model.safetensors"
    for group, mode in ((0o755, 0o640), (0o750, 0o644)):
        run.chmod(group)
        weights.chmod(mode)
        export(regard.load(run, "cpu"), tmp_path / f"{group:o}")
        assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / f"{group:o}").iterdir()} == {0o640}
    run.chmod(0o755)
    hidden(run)


def test_nobody_looks_into_a_draft(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []

    def write(folder: Path, request: Any) -> None:
        (folder / "a.txt").write_text("secret")
        modes.append(folder.stat().st_mode & 0o077)

    monkeypatch.setattr("regard.convert.huggingface.export.write_folder", write)
    (tmp_path / "disk").mkdir()
    for name in ("new", "disk"):
        export(regard.load(run, "cpu"), tmp_path / name)
    assert modes == [0, 0]
    assert not (tmp_path / "disk" / DRAFT).exists()


@pytest.mark.parametrize("where", ["file", "folder", "inside"])
def test_shards_of_a_private_corpus(data: Path, tmp_path: Path, where: str) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("a.txt", "b.txt"):
        (corpus / name).write_bytes(data.read_bytes())
    {"file": corpus / "a.txt", "folder": corpus, "inside": corpus / "b.txt"}[where].chmod(0o700)
    paths = [str(corpus / "a.txt")] if where == "file" else [str(corpus)]
    write = partial(prepare, paths, config=DataConfig(tokenizer="bpe", vocab=300), specials=[])
    write(out=tmp_path / "all")
    assert not visible(tmp_path / "all")
    if where != "file":
        for number in (1, 2):
            write(out=tmp_path / "parts", part=(number, 2))
        assert not visible(tmp_path / "parts")
