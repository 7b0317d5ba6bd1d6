"""Web archives: WARC files of pages, and WET files of their text."""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from regard.data import warc
from regard.data.documents import read_documents
from regard.data.reading import read_together
from regard.errors import UserError


def record(kind: str, body: bytes, content_type: str = "application/http; msgtype=response") -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n"


def response(body: bytes, content_type: str = "text/html", more: str = "", status: str = "200 OK") -> bytes:
    return record(
        "response", f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{more}\r\n".encode() + body
    )


PAGE = "<nav>menu</nav><p>Die Größe"
RECORDS = [
    record("warcinfo", b"software: test\r\n", "application/warc-fields"),
    record("request", b"GET / HTTP/1.1\r\n\r\n"),
    response(PAGE.encode(), "text/html; charset=UTF-8"),
    response(f"<meta charset=latin1>{PAGE}".encode("latin-1")),
    response(gzip.compress(PAGE.encode()), "text/html", "Content-Encoding: gzip\r\n"),
    response(b"5\r\n<p>He\r\n4\r\nllo!\r\n0\r\n\r\n", "text/html", "Transfer-Encoding: chunked\r\n"),
    response(b"plain text", "text/plain"),
    response(b"\x89PNG", "image/png"),
    response(b"<p>gone", status="404 Not Found"),
    response(b"<script>1</script>"),
]
TEXTS = ["Die Größe\n", "Die Größe\n", "Die Größe\n", "Hello!\n", "plain text"]


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
def test_pages(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    packed = name.endswith(".gz")
    path.write_bytes(b"".join(gzip.compress(r) if packed else r for r in RECORDS))  # as crawlers do
    with read_together() as reading:
        assert list(read_documents([str(path)])) == TEXTS
    (note,) = reading.notes
    assert all(fact in note for fact in ["3 of 8", "1 of type image/png", "1 of status 404", "1 no text"])


def test_wet(tmp_path: Path) -> None:
    texts = ["Erster Text\nzweite Zeile\n", "zweiter"]
    path = tmp_path / "CC-MAIN-0.warc.wet.gz"
    body = b"".join(record("conversion", text.encode(), "text/plain") for text in texts)
    path.write_bytes(gzip.compress(RECORDS[0] + body))
    assert list(read_documents([str(path)])) == texts
    assert list(read_documents([str(tmp_path)])) == texts


def test_large_records_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warc, "MAX_RECORD", 1000)
    path = tmp_path / "a.wet"
    path.write_bytes(b"".join(record("conversion", b"a" * n, "text/plain") for n in (3, 1001, 5)))
    with read_together() as reading:
        assert [len(text) for text in read_documents([str(path)])] == [3, 5]
    assert "1 over 1,000 bytes" in next(iter(reading.notes))


def test_memory_stays_flat(tmp_path: Path) -> None:
    path = tmp_path / "a.wet.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for n in range(200):
            file.write(record("conversion", bytes([97 + n % 26]) * 100_000, "text/plain"))
    tracemalloc.start()
    assert sum(len(text) for text in warc.read_warc(str(path))) == 200 * 100_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        (b"just text\n", ["record 1", "WARC/"]),
        (RECORDS[2] + b"garbage\r\n", ["record 2", "WARC/"]),
        (RECORDS[2][:-20], ["record 1", "too early"]),
        (b"WARC/1.0\r\nWARC-Type: response\r\n\r\n", ["record 1", "Content-Length"]),
        (b"WARC/1.0\r\nWARC-Type: response", ["record 1", "header"]),
        (RECORDS[0], ["none of its records"]),
    ],
)
def test_damaged_files(tmp_path: Path, data: bytes, facts: list[str]) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        list(read_documents([str(path)]))
    assert all(fact in str(error.value) for fact in ["a.warc", *facts]), str(error.value)
