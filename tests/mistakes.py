"""What a user is told."""

from collections.abc import Callable
from typing import Any

import pytest

from regard.errors import Mistake


def mistake(call: Callable[[], Any], *words: object) -> str:
    """The one line that the mistake says, which has all of these words in it."""
    with pytest.raises(Mistake) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    for word in words:
        assert str(word) in said, said
    return said
