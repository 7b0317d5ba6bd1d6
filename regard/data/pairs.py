"""Pairs of texts, for translation and chat: from files to batches of pairs that are about equally long."""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise, zip_longest

import numpy as np

from regard.errors import Mistake
from regard.text import AT_ONCE, Tokenizer

from .encoding import FEW, DataConfig, dtype_for
from .reading import decoded, empty, holds, hub_rows, in_folder, json_rows, lines, missing, shown, unbroken
from .sampling import keys, shuffled

Pair = tuple[str, str]
History = tuple[list[str], str]  # the turns that are read, oldest first, and the reply

SUFFIXES = {".tsv", ".jsonl"}


@dataclass(frozen=True, kw_only=True)
class PairConfig(DataConfig):
    tokenizer: str = "bpe"  # as for texts: a kind to train, or a tokenizer.json or its folder
    target_tokenizer: str | None = None  # None: one vocabulary for both sides; else the target's own
    shortest: int = 1  # tokens of a side; and the most, where the model's context does not allow fewer:
    longest: int | None = None
    ratio: float = 9.0  # of the longer side's tokens to the shorter's, at most; 0 allows any

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shortest > 0:
            raise ValueError(f"shortest={self.shortest} must be more than 0")
        if self.longest is not None and not self.longest >= self.shortest:
            raise ValueError(f"longest={self.longest} must be at least shortest={self.shortest}")
        if not (self.ratio == 0 or self.ratio >= 1):
            raise ValueError(f"ratio={self.ratio} must be at least 1, or 0 for any")


# Reading


def text_pairs(paths: Sequence[str]) -> Iterator[Pair]:
    """The pairs in .tsv and .jsonl files, in folders of them, in standard input ("-", as .tsv) and on the hub
    ("hf:..."), one after another; or in two files of parallel lines. A pair may have an empty side."""
    paths = [str(path) for path in paths]
    folded = [in_folder(path, SUFFIXES) if os.path.isdir(path) else [path] for path in paths]
    files = list(chain.from_iterable(folded))
    plain = [file for file in files if not (file == "-" or file.startswith("hf:") or holds(file) in SUFFIXES)]
    for file in plain:
        if not os.path.exists(file):
            raise missing(file)
    if plain and len(plain) < len(files):
        other = next(file for file in files if file not in plain)
        raise Mistake(f"{plain[0]}: parallel lines, but {shown(other)} has whole pairs; give them separately")
    if plain and len(plain) != 2:
        raise Mistake(
            f"{plain[0]}: {len(plain)} file{'s' * (len(plain) > 1)} of lines, but pairs take two, source and "
            "target, with the same number of lines; or a .tsv (source TAB target) or .jsonl"
        )
    if plain:
        yield from _parallel(*plain)
    for file in [] if plain else files:
        read = _hub if file.startswith("hf:") else _jsonl if holds(file) == ".jsonl" else _tsv
        some = False
        for pair in read(file):
            some = some or any(pair)
            yield pair
        if not some:
            raise empty(file)


def _tsv(path: str) -> Iterator[Pair]:
    for number, line in enumerate(lines(path), 1):
        columns = decoded(line, path, number).split("\t")
        if len(columns) == 2:
            yield columns[0].strip(), columns[1].strip()
        elif len(columns) > 2 or columns[0].strip():
            many = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
            raise Mistake(f"{shown(path)}:{number}: {many}; a line is a source, one tab, and a target")


def _jsonl(path: str) -> Iterator[Pair]:
    for where, row in json_rows(path):
        match row:
            case {"source": str(source), "target": str(target)}:
                turns = [source, target]
            case {"turns": [str(), str(), *more]} if all(isinstance(turn, str) for turn in more):
                turns = row["turns"]
            case _:
                raise Mistake(
                    f'{where}: no pair; a line looks like {{"source": "...", "target": "..."}} '
                    'or {"turns": ["...", "...", ...]} with at least two turns'
                )
        turns = [unbroken(turn, where).strip() for turn in turns]
        yield from pairwise(turns)


def _hub(path: str) -> Iterator[Pair]:
    for source, target in hub_rows(path, ["source", "target"]):
        if not (isinstance(source, str) and isinstance(target, str)):
            raise Mistake(f"{path}: its source and target are not both texts; write the pairs to a .jsonl")
        yield source.strip(), target.strip()


def _parallel(*paths: str) -> Iterator[Pair]:
    counts, filled = [0, 0], [False, False]
    for pair in zip_longest(*map(_stripped, paths)):
        for side, text in enumerate(pair):
            counts[side] += text is not None
            filled[side] = filled[side] or bool(text)
        if counts[0] == counts[1]:
            yield pair[0], pair[1]
    for path, some in zip(paths, filled, strict=True):
        if not some:
            raise empty(path)
    if counts[0] != counts[1]:
        raise Mistake(
            f"{paths[0]} has {counts[0]:,} lines, but {paths[1]} has {counts[1]:,}; each line belongs to "
            "the same line of the other, so get both again or remove what is too much"
        )


def _stripped(path: str) -> Iterator[str]:
    for number, line in enumerate(lines(path), 1):
        yield decoded(line, path, number).strip()


# Conversations


def conversations(pairs: Sequence[Pair]) -> list[int]:
    """The number of each pair's conversation: a pair that answers the reply before it goes on with that."""
    numbers: list[int] = []
    before = None
    for source, target in pairs:
        numbers.append(numbers[-1] + (source != before) if numbers else 0)
        before = target
    return numbers


def histories(pairs: Sequence[Pair], turns: int) -> list[History]:
    """Each reply after at most `turns` turns of its conversation, the last of them the pair's source."""
    found: list[History] = []
    begin, last = 0, -1
    for row, ((_, reply), number) in enumerate(zip(pairs, conversations(pairs), strict=True)):
        if number != last:
            begin, last = row, number
        found.append(([source for source, _ in pairs[max(begin, row - turns + 1) : row + 1]], reply))
    return found


def split_pairs(
    pairs: Sequence[Pair], valid: Sequence[Pair] | None, holdout: float
) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from and to measure on: `valid`, if given; or every tenth conversation, for a holdout of
    0.1; or, of few conversations, the last tenth of them, though at least one of two or more."""
    if valid is not None:
        return list(pairs), list(valid)
    number = np.array(conversations(pairs), dtype=np.int64)
    count = int(number[-1]) + 1 if len(number) else 0
    every = max(2, round(1 / holdout)) if holdout else 0
    if holdout == 0 or count < 2:
        held = np.zeros(len(pairs), dtype=bool)
    elif count >= max(FEW, every):
        held = number % every == every - 1
    else:
        held = number >= count - max(1, int(count * holdout))
    train, out = (
        [p for p, h in zip(pairs, held.tolist(), strict=True) if h == side] for side in (False, True)
    )
    return train, out


# Token ids


class Ragged:
    """Rows of ids of different lengths, end to end in one array."""

    def __init__(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        self.ids, self.lengths = ids, lengths.astype(np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])

    def __getitem__(self, row: int) -> np.ndarray:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def last(self, counts: np.ndarray, keep: np.ndarray) -> "Ragged":
        """The last `counts` ids of each row that is to be kept."""
        counts = np.where(keep, counts, 0)
        # In each row, first those to leave, then those to take: a byte for every id, but no index.
        parts = np.stack([self.lengths - counts, counts], axis=1).ravel()
        taken = np.repeat(np.tile([False, True], len(counts)), parts)
        return Ragged(self.ids[taken], counts[keep])


class Pairs:
    """Token ids of many pairs, and their texts, which scores compare; turns are joined by newlines there."""

    def __init__(
        self, sources: list[str], targets: list[str], source_ids: Ragged, target_ids: Ragged
    ) -> None:
        self.sources, self.targets = sources, targets
        self.source_ids, self.target_ids = source_ids, target_ids

    def __len__(self) -> int:
        return len(self.targets)

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
        """The UTF-8 bytes of all targets."""
        return sum(len(text) if text.isascii() else len(text.encode()) for text in self.targets)

    def fingerprint(self) -> str:
        """SHA-256 of all lengths and ids: are these the same data?"""
        sha = hashlib.sha256()
        for side in (self.source_ids, self.target_ids):
            sha.update(side.lengths.tobytes())
            sha.update(side.ids.tobytes())
        return sha.hexdigest()

    def describe(self) -> str:
        return f"{len(self):,} pair{'' if len(self) == 1 else 's'}"


def encode(
    texts: Sequence[History], source: Tokenizer, target: Tokenizer, separator: int | None = None
) -> Pairs:
    """The ids of all pairs; the separator's, if there is one, stands between two turns of a source."""
    return Pairs(
        ["\n".join(turns) for turns, _ in texts],
        [reply for _, reply in texts],
        _encoded((turns for turns, _ in texts), source, separator),
        _encoded(([reply] for _, reply in texts), target, None),
    )


def _encoded(rows: Iterable[list[str]], tokenizer: Tokenizer, separator: int | None) -> Ragged:
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
    """Rows for one call of the tokenizer."""
    batch: list[list[str]] = []
    characters = 0
    for turns in rows:
        batch.append(turns)
        characters += sum(map(len, turns)) + 64  # an array of its own is not free either
        if characters >= AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def filtered(
    pairs: Pairs, config: PairConfig, longest_source: int, longest_target: int, cut: bool
) -> tuple[Pairs, list[str]]:
    """The pairs to use, and a line for each reason that dropped some; at most longest_source and _target
    tokens have room in the model. `cut`: a source that is too long loses its oldest tokens instead."""
    most = [min(config.longest or room, room) for room in (longest_source, longest_target)]
    source, target = pairs.source_lengths, pairs.target_lengths
    source_long, target_long = source > most[0], target > most[1]
    counts = np.minimum(source, most[0]) if cut else source
    unlike = np.maximum(counts, target) > config.ratio * np.minimum(counts, target)
    limit = most[1] if cut or most[0] == most[1] else f"{most[0]} (source) or {most[1]} (target)"
    shortest = np.minimum(source, target)
    reasons = {
        "an empty side": shortest == 0,
        f"shorter than {config.shortest} tokens (data.shortest)": shortest < config.shortest,
        f"longer than {limit} tokens (data.longest or model.context)": target_long
        | (source_long & (not cut)),
        f"one side over {config.ratio:g} times as long as the other (data.ratio)": unlike
        & (config.ratio > 0),
    }
    keep = np.ones(len(pairs), dtype=bool)
    report = []
    for reason, bad in reasons.items():
        if dropped := int((keep & bad).sum()):  # for the first reason that there is
            report.append(f"dropped {dropped:,} of {pairs.describe()}: {reason}")
        keep &= ~bad
    if len(pairs) and not keep.any():
        raise Mistake(f"no pair is left: {', '.join(report)}; change these limits or give other pairs")
    if shortened := int((keep & source_long).sum()):
        report.append(
            f"cut {shortened:,} of {pairs.describe()}: the last {most[0]} tokens of a longer source are read "
            "(data.longest or model.context)"
        )
    if not report:
        return pairs, report
    rows = np.flatnonzero(keep).tolist()
    kept = Pairs(
        [pairs.sources[row] for row in rows],
        [pairs.targets[row] for row in rows],
        pairs.source_ids.last(counts, keep),
        pairs.target_ids.last(target, keep),
    )
    return kept, report


# Batches


class Buckets:
    """Batches of pairs of similar length, in new company and a new order every epoch.

    What a step reads is a function of (seed, step) alone: there is no state to save. The pairs come in a
    random order, stably sorted by their bucket; so at any place in it stands the same bucket in every epoch,
    and the cuts, which look at the bucket's longest pair, are the same too.

    A batch has at most `rows` pairs, or `tokens` tokens on its longer side with the padding, where each text
    has one token more, which begins or ends it; a pair that is longer than that is a batch of its own.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        seed: int,
        rows: int | None = None,
        tokens: int | None = None,
    ) -> None:
        assert (rows is None) != (tokens is None), "either rows or tokens"
        if not len(source_lengths):
            raise Mistake("training needs at least one pair; give more")
        self.lengths, self.seed = (source_lengths, target_lengths), seed
        longer = np.maximum(source_lengths, target_lengths)
        edges = _edges(int(longer.max()))
        size = np.searchsorted(edges, longer)
        # Within a size, by how much the target is longer than the source, up and down in turns, so that
        # neighbours over the border are alike too.
        lean = np.searchsorted(edges, target_lengths) - np.searchsorted(edges, source_lengths)
        self.bucket = (size * 2 * len(edges) + len(edges) + np.where(size % 2, lean, -lean)).astype(np.uint64)
        if rows is not None:
            self.cuts = np.append(np.arange(0, len(longer), rows), len(longer))
        else:
            longest = np.zeros(len(edges), dtype=np.int64)
            np.maximum.at(longest, size, longer)
            self.cuts = _cuts(np.repeat(longest, np.bincount(size, minlength=len(edges))), tokens or 0)
        self.count = len(self.cuts) - 1  # of batches in an epoch
        self.current = (-1, np.array([], dtype=np.int64))  # an epoch and its order

    def rows(self, step: int) -> np.ndarray:
        """The row numbers of this step's batch."""
        epoch, index = divmod(step, self.count)
        if self.current[0] != epoch:
            self.current = (epoch, self._order(epoch))
        batch = int(shuffled(np.array([index]), self.count, keys(self.seed, np.array([2 * epoch + 1])))[0])
        return self.current[1][self.cuts[batch] : self.cuts[batch + 1]]

    def _order(self, epoch: int) -> np.ndarray:
        """All pairs by their buckets, at random within each."""
        seed = int(keys(self.seed, np.array([2 * epoch]))[0])
        noise = keys(seed, np.arange(len(self.bucket)))
        return np.argsort(self.bucket << np.uint64(40) | noise >> np.uint64(24), kind="stable")

    @cached_property
    def waste(self) -> float:
        """The share of padding among the tokens of both sides, over the first epoch."""
        order, rows = self._order(0), np.diff(self.cuts)
        used = sum(int((side + 1).sum()) for side in self.lengths)
        widths = (np.maximum.reduceat(side[order], self.cuts[:-1]) + 1 for side in self.lengths)
        return 1 - used / sum(int((width * rows).sum()) for width in widths)


def _edges(longest: int) -> np.ndarray:
    """The longest length of each bucket: two lengths share one, or a tenth of them."""
    # Finer ones pad less, but hold fewer pairs than a batch, so that the same would always meet in it.
    edges = [0]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 2, edges[-1] * 11 // 10))
    return np.array(edges)


def _cuts(longest: np.ndarray, tokens: int) -> np.ndarray:
    """Where batches begin, and the end: as many pairs, of ascending length, as `tokens` have room for."""

    def fitting(start: int) -> int:
        most = min(len(longest) - start, tokens // (int(longest[start]) + 1))
        padded = lambda rows: rows * (int(longest[start + rows - 1]) + 1)  # noqa: E731
        return max(1, bisect_right(range(1, most + 1), tokens, key=padded))

    cuts = [0]
    while cuts[-1] < len(longest):
        cuts.append(cuts[-1] + fitting(cuts[-1]))
    return np.array(cuts)


def in_length_order(
    source_lengths: np.ndarray, target_lengths: np.ndarray, tokens: int
) -> Iterator[np.ndarray]:
    """The row numbers of all pairs, once each, from the shortest to the longest, in batches of at most
    `tokens` tokens as Buckets counts them: for measuring, with little padding."""
    longer, lean = np.maximum(source_lengths, target_lengths), target_lengths - source_lengths
    order = np.lexsort((np.where(longer % 2, lean, -lean), longer))
    cuts = _cuts(longer[order], tokens)
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        yield order[start:stop]
