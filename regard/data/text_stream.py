"""Texts of any size, read while a model is trained on them: windows of a stream, with a short memory.

A stream is divided into parts, which are read side by side, usually one by each process. The tokens of a
part are cut into blocks, and the windows of a block are shuffled. So the window at a position is a function
of the seed and the position alone; where the blocks begin is saved with a checkpoint, so that a
resumed run does not read everything before them again.
"""

import contextvars
import hashlib
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import chain, islice

import numpy as np

from regard.data.documents import Chunk, find_text, list_documents, read_file_chunks
from regard.data.encoding import DataConfig, dtype_for, tokenizer_for
from regard.data.files import load_hub_dataset, normalize_newlines
from regard.data.reading import (
    Source,
    count_left_out,
    read_together,
    record_note,
    record_reading,
    record_source,
)
from regard.data.shuffling import random_keys, shuffle_index
from regard.data.streams import Stream
from regard.data.tables import hub_table
from regard.errors import UserError
from regard.text.tokenizer import AT_ONCE, Tokenizer

SAMPLE = 2**25  # characters of the first documents from which a tokenizer is learned
HELD_OUT = 2**20  # the largest number of characters that are held out
LEAST = 0.01  # the smallest held-out share for which a stream's size is counted
FEW = 2**12  # characters that are encoded together at the beginning
BLOCKS = 2  # blocks that a part keeps: this step's and the next one

Unit = Callable[[int], Iterator[Chunk]]  # a file, or a shard on the hub: its documents from a number on


@dataclass(frozen=True)
class Place:
    """The beginning of a block: a token of a document."""

    epoch: int
    unit: int
    document: int
    offset: int  # of the token
    digest: int  # of the document


@dataclass(frozen=True)
class EncodedDocument:
    epoch: int
    unit: int
    number: int
    ids: np.ndarray
    digest: int


# Sources


def list_units(paths: Sequence[str]) -> list[Unit]:
    """Return the files of texts and the shards of datasets on the hub, in their order."""
    units: list[Unit] = []
    for path in map(str, paths):
        if path == "-":
            raise UserError("data.stream: standard input can't be read again; give files")
        if path.startswith("hf:"):
            units += _hub_units(path)
        else:
            units += [partial(_file_documents, file) for file in list_documents([path])]
    return units


def _file_documents(file: str, first: int) -> Iterator[Chunk]:
    return islice(read_file_chunks(file), first, None)


def _hub_units(path: str) -> list[Unit]:
    dataset, names = load_hub_dataset(path, stream=True)
    column = find_text(hub_table(path, dataset, names), record_source(path))
    count = int(getattr(dataset, "num_shards", 1))

    def read(shard: int, first: int) -> Iterator[Chunk]:
        rows = dataset.shard(num_shards=count, index=shard) if count > 1 else dataset
        for row in rows.skip(first) if first else rows:
            if not isinstance(text := column.value([row.get(name) for name in names]) or "", str):
                raise UserError(
                    f'{path}: the column "{column.name}" has other values than texts; choose another with '
                    "--text NAME"
                )
            yield True, normalize_newlines(text)

    return [partial(read, shard) for shard in range(count)]


# Streams


class TextStream:
    """Documents that are read when they are needed, again and again; the first of them are held out."""

    def __init__(
        self,
        units: Sequence[Unit],
        first: tuple[int, int],  # the first unit and document after the held-out ones
        tokenizer: Tokenizer,
        parts: int,
        buffer: int,
        digest: str,  # of the first documents
    ) -> None:
        self.units, self.first, self.tokenizer = units, first, tokenizer
        self.parts, self.buffer, self.digest = parts, buffer, digest
        self.context = contextvars.copy_context()  # the limits of `read_together`

    def describe(self) -> str:
        return f"a stream of {len(self.units):,} file{'s' * (len(self.units) > 1)}"

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.digest} {self.parts} {self.buffer}".encode()).hexdigest()

    def windows(self, context: int, seed: int, size: int) -> "StreamWindows":
        return StreamWindows(self, context, seed, size)

    def documents(self, part: int, place: Place) -> Iterator[tuple[int, int, int, Chunk]]:
        """Yield epoch, unit, number and text of the documents of a part endlessly, from a place on.

        A part has its own units if there are enough of them, else every n-th document of all units.
        """
        first_unit, first_document = self.first
        own_units = len(self.units) - first_unit > self.parts
        epoch, begin = place.epoch, (place.unit, place.document)
        while True:
            is_empty = True
            for unit in range(max(begin[0], first_unit), len(self.units)):
                if own_units and (unit - first_unit) % self.parts != part:
                    continue
                first = max(first_document if unit == first_unit else 0, begin[1] if unit == begin[0] else 0)
                for number, chunk in enumerate(self.units[unit](first), first):
                    if (own_units or number % self.parts == part) and chunk[1] and not chunk[1].isspace():
                        is_empty = False
                        yield epoch, unit, number, chunk
            if is_empty and begin == (0, 0):
                raise UserError(
                    "data.stream: too few documents to hold some out and divide the others; leave it out, or "
                    "give more"
                )
            epoch, begin = epoch + 1, (0, 0)

    def encode(self, part: int, place: Place) -> Generator[EncodedDocument, None, None]:
        """Yield the same documents as token ids, the end token before each; several are encoded at once."""
        end, dtype = self.tokenizer.end, dtype_for(self.tokenizer)
        documents = self.documents(part, place)
        context = self.context.copy()  # only one thread may be in it
        at_once = FEW
        while True:
            batch, characters = [], 0
            at_once = min(2 * at_once, AT_ONCE)
            while characters < at_once:
                batch.append(context.run(next, documents))
                characters += len(batch[-1][3][1])
            arrays = self.tokenizer.encode_batch([text for *_, (_, text) in batch])
            for (epoch, unit, number, (starts, text)), ids in zip(batch, arrays, strict=True):
                before = [end] if starts and end is not None else []
                ids = np.concatenate([np.array(before, dtype), ids], dtype=dtype, casting="unsafe")
                yield EncodedDocument(epoch, unit, number, ids, document_digest(text))


def document_digest(text: str) -> int:
    """Return a number of 48 bits, which every process can exchange as a float."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())


class _Part:
    """The blocks of one part of a stream."""

    def __init__(self, stream: TextStream, number: int, length: int) -> None:
        self.stream, self.number, self.length = stream, number, length  # tokens of a block
        self.places = {0: Place(0, 0, 0, 0, -1)}  # the known beginnings of blocks
        self.blocks: dict[int, np.ndarray] = {}
        self.next_block = -1  # the block of `document` and `offset`
        self.readers: list[Generator[EncodedDocument, None, None]] = []  # the open iterator
        weakref.finalize(self, _close_readers, self.readers)  # before Python's own modules are gone
        self.document: EncodedDocument | None = None
        self.offset = 0
        self.lock = threading.Lock()  # batches are made by several threads

    def block(self, number: int) -> np.ndarray:
        """Return the tokens of a block."""
        with self.lock:
            if number not in self.blocks:
                known = max(block for block in self.places if block <= number)
                for block in range(known, number + 1):
                    ids = self._read(block)
                last = list(self.blocks.items())[-(BLOCKS - 1) :]
                self.blocks = dict([*last, (number, ids)])
            return self.blocks[number]

    def _read(self, block: int) -> np.ndarray:
        if block != self.next_block:
            self._go_to(self.places[block])
        pieces, missing = [], self.length
        while True:
            assert self.document is not None
            pieces.append(self.document.ids[self.offset : self.offset + missing])
            missing -= len(pieces[-1])
            if not missing:
                break
            self.document, self.offset = next(self.readers[0]), 0
        self.offset += len(pieces[-1]) - 1  # the last token is also the first of the next block
        d = self.document
        self.next_block = block + 1
        self.places[block + 1] = Place(d.epoch, d.unit, d.number, self.offset, d.digest)
        return np.concatenate(pieces)

    def _go_to(self, place: Place) -> None:
        _close_readers(self.readers)
        self.readers.append(self.stream.encode(self.number, place))
        self.document, self.offset = next(self.readers[0]), place.offset
        d = self.document
        is_same = (d.epoch, d.unit, d.number, d.digest) == (*astuple(place)[:3], place.digest)
        if place.digest >= 0 and not is_same:
            raise UserError(
                f"data.stream: document {place.document + 1:,} of file {place.unit + 1:,} is not what it was "
                "when this run was saved; give the same data, or begin a new run with another --out"
            )


def _close_readers(readers: list[Generator[EncodedDocument, None, None]]) -> None:
    while readers:
        readers.pop().close()


class StreamWindows:
    """Windows of a stream; those of a block in random order.

    The window at a position is a function of (seed, position) alone. Row j of a step is of part j modulo the
    number of parts, so with as many processes, each reads only one part.
    """

    def __init__(self, stream: TextStream, context: int, seed: int, size: int) -> None:
        self.stream, self.seed, self.size, self.width = stream, seed, size, context
        self.count = max(1, stream.buffer // context)  # windows of a block
        parts = min(stream.parts, size)
        self.parts = [_Part(stream, part, self.count * context + 1) for part in range(parts)]
        self.rows_of_part = [len(range(part, size, parts)) for part in range(parts)]  # in a step

    notes = ()

    def rows(self, step: int) -> np.ndarray:
        """Return the positions that a step reads."""
        return np.arange(step * self.size, (step + 1) * self.size)

    def batch(self, positions: np.ndarray) -> np.ndarray:
        """Return the windows at these positions, each with the token after it: (B, width + 1)."""
        windows = np.empty((len(positions), self.width + 1), dtype=np.int64)
        for row, position in enumerate(np.asarray(positions).tolist()):
            step, inside = divmod(position, self.size)
            index, part = divmod(inside, len(self.parts))
            block, place = divmod(step * self.rows_of_part[part] + index, self.count)
            key = random_keys(self.seed, np.array([block * len(self.parts) + part]))
            start = int(shuffle_index(np.array([place]), self.count, key)[0]) * self.width
            windows[row] = self.parts[part].block(block)[start : start + self.width + 1]
        return windows

    def places(self, step: int) -> list[list[int]]:
        """Return, for each part, the block that a step begins in and its place; -1 if it is unknown here."""
        rows = []
        for part, count in zip(self.parts, self.rows_of_part, strict=True):
            block = step * count // self.count
            place = part.places.get(block)
            rows.append([-1] * 6 if place is None else [block, *astuple(place)])
        return rows

    def restore(self, places: Sequence[Sequence[int]]) -> None:
        """Restore the result of `places`; unknown places are counted from the beginning of the stream."""
        for part, (block, *place) in zip(self.parts, places, strict=False):
            if block >= 0:
                part.places[block] = Place(*place)


def open_stream(
    paths: Sequence[str],
    config: DataConfig,
    specials: Sequence[str],
    tokenizer: Tokenizer | None,
    hold_out: bool,
) -> tuple[TextStream, Stream | None, Tokenizer]:
    """Open a stream; return its held-out documents, and the tokenizer, learned from the first ones."""
    counted = int(HELD_OUT / max(config.holdout, LEAST)) if hold_out else 0  # characters
    units, sample = read_beginning(paths, max(counted, SAMPLE if tokenizer is None else 1))
    characters = sum(len(text) for _, _, text in sample)
    if not characters:
        raise UserError(f"{paths[0]}: no text in the stream; give another one")
    held, size, share = 0, 0, int(config.holdout * min(characters, counted))
    while size < share and held < len(sample) - 1:
        size += len(sample[held][2])
        held += 1
    if share and not held:
        record_note("data.stream: nothing is held out, as the stream has one document; give --valid")
    first = sample[held][:2]
    texts = [(number < held, text) for number, (_, _, text) in enumerate(sample)]
    tokenizer = tokenizer or tokenizer_for(texts, config, specials)
    digest = hashlib.sha256("\0".join(text for _, _, text in sample[: held + 1]).encode()).hexdigest()
    stream = TextStream(units, first, tokenizer, config.parts or 1, config.buffer, digest)
    return stream, _encode_held_out([text for out, text in texts if out], tokenizer), tokenizer


def read_beginning(paths: Sequence[str], size: int) -> tuple[list[Unit], list[tuple[int, int, str]]]:
    """Return the units of a stream and its first documents, with the numbers of their units and their own."""
    sample: list[tuple[int, int, str]] = []
    source = Source(f"{paths[0]}, the beginning", "text")
    with read_together() as reading:
        units = list_units(paths)
        for unit, number, text in chain.from_iterable(
            ((unit, number, text) for number, (_, text) in enumerate(read(0)))
            for unit, read in enumerate(units)
        ):
            sample.append((unit, number, text))
            source.add({"text": text})
            size -= len(text)
            if size < 0:
                break
    tables = [each for each in reading.sources.values() if each.columns]
    if tables:
        source.columns, source.is_guess = tables[0].columns, any(each.is_guess for each in tables)
    source.left_out = count_left_out(tables)
    reading.sources = {source.name: source}
    record_reading(reading)
    return units, sample


def _encode_held_out(texts: Sequence[str], tokenizer: Tokenizer) -> Stream | None:
    if not texts:
        return None
    end = [] if tokenizer.end is None else [tokenizer.end]
    arrays = [np.append(end, ids).astype(dtype_for(tokenizer)) for ids in tokenizer.encode_batch(texts)]
    stream = Stream([np.concatenate(arrays)], sum(len(text.encode()) for text in texts))
    return stream if len(stream) >= 2 else None
