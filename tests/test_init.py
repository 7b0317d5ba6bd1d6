"""The names of `import regard`, and what it does not load."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import regard


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300
    ).stdout


def test_importing_loads_no_torch() -> None:
    code = (
        "import sys, regard, regard.cli; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    )
    assert python(code) == "[]\n"


def test_loading_a_run_imports_no_compiler() -> None:
    """torch._dynamo and sympy take longer to import than a small model takes to answer."""
    runs = [str(path) for path in (Path(__file__).parent / "runs" / "fixtures").iterdir() if path.is_dir()]
    code = (
        "import sys, regard\n"
        f"models = [regard.load(run, 'cpu').model for run in {runs}]\n"
        "dtypes = 'bfloat16', 'int8', 'int4'\n"
        f"models += [regard.load({runs[0]!r}, 'cpu', dtype).model for dtype in dtypes]\n"
        "tensors = [t for m in models for t in (*m.parameters(), *m.buffers())]\n"
        "print(len(models), any(t.is_meta for t in tensors))\n"
        "from regard.convert.huggingface.family import build_empty\n"  # with a context as today's models have
        "build_empty(lambda: regard.GPT(regard.GPTConfig(vocab=11, dim=8, heads=2, context=9000)), {})\n"
        "print([m for m in ('torch._dynamo', 'sympy') if m in sys.modules])"
    )
    assert python(code) == f"{len(runs) + 3} False\n[]\n"


def test_asking_imports_what_it_needs() -> None:
    """Nearly all the time of `regard ask` is importing: other tasks, formats and servers are not."""
    run = Path(__file__).parent / "runs" / "fixtures" / "chat"
    code = (
        "import gc, sys, regard.cli\n"
        "processes = []\n"  # such as a sandbox, which our own tokenizers need not have
        "sys.addaudithook(lambda event, _: processes.append(1) if event == 'subprocess.Popen' else None)\n"
        f"try:\n    regard.cli.main(['ask', {str(run)!r}, 'Hi'])\n"
        "except SystemExit as end:\n    print(end.code, gc.isenabled(), len(processes))\n"
        "print(*sys.modules)"
    )
    *_, status, modules = python(code).splitlines()
    imported = set(modules.split())
    packages = "PIL sacrebleu rich starlette uvicorn jinja2 triton sympy transformers onnx torch._dynamo"
    ours = "serve viewer tracing draw.svg convert.gguf convert.huggingface.load training.build tasks.words"
    unneeded = {*packages.split(), *(f"regard.{name}" for name in ours.split())}
    assert status == "0 True 0"
    assert "regard.tasks.pairs" in imported
    assert not unneeded & imported


def test_names_are_sorted_and_known() -> None:
    assert set(regard.__all__) == set(regard._HOMES)
    assert len(regard.__all__) == len(set(regard.__all__))
    assert all(getattr(regard, name).__name__ == name for name in regard.__all__)


@pytest.mark.parametrize("name", regard.__all__)
def test_no_module_hides_a_public_name(name: str) -> None:
    """Importing a submodule sets an attribute of its package: none may have the name of a function."""
    assert importlib.util.find_spec(f"regard.{name}") is None


def test_functions_stay_functions_in_any_order() -> None:
    code = (
        "import regard.training.build, regard.decode.generate, regard.tracing, regard\n"
        "from regard import train, generate, trace, load\n"
        "from regard.training.job import free_folder\n"
        "print(*map(callable, (regard.train, regard.generate, regard.trace, train, generate, trace, load)))"
    )
    assert python(code).split() == ["True"] * 7


def test_names_are_listed_before_they_are_used() -> None:
    code = "import regard; print(set(regard.__all__) <= set(dir(regard)), '__version__' in dir(regard))"
    assert python(code) == "True True\n"


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'trian'"):
        _ = regard.trian
    with pytest.raises(ImportError, match="trian"):
        from regard import trian  # noqa: F401
