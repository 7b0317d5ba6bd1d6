"""Pairs of texts that mean the same or have a score, and the lines of a file that are nearest to a text.

Shapes: D width.
"""

import itertools
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import read_pairs
from regard.data.archives import is_folder
from regard.data.cells import is_number
from regard.data.columns import Field, Layout, normalize, read_records
from regard.data.files import content_suffix, decode_utf8, empty_file, expand_folders, list_files, read_lines
from regard.data.labels import LAYOUT as LABELS
from regard.data.labels import LabelledTexts, read_labels, split_labels
from regard.data.pairs import split_pairs
from regard.data.reading import current_reading
from regard.data.splitting import hold_out_groups
from regard.data.tables import SUFFIXES as TABLE_SUFFIXES
from regard.data.tables import is_table, read_table
from regard.draw.terminal import progress
from regard.errors import UserError

LINES_AT_ONCE = 4096  # the lines of a file that are embedded at a time
VECTORS_AT_ONCE = 65536  # the vectors that are compared with a question at a time

Texts = tuple[str, ...]  # a pair, or a triplet: a text, one that means the same, and one that does not
Table = tuple[list[Texts], list[float] | None]  # a score for each pair, if there are any
NEGATIVE = Field("negative", ("neg", "hard_negative", "negatives", "contradiction"))
TRIPLETS = Layout(
    (
        Field("source", ("anchor", "query", "question", "text", "sentence", "premise", "sentence1")),
        Field("target", ("positive", "pos", "entailment", "passage", "sentence2")),
        NEGATIVE,
    ),
    "source, target and negative",
)


def read_similar_pairs(paths: Sequence[str]) -> Table:
    """Pairs that mean the same, from files as read_pairs reads them; triplets; or pairs with scores, from
    labelled ones."""
    kind = table_kind(paths)
    if kind == "pairs":
        return list(read_pairs(paths)), None
    return (read_triplets(paths), None) if kind == "triplets" else scored_pairs(read_labels(paths))


def split_data(paths: Sequence[str], valid: Sequence[str], holdout: float) -> tuple[Table, Table]:
    """Pairs to train on, and to evaluate on."""
    kind = table_kind(paths)
    if valid and (kind == "scores") != (table_kind(valid) == "scores"):
        raise UserError(
            "only one of the data to train on and to evaluate on has scores; give both the same kind"
        )
    if kind == "pairs":
        train, held = split_pairs(
            list(read_pairs(paths)), list(read_pairs(valid)) if valid else None, holdout
        )
        return (list(train), None), (list(held), None)
    if kind == "triplets":
        triplets = read_triplets(paths)
        if valid:
            return (triplets, None), read_similar_pairs(valid)
        out = hold_out_groups([triplet[0] for triplet in triplets], holdout).tolist()
        sides = [[t for t, held in zip(triplets, out, strict=True) if held == side] for side in (False, True)]
        return (sides[0], None), (sides[1], None)
    train_table, held_table = split_labels(read_labels(paths), read_labels(valid) if valid else None, holdout)
    return scored_pairs(train_table), scored_pairs(held_table)


def read_triplets(paths: Sequence[str]) -> list[Texts]:
    files = list(expand_folders(paths, TABLE_SUFFIXES))
    records = [record for file in files for _, record in read_records(file, TRIPLETS)]
    return [(record["source"], record["target"], record["negative"]) for record in records]


def scored_pairs(table: LabelledTexts) -> Table:
    scores = table.scores
    if scores is None and table.labels is not None and all(map(is_number, table.labels)):
        scores = [float(label) for label in table.labels]  # 1 of pairs that mean the same, 0 of others
    if table.second_texts is None or scores is None:
        where, columns = table.where[0] if table.where else "the data", ", ".join(table.columns)
        raise UserError(
            f"{where}: the columns are {columns}; to compare texts, give text, other and score, or pairs "
            "without a header (source TAB target)"
        )
    return list(zip(table.texts, table.second_texts, strict=True)), scores


def table_kind(paths: Sequence[str]) -> str:
    """Return whether the first file has "scores" (by a header of labelled data), "triplets" or "pairs"."""
    columns = current_reading().columns
    if "negative" in columns:
        return "triplets"
    path = str(paths[0])
    if is_folder(path):
        path = str(list_files(path, TABLE_SUFFIXES, "table")[0])
    if path == "-" or not is_table(path):  # standard input can be read only once
        return "scores" if "score" in columns else "pairs"
    table = read_table(path)
    if table.header is None:
        table.take_header()
    names = {normalize(name) for name in table.header or ()}
    if names & {NEGATIVE.name, *NEGATIVE.synonyms}:
        return "triplets"
    score = LABELS["score"]
    if "score" in columns or names & {score.name, *score.synonyms}:
        return "scores"
    is_labelled = "text" in names and (names & {"other", "label"} or content_suffix(path) == ".jsonl")
    is_labelled = is_labelled or (names & {"label", "is_duplicate"} and names & {*LABELS["other"].synonyms})
    return "scores" if is_labelled else "pairs"


class LineIndex:
    """The lines of a file and their vectors, in temporary files: a million lines need little memory."""

    def __init__(self, path: str, embed: Callable[[list[str]], Tensor]):
        self.path, offsets = path, [np.zeros(1, np.int64)]
        stripped = (
            decode_utf8(line, path, number).strip() for number, line in enumerate(read_lines(path), 1)
        )
        coming, dim = (line for line in stripped if line), 0
        with (
            tempfile.TemporaryFile() as texts,
            tempfile.TemporaryFile() as vectors,
            progress("lines read") as advance,
        ):
            while block := list(itertools.islice(coming, LINES_AT_ONCE)):
                unit = F.normalize(embed(block), dim=1)
                dim = unit.shape[1]
                vectors.write(unit.numpy().astype(np.float32).tobytes())
                encoded = [line.encode() for line in block]
                texts.write(b"".join(encoded))
                offsets.append(offsets[-1][-1] + np.cumsum([len(line) for line in encoded]))
                advance(len(block))
            self.offsets = np.concatenate(offsets)  # where each line begins, and the end
            if not len(self):
                raise empty_file(path)
            for file in (texts, vectors):
                file.flush()
            # which stay as long as they are mapped, and no longer
            self.texts = np.memmap(texts, dtype=np.uint8, mode="r")
            self.vectors = np.memmap(vectors, dtype=np.float32, mode="r", shape=(len(self), dim))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:
        start, stop = self.offsets[row : row + 2].tolist()
        return bytes(self.texts[start:stop]).decode()

    def nearest(self, vectors: Tensor, count: int) -> list[list[tuple[str, float]]]:
        """The `count` lines with the largest cosines to each vector, exactly: all are compared, in blocks."""
        best = torch.empty(len(vectors), 0)
        where = torch.empty(len(vectors), 0, dtype=torch.int64)
        for i in range(0, len(self), VECTORS_AT_ONCE):
            block = torch.from_numpy(np.array(self.vectors[i : i + VECTORS_AT_ONCE]))
            cosines = torch.cat([best, vectors @ block.T], dim=1)
            numbers = torch.arange(i, i + len(block)).expand(len(vectors), -1)
            best, at = cosines.topk(min(count, cosines.shape[1]), dim=1)
            where = torch.cat([where, numbers], dim=1).gather(1, at)
        return [
            [(self[row], cosine) for row, cosine in zip(rows, several, strict=True)]
            for rows, several in zip(where.tolist(), best.tolist(), strict=True)
        ]
