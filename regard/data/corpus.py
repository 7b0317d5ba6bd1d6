"""What a model is trained and measured on: from texts, or from folders that `prepare` made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from regard.errors import Mistake
from regard.text import KINDS, Tokenizer

from .encoding import DataConfig, Parts, encoded, split, tokenizer_for
from .reading import documents
from .sampling import Stream
from .shards import joined, prepared


@dataclass
class Corpus:
    train: Any  # a Stream of text, or what else a task learns from
    valid: Any | None
    tokenizer: Tokenizer | None  # of texts
    target_tokenizer: Tokenizer | None = None  # where what is written has a vocabulary of its own
    found: dict[str, Any] = field(default_factory=dict)  # settings of the task that follow from the data
    notes: list[str] = field(default_factory=list)  # what people should know about the data
    shape: dict[str, int] = field(default_factory=dict)  # settings of the model that follow: of pictures


def corpus(
    paths: Sequence[str],
    valid_paths: Sequence[str],
    config: DataConfig,
    specials: Sequence[str],
    tokenizer: Tokenizer | None = None,
) -> Corpus:
    """Texts, or folders that `prepare` made of texts, as ids; `tokenizer` overrides the configured one."""
    if prepared(paths):
        return _prepared_corpus(paths, valid_paths, config, tokenizer)
    if prepared(valid_paths):
        raise Mistake(f"{valid_paths[0]}: prepared, but {paths[0]} is not; prepare both or neither")
    valid = list(documents(valid_paths)) if valid_paths else None
    parts = split(list(documents(paths)), valid, config.holdout)
    tokenizer = tokenizer or tokenizer_for(parts, config, specials)
    train, held = _streams(parts, tokenizer)
    return Corpus(train, held if len(held) >= 2 else None, tokenizer)


def held_out(paths: Sequence[str], specials: Sequence[str], tokenizer: Tokenizer) -> Stream:
    """Data to score on: all of a text, or the held-out part of a prepared folder."""
    found = corpus(paths, (), DataConfig(holdout=0.0), specials, tokenizer)
    stream: Stream = found.valid or found.train
    if len(stream) < 2:
        raise Mistake(f"{paths[0]}: one token is too little to score on; give a longer text")
    return stream


def _streams(parts: Parts, tokenizer: Tokenizer) -> tuple[Stream, Stream]:
    found = list(encoded(parts, tokenizer))
    sides = ([some for some in found if some.held == held] for held in (False, True))
    train, valid = (
        Stream(
            [np.concatenate([some.ids for some in side])] if side else [], sum(some.bytes for some in side)
        )
        for side in sides
    )
    return train, valid


def _prepared_corpus(
    paths: Sequence[str], valid_paths: Sequence[str], config: DataConfig, tokenizer: Tokenizer | None
) -> Corpus:
    own = Tokenizer.load(paths[0])
    if tokenizer is None and config.tokenizer not in KINDS:
        tokenizer = Tokenizer.load(config.tokenizer)
    if tokenizer is not None and tokenizer.digest != own.digest:
        other = "the given one" if config.tokenizer in KINDS else f"data.tokenizer {config.tokenizer}"
        raise Mistake(f"{paths[0]}: prepared with another tokenizer than {other}; prepare it again with that")
    valid_prepared = prepared(valid_paths)
    for path in chain(paths[1:], valid_paths if valid_prepared else ()):
        if Tokenizer.load(path).digest != own.digest:
            raise Mistake(f"{path}: prepared with another tokenizer than {paths[0]}; use one for both")
    train = joined(paths, ["train"], own)
    if valid_prepared:
        valid = joined(valid_paths, ["train", "valid"], own)
    elif valid_paths:
        valid = _streams(((True, text) for text in documents(valid_paths)), own)[1]
    else:
        valid = joined(paths, ["valid"], own)
    return Corpus(train, valid if len(valid) >= 2 else None, own)
