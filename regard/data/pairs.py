"""Read pairs of texts for translation and chat, and split them for training and evaluation."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path

import numpy as np

from regard.data.archives import path_exists
from regard.data.columns import NUMBERS, Field, Layout, normalize, table_records
from regard.data.encoding import MIN_DOCUMENTS
from regard.data.files import (
    check_surrogates,
    decode_utf8,
    display_name,
    empty_file,
    expand_folders,
    missing_file,
    normalize_newlines,
    read_lines,
)
from regard.data.headers import SOURCES, TARGETS, is_language, is_pair_header
from regard.data.reading import reading_fold, record_source
from regard.data.splitting import first_held_out, number_groups
from regard.data.tables import Row, Table, folder_suffixes, is_table, read_table
from regard.errors import UserError

Pair = tuple[str, str]
History = tuple[list[str], str]  # the turns of the source, oldest first, and the reply


class UserReply(tuple[str, str]):
    """A pair whose target is a user's message: part of a conversation, but not a reply to learn."""


LICENCE = re.compile(r"CC[- ]BY|CC0|tatoeba\.org", re.IGNORECASE)
SUFFIXES = {".tsv", ".jsonl"}  # that versions before 3 read in folders
LAYOUT = Layout(
    (
        Field("source", tuple(SOURCES), may_be_empty=True),
        Field("target", tuple(TARGETS), may_be_empty=True),
    ),
    "source and target, in a .tsv with one tab between them",
    lambda *table: guess_languages(*table) or guess_texts(*table),
    in_order=True,
    row="write each line as source, one tab, target",
    is_header=is_pair_header,
)


# Reading


def read_pairs(paths: Sequence[str]) -> Iterator[Pair]:
    """Yield the pairs in tables, in folders of them, in standard input ("-") and on the hub
    ("hf:..."); or in two files of parallel lines. A side of a pair may be empty."""
    return (pair for _, pair in locate_pairs(paths))


def locate_pairs(paths: Sequence[str]) -> Iterator[tuple[str, Pair]]:
    """Yield the location of each pair, and the pair."""
    files = list(expand_folders(paths, folder_suffixes(SUFFIXES)))
    parallel = [file for file in files if not is_table(file)]
    for file in parallel:
        if not path_exists(file):
            raise missing_file(file)
    if parallel and len(parallel) < len(files):
        other = next(file for file in files if file not in parallel)
        raise UserError(
            f"{parallel[0]}: a file of parallel lines, but {display_name(other)} has both sides; "
            "give them separately"
        )
    if parallel and len(parallel) != 2:
        if len(parallel) == 1 and b"\t" in next(read_lines(parallel[0]), b""):
            advice = f"rename it to {Path(parallel[0]).stem}.tsv"
            raise UserError(f"{parallel[0]}: 1 file of lines, but with a tab in the first one; {advice}")
        raise UserError(
            f"{parallel[0]}: {len(parallel)} file{'s' * (len(parallel) > 1)} of lines, but pairs take two, "
            "source and target, with the same number of lines; or a table, such as a .tsv (source TAB target)"
        )
    if parallel:
        yield from _parallel(*parallel)
        return
    for file in files:
        is_empty = True
        for where, pair in locate_table_pairs(read_table(file)):
            is_empty = is_empty and not any(pair)
            yield where, pair
        if is_empty:
            raise empty_file(file)


def locate_table_pairs(table: Table) -> Iterator[tuple[str, Pair]]:
    """Yield the location of each pair of a table, and the pair."""
    if table.header and "turns" in table.header:
        yield from _read_turns(table)
        return
    for where, record in table_records(table, LAYOUT):
        yield where, (record["source"], record["target"])


def _read_turns(table: Table) -> Iterator[tuple[str, Pair]]:
    """Yield each turn of a conversation with the one before it; some rows may be pairs."""
    record = record_source(display_name(table.path))
    for where, cells in table.rows:
        row = {name: cell for name, cell in zip(table.header or (), cells, strict=True) if cell is not None}
        match row:
            case {"source": str(source), "target": str(target)}:
                turns = [source, target]
            case {"turns": [str(), str(), *more]} if all(isinstance(turn, str) for turn in more):
                turns = row["turns"]
            case _:
                raise UserError(
                    f'{where}: no pair; write each line as {{"source": "...", "target": "..."}} '
                    'or {"turns": ["...", "...", ...]} with at least two turns'
                )
        turns = [normalize_newlines(check_surrogates(turn, where)).strip() for turn in turns]
        record.add({"turns": turns})
        yield from ((where, pair) for pair in pairwise(turns))


def guess_languages(names: list[str], rows: list[Row], columns: dict[str, int]) -> dict[str, int]:
    """Take two columns that are named after languages for source and target, in their order."""
    keys = [name.rpartition(".")[2] for name in names]
    languages = [index for index, key in enumerate(keys) if is_language(key)]
    if len(languages) > 2:  # id may be Indonesian, but rarely is
        languages = [index for index in languages if normalize(keys[index]) not in NUMBERS]
    missing = [name for name in ("source", "target") if name not in columns]
    free = [index for index in languages if index not in columns.values()]
    return dict(zip(missing, free, strict=True)) if len(languages) == 2 and len(free) == len(missing) else {}


def guess_texts(names: list[str], rows: list[Row], columns: dict[str, int]) -> dict[str, int]:
    """Of columns without names, take the two that are neither numbers nor a licence for source and target:
    Tatoeba writes source, target, attribution; or number, source, number, target."""
    if columns or not rows or names != [str(number) for number in range(1, len(rows[0][1]) + 1)]:
        return {}
    texts = []
    for index in range(len(names)):
        cells = [str(row[index]) for _, row in rows]
        if not (all(map(str.isdecimal, cells)) or all(map(LICENCE.search, cells))):
            texts.append(index)
    return dict(zip(("source", "target"), texts, strict=True)) if len(texts) == 2 < len(names) else {}


def _parallel(*paths: str) -> Iterator[tuple[str, Pair]]:
    counts, has_text, both = [0, 0], [False, False], record_source(" and ".join(paths))
    for pair in zip_longest(*map(_stripped_lines, paths)):
        for side, text in enumerate(pair):
            counts[side] += text is not None
            has_text[side] = has_text[side] or bool(text)
        if counts[0] == counts[1]:
            both.add({"source": pair[0], "target": pair[1]})
            yield f"{paths[0]}:{counts[0]}", (pair[0], pair[1])
    for path, filled in zip(paths, has_text, strict=True):
        if not filled:
            raise empty_file(path)
    if counts[0] != counts[1]:
        raise UserError(
            f"{paths[0]} has {counts[0]:,} lines, but {paths[1]} has {counts[1]:,}; line N of one belongs to "
            "line N of the other, so get both again or remove the extra lines"
        )


def _stripped_lines(path: str) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), 1):
        yield decode_utf8(line, path, number).strip()


# Conversations


def conversation_ids(pairs: Sequence[Pair]) -> list[int]:
    """Number each pair's conversation; a pair continues it if its source is the target of the pair before."""
    ids: list[int] = []
    previous = None
    for source, target in pairs:
        ids.append(ids[-1] + (source != previous) if ids else 0)
        previous = target
    return ids


def build_histories(pairs: Sequence[Pair], turns: int) -> list[History]:
    """Return each reply with up to `turns` turns of its conversation before it."""
    histories: list[History] = []
    begin, last = 0, -1
    for row, (pair, number) in enumerate(zip(pairs, conversation_ids(pairs), strict=True)):
        if number != last:
            begin, last = row, number
        if isinstance(pair, UserReply):
            continue
        _, reply = pair
        histories.append(([source for source, _ in pairs[max(begin, row - turns + 1) : row + 1]], reply))
    return histories


def split_pairs(
    pairs: Sequence[Pair], valid: Sequence[Pair] | None, holdout: float
) -> tuple[list[Pair], list[Pair]]:
    """Return pairs for training and for validation.

    Validation pairs are `valid`, if given; or every tenth conversation, for a holdout of 0.1; or, if there
    are few, the last tenth, but at least one of two or more. Conversations that begin alike count as one.
    """
    if valid is not None:
        return list(pairs), list(valid)
    ids = np.array(conversation_ids(pairs), dtype=np.int64)
    firsts = np.unique(ids, return_index=True)[1].tolist()
    ids = number_groups([pairs[row][0] for row in firsts])[ids]
    count = int(ids.max()) + 1 if len(ids) else 0
    every = max(2, round(1 / holdout)) if holdout else 0
    if holdout == 0 or count < 2:
        held_out = np.zeros(len(pairs), dtype=bool)
    elif count >= max(MIN_DOCUMENTS, every):
        held_out = ids % every == first_held_out(every)
    else:
        size = max(1, int(count * holdout))
        held_out = (count - 1 - ids) // size == reading_fold()
    train = [pair for pair, out in zip(pairs, held_out.tolist(), strict=True) if not out]
    valid_pairs = [pair for pair, out in zip(pairs, held_out.tolist(), strict=True) if out]
    return train, valid_pairs
