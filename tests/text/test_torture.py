"""Random hostile chat templates and tokenizers: each is refused or works, within memory and time."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torture.templates import use_template, use_tokenizer

from helpers.hostile import limit_memory
from regard.errors import UserError
from regard.text import chat_template, tokenizer_sandbox


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, memory in ((chat_template, 2**27), (tokenizer_sandbox, 2**28)):
        monkeypatch.setattr(module, "MEMORY", memory)
        monkeypatch.setattr(module, "SECONDS", 0.1)
    monkeypatch.setattr(tokenizer_sandbox, "TRIAL_SECONDS", 0.05)
    monkeypatch.setattr(tokenizer_sandbox, "TRIAL_LENGTH", 2**11)


def torture(use: Callable[[int], None], seeds: range, folder: Path) -> Counter[str]:
    """Use many; return how they ended."""
    ends: Counter[str] = Counter()
    for seed in seeds:
        try:
            with limit_memory(folder):
                use(seed)
            ends["works"] += 1
        except UserError as error:
            lines, end = str(error).count("\n"), "limit" if "takes more than" in str(error) else "refused"
            ends["two lines" if lines else end] += 1
        except (TimeoutError, AssertionError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return ends


USES: dict[str, Any] = {"templates": use_template, "tokenizers": use_tokenizer}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_torture(use, tmp_path):
    ends = torture(use, range(12), tmp_path)
    assert {"works", "refused"} <= set(ends) <= {"works", "refused", "limit"}  # if slow


@pytest.mark.slow
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_torture_by_thousands(use, tmp_path):
    torture(use, range(12, 3000), tmp_path)
