"""Pairs of texts as token ids: encoding, and filtering by length."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from regard.data.encoding import DataConfig, dtype_for
from regard.data.pairs import History
from regard.data.ragged import Ragged
from regard.errors import UserError
from regard.text.tokenizer import AT_ONCE, Tokenizer


@dataclass(frozen=True, kw_only=True)
class PairConfig(DataConfig):
    tokenizer: str = "bpe"  # as for texts: a kind to train, or a tokenizer.json or its folder
    target_tokenizer: str | None = None  # None: one vocabulary for both sides; else the target's own
    shortest: int = 1  # the smallest number of tokens of a side
    longest: int | None = None  # the tokens of a side, at most; None: as the model's context allows
    ratio: float = 9.0  # the largest ratio of the lengths of both sides; 0 allows any
    keep_targets: bool = False  # with teachers: learn both the data's targets and the teachers' answers
    bpe_dropout: float = 0.0  # the share of merges left out in training: a word is split anew each time
    shortlist: int = 0  # for `ask --shortlist`: the likely targets of each source token to keep; 0: none

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shortest > 0:
            raise ValueError(f"shortest={self.shortest} must be more than 0")
        if self.longest is not None and not self.longest >= self.shortest:
            raise ValueError(f"longest={self.longest} must be at least shortest={self.shortest}")
        if not (self.ratio == 0 or self.ratio >= 1):
            raise ValueError(f"ratio={self.ratio} must be at least 1, or 0 for any")
        if not 0 <= self.bpe_dropout < 1:
            raise ValueError(f"bpe_dropout={self.bpe_dropout} must be from 0 to less than 1")
        if self.shortlist < 0:
            raise ValueError(f"shortlist={self.shortlist} must not be negative; 100 is common")


class PairDataset:
    """Token ids of pairs, and their texts for computing scores; turns of a source are joined by newlines."""

    def __init__(
        self, sources: list[str], targets: list[str], source_ids: Ragged, target_ids: Ragged
    ) -> None:
        self.sources, self.targets = sources, targets
        self.source_ids, self.target_ids = source_ids, target_ids
        self.bpe_dropout, self.keep_targets, self.shortlist = 0.0, False, 0  # as in PairConfig, in training

    def __len__(self) -> int:
        return len(self.targets)

    def __add__(self, other: "PairDataset") -> "PairDataset":
        ids = self.source_ids + other.source_ids, self.target_ids + other.target_ids
        return PairDataset(self.sources + other.sources, self.targets + other.targets, *ids)

    def source(self, row: int) -> np.ndarray:
        return self.source_ids[row]

    def target(self, row: int) -> np.ndarray:
        return self.target_ids[row]

    @property
    def source_lengths(self) -> np.ndarray:
        return self.source_ids.lengths

    @property
    def target_lengths(self) -> np.ndarray:
        return self.target_ids.lengths

    @cached_property
    def bytes(self) -> int:
        """The size of all targets in UTF-8."""
        return sum(len(text) if text.isascii() else len(text.encode()) for text in self.targets)

    def fingerprint(self) -> str:
        """Return the SHA-256 of all lengths and ids."""
        sha = hashlib.sha256()
        for side in (self.source_ids, self.target_ids):
            sha.update(side.lengths.tobytes())
            sha.update(side.ids.tobytes())
        return sha.hexdigest()

    def describe(self) -> str:
        return f"{len(self):,} pair{'' if len(self) == 1 else 's'}"


def encode_pairs(
    texts: Sequence[History], source: Tokenizer, target: Tokenizer, separator: int | None = None
) -> PairDataset:
    """Encode all pairs; the separator, if given, is put between two turns of a source."""
    return PairDataset(
        ["\n".join(turns) for turns, _ in texts],
        [reply for _, reply in texts],
        _encode_rows((turns for turns, _ in texts), source, separator),
        _encode_rows(([reply] for _, reply in texts), target, None),
    )


def _encode_rows(rows: Iterable[list[str]], tokenizer: Tokenizer, separator: int | None) -> Ragged:
    dtype = dtype_for(tokenizer)
    between = np.array([] if separator is None else [separator], dtype)
    ids, lengths = [np.array([], dtype)], [np.array([], np.int64)]
    for batch in _batches(rows):
        encoded = iter(tokenizer.encode_batch([turn for turns in batch for turn in turns]))
        parts = [
            [part for number in range(len(turns)) for part in ([between] if number else []) + [next(encoded)]]
            for turns in batch
        ]
        ids.append(np.concatenate([part for row in parts for part in row], dtype=dtype, casting="unsafe"))
        lengths.append(np.array([sum(map(len, row)) for row in parts]))
    return Ragged(np.concatenate(ids), np.concatenate(lengths))


def _batches(rows: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Yield the rows that the tokenizer encodes in one call."""
    batch: list[list[str]] = []
    characters = 0
    for turns in rows:
        batch.append(turns)
        characters += sum(map(len, turns)) + 64  # each text also costs an array
        if characters >= AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def filter_pairs(
    pairs: PairDataset, config: PairConfig, longest_source: int, longest_target: int, cut: bool
) -> tuple[PairDataset, list[str]]:
    """Return the pairs to use, and a line for each reason that dropped some.

    The model has room for `longest_source` and `longest_target` tokens. With `cut`, a source that is too
    long loses its oldest tokens instead of being dropped.
    """
    limits = [min(config.longest or room, room) for room in (longest_source, longest_target)]
    source, target = pairs.source_lengths, pairs.target_lengths
    source_long, target_long = source > limits[0], target > limits[1]
    counts = np.minimum(source, limits[0]) if cut else source
    uneven = np.maximum(counts, target) > config.ratio * np.minimum(counts, target)
    limit = limits[1] if cut or limits[0] == limits[1] else f"{limits[0]} (source) or {limits[1]} (target)"
    shortest = np.minimum(source, target)
    reasons = {
        "an empty side": shortest == 0,
        f"shorter than {config.shortest} tokens (data.shortest)": shortest < config.shortest,
        f"longer than {limit} tokens (data.longest or model.context)": target_long
        | (source_long & (not cut)),
        f"one side over {config.ratio:g} times as long as the other (data.ratio)": uneven
        & (config.ratio > 0),
    }
    keep = np.ones(len(pairs), dtype=bool)
    report = []
    for reason, bad in reasons.items():
        if dropped := int((keep & bad).sum()):  # each pair counts only for its first reason
            report.append(f"dropped {dropped:,} of {pairs.describe()}: {reason}")
        keep &= ~bad
    if len(pairs) and not keep.any():
        raise UserError(f"no pair is left: {', '.join(report)}; change these limits or give other pairs")
    if shortened := int((keep & source_long).sum()):
        report.append(
            f"cut {shortened:,} of {pairs.describe()}: the last {limits[0]} tokens of a longer source are "
            "read (data.longest or model.context)"
        )
    if not report:
        return pairs, report
    rows = np.flatnonzero(keep).tolist()
    filtered = PairDataset(
        [pairs.sources[row] for row in rows],
        [pairs.targets[row] for row in rows],
        pairs.source_ids.keep_last(counts, keep),
        pairs.target_ids.keep_last(target, keep),
    )
    return filtered, report
