"""Read sentences with a tag for every word, in CoNLL's columns."""

import re
from collections.abc import Sequence

from regard.data.files import decode_utf8, display_name, expand_folders, read_lines
from regard.data.labels import count_columns
from regard.errors import UserError

TaggedSentence = tuple[list[str], list[str]]  # the words, and the tag of each

SUFFIXES = {".conll", ".tsv", ".txt"}  # of the files in a folder
BLANK = re.compile(r"[ \t]+")
EXPECTED = "write each line as a word, spaces or a tab, and its tag"


def read_tags(paths: Sequence[str]) -> list[TaggedSentence]:
    """Read CoNLL files: each line has a word first and its tag last, and a blank line ends a sentence.

    Lines of -DOCSTART- end a sentence too.
    """
    return [sentence for file in list(expand_folders(paths, SUFFIXES)) for sentence in _read_conll(file)]


def _read_conll(path: str) -> list[TaggedSentence]:
    sentences: list[TaggedSentence] = [([], [])]
    columns = 0
    for number, line in enumerate(read_lines(path), 1):
        cells = BLANK.split(decode_utf8(line, path, number).strip(" \t\r\n"))
        if not cells[0] or cells[0].startswith("-DOCSTART-"):
            if sentences[-1][0]:
                sentences.append(([], []))
            continue
        where = f"{display_name(path)}:{number}"
        if len(cells) < 2:
            raise UserError(f"{where}: 1 column; {EXPECTED}")
        columns = columns or len(cells)
        if len(cells) != columns:  # a blank inside a word would make its first part the word
            raise UserError(
                f"{where}: {count_columns(cells)}, but {columns} before; give every word the same number"
            )
        sentences[-1][0].append(cells[0])
        sentences[-1][1].append(cells[-1])
    sentences = [sentence for sentence in sentences if sentence[0]]
    if not sentences:
        raise UserError(f"{display_name(path)}: no sentence in it; {EXPECTED}")
    return sentences
