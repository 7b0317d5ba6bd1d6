"""A tokenizer: texts to token ids and back, saved as Hugging Face's `tokenizer.json`."""

import codecs
import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers

from regard.errors import UserError, first_line, os_reason
from regard.files.untrusted import read_text
from regard.text.tokenizer_limits import find_unusual, read_content
from regard.text.tokenizer_sandbox import TokenizerSandbox

END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "<eos>", "[SEP]")
MAX_BYTES = 2**26  # of a tokenizer.json
MAX_IDS = 2**22  # an id may be beyond the number of tokens, but not far
PIECE = 2**19  # characters: a text of more than two pieces is encoded piece by piece
# Characters, a piece for each core: while it is encoded, a token takes some hundred bytes in the library.
AT_ONCE = PIECE * min(8, max(2, os.cpu_count() or 1))
MAX_PENDING = 64  # ids without text so far: more than the bytes of a character
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")  # of vocabularies that fall back to bytes
MAX_DECODED = 2**26  # characters of tokens
# Words and the punctuation around them.
WORDS = "|".join(
    [
        "<unk>",
        r"['’](?:s|t|re|ve|m|ll|d)\b",  # contractions
        r"\b(?:[^\W\d]\.){2,}",  # u.s.
        r"\d+(?:[.,]\d+)+",
        r"\w+(?:-\w+)*",
        r"(?<!\S)[^\w\s]+(?!\S)",  # punctuation with spaces around it: the text is already tokenized (@-@)
        r"[^\w\s]",
    ]
)


def code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def split_pieces(text: str) -> Iterator[str]:
    """Split a long text into pieces of PIECE to 2 * PIECE characters, at places that change no token.

    That is between a word and the newline after it: GPT-2's pattern never joins a non-space with a newline,
    and later ones (GPT-4, Llama 3) only join punctuation with it. A text without newlines is cut anywhere.
    """
    return split_chunks([text])


def split_chunks(chunks: Iterable[str]) -> Iterator[str]:
    """Split a text that comes in chunks into the same pieces as `split_pieces` does with the whole text."""
    text, start = "", 0
    for chunk in chunks:
        text, start = text[start:] + chunk, 0
        while len(text) - start > 2 * PIECE:
            near, far = start + PIECE, start + 2 * PIECE
            match = re.compile(r"[^\W_]\n").search(text, near, far)
            match = match or re.compile(r"\S\n").search(text, near, far)
            stop = match.end() - 1 if match else far
            yield text[start:stop]
            start = stop
    yield text[start:]


def count_ids(inner: tokenizers.Tokenizer) -> int:
    """The largest id, added tokens included, plus one."""
    return max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def check_ids(inner: tokenizers.Tokenizer, file: Path) -> None:
    """Raise an error for an id that is far beyond the number of tokens.

    The library writes a vocabulary by counting up to its largest id, in time and memory.
    """
    if (count := count_ids(inner)) > MAX_IDS:
        raise UserError(f"{file}: its {count} tokens are too many; up to {MAX_IDS} are allowed")


class Tokenizer:
    """A tokenizer of the `tokenizers` library that adds no special tokens, and never truncates or pads.

    Special tokens enter by their id only: their spelling inside a text is ordinary text.
    """

    def __init__(self, inner: tokenizers.Tokenizer, sandbox: TokenizerSandbox | None = None) -> None:
        inner.no_truncation()  # a BERT's tokenizer.json may ask for both
        inner.no_padding()
        inner.encode_special_tokens = True
        self.inner, self.sandbox = (
            inner,
            sandbox,
        )  # encodes texts if it is not safe to do so in this process

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Load a tokenizer.json, or the one in a folder."""
        file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
        try:
            return cls.read(read_text(file, MAX_BYTES), file)
        except OSError as error:
            reason = os_reason(error)
            raise UserError(
                f"{file}: cannot be read ({reason}); give a tokenizer.json or its folder"
            ) from None

    @classmethod
    def read(cls, text: str, file: Path) -> "Tokenizer":
        """Parse the text of a tokenizer.json, which is not trusted; `file` is named in errors."""
        sandbox = sandbox_for(text, file)
        with tokenizer_errors(f"{file}: not a tokenizer.json of the tokenizers library"):
            inner = tokenizers.Tokenizer.from_str(text)
        check_ids(inner, file)
        return cls(inner, sandbox)

    @classmethod
    def adopt(cls, inner: tokenizers.Tokenizer, file: Path) -> "Tokenizer":
        """Wrap a tokenizer with parts of an untrusted file of another format."""
        check_ids(inner, file)
        return cls(inner, sandbox_for(inner.to_str(), file))

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.inner.to_str(pretty=True), "utf-8")

    @cached_property
    def vocab(self) -> int:
        """The number of rows an embedding needs: the largest id, added tokens included, plus one."""
        return count_ids(self.inner)

    @cached_property
    def longest(self) -> int:
        """The number of characters of the longest token."""
        return max(map(len, self.inner.get_vocab(with_added_tokens=True)), default=0)

    @cached_property
    def digest(self) -> str:
        """A SHA-256 that does not depend on the layout of the file."""
        canonical = json.dumps(json.loads(self.inner.to_str()), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    @cached_property
    def end(self) -> int | None:
        """The id of the token that ends a text, if there is one."""
        return next((id for id in map(self.id, END_TOKENS) if id is not None), None)

    def id(self, token: str) -> int | None:
        return self.inner.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    @cached_property
    def ids_by_character(self) -> np.ndarray | None:
        """The id of each code point, if every character is always a token."""
        model = self.inner.model
        if self.sandbox is not None or not isinstance(model, tokenizers.models.BPE) or not model.unk_token:
            return None
        changes = self.inner.normalizer, self.inner.pre_tokenizer, model.continuing_subword_prefix
        if any(changes) or model.end_of_word_suffix or model.byte_fallback or model.fuse_unk or model.dropout:
            return None
        content = json.loads(self.inner.to_str())
        vocabulary = content["model"]["vocab"]
        if content["model"]["merges"] or not all(token["special"] for token in content["added_tokens"]):
            return None
        if model.unk_token not in vocabulary:  # the library describes the error
            return None
        ids = np.full(sys.maxunicode + 1, vocabulary[model.unk_token], dtype=np.int32)
        for token in (token for token in vocabulary if len(token) == 1):
            ids[ord(token)] = vocabulary[token]
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode each text to an array of ids, in parallel."""
        if self.ids_by_character is not None:
            with contextlib.suppress(UnicodeEncodeError):  # the library describes the error
                return [self.ids_by_character[code_points(text)] for text in texts]
        rows: list[list[np.ndarray]] = [[] for _ in texts]
        pending: list[tuple[int, str]] = []

        def encode_pending() -> None:
            batch = [piece for _, piece in pending]
            if self.sandbox is not None:
                arrays = [ids for ids, _ in self.sandbox.encode(batch)]
            else:
                with tokenizer_errors("the tokenizer fails on this text"):
                    encodings = self.inner.encode_batch_fast(batch, add_special_tokens=False)
                arrays = [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
            for (row, _), ids in zip(pending, arrays, strict=True):
                rows[row].append(ids)
            pending.clear()

        characters = 0
        for row, text in enumerate(texts):
            for piece in split_pieces(text):
                pending.append((row, piece))
                characters += len(piece)
                if characters >= AT_ONCE:
                    encode_pending()
                    characters = 0
        encode_pending()
        return [arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in rows]

    def encode_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Encode each text to its ids and their places in the text."""
        if self.sandbox is not None:
            encoded = self.sandbox.encode(texts, offsets=True)
            return [
                (ids.tolist(), [(start, stop) for start, stop in places.tolist()]) for ids, places in encoded
            ]
        with tokenizer_errors("the tokenizer fails on this text"):
            encodings = self.inner.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def encode_spelling(self, text: str) -> list[int]:
        """Encode a text in which a special token's spelling is the token."""
        ids: list[int] = self.encode_spellings([text])[0].tolist()
        return ids

    def encode_spellings(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode_spelling` for several texts."""
        if self.sandbox is not None:
            return [ids for ids, _ in self.sandbox.encode(texts, spelled=True)]
        with tokenizer_errors("the tokenizer fails on this text"):
            encodings = self._spelling.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def default_specials(self) -> list[int]:
        """The special tokens that a tokenizer.json asks to put around a text."""
        if self.sandbox is not None:
            ids: list[int] = self.sandbox.encode([""], specials=True)[0][0].tolist()
            return ids
        with tokenizer_errors("the tokenizer fails on an empty text"):
            return self.inner.encode("").ids

    @cached_property
    def _spelling(self) -> tokenizers.Tokenizer:
        """This tokenizer, but with the spelling of a special token as the token."""
        return tokenizers.Tokenizer.from_str(self.inner.to_str())

    def decode(self, ids: Iterable[int]) -> str:
        ids = [int(id) for id in ids]
        if len(ids) * self.longest > MAX_DECODED:
            length = sum(len(self.inner.id_to_token(id) or "") for id in ids)
            if length > MAX_DECODED:
                raise UserError(f"{len(ids)} tokens are {length} characters; decode up to {MAX_DECODED}")
        with tokenizer_errors("the tokenizer fails on these tokens"):
            return self.inner.decode(ids, skip_special_tokens=True)

    def decoder(self, prefix: Sequence[int] = ()) -> "Decoder":
        """Return a streaming decoder that continues after the ids of a prefix."""
        tables = tokenizers.decoders.ByteLevel, tokenizers.decoders.Fuse
        by_bytes = not prefix and isinstance(self.inner.decoder, tables)
        return ByteDecoder(self) if by_bytes else Decoder(self, prefix)

    @cached_property
    def token_bytes(self) -> "TokenBytes":
        return TokenBytes(self.inner)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return a readable piece for every id: its text, or its bytes if they are part of a character."""
        return [self._readable(int(id)) for id in ids]

    def _readable(self, id: int) -> str:
        token = self.inner.id_to_token(id)
        if token is None:
            return f"<{id}>"
        text = self.inner.decode([id], skip_special_tokens=False)
        if "\ufffd" in text and BYTE_TOKEN.fullmatch(token):
            return token
        if "\ufffd" in text and all(symbol in BYTES for symbol in token):
            return "".join(f"<0x{BYTES[symbol]:02X}>" for symbol in token)
        return text or token


class Decoder:
    """Decodes ids one by one; the texts it returns, joined, are what `decode` returns for all ids."""

    def __init__(self, tokenizer: Tokenizer, prefix: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.context = list(prefix)  # the last ids that made text: the space after them may depend on them
        self.pending: list[int] = []  # ids whose text is incomplete

    def push(self, id: int) -> str:
        """Return the text that this id completes: none while bytes of a character are missing."""
        self.pending.append(int(id))
        text = self.finish()
        if len(self.pending) < MAX_PENDING and (not text or text.endswith("\ufffd")):
            return ""
        self.context, self.pending = (self.pending if text else self.context), []
        return text

    def push_all(self, ids: Sequence[int]) -> str:
        """Return the text that these ids complete."""
        return "".join(map(self.push, ids))

    def finish(self) -> str:
        """Return the text that is still pending."""
        return self.tokenizer.decode(self.context + self.pending)[len(self.tokenizer.decode(self.context)) :]


class ByteDecoder(Decoder):
    """Decodes ids of a tokenizer of bytes or characters by a table, in constant time for each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.bytes, self.utf8 = tokenizer.token_bytes, codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        return self.utf8.decode(self.bytes[id])

    def push_all(self, ids: Sequence[int]) -> str:
        return self.utf8.decode(b"".join(map(self.bytes.__getitem__, ids)))

    def finish(self) -> str:
        return self.utf8.decode(b"", final=True)


class TokenBytes(dict[int, bytes]):
    """The bytes of each token, if tokens are bytes (written as symbols) or characters; computed at first use;
    empty for special tokens."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.inner = inner
        added = inner.get_added_tokens_decoder().values()
        self.specials = {token.content for token in added if token.special}
        self.symbols = isinstance(inner.decoder, tokenizers.decoders.ByteLevel)

    def __missing__(self, id: int) -> bytes:
        token = self.inner.id_to_token(id)
        if token is None or token in self.specials:
            data = b""
        elif self.symbols and all(symbol in BYTES for symbol in token):
            data = bytes(BYTES[symbol] for symbol in token)
        else:  # an added token that is not written in these symbols
            data = token.encode()
        self[id] = data
        return data


def sandbox_for(text: str, file: Path) -> TokenizerSandbox | None:
    """Return the sandbox that a tokenizer.json needs; None if it takes linear time and little memory."""
    content = read_content(text, file)
    part = find_unusual(content, file, {WORDS})
    return None if part is None else TokenizerSandbox(text, content, file, part)


@contextlib.contextmanager
def tokenizer_errors(message: str) -> Iterator[None]:
    """Turn any error of the tokenizers library into a UserError; it raises bare Exceptions, and may panic."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UserError(f"{message} ({first_line(error)})") from None


def _byte_symbols() -> dict[str, int]:
    """Return GPT-2's printable symbol for every byte: itself if printable, else a character from 256 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    unprintable = [byte for byte in range(256) if byte not in printable]
    symbols = {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(unprintable)
    }
    return {symbols[byte]: byte for byte in range(256)}


BYTES = _byte_symbols()  # symbol -> byte, in the order of the bytes
