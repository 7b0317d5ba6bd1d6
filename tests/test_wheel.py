"""The wheel: built from this folder, installed with what it needs, and used from an empty folder."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*words: object, cwd: Path, **more: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | more,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # building writes into the folder that it builds
    names = run("git", "ls-files", "-z", "-c", "-o", "--exclude-standard", "regard", cwd=ROOT).split("\0")
    for name in [*filter(None, names), "pyproject.toml", "README.md", "LICENSE"]:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    code = f"from setuptools import build_meta; print(build_meta.build_wheel({str(folder)!r}))"
    run(sys.executable, "-c", code, cwd=source)
    (path,) = folder.glob("*.whl")
    return path


def test_everything_is_in_it(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("regard/")}
    needed = {str(p.relative_to(ROOT)) for p in (ROOT / "regard").rglob("*") if p.is_file()}
    assert {name for name in needed if "__pycache__" not in name} - inside == set()


def test_the_source_archive_has_it_all_too(wheel: Path, tmp_path: Path) -> None:
    source = wheel.parent / "source"
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", code, cwd=source)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("regard/")} <= inside


def test_it_works_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    zipfile.ZipFile(wheel).extractall(site)  # as `pip install --no-deps --target` does
    tiny = "--steps 2 --set dim=8 --set depth=1 --set heads=2 --device cpu"
    lines = [
        "--help",
        f"train chat --out runs/a {tiny}",
        "runs",
        "ask runs/a Hi",
        "look runs/a Hi --save a.html",
    ]
    script = (
        "import regard\nfrom regard.cli import main\nprint(regard.__file__)\n"
        f"for line in {lines}:\n"
        "    try:\n        main(line.split())\n"
        "    except SystemExit as end:\n        assert not end.code, line\n"
    )
    output = run(sys.executable, "-c", script, cwd=here, PYTHONPATH=str(site))
    assert Path(output.splitlines()[0]).is_relative_to(site)
    assert "commands:" in output
    assert "finished" in output  # in the list of runs
    assert (here / "a.html").stat().st_size > 10_000


@pytest.fixture(scope="module")
def clean(wheel: Path) -> Iterator[Path]:
    """An environment with nothing but the wheel and what pip finds for it: a gigabyte, not to be kept."""
    venv = wheel.parent / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=venv.parent)
    pip(venv, "--constraint", ROOT / "constraints.txt", wheel)
    yield venv
    shutil.rmtree(venv)


def pip(venv: Path, *words: object) -> None:
    run(venv / "bin/python", "-m", "pip", "install", "--quiet", *words, cwd=venv, PYTHONPATH="")


@pytest.mark.slow
def test_the_demo_in_a_clean_environment(clean: Path, tmp_path: Path) -> None:
    """`pip install WHEEL`, then `regard demo` in an empty folder."""
    code = "import regard, torch; print(regard.__file__, torch.__file__)"
    files = run(clean / "bin/python", "-c", code, cwd=tmp_path, PYTHONPATH="").split()
    assert all(Path(file).is_relative_to(clean) for file in files)
    assert "I am fine." in run(clean / "bin/regard", "demo", cwd=tmp_path, PYTHONPATH="")
    assert (tmp_path / "runs" / "demo" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_source_archive_in_a_clean_environment(clean: Path, wheel: Path, tmp_path: Path) -> None:
    """pip builds it with what pyproject.toml asks for, and installs as much as the wheel has."""
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", code, cwd=wheel.parent / "source")
    (archive,) = tmp_path.glob("*.tar.gz")
    run(clean / "bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", "regard", cwd=tmp_path)
    pip(clean, "--no-deps", archive)
    (site,) = clean.glob("lib/python*/site-packages")
    files = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("regard/")}
    assert {name for name in files if not (site / name).is_file()} == set()
    tiny = "--steps 2 --set dim=8 --set depth=1 --set heads=2 --device cpu"
    run(clean / "bin/regard", *f"train chat --out runs/a {tiny}".split(), cwd=tmp_path, PYTHONPATH="")
    run(clean / "bin/regard", "ask", "runs/a", "Hi", cwd=tmp_path, PYTHONPATH="")
