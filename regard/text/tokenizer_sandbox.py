"""Tokenizers of untrusted models with unusual parts: tested when loaded, and run in a child process."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path

import numpy as np

from regard.errors import UserError
from regard.text.sandbox import Sandbox, SandboxError
from regard.text.tokenizer_limits import USUAL_GROWTH, Json

MEMORY, MEMORY_FACTOR = 2**31, 32  # bytes, and more for each byte of the file
LOAD_SECONDS = 10.0  # of processor time
SECONDS, CHARACTER_SECONDS, MAX_SECONDS = 2.0, 1e-5, 20.0  # of processor time for texts, by their length
AT_ONCE = 2**19  # characters that are encoded in one call
TRIAL_LENGTH, TRIAL_SECONDS = 2**14, 0.2  # characters of a test text, and processor time for it
MAX_UNITS = 12  # letters, or patterns, that are tested
LETTERS = ("a", "1", " ", "\n", ".", "é", "中", "ﷺ")

Encoded = tuple[np.ndarray, np.ndarray]  # ids, and their places if requested


class TokenizerSandbox:
    """A tokenizer.json in a child process; `file` and `part`, the unusual one, are for messages."""

    def __init__(self, text: str, content: Json, file: Path, part: str):
        self.file, self.part, data = file, part, text.encode("utf-8", "surrogatepass")
        self.memory = MEMORY + MEMORY_FACTOR * len(data)
        try:
            self.sandbox = Sandbox("tokenizer", data, LOAD_SECONDS, self.memory)
        except SandboxError as error:
            library = f"not a tokenizer.json of the tokenizers library ({error})"
            raise self._explain(error, library, f"{LOAD_SECONDS:.0f} s to load") from None
        for trial in trial_texts(content):
            self._try(trial)

    def encode(
        self, texts: Sequence[str], spelled: bool = False, specials: bool = False, offsets: bool = False
    ) -> list[Encoded]:
        """Encode texts; if `spelled`, the spelling of a special token is the token; `specials` adds more."""
        encoded: list[Encoded] = []
        for batch in batches(texts):
            seconds = min(MAX_SECONDS, SECONDS + CHARACTER_SECONDS * sum(map(len, batch)))
            try:
                encoded += self._encode(seconds, batch, spelled, specials, offsets)
            except SandboxError as error:
                failure = f"the tokenizer fails on this text ({error})"
                raise self._explain(error, failure, f"{seconds:.1f} s for this text") from None
        return encoded

    def _encode(
        self, seconds: float, texts: Sequence[str], spelled: bool, specials: bool, offsets: bool
    ) -> list[Encoded]:
        options = {"spelled": spelled, "specials": specials, "offsets": offsets}
        reply, data = self.sandbox.call(seconds, texts=list(texts), **options)
        numbers, ends = np.frombuffer(data, np.int32).copy(), np.cumsum(reply["lengths"], dtype=int)
        ids, places = np.split(numbers[: ends[-1]], ends[:-1]), numbers[ends[-1] :].reshape(-1, 2)
        return list(zip(ids, np.split(places, ends[:-1]), strict=True))

    def _try(self, text: str) -> None:
        """Raise UserError if the tokenizer takes much time for a text, or makes many tokens of it."""
        try:
            ids = self._encode(TRIAL_SECONDS, [text], False, False, False)[0][0]
        except SandboxError as error:
            if error.kind in ("time", "memory"):
                long = f"{TRIAL_SECONDS:g} s for {len(text)} characters: {self.part}"
                raise self._explain(error, "", long) from None
            return  # as usual: it may not know these characters
        if len(ids) > USUAL_GROWTH * len(text):
            raise UserError(f"{self.file}: the tokenizer makes texts too long: {self.part}; use another")

    def _explain(self, error: SandboxError, failure: str, time: str) -> UserError:
        text = {
            "time": f"the tokenizer takes more than {time}",
            "memory": f"the tokenizer takes more than {self.memory >> 20} MiB",
        }
        return UserError(f"{self.file}: {text.get(error.kind, failure)}")


def batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Split texts into lists of some AT_ONCE characters."""
    batch, length = list[str](), 0
    for text in texts:
        batch.append(text)
        length += len(text)
        if length >= AT_ONCE:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def trial_texts(content: Json) -> Iterator[str]:
    """Yield long texts that repeat parts of a tokenizer's patterns, and other characters."""
    texts = list[str]()
    pending = [content.get("normalizer"), content.get("pre_tokenizer")]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            pending += part.values()
            texts += [part[kind] for kind in ("String", "Regex") if isinstance(part.get(kind), str)]
        elif isinstance(part, list):
            pending += part
    letters = list(dict.fromkeys(letter for text in texts for letter in text if letter.isalnum()))[:MAX_UNITS]
    units = list(dict.fromkeys([*letters, *filter(None, texts[:MAX_UNITS]), *LETTERS]))
    end = "!" + "".join(letters)  # no match so far, although all parts of a match are there
    for unit in [*units, *("".join(pair) for pair in permutations(units[:4], 2))]:
        yield unit * (TRIAL_LENGTH // len(unit)) + end
