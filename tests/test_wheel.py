"""The wheel: built from this folder, installed by itself, and used from an empty folder."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
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
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools, to build without a network")
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_the_demo_in_a_clean_environment(wheel: Path, tmp_path: Path, kind: str) -> None:
    """`pip install FILE`, then `regard demo` in an empty folder. The other packages are those of this
    environment, by a .pth file, which leads to no other `regard`."""
    file, here, venv = wheel, tmp_path / "here", tmp_path / "venv"
    here.mkdir()
    if kind == "sdist":
        code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
        run(sys.executable, "-c", code, cwd=wheel.parent / "source")
        (file,) = tmp_path.glob("*.tar.gz")
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=here)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    pip = (sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", *options)
    run(*pip, file, cwd=here, PYTHONPATH="")
    code = "import regard; print(regard.__file__)"
    location = run(venv / "bin/python", "-c", code, cwd=here, PYTHONPATH="")
    assert Path(location.strip()).is_relative_to(venv)
    output = run(venv / "bin/regard", "demo", cwd=here, PYTHONPATH="")
    assert "I am fine." in output
    assert (here / "runs" / "demo" / "model.safetensors").is_file()
