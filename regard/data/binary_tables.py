"""Read the rows of Parquet, Arrow and Excel files, with limits on what they may expand to."""

import contextlib
import io
import json
import zipfile
from collections.abc import Iterator
from datetime import date, time
from typing import IO, Any

from regard.data.cells import quote_name, quote_names
from regard.data.files import check_expansion, expansion_limit, open_file
from regard.data.reading import current_reading, record_note
from regard.errors import UserError, first_line

Row = tuple[str, list[Any]]

BATCH = 1000  # rows that are decoded at a time


@contextlib.contextmanager
def open_seekable(path: str, package: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open a file for random access; yield it and the number of bytes that it may expand to."""
    with open_file(path) as file:
        seekable: IO[bytes] = file if file.seekable() else io.BytesIO(file.read())
        limit = expansion_limit(seekable.seek(0, io.SEEK_END))
        seekable.seek(0)
        try:
            yield seekable, limit
        except ImportError:
            raise UserError(f"{path}: needs the package {package}: pip install 'regard[tables]'") from None


def read_arrow(path: str) -> tuple[list[str], dict[str, Any], Iterator[Row]]:
    """Read a Parquet file, or an Arrow one (also called Feather); return the names of its columns, the
    features that the package datasets wrote about them, and the rows."""
    rows = _arrow_rows(path)
    header, features = next(rows)
    return header, features, rows


def _arrow_rows(path: str) -> Iterator[Any]:
    """Yield the names of the columns and their features, then the rows."""
    with open_seekable(path, "pyarrow") as (file, limit):
        import pyarrow as pa
        from pyarrow import parquet

        try:
            is_parquet = file.read(4) == b"PAR1"
            file.seek(0)
            if is_parquet:
                source = parquet.ParquetFile(file)
                schema, batches = source.schema_arrow, source.iter_batches(BATCH)
            else:
                schema, batches = _open_ipc(file, pa)
            yield schema.names, _features(schema.metadata)
            number, size = 0, 0
            for batch in batches:
                size += batch.nbytes
                check_expansion(path, size, limit)
                for start in range(0, batch.num_rows, BATCH):
                    columns = [column.slice(start, BATCH).to_pylist() for column in batch.columns]
                    for cells in zip(*columns, strict=True):
                        number += 1
                        yield f"{path} row {number}", list(cells)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise UserError(
                f"{path}: not a complete Parquet or Arrow file ({first_line(error)}); get it again"
            ) from None


def _open_ipc(file: IO[bytes], pa: Any) -> tuple[Any, Iterator[Any]]:
    """Open an Arrow file, or a stream, which is what the package datasets writes."""
    try:
        reader = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        stream = pa.ipc.open_stream(file)
        return stream.schema, iter(stream)
    return reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))


def _features(metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    """Return the features of the columns, as the package datasets wrote them."""
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def read_excel(path: str) -> Iterator[Row]:
    """Yield the rows of an Excel file's sheet, as text: that of data.sheet, or the first."""
    with open_seekable(path, "openpyxl") as (file, limit):
        import openpyxl

        try:
            check_expansion(path, sum(info.file_size for info in zipfile.ZipFile(file).infolist()), limit)
            file.seek(0)
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            wanted, titles = current_reading().config.sheet, [each.title for each in book.worksheets]
            if wanted is not None and wanted not in titles:
                raise UserError(
                    f"{path}: no sheet {quote_name(wanted)} (--sheet), only {quote_names(titles)}"
                )
            sheet = book.worksheets[0 if wanted is None else titles.index(wanted)]
            if len(titles) > 1 and wanted is None:
                record_note(
                    f"{path}: the first sheet, {sheet.title}, is read; left out: {', '.join(titles[1:])} "
                    "(choose one with --sheet)"
                )
            sheet.reset_dimensions()  # some programs write it wrong
            for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
                row = [_excel_text(cell) for cell in cells]
                if any(row):
                    yield f"{path} {sheet.title}!{number}", row
        except (zipfile.BadZipFile, OSError, EOFError, KeyError, ValueError, IndexError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path}: not a readable .xlsx ({first_line(error)}); save it again") from None


def _excel_text(cell: Any) -> str:
    """Return the text of a cell."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return cell.isoformat() if isinstance(cell, date | time) else str(cell)
