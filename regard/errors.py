"""The error for wrong input, so that the command line can distinguish users' mistakes from bugs."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Wrong input. One line with the place (file and line, or key), the problem and the fix."""


def suggest(word: str, known: Iterable[str], section: str = "") -> str:
    """Return a hint for an error message: the closest known word, or all of them if none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {section}{close[0]}?" if close else "known are " + ", ".join(known)


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def os_reason(error: OSError) -> str:
    """Return the operating system's message, such as "Permission denied"."""
    return error.strerror or first_line(error)


def shorten(value: object) -> str:
    """Format a value in one line of at most 80 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."
