"""Read questions with their answers, which are spans of a context."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.columns import quote_name
from regard.data.files import (
    check_surrogates,
    content_suffix,
    empty_file,
    expand_folders,
    missing_file,
    read_jsonl,
)
from regard.errors import UserError


@dataclass(frozen=True)
class Span:
    """A question and its answer, which is context[start : end]."""

    question: str
    context: str
    answer: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.answer)


def read_spans(paths: Sequence[str]) -> list[Span]:
    """Read .jsonl files, folders of them and standard input ("-") with question, context and answer.

    `start` counts characters; without it, the answer is where it first occurs in the context.
    """
    return [span for file in list(expand_folders(paths, {".jsonl"})) for span in _read_file(file)]


def _read_file(path: str) -> list[Span]:
    if path != "-" and content_suffix(path) != ".jsonl":
        if not os.path.exists(path):
            raise missing_file(path)
        raise UserError(f"{path}: not a .jsonl; give one with question, context and answer on each line")
    spans = [_parse_row(where, row) for where, row in read_jsonl(path)]
    if not spans:
        raise empty_file(path)
    return spans


def _parse_row(where: str, row: Any) -> Span:
    match row:
        case {"question": str(question), "context": str(context), "answer": str(answer)}:
            pass
        case _:
            raise UserError(
                f'{where}: no answer; write each line as {{"question": "...", "context": "...", '
                '"answer": "...", "start": 0}, where start may be left out'
            )
    for name, text in (("question", question), ("context", context), ("answer", answer)):
        if not check_surrogates(text, where).strip():
            raise UserError(f"{where}: an empty {name}; fill it in or remove the line")
    start = row.get("start")
    if start is None:
        start = context.find(answer)
        if start < 0:
            raise UserError(
                f"{where}: the answer {quote_name(answer)} is not in the context; copy it from there exactly"
            )
    elif isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise UserError(f"{where}: start {quote_name(str(start))} is not a position; count characters from 0")
    elif context[start : start + len(answer)] != answer:
        actual = quote_name(context[start : start + len(answer)])
        raise UserError(
            f"{where}: at start {start} of the context is {actual}, not the answer {quote_name(answer)}; "
            "leave start out to have it found"
        )
    return Span(question, context, answer, start)
