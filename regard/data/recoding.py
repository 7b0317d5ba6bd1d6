"""Read text in other encodings, or with line ends of old Macs, as UTF-8 with Unix line ends.

Excel's "Unicode text", and the output of PowerShell's `>`, are UTF-16 with a byte order mark. Excel's plain
CSV is in the encoding of the country, which no file states: `data.encoding` names it.
"""

import codecs
import io
from typing import IO, Any

from regard.errors import UserError

BLOCK = 2**16  # bytes that are recoded at a time
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def check_encoding(name: str) -> None:
    """Raise ValueError if Python has no such encoding of text."""
    try:
        "a".encode(name)
    except (LookupError, ValueError):
        known = "latin1, cp1252, shift_jis, gb18030"
        raise ValueError(f"encoding={name!r} is not known; give one such as {known}") from None


class RecodedReader(io.RawIOBase):
    """The content of a file as UTF-8. `encoding` None: its bytes, with newlines for carriage returns."""

    def __init__(self, file: IO[bytes], name: str, encoding: str | None) -> None:
        self.file, self.name, self.encoding, self.ready = file, name, encoding, b""
        self.decoder = codecs.getincrementaldecoder(encoding)() if encoding is not None else None
        self.line = 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready:
            block = self.file.read(BLOCK)
            self.ready = self._recode(block)
            if not block:
                break
        data, self.ready = self.ready[: len(buffer)], self.ready[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _recode(self, block: bytes) -> bytes:
        if self.decoder is None:
            return block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        try:
            text = self.decoder.decode(block, final=not block).encode()
        except UnicodeError as error:
            raise UserError(
                f"{self.name}: not {self.encoding}, near line {self.line} ({error}); "
                "name its encoding with --encoding, or save it as UTF-8"
            ) from None
        self.line += text.count(b"\n")
        return text


def recode(file: Any, name: str, encoding: str | None) -> IO[bytes]:
    """Return a file as UTF-8. `encoding` None: UTF-8, or UTF-16 if the file begins with its mark."""
    buffered = file if hasattr(file, "peek") else io.BufferedReader(file)
    start = buffered.peek(2)
    if encoding is None and start[:2] in UTF_16:
        encoding = "utf-16"
    is_old_mac = b"\r" in start and b"\n" not in start
    if encoding is None and not is_old_mac:
        return buffered
    return io.BufferedReader(RecodedReader(buffered, name, encoding), BLOCK)
