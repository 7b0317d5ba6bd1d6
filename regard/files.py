"""Files of settings that somebody gives us, who may mean no good."""

from pathlib import Path

from .errors import Mistake

LONGEST = 2**23  # bytes of a file of settings


def read_text(path: Path, most: int = LONGEST) -> str:
    """The text of a file: of nothing that may have no end, as a device, and of none that is too long."""
    if path.exists() and not path.is_file():
        raise Mistake(f"{path}: not a file; put one there, or remove it")
    if path.stat().st_size > most:
        raise Mistake(f"{path}: more than {most >> 20} MiB; this is no such file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise Mistake(f"{path}: not a text in UTF-8 ({e})") from None
