"""Read texts, or pairs of texts, that have a class or a score each."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from regard.data.cells import is_class_column, is_number, obvious_texts, quote_name, quote_names
from regard.data.columns import NUMBERS, Field, Layout, normalize, read_records
from regard.data.files import display_name, expand_folders
from regard.data.splitting import first_held_out, number_groups
from regard.data.tables import Row, folder_suffixes
from regard.errors import UserError

T = TypeVar("T")

EARLIER = {".tsv", ".csv", ".jsonl"}  # tables that versions before 3 read in folders
COLUMNS = ["text", "other", "label", "score"]
EXPECTED = "text, then other if the label is about two texts, and label or score"
FIRST = ("text1", "text_a", "sentence1", "sentence_a", "premise", "question1", "query")
SECOND = ("text2", "text_b", "sentence2", "sentence_b", "hypothesis", "question2", "passage")
TEXTS = ("sentence", "review", "comment", "content", "document", "body", "tweet", "message", "utterance")


def guess_columns(names: list[str], rows: list[Row], known: dict[str, int]) -> dict[str, int]:
    """If the label or score is named, take the column that is obviously the text. If there are two columns
    besides row numbers, take the one with few short values for the label, and the other for the text."""
    candidates = [
        index for index, name in enumerate(names) if normalize(name) not in NUMBERS and "." not in name
    ]
    if not rows:
        return {}
    columns = {index: [cells[index] for _, cells in rows] for index in candidates}
    texts = [index for index in candidates if not all(map(is_number, map(str, columns[index])))]
    if "text" not in known and {"label", "score"} & known.keys():
        free = {index: columns[index] for index in texts if index not in known.values()}
        if len(obvious := obvious_texts(names, free, ("text", *TEXTS))) == 1:
            return {"text": obvious[0]}
    if len(candidates) != 2:
        return {}
    classes = [
        index for index in candidates if is_class_column(columns[index]) and known.get("text") != index
    ]
    texts = [index for index in texts if index not in classes]
    if len(classes) != 1 or len(texts) != 1 or known.get("label", classes[0]) != classes[0]:
        return {}
    return {"text": texts[0], "label": classes[0]}


LAYOUT = Layout(
    (
        Field("text", (*TEXTS, *FIRST)),
        Field("other", SECOND, required=False),
        Field(
            "label",
            (
                "labels",
                "class",
                "category",
                "is_duplicate",
                "target",
                "sentiment",
                "intent",
                "topic",
                "emotion",
                "stars",
                "rating",
            ),
            "label",
            group="label or score",
        ),
        Field(
            "score", ("similarity", "similarity_score", "relatedness_score"), "score", group="label or score"
        ),
    ),
    EXPECTED,
    guess_columns,
)
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


@dataclass
class LabelledTexts:
    """Texts, or pairs of texts, each with its class or its score."""

    texts: list[str]
    second_texts: list[str] | None  # the second text of each, if they are pairs
    labels: list[str] | None  # either these
    scores: list[float] | None  # or these
    where: list[str] = field(default_factory=list, repr=False, compare=False)  # file:line of each

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def kind(self) -> str:
        return "score" if self.labels is None else "class"

    @property
    def columns(self) -> list[str]:
        """The names of the existing columns."""
        columns = (self.texts, self.second_texts, self.labels, self.scores)
        return [name for name, column in zip(COLUMNS, columns, strict=True) if column is not None]

    def rows(self, numbers: Sequence[int]) -> "LabelledTexts":
        """Return these rows."""

        def select(column: list[T] | None) -> list[T] | None:
            return None if column is None else [column[number] for number in numbers]

        texts, where = select(self.texts) or [], select(self.where or None) or []
        return LabelledTexts(
            texts, select(self.second_texts), select(self.labels), select(self.scores), where
        )

    def describe(self) -> str:
        return f"{len(self):,} {self.kind if self.kind == 'score' else 'label'}{'s' * (len(self) != 1)}"


# Reading


def read_labels(paths: Sequence[str]) -> LabelledTexts:
    """Read tables, folders of them, standard input ("-") and datasets on the hub ("hf:...").

    All have the same fields: text, perhaps other, and label or score.
    """
    cells: dict[str, list[Any]] = {}
    where: list[str] = []
    first_file = ""
    for file in list(expand_folders(paths, folder_suffixes(EARLIER))):
        names: list[str] = []
        for location, record in read_records(file, LAYOUT):
            if not names:
                names = list(record)
                first_file, cells = first_file or file, cells or {name: [] for name in names}
                if names != list(cells):
                    raise UserError(
                        f"{display_name(file)}: columns {' '.join(names)}, but {display_name(first_file)} "
                        f"has {' '.join(cells)}; give files with the same columns"
                    )
            for name, value in record.items():
                cells[name].append(value)
            where.append(location)
    if not cells:
        raise UserError(f"no file of labelled texts; give a table with {EXPECTED}")
    return LabelledTexts(cells["text"], cells.get("other"), cells.get("label"), cells.get("score"), where)


# Classes


def class_names(labels: Iterable[str]) -> list[str]:
    """Return the names of all classes, sorted: numbers by value, then words."""
    names = sorted(set(labels), key=_sort_key)
    if len(names) < 2:
        only = f"only the class {quote_name(names[0])}" if names else "no class"
        raise UserError(f"{only} in the labels; give examples of two or more classes")
    return names


def _sort_key(name: str) -> tuple[bool, float, str]:
    number = NUMBER.fullmatch(name)
    return (not number, float(name) if number else 0.0, name)


def class_ids(table: LabelledTexts, names: Sequence[str]) -> list[int]:
    """Return the index of every row's label in the names of the classes."""
    assert table.labels is not None, "scores have no classes"
    ids = {name: index for index, name in enumerate(names)}
    for row, label in enumerate(table.labels):
        if label not in ids:
            where = f"{table.where[row]}: " if table.where else ""
            raise UserError(
                f"{where}the label {quote_name(label)} is not one of the classes {quote_names(names)}; "
                "correct it or remove the row"
            )
    return [ids[label] for label in table.labels]


# Splitting


def split_labels(
    table: LabelledTexts, valid: LabelledTexts | None, holdout: float
) -> tuple[LabelledTexts, LabelledTexts]:
    """Return rows for training and for validation: `valid`, if given, else as `split_by_class` does.

    Scores count as one class.
    """
    if valid is not None:
        if valid.columns != table.columns:
            raise UserError(
                f"the validation data have the columns {' '.join(valid.columns)}, but the training data "
                f"{' '.join(table.columns)}; give both the same columns"
            )
        return table, valid
    sources = list(zip(table.texts, table.second_texts or table.texts, strict=True))
    train, held_out = split_by_class(table.labels or [""] * len(table), holdout, sources)
    return table.rows(train), table.rows(held_out)


def split_by_class(
    labels: Sequence[str], holdout: float, sources: Sequence[Hashable]
) -> tuple[list[int], list[int]]:
    """Return the indices of rows for training and for validation: every tenth source of each class, for a
    holdout of 0.1. If no class has ten, the last one of each class with two or more.

    Rows with one source stay together; their class is the first row's.
    """
    groups = number_groups(sources).tolist()
    groups_of_class: dict[str, dict[int, None]] = defaultdict(dict)
    class_of_group: dict[int, str] = {}
    for group, label in zip(groups, labels, strict=True):
        groups_of_class[class_of_group.setdefault(group, label)].setdefault(group)
    held_out: set[int] = set()
    if holdout > 0:
        every, of_class = max(2, round(1 / holdout)), [list(each) for each in groups_of_class.values()]
        held_out.update(group for each in of_class for group in each[first_held_out(every) :: every])
        held_out = held_out or {each[-1] for each in of_class if len(each) > 1}
    sides: tuple[list[int], list[int]] = [], []
    for row, group in enumerate(groups):
        sides[group in held_out].append(row)
    return sides
