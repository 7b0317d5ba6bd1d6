"""Marian's sentencepiece files as Unigram tokenizers, with the ids of vocab.json.

A .spm file is a protocol buffer: fields one after another, each with its number, its type, and for type 2 its
length. The pieces are field 1, the kind of model is in field 2, and the normalisation of texts in field 3.
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from regard.errors import UserError
from regard.files.untrusted import read_json

SOURCE, TARGET, VOCAB = "source.spm", "target.spm", "vocab.json"
MAX_SIZE = 2**26  # bytes of a file
UNIGRAM, NORMAL = 1, 1  # a type of model, and of piece
SPECIAL_TOKENS = ("<unk>", "</s>", "<pad>")
UNREACHABLE = "\ue000"  # a character that occurs in no text: the prefix of pieces of the other side only
UNKNOWN_PENALTY = 10  # sentencepiece's score of an unknown character is this much below the lowest
Value = int | bytes


def read_fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The number and value of each field."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 63:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        length = {1: 8, 5: 4}[key & 7] if key & 7 != 2 else varint()
        at += length
        if at > len(message):
            raise IndexError
        yield key >> 3, message[at - length : at]


def read_spm(path: Path) -> tuple[dict[str, float], dict[int, Value]]:
    """The score of each piece; and the normalisation's fields."""
    try:
        if path.stat().st_size > MAX_SIZE:
            raise UserError(f"{path}: more than {MAX_SIZE >> 20} MiB; this is not a sentencepiece model")
        scores, normalization = dict[str, float](), dict[int, Value]()
        for number, content in list(read_fields(path.read_bytes())):
            fields = dict(read_fields(content)) if number in (1, 2, 3) and isinstance(content, bytes) else {}
            if number == 2 and fields.get(3, UNIGRAM) != UNIGRAM:
                raise UserError(f"{path}: not a unigram model, the only kind that Marian uses")
            if number == 3:
                normalization = fields
            if number == 1 and fields.get(3, NORMAL) == NORMAL:
                piece, score = fields[1], fields.get(2, bytes(4))
                scores[str(piece, "utf-8")] = struct.unpack("<f", score)[0]  # type: ignore[arg-type]
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error):
        raise UserError(f"{path}: damaged, or not a sentencepiece model; copy it again") from None
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror})") from None
    if not scores:
        raise UserError(f"{path}: it has no pieces; copy it again")
    return scores, normalization


def marian_tokenizers(folder: Path) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """The source's tokenizer and the target's: they share ids, but not pieces."""
    path, ids = folder / VOCAB, read_json(folder / VOCAB)
    numbers = sorted(id for id in ids.values() if isinstance(id, int))
    if numbers != list(range(len(ids))) or "<unk>" not in ids:
        raise UserError(f"{path}: it should number all pieces from 0 up, <unk> among them")
    pieces = sorted(ids, key=lambda piece: ids[piece])
    source, target = (folder / (name if (folder / name).is_file() else SOURCE) for name in (SOURCE, TARGET))
    return build_unigram(source, pieces, hide=True), build_unigram(target, pieces, hide=False)


def build_unigram(path: Path, pieces: list[str], hide: bool) -> tokenizers.Tokenizer:
    """A tokenizer with all pieces. If the other side's are hidden, no text is split into them, except single
    characters; otherwise they keep their names, since the model may write them."""
    scores, normalization = read_spm(path)
    unknown = min(scores.values()) - UNKNOWN_PENALTY
    languages = [
        piece for piece in pieces if re.fullmatch(r">>.+<<", piece)
    ]  # tokens that choose the target's
    visible = {*scores, *SPECIAL_TOKENS, *languages, *(piece for piece in pieces if len(piece) == 1)}
    vocab = [
        (UNREACHABLE + piece if hide and piece not in visible else piece, scores.get(piece, unknown))
        for piece in pieces
    ]
    try:
        tokenizer = tokenizers.Tokenizer(models.Unigram(vocab, pieces.index("<unk>"), False))
        charsmap = normalization.get(2)
        steps: list[Any] = (
            [normalizers.Precompiled(charsmap)] if isinstance(charsmap, bytes) and charsmap else []
        )
        if normalization.get(4, 1):  # remove extra whitespace
            steps += [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # the library raises no specific errors, and may panic
        raise UserError(f"{path}: {' '.join(str(e).split())}") from None
    prepend = "always" if normalization.get(3, 1) else "never"  # a space before the text
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend, split=False)
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token in pieces])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in languages])
    return tokenizer
