"""The data for training and validation, read from texts or from folders that `prepare` wrote."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from regard.data.documents import read_chunks
from regard.data.encoding import (
    DataConfig,
    Parts,
    encode_texts,
    split_texts,
    texts_to_learn_from,
    tokenizer_for,
)
from regard.data.shards import concat_shards, is_prepared
from regard.data.streams import Stream
from regard.data.text_stream import open_stream
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import KINDS


@dataclass
class Corpus:
    """The data that a task is trained and validated on."""

    train: Any  # a Stream, or another dataset of the task
    valid: Any | None
    tokenizer: Tokenizer | None  # None for images
    target_tokenizer: Tokenizer | None = None  # if the target has a vocabulary of its own
    task_settings: dict[str, Any] = field(default_factory=dict)  # that follow from the data
    notes: list[str] = field(default_factory=list)  # notes on the data for the user
    model_settings: dict[str, int] = field(default_factory=dict)  # that follow from the data: size of images
    files: list[str] = field(default_factory=list)  # that were read
    summary: list[str] = field(default_factory=list)  # a description of the data, in a few lines


def load_corpus(
    paths: Sequence[str],
    valid_paths: Sequence[str],
    config: DataConfig,
    specials: Sequence[str],
    tokenizer: Tokenizer | None = None,
) -> Corpus:
    """Load texts, or folders that `prepare` wrote, as ids; `tokenizer` overrides the configured one."""
    if is_prepared(paths):
        return _prepared_corpus(paths, valid_paths, config, tokenizer)
    if is_prepared(valid_paths):
        raise UserError(
            f"{valid_paths[0]}: a prepared folder, but {paths[0]} is not; prepare both or neither"
        )
    if config.stream:
        return _streamed_corpus(paths, valid_paths, config, specials, tokenizer)
    valid = list(read_chunks(valid_paths)) if valid_paths else None
    parts = split_texts(list(read_chunks(paths)), valid, config.holdout)
    tokenizer = tokenizer or tokenizer_for(texts_to_learn_from(parts), config, specials)
    train, held_out = _streams(parts, tokenizer)
    return Corpus(train, held_out if len(held_out) >= 2 else None, tokenizer)


def load_heldout(paths: Sequence[str], specials: Sequence[str], tokenizer: Tokenizer) -> Stream:
    """Load data to score on: all of a text, or the held-out part of a prepared folder."""
    corpus = load_corpus(paths, (), DataConfig(holdout=0.0), specials, tokenizer)
    stream: Stream = corpus.valid or corpus.train
    if len(stream) < 2:
        raise UserError(f"{paths[0]}: fewer than two tokens are too few to score on; give a longer text")
    return stream


def _streams(parts: Parts, tokenizer: Tokenizer) -> tuple[Stream, Stream]:
    batches = list(encode_texts(parts, tokenizer))

    def stream(held_out: bool) -> Stream:
        side = [batch for batch in batches if batch.held_out == held_out]
        ids = [np.concatenate([batch.ids for batch in side])] if side else []
        return Stream(ids, sum(batch.bytes for batch in side))

    return stream(False), stream(True)


def _streamed_corpus(
    paths: Sequence[str],
    valid_paths: Sequence[str],
    config: DataConfig,
    specials: Sequence[str],
    tokenizer: Tokenizer | None,
) -> Corpus:
    """Texts that are read while training; the first documents of the stream are held out."""
    train, valid, tokenizer = open_stream(paths, config, specials, tokenizer, hold_out=not valid_paths)
    if valid_paths:
        parts = ((True, starts, text) for starts, text in read_chunks(valid_paths))
        valid = _streams(parts, tokenizer)[1]
    return Corpus(train, valid if valid is not None and len(valid) >= 2 else None, tokenizer)


def _prepared_corpus(
    paths: Sequence[str], valid_paths: Sequence[str], config: DataConfig, tokenizer: Tokenizer | None
) -> Corpus:
    own = Tokenizer.load(paths[0])
    if tokenizer is None and config.tokenizer not in KINDS:
        tokenizer = Tokenizer.load(config.tokenizer)
    if tokenizer is not None and tokenizer.digest != own.digest:
        other = "the given one" if config.tokenizer in KINDS else f"data.tokenizer {config.tokenizer}"
        raise UserError(
            f"{paths[0]}: prepared with another tokenizer than {other}; prepare it again with that one"
        )
    valid_prepared = is_prepared(valid_paths)
    for path in chain(paths[1:], valid_paths if valid_prepared else ()):
        if Tokenizer.load(path).digest != own.digest:
            raise UserError(f"{path}: prepared with another tokenizer than {paths[0]}; use one for both")
    train = concat_shards(paths, ["train"], own)
    if valid_prepared:
        valid = concat_shards(valid_paths, ["train", "valid"], own)
    elif valid_paths:
        valid = _streams(((True, starts, text) for starts, text in read_chunks(valid_paths)), own)[1]
    else:
        valid = concat_shards(paths, ["valid"], own)
    return Corpus(train, valid if len(valid) >= 2 else None, own)
