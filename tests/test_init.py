"""What `import regard` gives, and what it does not load."""

import importlib
import subprocess
import sys

import pytest

import regard


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_importing_loads_no_torch() -> None:
    code = (
        "import sys, regard, regard.cli; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    )
    assert python(code) == "[]\n"


def test_names_are_sorted_and_known() -> None:
    assert set(regard.__all__) == set(regard._HOMES)
    assert len(regard.__all__) == len(set(regard.__all__))
    assert all(getattr(regard, name).__name__ == name for name in regard.__all__)


@pytest.mark.parametrize("name", ["train", "generate", "look", "trace"])
def test_functions_stay_functions(name: str) -> None:
    module = importlib.import_module(f"regard.{name}")
    assert getattr(regard, name) is getattr(module, name)
    assert callable(getattr(regard, name))
    assert importlib.import_module(f"regard.{name}") is module
    assert callable(getattr(regard, name))


def test_functions_stay_functions_in_any_order() -> None:
    code = (
        "import regard.train, regard.generate, regard.trace, regard\n"
        "from regard import train, generate, trace, load\n"
        "from regard.train import free_folder\n"
        "import regard.train as again\n"
        "print(*map(callable, (regard.train, regard.generate, regard.trace, train, generate, trace, load)))"
    )
    assert python(code).split() == ["True"] * 7


def test_other_modules_are_modules() -> None:
    import regard.checkpoint

    assert regard.checkpoint.save


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'trian'"):
        _ = regard.trian
    with pytest.raises(ImportError, match="trian"):
        from regard import trian  # noqa: F401
