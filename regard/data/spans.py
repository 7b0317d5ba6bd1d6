"""Read questions with their answers, which are spans of a context."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.cells import quote_name
from regard.data.columns import Field, Layout, table_records
from regard.data.files import check_surrogates, expand_folders
from regard.data.tables import Row, Table, folder_suffixes, read_table
from regard.errors import UserError

SUFFIXES = {".jsonl"}  # that versions before 3 read in folders
LAYOUT = Layout(
    (
        Field("question", ("query",), "exact"),
        Field("context", ("passage", "paragraph", "text"), "exact"),
        Field("answer", ("answers", "answer_text"), "any"),
        Field("start", ("answer_start",), "any", required=False, may_be_empty=True),
        Field("impossible", ("is_impossible", "unanswerable"), "any", required=False, may_be_empty=True),
    ),
    "question, context and answer",
    clean=lambda record: {**record, "answer": []} if is_impossible(record) else record,
)


@dataclass(frozen=True)
class Span:
    """A question and its answer, which is context[start : end]; an empty one if the context has none."""

    question: str
    context: str
    answer: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.answer)

    @property
    def has_answer(self) -> bool:
        return bool(self.answer)


def read_spans(paths: Sequence[str]) -> list[Span]:
    """Read tables, folders of them and standard input ("-") with question, context and answer; and
    SQuAD's .json, of both versions.

    `start` counts characters; without it, the first occurrence of the answer in the context counts. The first
    of several answers is learned; an empty list means that the context has none.
    """
    return [
        span for file in list(expand_folders(paths, folder_suffixes(SUFFIXES))) for span in _read_file(file)
    ]


def _read_file(path: str) -> Iterator[Span]:
    table = read_table(path)
    if table.header and "paragraphs" in table.header:
        table = _flatten_squad(table)
    for where, record in table_records(table, LAYOUT):
        yield _parse_record(where, record)


def _flatten_squad(table: Table) -> Table:
    """Return a table of the questions in SQuAD's articles, whose rows are titles and paragraphs."""
    index = (table.header or []).index("paragraphs")

    def rows() -> Iterator[Row]:
        for where, cells in table.rows:
            for n, paragraph in enumerate(cells[index] if isinstance(cells[index], list) else [None], 1):
                match paragraph:
                    case {"context": str(context), "qas": [*questions]}:
                        pass
                    case _:
                        raise UserError(f"{where}, paragraph {n}: no context with qas, as SQuAD has them")
                for q, each in enumerate(questions, 1):
                    if not isinstance(each, dict):
                        raise UserError(f"{where}, paragraph {n}, question {q}: not an object, as in SQuAD")
                    values = [each.get(name) for name in ("question", "answers", "is_impossible")]
                    yield f"{where}, paragraph {n}, question {q}", [context, *values]

    return Table(table.path, ["context", "question", "answers", "is_impossible"], rows(), table.where)


def is_impossible(record: dict[str, Any]) -> bool:
    """Return whether a row states that its context has no answer."""
    return str(record.get("impossible") or "").strip().lower() in ("true", "1", "yes")


def _parse_record(where: str, record: dict[str, Any]) -> Span:
    question, context = record["question"], record["context"]
    answer, start = record["answer"], record.get("start")
    is_list = isinstance(answer, list | dict)
    if isinstance(answer, dict):  # as in the package datasets: lists of text and of answer_start
        starts, answer = answer.get("answer_start"), answer.get("text")
        start = starts if isinstance(starts, list) else start
    if isinstance(answer, list):
        answer = answer[0] if answer else ""
    if isinstance(start, list):
        start = start[0] if start else None
    if isinstance(answer, dict):  # as in SQuAD's files
        start, answer = answer.get("answer_start", start), answer.get("text")
    if is_list and not answer:
        return Span(question, context, "", 0)
    if not isinstance(answer, str) or not check_surrogates(answer, where).strip():
        raise UserError(
            f"{where}: the answer {quote_name(repr(answer))} is not text; copy it from the context, or say "
            'that there is none by "answers": []'
        )
    return Span(question, context, answer, _find_start(where, context, answer, start))


def _find_start(where: str, context: str, answer: str, start: Any) -> int:
    if isinstance(start, str):
        start = int(start) if start.strip().isdecimal() else (start if start.strip() else None)
    if isinstance(start, float) and start.is_integer():
        start = int(start)
    if start is None:
        start = context.find(answer)
        if start < 0:
            raise UserError(
                f"{where}: the answer {quote_name(answer)} is not in the context; copy it from there exactly"
            )
        return start
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise UserError(f"{where}: start {quote_name(str(start))} is not a position; count characters from 0")
    if context[start : start + len(answer)] != answer:
        actual = quote_name(context[start : start + len(answer)])
        raise UserError(
            f"{where}: at start {start} of the context is {actual}, not the answer {quote_name(answer)}; "
            "leave start out to have it found"
        )
    return start
