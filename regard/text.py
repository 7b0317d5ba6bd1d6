"""Text to token ids and back: six kinds of tokenizer, all kept as Hugging Face's `tokenizer.json`."""

import contextlib
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import Mistake
from regard.files import read_text

ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "<eos>", "[SEP]")
LONGEST = 2**26  # bytes of a tokenizer.json
PIECE = 2**19  # characters: a text of more than two pieces is encoded piece by piece
AT_ONCE = 2**22  # characters: a token takes some hundred bytes inside the library while it is encoded
# How words are told from the signs around them.
WORDS = "|".join(
    [
        "<unk>",
        r"['’](?:s|t|re|ve|m|ll|d)\b",  # of a shortened word
        r"\b(?:[^\W\d]\.){2,}",  # u.s.
        r"\d+(?:[.,]\d+)+",
        r"\w+(?:-\w+)*",
        r"(?<!\S)[^\w\s]+(?!\S)",  # signs with spaces around them: such a text is parted already (@-@)
        r"[^\w\s]",
    ]
)


def pieces(text: str) -> Iterator[str]:
    """A long text in pieces of PIECE to 2 * PIECE characters, cut where no pre-tokenizer should mind.

    That is between a word and the newline after it: GPT-2's pattern never joins a non-space with a newline,
    the later ones (GPT-4, Llama 3) only join punctuation with it.
    """
    start = 0
    while len(text) - start > 2 * PIECE:
        near, far = start + PIECE, start + 2 * PIECE
        place = re.compile(r"[^\W_]\n").search(text, near, far) or re.compile(r"\S\n").search(text, near, far)
        stop = place.end() - 1 if place else far
        yield text[start:stop]
        start = stop
    yield text[start:]


class Tokenizer:
    """A tokenizer of the `tokenizers` library that adds nothing to a text and takes nothing from it.

    Special tokens enter by their id only: their spelling inside a text is ordinary text.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.no_truncation()  # a BERT's tokenizer.json may ask for both
        inner.no_padding()
        inner.encode_special_tokens = True
        self.inner = inner

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Reads a tokenizer.json, or the one in a folder."""
        file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
        try:
            return cls.read(read_text(file, LONGEST), file)
        except OSError as error:
            why = error.strerror
            raise Mistake(f"{file}: cannot be read ({why}); give a tokenizer.json or its folder") from None

    @classmethod
    def read(cls, text: str, file: Path) -> "Tokenizer":
        """What a tokenizer.json says."""
        with told(f"{file}: not a tokenizer.json of the tokenizers library"):
            return cls(tokenizers.Tokenizer.from_str(text))

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.inner.to_str(pretty=True), "utf-8")

    @cached_property
    def vocab(self) -> int:
        """The number of rows that an embedding needs: the largest id, added tokens included, plus one."""
        return max(self.inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def digest(self) -> str:
        """The same for the same tokenizer, however its file is laid out."""
        canonical = json.dumps(json.loads(self.inner.to_str()), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    @cached_property
    def end(self) -> int | None:
        """The id of the token that ends a text, if there is one."""
        return next((id for id in map(self.id, ENDS) if id is not None), None)

    def id(self, token: str) -> int | None:
        return self.inner.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Each text as an array of ids, encoded in parallel."""
        found: list[list[np.ndarray]] = [[] for _ in texts]
        waiting: list[tuple[int, str]] = []

        def encode_waiting() -> None:
            batch = [piece for _, piece in waiting]
            with told("the tokenizer fails on this text"):
                encodings = self.inner.encode_batch_fast(batch, add_special_tokens=False)
            for (row, _), encoding in zip(waiting, encodings, strict=True):
                found[row].append(np.array(encoding.ids, dtype=np.int32))
            waiting.clear()

        characters = 0
        for row, text in enumerate(texts):
            for piece in pieces(text):
                waiting.append((row, piece))
                characters += len(piece)
                if characters >= AT_ONCE:
                    encode_waiting()
                    characters = 0
        encode_waiting()
        return [arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in found]

    def decode(self, ids: Iterable[int]) -> str:
        with told("the tokenizer fails on these tokens"):
            return self.inner.decode([int(id) for id in ids], skip_special_tokens=True)

    def decoder(self, begun: Sequence[int] = ()) -> "Decoder":
        return Decoder(self, begun)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """A readable piece for every id: its text, or its bytes where they are but a part of a character."""
        return [self._readable(int(id)) for id in ids]

    def _readable(self, id: int) -> str:
        token = self.inner.id_to_token(id)
        if token is None:
            return f"<{id}>"
        text = self.inner.decode([id], skip_special_tokens=False)
        if "\ufffd" in text and all(symbol in BYTES for symbol in token):
            return "".join(f"<0x{BYTES[symbol]:02X}>" for symbol in token)
        return text or token


class Decoder:
    """Decodes ids that come one by one; all that it gives, joined, is what `decode` gives for all of them."""

    def __init__(self, tokenizer: Tokenizer, begun: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.given = list(begun)  # the last that made text: the space after it may depend on it
        self.held: list[int] = []  # those whose text is not complete

    def push(self, id: int) -> str:
        """The text that this id completes: nothing while a character lacks some of its bytes."""
        self.held.append(int(id))
        text = self.finish()
        if not text or text.endswith("\ufffd"):
            return ""
        self.given, self.held = self.held, []
        return text

    def finish(self) -> str:
        """The text still held back."""
        return self.tokenizer.decode(self.given + self.held)[len(self.tokenizer.decode(self.given)) :]


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """The library raises nothing more special than Exception, and panics on some that tokenizer.json may ask
    for: a Mistake instead."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Mistake(f"{what} ({one_line(error)})") from None


def one_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _byte_symbols() -> dict[str, int]:
    """GPT-2's printable symbol for every byte: its own where that has a shape, else one from 256 on."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    symbols = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return {symbols[byte]: byte for byte in range(256)}


BYTES = _byte_symbols()  # in the order of the bytes


def _char(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """A token for each character of the texts, in the order of their code points; others become <unk>."""
    specials = list(dict.fromkeys([*specials, "<unk>"]))
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    # Byte-pair encoding without pairs, over the text as it is: the quickest way to one symbol per token here.
    inner = tokenizers.Tokenizer(models.BPE(_numbered(specials + sorted(characters)), [], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(specials)
    return inner


def _byte(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """A token for each of the 256 bytes."""
    inner = tokenizers.Tokenizer(models.BPE(_numbered(specials + list(BYTES)), []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(specials)
    return inner


def _bpe(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """Byte-pair encoding over bytes, as GPT-2 has it (Sennrich et al. 2016; Radford et al. 2019)."""
    inner = _byte_level(models.BPE())
    inner.train_from_iterator(
        chain.from_iterable(map(pieces, texts)),
        trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=specials, initial_alphabet=list(BYTES), show_progress=False
        ),
    )
    return inner


def _wordpiece(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """Lower-cased word pieces, as BERT has them (Devlin et al. 2019): ## marks what continues a word."""
    specials = list(dict.fromkeys([*specials, "[UNK]"]))
    learner = _bert_level(models.WordPiece(unk_token="[UNK]"))
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    frequent = sorted(counts, key=lambda character: (-counts[character], character))[:1000]  # as in BERT
    alphabet = sorted(set("".join(learner.normalizer.normalize_str("".join(frequent)).split())))
    # The library numbers the ## symbols in the order of a random hash, and ties between merges follow the
    # numbers. As special tokens of the trainer, though not of the tokenizer, they are numbered as they come.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab,
        special_tokens=specials + alphabet + ["##" + character for character in alphabet],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(chain.from_iterable(map(pieces, texts)), trainer)
    inner = _bert_level(models.WordPiece(learner.get_vocab(with_added_tokens=True), unk_token="[UNK]"))
    inner.add_special_tokens(specials)
    return inner


def _unigram(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """The most probable pieces of a unigram model (Kudo 2018), over bytes so that nothing is unknown."""
    inner = _byte_level(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=max(vocab, len(specials) + len(BYTES)),
        special_tokens=specials,
        initial_alphabet=list(BYTES),
        show_progress=False,
    )
    inner.train_from_iterator(chain.from_iterable(map(pieces, texts)), trainer)
    learnt = {
        piece: score if score is not None and math.isfinite(score) else 0.0
        for piece, score in json.loads(inner.to_str())["model"]["vocab"]
        if piece not in specials
    }
    # The trainer scores the bytes that it has not kept 0.0001 apart from the lowest up, in a random order.
    lowest = min(learnt.values())
    unkept = lowest + len(BYTES) * 0.0001
    scores = {p: round(lowest if len(p) == 1 and s <= unkept else s, 6) for p, s in learnt.items()}
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    never = round(lowest - 1000, 6)  # no path through a text may prefer a special token's spelling
    inner = _byte_level(models.Unigram([(special, never) for special in specials] + ordered))
    inner.add_special_tokens(specials)
    return inner


def _word(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """A token for each of the most frequent words, as white space parts them; others become <unk>."""
    return word_tokenizer(texts, vocab, specials).inner


def word_tokenizer(
    texts: Iterable[str],
    vocab: int,
    specials: Sequence[str],
    least: int = 1,
    lower: bool = False,
    signs: bool = False,
) -> Tokenizer:
    """Words, the most frequent first, that the texts have at least so often; if so wished, lower-cased, and
    parted from the signs around them."""
    specials = list(dict.fromkeys([*specials, "<unk>"]))
    learner = _word_level(models.WordLevel(unk_token="<unk>"), lower, signs)
    trainer = trainers.WordLevelTrainer(
        vocab_size=max(0, vocab - len(specials)), min_frequency=least, show_progress=False
    )
    learner.train_from_iterator(chain.from_iterable(map(pieces, texts)), trainer)
    found = learner.get_vocab()
    numbers = _numbered(specials + sorted(found, key=lambda word: found[word]))  # a text may spell a special
    inner = _word_level(models.WordLevel(numbers, unk_token="<unk>"), lower, signs)
    inner.add_special_tokens(specials)
    return Tokenizer(inner)


def _numbered(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def _byte_level(model: models.Model) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _word_level(model: models.Model, lower: bool, signs: bool) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    if lower:
        inner.normalizer = normalizers.Lowercase()
    apart = pre_tokenizers.Split(tokenizers.Regex(WORDS), "removed", invert=True)
    inner.pre_tokenizer = apart if signs else pre_tokenizers.WhitespaceSplit()
    return inner


def _bert_level(model: models.Model) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    return inner


KINDS: dict[str, Callable[[Iterable[str], int, list[str]], tokenizers.Tokenizer]] = {
    "char": _char,
    "byte": _byte,
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "word": _word,
}


def train_tokenizer(kind: str, texts: Iterable[str], vocab: int, specials: Sequence[str]) -> Tokenizer:
    """Trains one of KINDS; the same texts give the same tokenizer. The special tokens get the lowest ids.

    `vocab` is the aim: a short text gives fewer tokens, and bytes and special tokens are never left out.
    """
    if iter(texts) is texts:
        texts = list(texts)  # some kinds read them twice
    return Tokenizer(KINDS[kind](texts, vocab, list(dict.fromkeys(specials))))
