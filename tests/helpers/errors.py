"""Check the message of a UserError."""

from collections.abc import Callable
from typing import Any

import pytest

from regard.errors import UserError


def user_error(call: Callable[[], Any], *words: object) -> str:
    """Return the message of the UserError that `call` raises: one line that contains all of these words."""
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message, message
    return message
