"""Texts of web archives: WARC files of pages, and WET files of their text (ISO 28500, Common Crawl)."""

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import IO

from regard.data.files import open_file
from regard.data.markup import html_to_text, known_encoding, page_encoding
from regard.data.reading import record_note
from regard.errors import UserError

MAX_RECORD = 2**24  # bytes of a record that is read; larger ones are left out
MAX_HEADER = 2**16  # bytes of a line of a header
MAX_FIELDS = 1000  # of a header
BLOCK = 2**20  # bytes that are skipped at a time
PAGES = ("text/html", "application/xhtml+xml")


def read_warc(path: str) -> Iterator[str]:
    """Yield the text of each record that has one; pages are converted like .html files.

    One record is in memory at a time. Records that are left out are counted by reason.
    """
    left_out, count = Counter[str](), 0
    with open_file(path) as file:
        for fields, body in _read_records(file, path):
            kind = fields.get("warc-type", "")
            if kind not in ("response", "resource", "conversion"):
                continue  # records about others: requests, headers of the file
            count += 1
            text, reason = (
                (None, f"over {MAX_RECORD:,} bytes") if body is None else _text_of(kind, fields, body)
            )
            if text is None:
                left_out[reason] += 1
            elif not text.strip():
                left_out["no text"] += 1
            else:
                yield text
    if not count:
        raise UserError(f"{path}: none of its records is a page or a text; give a WARC or WET file")
    if left_out:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in left_out.most_common(8))
        record_note(f"{path}: left out {left_out.total():,} of {count:,} records: {reasons}")


def _read_records(file: IO[bytes], path: str) -> Iterator[tuple[dict[str, str], bytes | None]]:
    """Yield the fields and the content of all records; the content is None if it is too large."""
    number = 0
    while True:
        line = file.readline(MAX_HEADER)
        if not line:
            return
        if line in (b"\r\n", b"\n"):  # after the previous record
            continue
        number += 1
        where = f"{path}: record {number}"
        if not line.startswith(b"WARC/"):
            raise UserError(
                f"{where} does not begin with WARC/; the file is damaged or no WARC, get it again"
            )
        fields = _read_fields(file, where)
        if not (length := fields.get("content-length", "")).isdecimal():
            raise UserError(f"{where} has no Content-Length; the file is damaged, get it again")
        yield fields, _read_content(file, int(length), where)


def _read_fields(file: IO[bytes], where: str) -> dict[str, str]:
    """Read the lines "name: value" up to an empty one."""
    fields: dict[str, str] = {}
    for _ in range(MAX_FIELDS):
        line = file.readline(MAX_HEADER)
        if line in (b"\r\n", b"\n"):
            return fields
        if not line.endswith(b"\n"):
            break
        name, _, value = line.decode("utf-8", "replace").partition(":")
        fields[name.strip().lower()] = value.strip()
    raise UserError(f"{where} has a header without an end; the file is damaged, get it again")


def _read_content(file: IO[bytes], length: int, where: str) -> bytes | None:
    content, left = bytearray(), length
    while left:
        block = file.read(min(BLOCK, left))
        if not block:
            raise UserError(f"{where} ends {left:,} bytes too early; the file is damaged, get it again")
        left -= len(block)
        if length <= MAX_RECORD:
            content += block
    return bytes(content) if length <= MAX_RECORD else None


def _text_of(kind: str, fields: dict[str, str], body: bytes) -> tuple[str | None, str]:
    """Return the text of a record; None and the reason if it has none."""
    if kind == "conversion":
        return body.decode("utf-8", "replace"), ""
    content_type = fields.get("content-type", "")
    if kind == "response" and content_type.lower().startswith("application/http"):
        head, _, body = body.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        if (code := status.split(b" ")[1:2]) != [b"200"]:
            return None, f"of status {code[0].decode('ascii', 'replace')[:3] if code else 'unknown'}"
        http = dict(line.decode("latin-1").lower().partition(":")[::2] for line in lines)
        content_type = http.get("content-type", "").strip()
        unpacked = _decode_transfer(http, body)
        if unpacked is None:
            return None, "that can't be decompressed"
        body = unpacked
    mime, _, more = content_type.lower().partition(";")
    charset = known_encoding(more.partition("charset=")[2].strip(" \"'")) if "charset=" in more else None
    if mime.strip() in PAGES:
        return html_to_text(body.decode(charset or page_encoding(body) or "utf-8", "replace")), ""
    if mime.strip() == "text/plain":
        return body.decode(charset or "utf-8", "replace"), ""
    return None, f"of type {mime.strip()[:40] or 'unknown'}"


def _decode_transfer(http: dict[str, str], body: bytes) -> bytes | None:
    """Return a body without its chunks and compression; None if that fails. Crawlers often keep the
    header of an encoding that they have already undone."""
    if "chunked" in http.get("transfer-encoding", ""):
        body = _join_chunks(body) or body
    if http.get("content-encoding", "").strip() in ("gzip", "deflate", "x-gzip") and body[:1] in (
        b"\x1f",
        b"\x78",
    ):
        try:
            return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, MAX_RECORD)
        except zlib.error:
            return None
    return body


def _join_chunks(body: bytes) -> bytes | None:
    content, at = bytearray(), 0
    while (end := body.find(b"\r\n", at, at + 20)) > 0:
        try:
            size = int(body[at:end].partition(b";")[0], 16)
        except ValueError:
            return None
        if size == 0:
            return bytes(content)
        content += body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
    return None
