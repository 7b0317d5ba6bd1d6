"""Excel files with several sheets."""

from pathlib import Path

import openpyxl
import pytest

from helpers.commands import check_refused, stdout_of
from helpers.errors import user_error
from regard.data.labels import read_labels
from regard.data.reading import read_together


@pytest.fixture
def book(tmp_path: Path) -> Path:
    book = openpyxl.Workbook()
    for name in ("Notes", "Reviews"):
        sheet = book.create_sheet(name)
        sheet.append(["text", "label"])
        for n in range(4):
            sheet.append([f"{name} {n}", "yes" if n % 2 else "no"])
    book.remove(book.worksheets[0])
    book.save(tmp_path / "a.xlsx")
    return tmp_path / "a.xlsx"


def test_a_sheet_is_chosen(book: Path) -> None:
    with read_together() as reading:
        assert read_labels([str(book)]).texts[0] == "Notes 0"
    (note,) = reading.notes
    assert "Reviews" in note
    assert "--sheet" in note
    with read_together(sheet="Reviews") as reading:
        assert read_labels([str(book)]).texts[0] == "Reviews 0"
    assert not reading.notes
    with read_together(sheet="Other"):
        user_error(lambda: read_labels([str(book)]), "a.xlsx", '"Other"', '"Notes", "Reviews"')


def test_the_option(book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "classify", book, "--dry-run", "--steps", 2]
    assert "Reviews 0" in stdout_of(capsys, *words, "--sheet", "Reviews")
    check_refused(capsys, tmp_path, [*words, "--sheet", "Other"], "Other", "--sheet")
