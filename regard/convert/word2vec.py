"""The word vectors of a model as a file in word2vec's format."""

from pathlib import Path

import tokenizers

from regard.convert.export import ExportRequest
from regard.data.files import content_suffix
from regard.data.word_vectors import BINARY, SUFFIXES
from regard.errors import UserError
from regard.files.atomic import is_missing
from regard.text.tokenizer import Tokenizer
from regard.text.vectors import embeddings, select_vectors, whole_words


def export_word2vec(path: str | Path, request: ExportRequest) -> str:
    """Write a new file: text, or binary if it is named .bin; compressed if .gz follows."""
    path = Path(path)
    if content_suffix(path.name) not in SUFFIXES or path.suffix.lower() in (".xz", ".zst"):
        names = " ".join(sorted(SUFFIXES))
        raise UserError(f"{path}: --to word2vec writes a file; name it {names}, or with .gz after it")
    if not is_missing(path):
        raise UserError(f"{path} exists; choose another name, or delete it if you don't need it")
    if request.tokenizer is None:
        raise UserError("this model has no embeddings of words; use one that reads or writes text")
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(request.tokenizer))
    vectors = select_vectors(embeddings(request.model), whole_words(tokenizer))
    vectors.save(path, binary=content_suffix(path.name) == BINARY)
    return f"{len(vectors):,} words of {vectors.matrix.shape[1]} numbers each"
