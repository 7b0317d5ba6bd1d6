"""From logits to the next token: options, logits processors and random numbers.

Shapes: B rows, V vocabulary.
"""

import hashlib
import math
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decode.filters import Filter, RowOptions, filter_alike, filter_by_row
from regard.decode.grammar import Grammar, GrammarState
from regard.errors import UserError

LEVELS = 3  # of groups of tokens, when one is sampled
LARGEST = sys.float_info.max  # not infinite, as is an integer that is no float
GREEDY = 1e-6  # lower temperatures count as 0
NOT_FINITE = "the model's weights gave NaN or infinite logits: it cannot be used as it is"


def _is_integer(x: object, low: float, high: float = math.inf) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and low <= x <= high


def _is_number(x: object, low: float, high: float = math.inf) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= LARGEST and low <= x <= high


def _is_bias(pair: object) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return False
    return _is_integer(pair[0], 0) and _is_number(pair[1], -1e4, 1e4)


# What an option may be: from a lowest to a highest number, and how to say that
INTEGERS: dict[str, tuple[float, float, str]] = {
    "max_new_tokens": (1, math.inf, "a whole number from 1 up"),
    "top_k": (0, math.inf, "a whole number from 1 up, or 0 for off"),
    "no_repeat_ngram_size": (0, math.inf, "a whole number from 1 up, or 0 for off"),
    "num_beams": (1, 1024, "a whole number from 1 to 1024"),
    "prompt_lookup_num_tokens": (0, 32, "a whole number from 1 to 32, or 0 for off"),
    "min_new_tokens": (0, math.inf, "a whole number from 0 (off) up"),
}
NUMBERS: dict[str, tuple[float, float, str]] = {
    "temperature": (0, math.inf, "a number from 0 (always the likeliest token) up"),
    "top_p": (0, 1, "a number from 0 to 1 (off)"),
    "min_p": (0, 1, "a number from 0 (off) to 1"),
    "repetition_penalty": (1e-3, 1e3, "a number from 0.001 to 1000; 1 is off, 1.2 is common"),
    "length_penalty": (-100, 100, "a number from -100 to 100"),
    "frequency_penalty": (-100, 100, "a number from -100 to 100; 0 is off"),
    "presence_penalty": (-100, 100, "a number from -100 to 100; 0 is off"),
}
SPECIAL = {
    "seed": "a whole number from 0 to 2**64 - 1, or none",
    "logit_bias": "pairs of a token and a number from -10000 to 10000",
    "suppress_tokens": "whole numbers from 0 up",
}
REQUIREMENTS = {name: need for name, (_, _, need) in (INTEGERS | NUMBERS).items()} | SPECIAL


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options for choosing the next token, with the names and meanings of Hugging Face."""

    max_new_tokens: int = 200
    temperature: float = 1.0  # 0 is greedy: always the most likely token
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # 0 is off
    seed: int | None = None  # None: different every time
    num_beams: int = 1  # more than 1: beam search, without sampling
    length_penalty: float = 1.0  # of beam search: above 0 favours long answers, below 0 short ones
    suppress_tokens: Sequence[int] = ()  # tokens that are never generated
    prompt_lookup_num_tokens: int = 0  # guesses from the text so far, checked at once; 0 is off
    # Rules of a row, see `RowRules`; not for beam search
    frequency_penalty: float = 0.0  # OpenAI's: subtracted from a logit for each time the row has the token
    presence_penalty: float = 0.0  # OpenAI's: subtracted once
    logit_bias: Sequence[tuple[int, float]] = ()  # added to the logits of these tokens
    min_new_tokens: int = 0  # no end before this many tokens
    grammar: Grammar | None = None  # the grammar that the text has to match

    def __post_init__(self) -> None:
        fitting = {
            name: _is_integer(getattr(self, name), low, high) for name, (low, high, _) in INTEGERS.items()
        }
        fitting |= {
            name: _is_number(getattr(self, name), low, high) for name, (low, high, _) in NUMBERS.items()
        }
        fitting["seed"] = self.seed is None or _is_integer(self.seed, 0, 2**64 - 1)
        pairs = self.logit_bias
        fitting["logit_bias"] = isinstance(pairs, Sequence) and all(map(_is_bias, pairs))
        tokens = self.suppress_tokens
        fitting["suppress_tokens"] = isinstance(tokens, Sequence) and all(_is_integer(i, 0) for i in tokens)
        for name, fits in fitting.items():
            if not fits:
                raise UserError(f"{name}={getattr(self, name)!r}: give {REQUIREMENTS[name]}")
        if self.num_beams > 1 and self.has_rules:
            raise UserError(f"num_beams={self.num_beams}: give 1 with {', '.join(RULES)}")
        object.__setattr__(self, "suppress_tokens", tuple(self.suppress_tokens))  # a Sampling can be a key
        object.__setattr__(self, "logit_bias", tuple(map(tuple, self.logit_bias)))

    @property
    def is_filtered(self) -> bool:
        """Whether only some tokens may be chosen."""
        return bool(self.top_k or self.top_p < 1 or self.min_p)

    @property
    def takes_highest(self) -> bool:
        """Whether the next token is the one with the highest logit for any text."""
        changed = self.repetition_penalty != 1 or self.no_repeat_ngram_size or self.suppress_tokens
        return self.temperature < GREEDY and not changed and not self.has_rules

    @property
    def has_rules(self) -> bool:
        """Return whether a row has its own rules."""
        return any(getattr(self, name) != default for name, default in RULES.items())

    def without_rules(self) -> "Sampling":
        """The options that rows share."""
        return replace(self, **RULES) if self.has_rules else self


RULES: dict[str, Any] = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logit_bias": (),
    "min_new_tokens": 0,
    "grammar": None,
}


# Logits processors: from logits (B, V) to logits, -inf for tokens that are ruled out


def repetition_penalty(logits: Tensor, texts: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Make tokens less likely that are already in the text, Keskar et al. 2019, section 4.1."""
    repeated = torch.zeros_like(logits, dtype=torch.bool)
    for row, text in enumerate(texts):
        repeated[row, list(set(text))] = True
    return torch.where(repeated, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def no_repeat_ngram(logits: Tensor, texts: Sequence[Sequence[int]], n: int) -> Tensor:
    """Rule out tokens that would repeat n tokens of the text; if that rules out all, change nothing."""
    banned = torch.zeros_like(logits, dtype=torch.bool)
    for row, text in enumerate(texts):
        tail = text[len(text) - n + 1 :]
        ends = range(n - 1, len(text))
        banned[row, [text[i] for i in ends if text[i - n + 1 : i] == tail]] = True
    masked = logits.masked_fill(banned, -math.inf)
    return torch.where(masked.isneginf().all(-1, keepdim=True), logits, masked)


def temperature(logits: Tensor, t: float) -> Tensor:
    """Divide the logits: below 1, likely tokens become more likely; above 1, all become more similar."""
    return logits / t


def beam_processor(
    s: Sampling, prompts: Sequence[Sequence[int]]
) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The `process` of `beam_search` that applies the options; None if there is nothing to do."""
    if s.repetition_penalty == 1 and not s.no_repeat_ngram_size and not s.suppress_tokens:
        return None

    def process(logits: Tensor, texts: Tensor, rows: Tensor) -> Tensor:
        full_texts = [
            [*prompts[row], *text]
            for row, beams in zip(rows.tolist(), texts.tolist(), strict=True)
            for text in beams
        ]
        return process_logits(logits.flatten(0, 1), full_texts, s).view_as(logits)

    return process


def process_logits(logits: Tensor, texts: Sequence[Sequence[int]], s: Sampling) -> Tensor:
    """Apply the repetition penalty, no_repeat_ngram_size and suppress_tokens."""
    if s.repetition_penalty != 1:
        logits = repetition_penalty(logits, texts, s.repetition_penalty)
    if s.no_repeat_ngram_size:
        logits = no_repeat_ngram(logits, texts, s.no_repeat_ngram_size)
    if s.suppress_tokens:
        if (largest := max(s.suppress_tokens)) >= logits.shape[-1]:
            raise UserError(f"suppress_tokens: {largest} is not one of the {logits.shape[-1]} tokens")
        suppressed = torch.tensor(list(s.suppress_tokens), device=logits.device)
        logits = logits.index_fill(-1, suppressed, -math.inf)
    return logits


class RowRules:
    """The rules of one row, which depend on its text since its prompt of `begin` tokens.

    `ends` are the tokens that end a text, which has at most `limit` new ones.
    """

    def __init__(self, s: Sampling, begin: int, ends: Collection[int], limit: int):
        self.sampling, self.begin, self.ends, self.limit = s, begin, list(ends), limit
        self.grammar: GrammarState | None = None  # made when the first token is chosen
        self.error: UserError | None = None  # why this row can't continue; others can

    @property
    def finished(self) -> bool:
        """Whether the text is complete: nothing may follow."""
        return self.grammar is not None and self.grammar.finished

    def accept(self, token: int) -> int:
        """Take the next token, or another one if a grammar needs it to be complete in time."""
        if self.grammar is None or self.error is not None:
            return token
        try:
            return self.grammar.accept(token)
        except UserError as error:
            self.error = error
            return token

    def restrict(self, logits: Tensor, processed: Tensor) -> Tensor:
        """Allow only the grammar's tokens; with the model's own logits, if other options ruled them out."""
        if self.sampling.grammar is None or self.error is not None:
            return processed
        try:
            self.grammar = self.grammar or self.sampling.grammar.start(self.ends, self.limit)
            allowed = self.grammar.allowed()
        except UserError as error:
            self.error = error
            return processed
        if not allowed.any():
            self.error = UserError("the model has no token that the schema or grammar allows here")
            return processed
        banned = torch.from_numpy(~allowed).to(logits.device)
        left = processed.masked_fill(banned, -math.inf)
        return torch.where(left.isneginf().all(), logits.masked_fill(banned, -math.inf), left)

    def process(self, logits: Tensor, text: Sequence[int]) -> Tensor:
        """The logits (V,) of the next token."""
        s, written = self.sampling, torch.tensor(text[self.begin :], device=logits.device, dtype=torch.long)
        if len(written) and (s.frequency_penalty or s.presence_penalty):
            counts = torch.bincount(written, minlength=len(logits))
            logits = logits - s.frequency_penalty * counts - s.presence_penalty * (counts > 0)
        if s.logit_bias:
            tokens, bias = zip(*s.logit_bias, strict=True)
            if max(tokens) >= len(logits):
                raise UserError(f"logit_bias: {max(tokens)} is not one of the {len(logits)} tokens")
            at = torch.tensor(tokens, device=logits.device)
            logits = logits.index_add(0, at, torch.tensor(bias, dtype=logits.dtype, device=logits.device))
        if len(written) < s.min_new_tokens and len(self.ends) < len(logits):
            logits = logits.index_fill(0, torch.tensor(self.ends, device=logits.device).long(), -math.inf)
        return logits


def row_rules(s: Sampling, begin: int, ends: Collection[int], limit: int) -> RowRules | None:
    """The rules of a row with a prompt of `begin` tokens; None if it has none."""
    return RowRules(s, begin, ends, limit) if s.has_rules else None


# From logits to a token


def row_generator(seed: int, sample: int, prompt: Sequence[int]) -> np.random.Generator:
    """A row's own random numbers, independent of its place in the batch.

    They also depend on the prompt, otherwise different prompts would get the same random numbers.
    """
    data = np.array([seed, sample, *prompt], dtype=np.uint64).astype("<u8").tobytes()
    key = int.from_bytes(hashlib.blake2b(data, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def draw_uniform(generators: Sequence[np.random.Generator]) -> np.ndarray:
    """The random numbers (B, LEVELS) with which `choose` samples one token of each row."""
    return np.array([generator.random(LEVELS) for generator in generators])


def sample_tokens(logits: Tensor, uniform: Tensor) -> Tensor:
    """Sample tokens (B,) with random numbers `uniform` (B, N) from 0 to 1.

    The vocabulary is split into groups, and these into smaller ones, down to tokens, in N levels. Each number
    chooses the first group at which the cumulative probability exceeds it. Logits of other batches differ by
    rounding, which moves every threshold: a sample changes with a probability that grows with their number,
    V for one level, but only 3 V ** (1 / 3) for three.
    """
    (B, V), N = logits.shape, uniform.shape[1]
    width = math.ceil(V ** (1 / N))
    probs = F.pad(logits.softmax(-1), (0, width**N - V))
    rows = torch.arange(B, device=logits.device)
    tokens = torch.zeros_like(rows)
    for u in uniform.clamp(max=1 - torch.finfo(probs.dtype).eps).unbind(1):
        probs = probs.view(B, width, -1)
        groups = probs.sum(-1)  # (B, width)
        below = groups.cumsum(-1).masked_fill(groups == 0, 0.0)  # or rounding could choose what is ruled out
        chosen = (below > u[:, None] * below.amax(-1, keepdim=True)).int().argmax(-1)  # (B,)
        tokens, probs = tokens * width + chosen, probs[rows, chosen]
    return tokens


def choose_by_row(logits: Tensor, options: RowOptions, uniform: Tensor, how: Filter) -> Tensor:
    """`choose` on the device, for rows (R, V) with their own options: (R,); -1 where one is not finite."""
    highest = logits.amax(-1, keepdim=True)
    greedy = options.temperature < GREEDY
    scaled = (logits - highest) / options.temperature.where(~greedy, 1.0)[:, None]
    ids = logits.argmax(-1).where(greedy, sample_tokens(filter_by_row(scaled, options, how), uniform))
    return ids.where(highest[:, 0].isfinite(), -1)


def choose(
    logits: Tensor,
    texts: Sequence[Sequence[int]],
    s: Sampling,
    uniform: np.ndarray,
    rules: Sequence[RowRules | None] = (),
) -> list[int]:
    """The next token of each row, given its text so far, numbers from `draw_uniform` and its own rules.

    It is -1 where the logits are not finite.
    """
    own = logits = logits.float()
    finite = logits.amax(-1).isfinite()
    logits = process_logits(logits, texts, s)
    if any(rules):
        rows = zip(own, logits, texts, rules, strict=True)
        logits = torch.stack(
            [
                row if rule is None else rule.restrict(first, rule.process(row, text))
                for first, row, text, rule in rows
            ]
        )
    if s.temperature < GREEDY:
        ids = logits.argmax(-1)
    else:
        if s.temperature != 1:  # subtract the highest, so that a low temperature cannot overflow
            logits = temperature(logits - logits.amax(-1, keepdim=True), s.temperature)
        if s.is_filtered:
            logits = filter_alike(logits, s.top_k, s.top_p, s.min_p)
        ids = sample_tokens(logits, torch.tensor(uniform, dtype=logits.dtype, device=logits.device))
    tokens: list[int] = torch.where(
        finite, ids, -1
    ).tolist()  # the only synchronisation with the device in a step
    if any(rules):
        rows_rules = zip(tokens, rules, strict=True)
        return [t if rule is None or t < 0 else rule.accept(t) for t, rule in rows_rules]
    return tokens
