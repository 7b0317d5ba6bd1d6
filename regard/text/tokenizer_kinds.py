"""Six kinds of tokenizers and their training."""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from regard.text.tokenizer import BYTES, WORDS, Tokenizer, code_points, split_pieces


def _char(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """A token for each character of the texts, in the order of their code points; others become <unk>."""
    specials = list(dict.fromkeys([*specials, "<unk>"]))
    is_used = np.zeros(sys.maxunicode + 1, dtype=bool)
    for text in texts:
        is_used[code_points(text)] = True
    characters = [chr(point) for point in np.flatnonzero(is_used).tolist()]
    # Byte-pair encoding without merges and pre-tokenizer: the fastest way to one character per token.
    inner = tokenizers.Tokenizer(models.BPE(_vocabulary(specials + characters), [], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(specials)
    return inner


def _byte(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """A token for each of the 256 bytes."""
    inner = tokenizers.Tokenizer(models.BPE(_vocabulary(specials + list(BYTES)), []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(specials)
    return inner


def _bpe(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """Byte-level byte-pair encoding as in GPT-2 (Sennrich et al. 2016; Radford et al. 2019)."""
    inner = _byte_level(models.BPE())
    inner.train_from_iterator(
        chain.from_iterable(map(split_pieces, texts)),
        trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=specials, initial_alphabet=list(BYTES), show_progress=False
        ),
    )
    return inner


def _wordpiece(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """Lower-cased word pieces as in BERT (Devlin et al. 2019); ## marks a piece that continues a word."""
    specials = list(dict.fromkeys([*specials, "[UNK]"]))
    learner = _bert_level(models.WordPiece(unk_token="[UNK]"))
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    frequent = sorted(counts, key=lambda character: (-counts[character], character))[:1000]  # as in BERT
    alphabet = sorted(set("".join(learner.normalizer.normalize_str("".join(frequent)).split())))
    # The library numbers the ## symbols in the order of a random hash, which decides ties between merges.
    # As special tokens of the trainer (not of the tokenizer), they are numbered in a fixed order.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab,
        special_tokens=specials + alphabet + ["##" + character for character in alphabet],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(chain.from_iterable(map(split_pieces, texts)), trainer)
    inner = _bert_level(models.WordPiece(learner.get_vocab(with_added_tokens=True), unk_token="[UNK]"))
    inner.add_special_tokens(specials)
    return inner


def _unigram(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """Byte-level unigram model (Kudo 2018)."""
    inner = _byte_level(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=max(vocab, len(specials) + len(BYTES)),
        special_tokens=specials,
        initial_alphabet=list(BYTES),
        show_progress=False,
    )
    inner.train_from_iterator(chain.from_iterable(map(split_pieces, texts)), trainer)
    learned = {
        piece: score if score is not None and math.isfinite(score) else 0.0
        for piece, score in json.loads(inner.to_str())["model"]["vocab"]
        if piece not in specials
    }
    # The trainer gives the bytes that it dropped scores 0.0001 apart, in a random order: make them equal.
    lowest = min(learned.values())
    dropped = lowest + len(BYTES) * 0.0001
    scores = {p: round(lowest if len(p) == 1 and s <= dropped else s, 6) for p, s in learned.items()}
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    never = round(lowest - 1000, 6)  # so that the spelling of a special token is never its token
    inner = _byte_level(models.Unigram([(special, never) for special in specials] + ordered))
    inner.add_special_tokens(specials)
    return inner


def _word(texts: Iterable[str], vocab: int, specials: list[str]) -> tokenizers.Tokenizer:
    """A token for each of the most frequent words, split at white space; others become <unk>."""
    return word_tokenizer(texts, vocab, specials).inner


def word_tokenizer(
    texts: Iterable[str],
    vocab: int,
    specials: Sequence[str],
    least: int = 1,
    lower: bool = False,
    signs: bool = False,
) -> Tokenizer:
    """Train a tokenizer of words that occur at least `least` times, the most frequent first.

    `lower` lower-cases the text; `signs` makes punctuation separate tokens.
    """
    specials = list(dict.fromkeys([*specials, "<unk>"]))
    learner = _word_level(models.WordLevel(unk_token="<unk>"), lower, signs)
    trainer = trainers.WordLevelTrainer(
        vocab_size=max(0, vocab - len(specials)), min_frequency=least, show_progress=False
    )
    learner.train_from_iterator(chain.from_iterable(map(split_pieces, texts)), trainer)
    ranks = learner.get_vocab()
    vocabulary = _vocabulary(specials + sorted(ranks, key=lambda word: ranks[word]))  # may spell a special
    inner = _word_level(models.WordLevel(vocabulary, unk_token="<unk>"), lower, signs)
    inner.add_special_tokens(specials)
    return Tokenizer(inner)


def known_words(words: Sequence[str]) -> Tokenizer:
    """A tokenizer of these words, in their order; others become <unk>, which is appended if it is missing."""
    lower = not any(word != word.lower() for word in words)
    vocabulary = _vocabulary([*words, "<unk>"])
    inner = _word_level(models.WordLevel(vocabulary, unk_token="<unk>"), lower, signs=True)
    if len(vocabulary) > len(words):
        inner.add_special_tokens(["<unk>"])
    return Tokenizer(inner)


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    """Number the tokens; a repeated token counts once."""
    return {token: id for id, token in enumerate(dict.fromkeys(tokens))}


def _byte_level(model: models.Model) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _word_level(model: models.Model, lower: bool, signs: bool) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    if lower:
        inner.normalizer = normalizers.Lowercase()
    words = pre_tokenizers.Split(tokenizers.Regex(WORDS), "removed", invert=True)
    inner.pre_tokenizer = words if signs else pre_tokenizers.WhitespaceSplit()
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
    """Train one of KINDS; the same texts give the same tokenizer. Special tokens get the lowest ids.

    `vocab` is a target: a short text gives fewer tokens, and bytes and special tokens are never left out.
    """
    if iter(texts) is texts:
        texts = list(texts)  # some kinds iterate twice
    return Tokenizer(KINDS[kind](texts, vocab, list(dict.fromkeys(specials))))
