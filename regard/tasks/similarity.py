"""Pairs of texts that mean the same or have a score, and the lines of a file that are nearest to a text.

Shapes: D width.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import read_pairs
from regard.data.files import (
    content_suffix,
    decode_utf8,
    empty_file,
    list_files,
    read_jsonl,
    read_lines,
)
from regard.data.labels import LabelledTexts, read_labels, split_labels
from regard.data.pairs import Pair, split_pairs
from regard.data.tables import SUFFIXES
from regard.draw.terminal import progress
from regard.errors import UserError

LINES_AT_ONCE = 4096  # of a file that is searched, from text to vectors
VECTORS_AT_ONCE = 65536  # of these, compared with a question

Table = tuple[list[Pair], list[float] | None]  # pairs, and their scores if there are some


def read_similar_pairs(paths: Sequence[str]) -> Table:
    """Pairs that mean the same, from files as read_pairs reads them; or with scores, from labelled ones."""
    if not with_scores(paths):
        return list(read_pairs(paths)), None
    return scored_pairs(read_labels(paths))


def split_data(paths: Sequence[str], valid: Sequence[str], holdout: float) -> tuple[Table, Table]:
    """Pairs to train on, and to evaluate on."""
    if valid and with_scores(paths) != with_scores(valid):
        raise UserError(
            "only one of the data to train on and to evaluate on has scores; give both the same kind"
        )
    if not with_scores(paths):
        train, held = split_pairs(
            list(read_pairs(paths)), list(read_pairs(valid)) if valid else None, holdout
        )
        return (train, None), (held, None)
    sides = split_labels(read_labels(paths), read_labels(valid) if valid else None, holdout)
    return scored_pairs(sides[0]), scored_pairs(sides[1])


def scored_pairs(table: LabelledTexts) -> Table:
    if table.second_texts is None or table.scores is None:
        where, columns = table.where[0] if table.where else "the data", ", ".join(table.columns)
        raise UserError(
            f"{where}: the columns are {columns}; to compare texts, give text, other and score, or pairs "
            "without a header (source TAB target)"
        )
    return list(zip(table.texts, table.second_texts, strict=True)), table.scores


def with_scores(paths: Sequence[str]) -> bool:
    """Whether the first file has a header of labelled data; without one, a .tsv and .jsonl have pairs."""
    path = str(paths[0])
    if os.path.isdir(path):
        path = str(list_files(path, SUFFIXES)[0])
    if path == "-" or path.startswith("hf:"):
        return False
    match content_suffix(path):
        case ".csv":
            return True
        case ".tsv":
            line = next(iter(read_lines(path)), b"")
            names = [name.strip() for name in decode_utf8(line, path).split("\t")]
            return "text" in names and bool({"other", "score", "label"} & set(names))
        case ".jsonl":
            row = next((row for _, row in read_jsonl(path)), None)
            return isinstance(row, dict) and "text" in row
    return False


class LineIndex:
    """The lines of a file and their vectors, in temporary files: a million of them need little memory."""

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
