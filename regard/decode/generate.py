"""Generation: greedy or sampled, many rows at once, one token of each row at a time.

A row's text depends only on its prompt, the options and the seed, not on the other rows of the batch.
This works with every model whose `start` reads prompts (and sources, if it has an encoder), and whose `step`
reads one more token.

Shapes: B unfinished rows, T tokens, V vocabulary.
"""

import hashlib
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import UserError

GREEDY = 1e-6  # lower temperatures count as 0
Source = Sequence[int] | Tensor  # what an encoder reads: tokens, or an image's pixels, uint8


class Writer(Protocol):
    """A model that generates text, such as GPT. Its states have `reorder`, its config has `context`."""

    config: Any

    @property
    def start(self) -> Callable[..., tuple[Tensor, Any]]: ...
    def step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...


def _is_whole(x: object, low: int) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= low


def _is_number(x: object, low: float, high: float = math.inf) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) and low <= x <= high


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen. Names and meanings are those of Hugging Face."""

    max_new_tokens: int = 200
    temperature: float = 1.0  # 0 is greedy: always the likeliest token
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # 0 is off
    seed: int | None = None  # None: different every time
    num_beams: int = 1  # more than 1: beam search, without sampling
    length_penalty: float = 1.0  # of beam search: above 0 favours long answers, below 0 short ones
    suppress_tokens: Sequence[int] = ()  # tokens that are never generated

    def __post_init__(self) -> None:
        for name, fits, need in (
            ("max_new_tokens", _is_whole(self.max_new_tokens, 1), "a whole number from 1 up"),
            (
                "temperature",
                _is_number(self.temperature, 0),
                "a number from 0 (always the likeliest token) up",
            ),
            ("top_k", _is_whole(self.top_k, 0), "a whole number from 1 up, or 0 for off"),
            ("top_p", _is_number(self.top_p, 0, 1), "a number from 0 to 1 (off)"),
            ("min_p", _is_number(self.min_p, 0, 1), "a number from 0 (off) to 1"),
            (
                "repetition_penalty",
                _is_number(self.repetition_penalty, 1e-3, 1e3),
                "a number from 0.001 to 1000; 1 is off, 1.2 is common",
            ),
            (
                "no_repeat_ngram_size",
                _is_whole(self.no_repeat_ngram_size, 0),
                "a whole number from 1 up, or 0 for off",
            ),
            (
                "seed",
                self.seed is None or (_is_whole(self.seed, 0) and self.seed < 2**64),
                "a whole number from 0 to 2**64 - 1, or none",
            ),
            (
                "num_beams",
                _is_whole(self.num_beams, 1) and self.num_beams <= 1024,
                "a whole number from 1 to 1024",
            ),
            ("length_penalty", _is_number(self.length_penalty, -100, 100), "a number from -100 to 100"),
            (
                "suppress_tokens",
                isinstance(self.suppress_tokens, Sequence)
                and all(_is_whole(i, 0) for i in self.suppress_tokens),
                "whole numbers from 0 up",
            ),
        ):
            if not fits:
                raise UserError(f"{name}={getattr(self, name)!r}: give {need}")


# Logits processors: from logits (B, V) to logits, -inf for tokens that are ruled out


def repetition_penalty(logits: Tensor, texts: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Make tokens that the text already has less likely, Keskar et al. 2019, section 4.1."""
    repeated = torch.zeros_like(logits, dtype=torch.bool)
    for row, text in enumerate(texts):
        repeated[row, list(set(text))] = True
    return torch.where(repeated, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def no_repeat_ngram(logits: Tensor, texts: Sequence[Sequence[int]], n: int) -> Tensor:
    """Rule out tokens that would repeat n tokens of the text; where that rules out all, change nothing."""
    banned = torch.zeros_like(logits, dtype=torch.bool)
    for row, text in enumerate(texts):
        tail = text[len(text) - n + 1 :]
        ends = range(n - 1, len(text))
        banned[row, [text[i] for i in ends if text[i - n + 1 : i] == tail]] = True
    masked = logits.masked_fill(banned, -math.inf)
    return torch.where(masked.isneginf().all(-1, keepdim=True), logits, masked)


def temperature(logits: Tensor, t: float) -> Tensor:
    """Divide the logits: below 1, likely tokens become likelier; above 1, all become more alike."""
    return logits / t


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k likeliest tokens, and those as likely as the last of them. Fan et al. 2018."""
    last = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < last, -math.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest tokens with probability p in total, of equals the first ones, Holtzman et al. 2020."""
    ascending, order = (x.flip(-1) for x in logits.sort(dim=-1, descending=True, stable=True))
    out = ascending.softmax(-1).cumsum(-1) <= 1 - p
    out[:, -1] = False
    return logits.masked_fill(out.scatter(1, order, out), -math.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens at least p times as likely as the likeliest, Nguyen et al. 2024."""
    probs = logits.softmax(-1)
    return logits.masked_fill(probs < p * probs.amax(-1, keepdim=True), -math.inf)


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
            raise UserError(f"suppress_tokens: {largest} is no token of the {logits.shape[-1]}")
        suppressed = torch.tensor(list(s.suppress_tokens), device=logits.device)
        logits = logits.index_fill(-1, suppressed, -math.inf)
    return logits


# From logits to a token


def row_generator(seed: int, sample: int, prompt: Sequence[int]) -> np.random.Generator:
    """A row's own random numbers, whatever its place in the batch.

    They depend on the prompt too, or else different prompts would get the same random numbers.
    """
    data = np.array([seed, sample, *prompt], dtype=np.uint64).astype("<u8").tobytes()
    key = int.from_bytes(hashlib.blake2b(data, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def sample_tokens(logits: Tensor, uniform: Tensor) -> Tensor:
    """The first token (B,) at which the cumulative probability exceeds `uniform` (B,)."""
    probs = logits.softmax(-1)
    below = probs.cumsum(-1).masked_fill(
        probs == 0, 0.0
    )  # rounding must not choose a token that is ruled out
    threshold = uniform.clamp(max=1 - torch.finfo(below.dtype).eps)[:, None] * below.amax(-1, keepdim=True)
    return (below > threshold).int().argmax(-1)


def choose(
    logits: Tensor, texts: Sequence[Sequence[int]], s: Sampling, uniform: Sequence[float]
) -> list[int]:
    """The next token of each row, given its text so far."""
    logits = logits.float()
    finite = logits.amax(-1).isfinite()
    logits = process_logits(logits, texts, s)
    if s.temperature < GREEDY:
        ids = logits.argmax(-1)
    else:
        if s.temperature != 1:  # subtract the highest, so that a low temperature cannot overflow
            logits = temperature(logits - logits.amax(-1, keepdim=True), s.temperature)
        if s.top_k:
            logits = top_k(logits, s.top_k)
        if s.top_p < 1:
            logits = top_p(logits, s.top_p)
        if s.min_p:
            logits = min_p(logits, s.min_p)
        ids = sample_tokens(logits, torch.tensor(uniform, dtype=logits.dtype, device=logits.device))
    tokens: list[int] = torch.where(
        finite, ids, -1
    ).tolist()  # the only synchronisation with the device in a step
    if -1 in tokens:
        raise UserError("the model's weights gave NaN or infinite logits: it cannot be used as it is")
    return tokens


# Reading prompts


def fit_context(text: Sequence[int], context: int) -> Sequence[int]:
    """The part of a text that the model reads: all of it, or its end if it is longer than the context.

    It moves by half a context at a time, so that a cache lasts; where it begins depends only on the length.
    """
    hop = context - context // 2
    return text[-(-max(0, len(text) - context) // hop) * hop :]


def read_rows(
    model: Writer, windows: Sequence[Sequence[int]], sources: Sequence[Source] | None = None
) -> tuple[Tensor, Any]:
    """model.start on rows of any lengths, equal ones only once; with sources, prompts are equally long."""
    device = next(model.parameters()).device
    source_keys = [()] * len(windows) if sources is None else [source_key(source) for source in sources]
    keys = [(s, tuple(w)) for s, w in zip(source_keys, windows, strict=True)]
    unique = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    prompt, attention_mask = pad_rows([w for _, w in unique], device, left=True)
    if sources is None:
        logits, state = model.start(prompt, attention_mask)
    else:
        if attention_mask is not None:
            raise ValueError("targets that begin with unequal numbers of tokens can't be read together")
        by_key = dict(zip(keys, sources, strict=True))
        source, attention_mask = collate_sources([by_key[key] for key in unique], device)
        logits, state = model.start(source, prompt, attention_mask)
    if len(unique) < len(keys):
        rows = torch.tensor([unique[key] for key in keys], device=device)
        state.reorder(rows)
        logits = logits[rows]
    return logits, state


def source_key(source: Source) -> tuple[int, ...] | bytes:
    """A source's content, to compare it with others."""
    return source.cpu().numpy().tobytes() if isinstance(source, Tensor) else tuple(source)


def collate_sources(sources: Sequence[Source], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Sources as one tensor, and its attention mask; images are all of one size."""
    images = [source for source in sources if isinstance(source, Tensor)]
    if images:
        return torch.stack(images).to(device), None
    return pad_rows([source for source in sources if not isinstance(source, Tensor)], device)


def pad_rows(
    rows: Sequence[Sequence[int]], device: torch.device, left: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Rows as one tensor (B, T), and its attention mask, or None if nothing is padded."""
    T = max(map(len, rows))
    gaps = [[0] * (T - len(row)) for row in rows]
    ids = [[*gap, *row] if left else [*row, *gap] for row, gap in zip(rows, gaps, strict=True)]
    if not any(gaps):
        return torch.tensor(ids, device=device), None
    attention_mask = [[i >= len(gap) if left else i < T - len(gap) for i in range(T)] for gap in gaps]
    return torch.tensor(ids, device=device), torch.tensor(attention_mask, device=device)


def generate(
    model: Writer,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    sources: Sequence[Source] | None = None,
    end: int | Collection[int] | None = None,
    samples: int = 1,
    cached: bool = True,
) -> Iterator[list[int | None]]:
    """Continue each prompt `samples` times: yield each row's new token at every step, None after its end.

    An encoder-decoder also reads the prompt's source; there, a row also ends when the context is full.
    Sample j of prompt i is row i * samples + j. A row ends at an `end` token, which is not yielded, or after
    max_new_tokens; so a row with fewer tokens than that has reached an end token.
    cached=False reads every row anew at every step, which is slow and gives the same tokens.
    The model is in evaluation mode during the iteration.
    """
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {i} is empty: give at least one token")
    if samples < 1:
        raise UserError(f"samples={samples}: give a whole number from 1 up")
    ends = {end} if isinstance(end, int) else set(end or ())
    texts = [list(prompt) for prompt in prompts for _ in range(samples)]
    repeated = None if sources is None else [source for source in sources for _ in range(samples)]
    return _generate(model, texts, repeated, sampling, ends, samples, cached)


@torch.inference_mode()  # between the steps it is off
def _generate(
    model: Writer,
    texts: list[list[int]],
    sources: list[Source] | None,
    sampling: Sampling,
    ends: set[int],
    samples: int,
    cached: bool,
) -> Iterator[list[int | None]]:
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
    asked = texts if sources is None else [[*source_key(s), *t] for s, t in zip(sources, texts, strict=True)]
    generators = [row_generator(seed, row % samples, text) for row, text in enumerate(asked)]
    device, context = next(model.parameters()).device, model.config.context
    max_steps = sampling.max_new_tokens
    if sources is not None:
        max_steps = min(max_steps, 1 + context - max(map(len, texts), default=0))
    live = list(range(len(texts)))  # the unfinished rows: row b of the batch is texts[live[b]]
    state, length = None, context  # length: of the longest window in the state, padding included
    training = [m for m in model.modules() if m.training]
    for m in training:
        m.training = False
    try:
        for _ in range(max_steps if live else 0):
            windows = [fit_context(texts[row], context) for row in live]
            live_sources = None if sources is None else [sources[row] for row in live]
            if not cached:
                alone = [(w, live_sources and [live_sources[b]]) for b, w in enumerate(windows)]
                logits = torch.cat([read_rows(model, [w], source)[0] for w, source in alone])
            elif length == context:  # nothing is read yet, or the longest row is full
                logits, state = read_rows(model, windows, live_sources)
                length = max(map(len, windows))
            else:
                last = torch.tensor([w[-1:] for w in windows], device=device)  # (B, 1)
                logits, state = model.step(last, state)
                length += 1
            uniform = [generators[row].random() for row in live]
            tokens = choose(logits, [texts[row] for row in live], sampling, uniform)

            going = [b for b, token in enumerate(tokens) if token not in ends]
            new: list[int | None] = [None] * len(texts)
            for b in going:
                texts[live[b]].append(tokens[b])
                new[live[b]] = tokens[b]
            if not going:
                return
            yield new
            if len(going) < len(live):  # costs no more than a step's growing of the cache
                live = [live[b] for b in going]
                if state is not None:
                    state.reorder(torch.tensor(going, device=device))
    finally:
        for m in training:
            m.training = True


class Stopper:
    """Passes streamed text on, up to the first of the `stops`, whichever begins earliest.

    What may be the beginning of a stop is held back, so that the result does not depend on the pieces.
    """

    def __init__(self, stops: Sequence[str]):
        if isinstance(stops, str) or not all(stops):
            raise UserError(f"stop={stops!r}: give a list of strings, none of them empty")
        self.stops, self.held, self.done = list(stops), "", False

    def push(self, piece: str) -> str:
        """Take one more piece of text; return what is safe to show now."""
        if self.done:
            return ""
        self.held += piece
        cut, open_ = self._cut(), self._open()
        self.done = cut < len(self.held) and cut <= open_
        shown, self.held = self.held[: min(cut, open_)], "" if self.done else self.held[open_:]
        return shown

    def finish(self) -> str:
        """At the end of the text, return what was held back, up to a stop."""
        cut, held = self._cut(), self.held
        self.done, self.held = self.done or cut < len(held), ""
        return held[:cut]

    def _cut(self) -> int:
        """Where the first complete stop begins."""
        return min((at for at in map(self.held.find, self.stops) if at >= 0), default=len(self.held))

    def _open(self) -> int:
        """Where the beginning of a stop that may still be completed starts."""
        n = len(self.held)
        first = max(0, n + 1 - max(map(len, self.stops), default=1))
        tails = ((i, self.held[i:]) for i in range(first, n))
        return next((i for i, t in tails if any(s.startswith(t) and s != t for s in self.stops)), n)
