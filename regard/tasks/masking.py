"""Choose the tokens of a text that are masked for the model to predict. Devlin et al. 2019, section 3.1."""

import numpy as np

from regard.text.tokenizer import BYTES, Tokenizer

PAD, UNKNOWN, FIRST, END, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPACE = next(symbol for symbol, byte in BYTES.items() if byte == ord(" "))


def in_word(symbol: str) -> bool:
    """Return whether a token that begins or ends with this is inside a word: a letter, a digit, or in
    byte-level tokens a byte that is not ASCII."""
    byte = BYTES.get(symbol)
    return symbol.isalnum() if byte is None else byte >= 0x80 or chr(byte).isalnum()


class Masker:
    """Masks a share of the tokens of a text, or of its words."""

    def __init__(self, tokenizer: Tokenizer, share: float, whole_words: bool, context: int):
        self.share, self.whole_words = share, whole_words
        self.limit = max(1, round(share * context))  # masked tokens of a row, at most
        self.mask_id = tokenizer.id(MASK) or 0
        added = tokenizer.inner.get_added_tokens_decoder()
        special = {tokenizer.id(name) for name in SPECIALS} | {id for id, t in added.items() if t.special}
        names = [tokenizer.inner.id_to_token(id) or "" for id in range(tokenizer.vocab)]
        self.ordinary = np.array([bool(name) and id not in special for id, name in enumerate(names)])
        self.words = np.flatnonzero(self.ordinary)  # the ids that may be masked, and drawn as replacements
        # A token continues a word if it is ##ing of WordPiece; or begins with a letter, and the one before
        # ends with a letter, or with the space or apostrophe that byte-level tokenizers count to the word.
        marked = any(name.startswith("##") for name in names)
        self.inside = np.array([p.startswith("##") if marked else in_word(p[:1]) for p in names])
        self.open = np.array([marked or in_word(p[-1:]) or p[-1:] in ("'", " ", SPACE) for p in names])

    def mask(self, text: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Mask tokens, and return the text and their places: 80 % become [MASK], 10 % any word, 10 % stay."""
        ordinary = np.flatnonzero(self.ordinary[text])
        count = min(max(1, round(self.share * len(ordinary))), self.limit, len(ordinary))
        if self.whole_words and count:
            places = np.sort(self._choose_words(text, ordinary, count, rng))
        else:
            places = np.sort(rng.choice(ordinary, count, replace=False))
        throw = rng.random(len(places))
        random = self.words[rng.integers(len(self.words), size=len(places))]
        shown = text.copy()
        shown[places] = np.where(throw < 0.8, self.mask_id, np.where(throw < 0.9, random, text[places]))
        return shown, places

    def _choose_words(
        self, text: np.ndarray, ordinary: np.ndarray, count: int, rng: np.random.Generator
    ) -> np.ndarray:
        """The places of as many whole words as there is room for, or of the shortest word if none fits."""
        ids = text[ordinary]
        begins = ~self.inside[ids[1:]] | ~self.open[ids[:-1]] | (np.diff(ordinary) > 1)
        words = np.split(ordinary, np.flatnonzero(begins) + 1)
        places: list[int] = []
        for i in rng.permutation(len(words)).tolist():
            if len(places) + len(words[i]) <= count:
                places += words[i].tolist()
        return np.array(places) if places else min(words, key=len)[: self.limit]
