"""Texts to batches of token ids: reading, holding out, shuffling; and shards of what is too large to hold."""

import contextlib
import difflib
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from regard.errors import Mistake
from regard.text import AT_ONCE, KINDS, Again, Tokenizer, one_line, pieces, train_tokenizer

LONGEST_LINE = 10_000_000  # bytes
TRAINING_TEXT = 2**30  # characters: more do not make a better tokenizer
FEW = 10  # documents: with fewer, the end of the text is held out instead of whole documents
SHARD = 2**26  # tokens in a file
VERSION = 1  # of shards.json
SUFFIXES = {".txt", ".text", ".md", ".jsonl"}


# ---------------------------------------------------------------------------------------------- reading


class _Zst(io.RawIOBase):
    """The content of a .zst file. The library's own reader takes one that was cut short for a whole one."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        try:
            import zstandard
        except ImportError:
            raise Mistake(f"{name}: reading .zst needs one more package: pip install zstandard") from None
        self.file, self.library, self.ready = file, zstandard, b""
        self.frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready:
            chunk = self.file.read(2**12)  # small, because it may hold a thousand times as much
            if not chunk:
                if self.frame is not None:
                    raise EOFError("it ends too early")
                return 0
            while chunk:  # there may be several frames in it
                self.frame = self.frame or self.library.ZstdDecompressor().decompressobj()
                try:
                    self.ready += self.frame.decompress(chunk)
                except self.library.ZstdError as error:
                    raise EOFError(one_line(error)) from None
                chunk = self.frame.unused_data
                if self.frame.eof:
                    self.frame = None
        taken, self.ready = self.ready[: len(buffer)], self.ready[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed by its suffix; "-" is standard input."""
    if path == "-":
        yield sys.stdin.buffer
        return
    with open(path, "rb") as file:
        match Path(path).suffix.lower():
            case ".gz":
                yield io.BufferedReader(gzip.GzipFile(fileobj=file))  # whose own readline is slower
            case ".xz":
                yield io.BufferedReader(lzma.LZMAFile(file))  # noqa: SIM115 - nothing to close but `file`
            case ".zst":
                yield io.BufferedReader(_Zst(file, path))
            case _:
                yield file


def _lines(path: str) -> Iterator[bytes]:
    """The lines of a file, newlines included; whatever is wrong with its bytes is noticed on the way."""
    name = _name(path)
    try:
        with _opened(path) as file:
            number = 0
            # One byte more than allowed, for the newline; an endless line is never held.
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
                    raise Mistake(f"{name}:{number}: a line of over {LONGEST_LINE:,} bytes; break it up")
                if b"\0" in line:
                    raise Mistake(
                        f"{name}:{number}: a zero byte, so this is not a text file; "
                        "UTF-16 becomes readable with: iconv -f utf-16 -t utf-8"
                    )
                yield line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise Mistake(f"{name}: damaged compressed file ({one_line(error)}); get it again") from None
    except FileNotFoundError:
        raise Mistake(f"{name}: no such file or folder; check the path") from None
    except OSError as error:
        raise Mistake(f"{name}: cannot be read ({_why(error)}); check its permissions") from None


def _decoded(data: bytes | bytearray, path: str, first_line: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise Mistake(
            f"{_name(path)}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; "
            "if the file is Latin-1, convert it with: iconv -f latin1 -t utf-8"
        ) from None


def _plain(path: str) -> Iterator[str]:
    whole = bytearray()
    for line in _lines(path):
        whole += line
    yield _decoded(whole, path, 1)


def _jsonl(path: str) -> Iterator[str]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{_name(path)}:{number}"
        json_text = _decoded(line, path, number)
        try:
            row = json.loads(json_text)
        except (ValueError, RecursionError) as error:
            raise Mistake(f"{where}: not JSON ({one_line(error)}); a .jsonl has one object a line") from None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise Mistake(f'{where}: no string under "text"; a line looks like {{"text": "..."}}')
        try:
            row["text"].encode()
        except UnicodeEncodeError:
            raise Mistake(f"{where}: half a surrogate pair (\\ud800 to \\udfff); remove it") from None
        yield row["text"]


def _hub(path: str) -> Iterator[str]:
    """hf:NAME, hf:OWNER/NAME or hf:OWNER/NAME/CONFIG, and :SPLIT after it for another split than train."""
    try:
        import datasets
    except ImportError:
        raise Mistake(f"{path}: needs the datasets package: pip install 'regard[datasets]'") from None
    name, _, split = path.removeprefix("hf:").partition(":")
    owner_and_name, config = "/".join(name.split("/")[:2]), "/".join(name.split("/")[2:]) or None
    try:
        rows = datasets.load_dataset(owner_and_name, config, split=split or "train")
        columns = rows.column_names
    except Exception as error:  # from the network, the hub or the package: all of them are about this name
        why = one_line(error)
        raise Mistake(f"{path}: cannot be loaded ({why}); the form is hf:OWNER/NAME/CONFIG:SPLIT") from None
    if "text" not in columns:
        raise Mistake(f'{path}: no column "text", but {", ".join(columns)}; write the texts to a .jsonl')
    for row in rows:
        yield row["text"] or ""


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def _why(error: OSError) -> str:
    return error.strerror or one_line(error)


def _in_folder(folder: str) -> list[str]:
    """Every text file below a folder, in the order of their names; what is hidden stays so."""

    def fail(error: OSError) -> None:
        raise Mistake(f"{error.filename}: cannot be read ({_why(error)}); check its permissions")

    found = []
    for place, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        seen = [name for name in files if not name.startswith(".") and _format(name) in SUFFIXES]
        found += [os.path.join(place, name) for name in seen]
    if not found:
        raise Mistake(f"{folder}: no text in this folder; it needs files in {' '.join(sorted(SUFFIXES))}")
    return sorted(found)


def _format(path: str) -> str:
    """The suffix that tells what a file holds, below the one that tells how it is compressed."""
    bare = Path(path.lower())
    return Path(bare.stem).suffix if bare.suffix in {".gz", ".xz", ".zst"} else bare.suffix


def documents(paths: Sequence[str]) -> Iterator[str]:
    """The texts of files, folders, standard input ("-") and the hub ("hf:..."), a document at a time.

    A file is one document, a .jsonl has one on each line (those without any text are passed over).
    """
    for path in map(str, paths):
        for file in _in_folder(path) if os.path.isdir(path) else [path]:
            read = _hub if file.startswith("hf:") else _jsonl if _format(file) == ".jsonl" else _plain
            some = False
            for text in read(file):
                if text and not text.isspace():
                    some = True
                    yield text
            if not some:
                raise Mistake(f"{_name(file)}: empty, there is no text in it; remove it or give another")


# --------------------------------------------------------------------------------------------- sampling


class Stream:
    """Token ids that follow one another, in parts that may lie on disk; `bytes` of UTF-8 are behind them."""

    def __init__(self, parts: Sequence[np.ndarray], bytes: int) -> None:
        self.parts = list(parts)
        self.bytes = bytes
        self.ends = np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.parts else 0

    def fingerprint(self) -> str:
        """SHA-256 of the length and of up to a million tokens spread over the stream: are these the same
        data?"""
        sha = hashlib.sha256(f"{len(self)}".encode())
        for start in np.linspace(0, max(0, len(self) - 4096), 256, dtype=np.int64).tolist():
            sha.update(self.read(start, min(len(self), start + 4096)).tobytes())
        return sha.hexdigest()

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from start up to stop, as int64."""
        ids = np.empty(max(0, min(stop, len(self)) - start), dtype=np.int64)
        filled = 0
        part = int(np.searchsorted(self.ends, start, side="right"))
        while filled < len(ids):
            begin = start + filled - (int(self.ends[part]) - len(self.parts[part]))
            piece = self.parts[part][begin : begin + len(ids) - filled]
            ids[filled : filled + len(piece)] = piece
            filled += len(piece)
            part += 1
        return ids


def mixed(x: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of x (splitmix64's finaliser; Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: its multiples lie far apart


def keys(seed: int, numbers: np.ndarray) -> np.ndarray:
    """An independent random 64-bit key for every number, under a seed."""
    start = mixed(np.array([seed % 2**64], dtype=np.uint64) + np.uint64(GOLDEN))
    return mixed((numbers.astype(np.uint64) + start) * np.uint64(GOLDEN))


def shuffled(index: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
    """Where each index goes in the random order of range(n) that its key names: a bijection without a table.

    A Feistel network permutes the numbers of 2 * half bits; what falls outside of range(n) walks on to the
    next number in its cycle (Black & Rogaway 2002).
    """
    key = np.broadcast_to(key, index.shape)
    if n <= 64:  # too few bits for a network, few enough to sort
        noise = mixed(key[:, None] + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN))
        return np.take_along_axis(noise.argsort(axis=1), index[:, None], axis=1)[:, 0]
    half = -(-(n - 1).bit_length() // 2)
    low = np.uint64(2**half - 1)
    place = index.astype(np.uint64)
    outside = np.arange(place.size)
    while outside.size:
        left, right = place[outside] >> np.uint64(half), place[outside] & low
        for turn in range(6):
            noise = mixed(right + key[outside] + np.uint64(turn * GOLDEN % 2**64))
            left, right = right, left ^ (noise >> np.uint64(64 - half))
        place[outside] = left << np.uint64(half) | right
        outside = outside[place[outside] >= n]
    return place.astype(np.int64)


class Windows:
    """Windows of a stream, in a new random order and from a new offset every epoch.

    What stands at a position is a function of (seed, position) alone: there is no state to save, and any
    number of processes can share the positions out.
    """

    def __init__(self, stream: Stream, context: int, seed: int) -> None:
        if len(stream) < 2:
            raise Mistake(f"training needs at least two tokens, the text has {len(stream)}; give more text")
        self.stream, self.seed = stream, seed
        self.width = min(context, len(stream) - 1)
        # One window fewer than would fit leaves room to shift them.
        self.count = max(1, (len(stream) - 1) // self.width - 1)
        self.slack = len(stream) - 1 - self.count * self.width

    def batch(self, positions: np.ndarray) -> np.ndarray:
        """The windows at these positions, each with the token after it: (B, width + 1)."""
        epochs, index = np.divmod(np.asarray(positions, dtype=np.int64), self.count)
        order, offset = keys(self.seed, 2 * epochs), keys(self.seed, 2 * epochs + 1)
        starts = (offset % np.uint64(self.slack + 1)).astype(np.int64)
        starts += shuffled(index, self.count, order) * self.width
        return np.stack([self.stream.read(start, start + self.width + 1) for start in starts.tolist()])


def in_order(stream: Stream, context: int, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The whole stream as (inputs, targets), both (B, T): each token but the first is a target once."""
    last = len(stream) - 1
    full = max(0, last) // context
    for first in range(0, full, batch):
        rows = min(batch, full - first)
        ids = stream.read(first * context, (first + rows) * context + 1)
        yield ids[:-1].reshape(rows, context), ids[1:].reshape(rows, context)
    if full * context < last:
        ids = stream.read(full * context, last + 1)[None]
        yield ids[:, :-1], ids[:, 1:]


# ----------------------------------------------------------------------------------------------- corpus


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    tokenizer: str = "char"  # a kind to train, or a tokenizer.json or its folder
    vocab: int = 8192  # what a trained tokenizer aims for
    holdout: float = 0.1  # the share of the text to measure on, where no other text is given for that

    def check(self) -> None:
        if not 0 <= self.holdout < 1:
            raise Mistake(f"data.holdout: {self.holdout} is not a share of the text; give one in [0, 1)")
        if self.vocab < 1:
            raise Mistake(f"data.vocab: {self.vocab} tokens are none; give a number such as 8192")


@dataclass
class Corpus:
    train: Stream
    valid: Stream | None
    tokenizer: Tokenizer


Parts = Iterable[tuple[bool, str]]  # texts, each with whether it is held out


def _parts(texts: Iterable[str], valid: Iterable[str] | None, holdout: float) -> Parts:
    """All texts, and which are held out: `valid`, if given; or every tenth, for a holdout of 0.1; or, of few
    texts, the last tenth of their characters (as nanoGPT does)."""
    if valid is not None:
        held_out = valid
        return Again(lambda: chain(((False, text) for text in texts), ((True, text) for text in held_out)))
    if holdout == 0:
        return Again(lambda: ((False, text) for text in texts))
    count = characters = 0
    for text in texts:
        count += 1
        characters += len(text)
    every = max(2, round(1 / holdout))
    if count >= max(FEW, every):
        return Again(lambda: ((number % every == 0, text) for number, text in enumerate(texts, 1)))
    return Again(lambda: _cut(texts, int(characters * (1 - holdout))))


def _cut(texts: Iterable[str], left: int) -> Iterator[tuple[bool, str]]:
    for text in texts:
        if left > 0:
            yield False, text[:left]
        if left < len(text):
            yield True, text[max(0, left) :]
        left -= len(text)


def _tokenizer(parts: Parts, config: DataConfig, specials: Sequence[str]) -> Tokenizer:
    """Trains the tokenizer that the configuration names, or loads it."""
    kind = config.tokenizer
    if kind in KINDS:
        # Single characters of the held-out text are no secret, and would all be unknown otherwise.
        learnable = Again(lambda: (text for held, text in parts if kind == "char" or not held))
        limit = sys.maxsize if kind == "char" else TRAINING_TEXT
        return train_tokenizer(kind, Again(lambda: _first(learnable, limit)), config.vocab, specials)
    if os.path.exists(kind):
        return Tokenizer.load(kind)
    nearest = difflib.get_close_matches(kind, KINDS, 1, cutoff=0)[0]
    raise Mistake(
        f"data.tokenizer: {kind!r} is neither a file nor one of {', '.join(KINDS)}; did you mean {nearest!r}?"
    )


def _first(texts: Iterable[str], characters: int) -> Iterator[str]:
    for text in texts:
        yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return


@dataclass
class _Ids:
    """Some of the ids of one side of the split, and what they stand for."""

    held: bool
    ids: np.ndarray
    bytes: int
    documents: int


def _encoded(parts: Parts, tokenizer: Tokenizer) -> Iterator[_Ids]:
    """The ids of all texts, batch by batch; the end token stands between two documents of the same side."""
    dtype = _dtype(tokenizer)
    end = np.array([] if tokenizer.end is None else [tokenizer.end], dtype)
    begun: set[bool] = set()
    batches = _batches(parts)
    with ThreadPoolExecutor(1) as reader:  # reads on while the library's own threads encode
        following = reader.submit(next, batches, None)
        while batch := following.result():
            following = reader.submit(next, batches, None)
            encoded = tokenizer.encode_batch([piece for _, _, piece in batch])
            for side in (False, True):
                arrays, size, documents = [], 0, 0
                for (held, starts, piece), ids in zip(batch, encoded, strict=True):
                    if held == side:
                        arrays += [end, ids] if starts and side in begun else [ids]
                        size += len(piece) if piece.isascii() else len(piece.encode())
                        documents += starts
                        begun.add(side)
                if arrays:
                    yield _Ids(side, np.concatenate(arrays, dtype=dtype, casting="unsafe"), size, documents)


def _batches(parts: Parts) -> Iterator[list[tuple[bool, bool, str]]]:
    """Texts for one call of the tokenizer: (held out, starts a document, piece)."""
    batch: list[tuple[bool, bool, str]] = []
    characters = 0
    for held, text in parts:
        for number, piece in enumerate(pieces(text)):
            batch.append((held, number == 0, piece))
            characters += len(piece)
            if characters >= AT_ONCE:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


def _dtype(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.uint16 if tokenizer.vocab <= 2**16 else np.uint32)


def corpus(
    paths: Sequence[str],
    valid_paths: Sequence[str],
    config: DataConfig,
    specials: Sequence[str],
    tokenizer: Tokenizer | None = None,
) -> Corpus:
    """Texts, or folders that `prepare` made of texts, as ids; `tokenizer` overrides the configured one."""
    config.check()
    if _prepared(paths):
        return _prepared_corpus(paths, valid_paths, config, tokenizer)
    if _prepared(valid_paths):
        raise Mistake(f"{valid_paths[0]}: prepared, but {paths[0]} is not; prepare both or neither")
    valid = list(documents(valid_paths)) if valid_paths else None
    parts = _parts(list(documents(paths)), valid, config.holdout)
    tokenizer = tokenizer or _tokenizer(parts, config, specials)
    train_stream, valid_stream = _streams(parts, tokenizer)
    return Corpus(train_stream, valid_stream if len(valid_stream) >= 2 else None, tokenizer)


def _streams(parts: Parts, tokenizer: Tokenizer) -> tuple[Stream, Stream]:
    found = list(_encoded(parts, tokenizer))
    train, valid = ([some for some in found if some.held == held] for held in (False, True))
    return (
        Stream([some.ids for some in train], sum(some.bytes for some in train)),
        Stream([some.ids for some in valid], sum(some.bytes for some in valid)),
    )


# ----------------------------------------------------------------------------------------------- shards


def _prepared(paths: Sequence[str]) -> bool:
    """Whether these are folders that `prepare` made; all of them, or none."""
    marks = {str(path): (Path(path) / "shards.json").is_file() for path in paths}
    if len(set(marks.values())) > 1:
        folder, other = next(p for p in marks if marks[p]), next(p for p in marks if not marks[p])
        raise Mistake(f"{folder}: prepared, but {other} is not; prepare both or neither")
    return any(marks.values())


def _prepared_corpus(
    paths: Sequence[str], valid_paths: Sequence[str], config: DataConfig, tokenizer: Tokenizer | None
) -> Corpus:
    own = Tokenizer.load(paths[0])
    if tokenizer is None and config.tokenizer not in KINDS:
        tokenizer = Tokenizer.load(config.tokenizer)
    if tokenizer is not None and tokenizer.digest != own.digest:
        other = "the given one" if config.tokenizer in KINDS else f"data.tokenizer {config.tokenizer}"
        raise Mistake(f"{paths[0]}: prepared with another tokenizer than {other}; prepare it again with that")
    valid_prepared = _prepared(valid_paths)
    for path in chain(paths[1:], valid_paths if valid_prepared else ()):
        if Tokenizer.load(path).digest != own.digest:
            raise Mistake(f"{path}: prepared with another tokenizer than {paths[0]}; use one for both")
    train = _joined(paths, ["train"], own)
    if valid_prepared:
        valid = _joined(valid_paths, ["train", "valid"], own)
    elif valid_paths:
        valid = _streams(((True, text) for text in documents(valid_paths)), own)[1]
    else:
        valid = _joined(paths, ["valid"], own)
    return Corpus(train, valid if len(valid) >= 2 else None, own)


def _joined(folders: Sequence[str], sides: Sequence[str], tokenizer: Tokenizer) -> Stream:
    """The shards of these folders on disk as one stream, with the end token between the folders too."""
    parts: list[np.ndarray] = []
    size = 0
    for folder in folders:
        about = _read_index(Path(folder), tokenizer)
        for side in sides:
            arrays = [_shard(Path(folder), entry, about["dtype"]) for entry in about[side]["files"]]
            if parts and arrays and tokenizer.end is not None:
                parts.append(np.array([tokenizer.end], dtype=about["dtype"]))
            parts += arrays
            size += about[side]["bytes"]
    return Stream(parts, size)


def _read_index(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    file = folder / "shards.json"
    try:
        about: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if about["version"] != VERSION or about["dtype"] not in ("uint16", "uint32"):
            raise ValueError(f"version {about['version']}, {about['dtype']}; known is version {VERSION}")
        needed = [about[side][key] for side in ("train", "valid") for key in ("bytes", "files")]
        needed += [entry[key] for files in needed[1::2] for entry in files for key in ("name", "tokens")]
        digest = about["tokenizer"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Mistake(f"{file}: damaged ({one_line(error)}); prepare the folder again") from None
    if digest != tokenizer.digest:
        raise Mistake(f"{folder / 'tokenizer.json'}: not the one of these shards; prepare the folder again")
    return about


def _shard(folder: Path, entry: dict[str, Any], dtype: str) -> np.ndarray:
    file = folder / Path(entry["name"]).name
    try:
        ids: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise Mistake(f"{file}: missing; prepare the folder again") from None
    except (OSError, ValueError, EOFError) as error:
        raise Mistake(f"{file}: damaged ({one_line(error)}); prepare the folder again") from None
    if ids.dtype != dtype or ids.shape != (entry["tokens"],):
        found, meant = f"{ids.dtype} {ids.shape}", f"{dtype} {(entry['tokens'],)}"
        raise Mistake(f"{file}: damaged ({found} instead of {meant}); prepare the folder again")
    return ids


class _Shards:
    """Writes the ids of one side to files of at most `size` tokens."""

    def __init__(self, folder: Path, side: str, dtype: np.dtype, size: int) -> None:
        self.folder, self.side = folder, side
        self.buffer = np.empty(size, dtype)
        self.filled = 0
        self.about: dict[str, Any] = {"documents": 0, "bytes": 0, "tokens": 0, "files": []}

    def write(self, some: _Ids) -> None:
        self.about["documents"] += some.documents
        self.about["bytes"] += some.bytes
        self.about["tokens"] += len(some.ids)
        ids = some.ids
        while len(ids):
            taken = ids[: len(self.buffer) - self.filled]
            self.buffer[self.filled : self.filled + len(taken)] = taken
            self.filled += len(taken)
            ids = ids[len(taken) :]
            if self.filled == len(self.buffer):
                self.flush()

    def flush(self) -> None:
        if not self.filled:
            return
        name = f"{self.side}-{len(self.about['files']):05d}.npy"
        np.save(self.folder / name, self.buffer[: self.filled], allow_pickle=False)
        with open(self.folder / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.about["files"].append({"name": name, "tokens": self.filled, "sha256": digest})
        self.filled = 0


def prepare(
    paths: Sequence[str],
    out: str | Path,
    config: DataConfig,
    specials: Sequence[str],
    valid_paths: Sequence[str] = (),
    shard: int = SHARD,
) -> dict[str, Any]:
    """Turns texts of any size into a folder of token shards for `corpus`, and returns its shards.json.

    Nothing appears at `out` before it is complete.
    """
    config.check()
    out = Path(os.path.abspath(out))
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise Mistake(f"{out}: exists already; choose another folder or delete it")
    if _prepared(paths) or _prepared(valid_paths):
        raise Mistake(f"{paths[0]}: prepared already; give the texts")
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        valid = _readable_again(valid_paths) if valid_paths else None
        parts = _parts(_readable_again(paths), valid, config.holdout)
        about = _write_shards(parts, _tokenizer(parts, config, specials), draft, shard)
        if out.exists():
            out.rmdir()
        draft.rename(out)
    except OSError as error:  # those of reading are mistakes by now
        raise Mistake(f"{out}: cannot be written ({_why(error)}); free space or choose another") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return about


def _write_shards(parts: Parts, tokenizer: Tokenizer, folder: Path, size: int) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TimeElapsedColumn, TransferSpeedColumn

    dtype = _dtype(tokenizer)
    train, valid = _Shards(folder, "train", dtype, size), _Shards(folder, "valid", dtype, size)
    terminal = Console(stderr=True)
    columns = (SpinnerColumn(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("", total=None)
        for some in _encoded(parts, tokenizer):
            (valid if some.held else train).write(some)
            bar.advance(task, some.bytes)
    train.flush()
    valid.flush()
    if not terminal.is_terminal:
        kept, held = train.about["tokens"], valid.about["tokens"]
        print(f"prepared {kept:,} tokens for training and {held:,} held out", file=sys.stderr)
    tokenizer.save(folder / "tokenizer.json")
    about = {
        "version": VERSION,
        "tokenizer": tokenizer.digest,
        "dtype": str(dtype),
        "train": train.about,
        "valid": valid.about,
    }
    (folder / "shards.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    return about


def _readable_again(paths: Sequence[str]) -> Iterable[str]:
    """The documents, as often as they are asked for; what can be read only once, such as a pipe, is held."""
    paths = [str(path) for path in paths]
    once = [p for p in paths if not (p.startswith("hf:") or os.path.isfile(p) or os.path.isdir(p))]
    held = {path: list(documents([path])) for path in once}
    return Again(lambda: chain.from_iterable(held.get(path) or documents([path]) for path in paths))
