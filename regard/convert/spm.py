"""Sentencepiece's files as Marian has them: pieces with scores, in the order of vocab.json, as a Unigram.

A .spm file is a message of protocol buffers: fields one after another, each with its number, its type, and
for those of type 2 its length. Of these are read the pieces (1) and, of how texts are prepared (3), the rest.
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from ..errors import Mistake
from .files import read_json

SOURCE, TARGET, VOCAB = "source.spm", "target.spm", "vocab.json"
LONGEST = 2**26  # bytes of a file
UNIGRAM, NORMAL = 1, 1  # the kind of model, and of piece
SPECIALS = ("<unk>", "</s>", "<pad>")
ELSEWHERE = "\ue000"  # no text has it: before what only the other side writes
Value = int | bytes


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Each field's number and value."""
    at = 0

    def varint() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte, at = message[at], at + 1
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 63:
                return found

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        many = {1: 8, 5: 4}[key & 7] if key & 7 != 2 else varint()
        at += many
        if at > len(message):
            raise IndexError
        yield key >> 3, message[at - many : at]


def read_spm(path: Path) -> tuple[dict[str, float], dict[int, Value]]:
    """Pieces with their scores; and how texts are prepared, by the numbers of fields."""
    try:
        if path.stat().st_size > LONGEST:
            raise Mistake(f"{path}: more than {LONGEST >> 20} MiB; this is no model of sentencepiece")
        top = list(fields(path.read_bytes()))
        found, rules = dict[str, float](), dict[int, Value]()
        for number, inner in top:
            some = dict(fields(inner)) if number in (1, 2, 3) and isinstance(inner, bytes) else {}
            if number == 2 and some.get(3, UNIGRAM) != UNIGRAM:
                raise Mistake(f"{path}: not a unigram model; no others are known of Marian")
            if number == 3:
                rules = some
            if number == 1 and some.get(3, NORMAL) == NORMAL:
                piece, score = some[1], some.get(2, bytes(4))
                found[str(piece, "utf-8")] = struct.unpack("<f", score)[0]  # type: ignore[arg-type]
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error):
        raise Mistake(f"{path}: damaged, or no model of sentencepiece; copy it again") from None
    except OSError as e:
        raise Mistake(f"{path}: cannot be read ({e.strerror})") from None
    if not found:
        raise Mistake(f"{path}: it has no pieces; copy it again")
    return found, rules


def marian_tokenizers(folder: Path) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """That of what is read, and that of what is written: they share ids, not what is a piece."""
    where, numbers = folder / VOCAB, read_json(folder / VOCAB)
    ids = sorted(id for id in numbers.values() if isinstance(id, int))
    if ids != list(range(len(numbers))) or "<unk>" not in numbers:
        raise Mistake(f"{where}: it should number all pieces from 0 up, <unk> among them")
    pieces = sorted(numbers, key=lambda piece: numbers[piece])
    read, written = (folder / (name if (folder / name).is_file() else SOURCE) for name in (SOURCE, TARGET))
    return unigram(read, pieces, hidden=True), unigram(written, pieces, hidden=False)


def unigram(path: Path, pieces: list[str], hidden: bool) -> tokenizers.Tokenizer:
    """Where pieces of the other side are `hidden`, no text becomes one of them, but for single characters;
    else they keep their names, as a model may write them."""
    scores, rules = read_spm(path)
    unknown = min(scores.values()) - 10  # what a character that is no piece costs there
    codes = [piece for piece in pieces if re.fullmatch(r">>.+<<", piece)]  # the language to write
    shown = {*scores, *SPECIALS, *codes, *(piece for piece in pieces if len(piece) == 1)}
    vocab = [
        (ELSEWHERE + piece if hidden and piece not in shown else piece, scores.get(piece, unknown))
        for piece in pieces
    ]
    try:
        made = tokenizers.Tokenizer(models.Unigram(vocab, pieces.index("<unk>"), False))
        charsmap = rules.get(2)
        steps: list[Any] = (
            [normalizers.Precompiled(charsmap)] if isinstance(charsmap, bytes) and charsmap else []
        )
        if rules.get(4, 1):
            steps += [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
        made.normalizer = normalizers.Sequence(steps)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # the library raises nothing more special, and may panic
        raise Mistake(f"{path}: {' '.join(str(e).split())}") from None
    prepended = "always" if rules.get(3, 1) else "never"
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepended, split=False)
    made.decoder = decoders.Metaspace(prepend_scheme=prepended, split=False)
    made.add_special_tokens([special for special in SPECIALS if special in pieces])
    made.add_tokens([AddedToken(code, normalized=False) for code in codes])
    return made
