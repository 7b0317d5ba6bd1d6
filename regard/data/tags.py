"""Read sentences with a tag for every word, in CoNLL's columns."""

import re
from collections.abc import Iterator, Sequence

from regard.data.cells import count_columns
from regard.data.columns import Field, Layout, read_records
from regard.data.files import content_suffix, decode_utf8, display_name, expand_folders, read_lines
from regard.data.headers import TAG_NAMES, WORD_NAMES, is_header, record_header
from regard.data.reading import reading_version, record_note, record_source
from regard.data.tables import SUFFIXES as TABLE_SUFFIXES
from regard.data.tables import folder_suffixes
from regard.errors import UserError

TaggedSentence = tuple[list[str], list[str]]  # the words, and the tag of each

SUFFIXES = {".conll", ".conllu", ".tsv", ".txt"}  # of CoNLL files in a folder
TABLES = TABLE_SUFFIXES - SUFFIXES
GROUPS = ("sentence #", "sentence_id", "sentence id", "sentence_idx", "sent_id", "sentence_number")
LAYOUT = Layout(
    (
        Field("words", ("tokens", "word", "text", "sentence"), "words"),
        Field(
            "tags",
            ("ner_tags", "pos_tags", "upos", "ner", "pos", "labels", "label", "tag", "entities"),
            "words",
        ),
        Field("group", GROUPS, "label", required=False, may_be_empty=True),
    ),
    "words and tags, as lists or with spaces between",
)
CONLLU = re.compile(
    r"[0-9]+([-.][0-9]+)?(\t[^\t]+){9}"
)  # ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC
COMMENT = re.compile(r"# ?(sent_id|text|newdoc|newpar|global\.columns)\b")  # that such files begin with
BLANK = re.compile(r"[ \t]+")
EXPECTED = "write each line as a word, spaces or a tab, and its tag"


def read_tags(paths: Sequence[str]) -> list[TaggedSentence]:
    """Read tables with the words and the tags of a sentence in each row, as lists or with spaces between, or
    with a word in each row and a column for its sentence; and CoNLL files: each line has a word first
    and its tag last, and a blank line ends a sentence.

    Lines of -DOCSTART- end a sentence too. In CoNLL-U, the word is in the second column, and its tag in the
    fourth.
    """
    files = list(expand_folders(paths, folder_suffixes(SUFFIXES)))
    return [s for file in files for s in (_read_rows(file) if is_tag_table(file) else _read_conll(file))]


def is_tag_table(path: str) -> bool:
    """Return whether a file has a sentence in each row; .tsv and standard input have CoNLL's columns."""
    return path.startswith("hf:") or (path != "-" and content_suffix(path) in TABLES)


def _read_rows(path: str) -> Iterator[TaggedSentence]:
    """Yield the sentences of a table; rows of one group are one sentence."""
    sentence: TaggedSentence = [], []
    current: str | None = None
    for where, record in read_records(path, LAYOUT):
        words, tags = record["words"], record["tags"]
        if "group" in record and len(tags) == 1:  # a word in each row, which may have blanks
            words = ["\N{NO-BREAK SPACE}".join(words)]
        if len(words) != len(tags):
            raise UserError(f"{where}: {len(words)} words, but {len(tags)} tags; give each word one")
        group = record.get("group")
        if sentence[0] and ("group" not in record or group not in (None, current)):
            yield sentence
            sentence = [], []
        current = group or current  # empty: as in the row before
        sentence[0].extend(words)
        sentence[1].extend(tags)
    if sentence[0]:
        yield sentence


def _read_conll(path: str) -> list[TaggedSentence]:
    sentences: list[TaggedSentence] = [([], [])]
    columns = 0
    is_conllu: bool | None = None if reading_version() > 1 else False  # None: no word was read yet
    for number, line in enumerate(read_lines(path), 1):
        text, where = decode_utf8(line, path, number).strip(" \t\r\n"), f"{display_name(path)}:{number}"
        if is_conllu is None and (CONLLU.fullmatch(text) or COMMENT.match(text)):
            is_conllu = True
            record_note(f"{display_name(path)}: CoNLL-U; words are tagged by column 4 (UPOS)")
        if is_conllu and text:
            if (word := _parse_conllu(where, text)) is not None:
                sentences[-1][0].append(word[0])
                sentences[-1][1].append(word[1])
            continue
        cells = BLANK.split(text)
        if not cells[0] or cells[0].startswith("-DOCSTART-"):
            if sentences[-1][0]:
                sentences.append(([], []))
            continue
        if is_conllu is None:
            is_conllu = False
            if number == 1 and is_header(cells[:1] + cells[-1:], (WORD_NAMES, TAG_NAMES)):
                record_header(where, cells, "word")
                continue
        if len(cells) < 2:
            raise UserError(f"{where}: 1 column; {EXPECTED}")
        columns = columns or len(cells)
        if len(cells) != columns:  # a blank in a word would cut it
            raise UserError(
                f"{where}: {count_columns(cells)}, but {columns} before; give every word the same number"
            )
        sentences[-1][0].append(cells[0])
        sentences[-1][1].append(cells[-1])
    sentences = [sentence for sentence in sentences if sentence[0]]
    if not sentences:
        raise UserError(f"{display_name(path)}: no sentence in it; {EXPECTED}")
    source = record_source(display_name(path), "sentence")
    for words, tags in sentences:
        source.add({"words": words, "tags": tags})
    return sentences


def _parse_conllu(where: str, text: str) -> tuple[str, str] | None:
    """Return the word and the tag of a line of CoNLL-U; None for a comment, a range or an empty node."""
    if text.startswith("#"):
        return None
    if not CONLLU.fullmatch(text):
        raise UserError(f"{where}: not ten columns with a number first, as in the lines before; correct it")
    number, word, _, tag, *_ = text.split("\t")
    if not number.isdecimal():
        return None
    if tag == "_":
        raise UserError(f"{where}: no tag in column 4 (UPOS); fill it in, or give a word and its tag alone")
    return word.replace(" ", "\N{NO-BREAK SPACE}"), tag
