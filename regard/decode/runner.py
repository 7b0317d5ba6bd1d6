"""Write many texts at once: a cache of pages that never moves, and steps of fixed shapes.

Everything is rows: a row is one token at one position of one text. A step of generation has a row for every
text; prompts are read a number of rows at a time. Every row is computed by itself, so that its text does not
depend on the others. On a GPU, steps are captured as CUDA graphs for some numbers of rows, tokens are
chosen on the device, and a step begins before the tokens of the last one have arrived.

Shapes: R rows, N pages of a text, M pages of a source, V vocabulary, S slots: places for texts.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.decode.blocks import find_decoder
from regard.decode.buffers import DRAWS, Kind, Text, joint_kind
from regard.decode.lookup import guess_next
from regard.decode.pages import PagePool
from regard.decode.prompts import Source, fit_context
from regard.decode.sampling import Sampling, choose
from regard.decode.steps import PAGE, Steps
from regard.models.base import LanguageModel

ROWS = 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512  # a step is padded to one of these
WARM_UP = 1, 2, 4, 8, 16, 32, 64, 128, 256  # captured at the start of a server
READ = 16, 64, 256, 1024  # the same for parts of prompts
GROWTH = 4  # pages that a text gets at once, while there are enough
TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Output:
    """A text's next token, its log-probability, and the most likely tokens with theirs if requested."""

    text: Text
    token: int
    logprob: float
    last: bool  # the text has reached its limit
    top: TopLogprobs = ()


@dataclass
class Launched:
    """A step whose tokens have not arrived yet."""

    rows: list[tuple[Text, int]]  # and their slots
    tokens: Callable[[], Tensor]  # (2, R) int32: the tokens, and the bits of their log-probabilities


def row_count(n: int) -> int:
    """The rows of a step with n that the host sends."""
    return next(count for count in ROWS + READ if count >= n)


class Runner:
    """Writes texts with a model whose decoder is a stack of known blocks; raises ValueError for any other.

    At most `slots` texts are written at once, others wait. When pages run out, the youngest text gives its
    pages back and is read again later. With `graphs`, steps are CUDA graphs.
    """

    def __init__(
        self, model: LanguageModel, slots: int = 256, pages: int | None = None, graphs: bool | None = None
    ):
        decoder = find_decoder(model)
        if decoder is None:
            raise ValueError("the model's decoder has parts that can't be computed over pages")
        self.context, self.steps = int(model.config.context), Steps(model, decoder, slots, pages, graphs)
        self.buffers, self.has_source = self.steps.buffers, self.steps.has_source
        self.pool = PagePool(self.steps.keys.shape[1], PAGE)
        self.free_slots = list(range(slots))  # a heap: low ones first, so that steps have few rows
        self.texts: list[Text] = []  # texts with a slot, the youngest last
        self.waiting: deque[Text] = deque()
        self.launched: deque[Launched] = deque()
        self.searches: dict[tuple[Any, ...], Any] = {}  # the last beam searches, with their tensors

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture the graphs of the usual steps, while there are no texts yet."""
        slots = len(self.buffers.tables)
        for R in [n for n in WARM_UP if n <= slots]:
            self.steps.generate(R, Kind())
        for R in READ:
            self.steps.read(np.zeros((3, 0)), R)

    # Texts

    def add(self, text: Text) -> None:
        """Queue a text."""
        self.waiting.append(text)

    def remove(self, text: Text) -> None:
        """Stop writing a text; a token of it in progress is not returned any more."""
        text.done = True
        if text in self.waiting:
            self.waiting.remove(text)
        self._evict([text])

    def clear(self) -> None:
        """Stop writing all texts."""
        for text in [*self.waiting, *self.texts]:
            self.remove(text)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.launched or self.texts)

    def _evict(self, texts: Sequence[Text]) -> None:
        """Take the slots and pages of texts. The contents of their full pages are remembered."""
        slots = [text.slot for text in texts if text.slot is not None]
        if slots:
            self.buffers.clear(slots)
        for text in texts:
            if text.slot is None:
                continue
            heapq.heappush(self.free_slots, text.slot)
            self.texts.remove(text)
            if not self.has_source:
                self.pool.remember(text.ids[text.begin : text.begin + text.cached], text.pages)
            self.pool.release(text.source_pages)
            self.pool.release(text.pages)
            text.slot, text.pages, text.source_pages, text.cached = None, [], [], 0

    def _requeue(self, texts: Sequence[Text]) -> None:
        """Let texts wait again, before all others, to be read from their known tokens."""
        self._evict(texts)
        self.waiting.extendleft(reversed(texts))

    # A step

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """Begin a step, and return the tokens of the previous one, if there was one."""
        outputs = self._make_room()
        self._admit()
        self._read()
        texts = [t for t in self.texts if not t.reading and t.steps < t.limit]
        if on_host := [text for text in texts if text.on_host]:
            outputs += self._step_on_host(on_host)
        if guessed := [text for text in texts if not (text.on_host or text.advances)]:
            outputs += self._step_with_guesses(guessed)
        if advancing := [text for text in texts if text.advances]:
            self._launch(advancing)  # last, so that the device is busy while the caller reads the outputs
            if len(self.launched) == 1:
                return outputs
        return outputs + self._collect()

    def _make_room(self) -> list[Output]:
        """Give every text a page for its next token. Texts that outgrew the context, and the youngest ones
        when pages run out, are read again later."""
        outputs: list[Output] = []
        ended = [t for t in self.texts if t.cached in (self.context, len(t.pages) * PAGE)]
        ended = [t for t in ended if not t.reading and t.steps < t.limit]
        full = [t for t in ended if t.cached == self.context]
        if full:
            outputs += self._collect_all()
            self._requeue([t for t in full if not t.done])
        grown = []
        for text in [t for t in ended if t not in full]:
            pages = self._take_pages(text) if text.slot is not None else None  # others may have displaced it
            while pages is None and text.slot is not None:
                outputs += self._collect_all()
                self._requeue(self.texts[-1:])
                pages = self._take_pages(text) if text.slot is not None else None
            if pages is not None:
                text.pages += pages
                grown.append(text)
        if grown:
            self.buffers.write_tables([text for text in grown if text.slot is not None])
        return outputs

    def _take_pages(self, text: Text) -> list[int] | None:
        """Take the next page of a text, or several while there are enough."""
        needed = -(-min(self.context, text.cached + text.limit - text.steps) // PAGE) - len(text.pages)
        plenty = self.pool.free >= 2 * GROWTH * len(self.texts)
        return self.pool.take(max(1, min(GROWTH, needed)) if plenty else 1)

    def _admit(self) -> None:
        """Give slots and pages to texts that wait, first come, first served."""
        new = []
        while self.waiting and self.free_slots:
            text = self.waiting[0]
            window = fit_context(text.ids, self.context)
            shared = [] if self.has_source else self.pool.lookup(window[:-1])
            text.source_length = self.source_length(text.source)
            own, source = -(-len(window) // PAGE) - len(shared), -(-text.source_length // PAGE)
            # Others need a page now and then: it is useless to admit a text that has to wait again at once.
            room = own + source + len(self.texts) <= self.pool.free or not self.texts
            pages = self.pool.take(own + source) if room else None
            if pages is None:
                self.pool.release(shared)
                break
            self.waiting.popleft()
            text.slot, text.reading = heapq.heappop(self.free_slots), True
            text.begin, text.cached = len(text.ids) - len(window), len(shared) * PAGE
            text.pages, text.source_pages = shared + pages[:own], pages[own:]
            self.texts.append(text)
            new.append(text)
        if new:
            self.buffers.write_tables(new)
            if self.has_source:
                self.steps.read_sources(new)

    def source_length(self, source: Source | None) -> int:
        if source is None:
            return 0
        return int(self.steps.model.config.side) ** 2 if isinstance(source, Tensor) else len(source)

    # Reading

    def _read(self) -> None:
        """Read more of the prompts, except their last tokens, with which generation begins."""
        parts, left, read = [], READ[-1], []
        for text in [t for t in self.texts if t.reading]:
            end = min(len(text.ids) - text.begin - 1, text.cached + left)
            positions = np.arange(text.cached, end)
            ids = text.ids[text.begin + text.cached : text.begin + end]
            parts.append(np.stack([ids, positions, np.full(len(ids), text.slot)]))
            left -= len(ids)
            text.cached = end
            if end == len(text.ids) - text.begin - 1:
                text.reading = False
                read.append(text)
        rows = np.concatenate(parts, axis=1).astype(np.int32) if parts else np.zeros((3, 0))
        if rows.shape[1]:
            self.steps.read(rows, next(n for n in READ if n >= rows.shape[1]))
        if read:
            self.buffers.place(read)
            if sampled := [t for t in read if t.sampled]:
                self.buffers.write_draws(sampled)
            for text in read if not self.has_source else ():
                self.pool.remember(text.ids[text.begin : text.begin + text.cached], text.pages)

    # Tokens

    def _begin(self, texts: Sequence[Text]) -> int:
        """Count a step of these texts; return its number of rows. Call `_stop` once it is launched."""
        self._write_draws(texts)
        for text in texts:
            text.steps += 1
            text.cached += 1
        used = 1 + max(text.slot or 0 for text in texts)
        return next((n for n in ROWS if used <= n <= len(self.buffers.tables)), len(self.buffers.tables))

    def _write_draws(self, texts: Sequence[Text]) -> None:
        """Send random numbers for more steps, if the last ones are used up."""
        if later := [t for t in texts if t.sampled and t.steps and t.block < t.steps // DRAWS]:
            self.buffers.write_draws(later)

    def _stop(self, texts: Sequence[Text]) -> None:
        """Exclude texts that have their last token from further steps."""
        if slots := [t.slot for t in texts if t.steps == t.limit and t.slot is not None]:
            self.buffers.clear(slots)

    def _launch(self, texts: Sequence[Text]) -> None:
        R, kind = self._begin(texts), joint_kind(texts)
        result = self.steps.fetch(self.steps.generate(R, kind))
        self.launched.append(Launched([(text, text.slot or 0) for text in texts], result))
        self._stop(texts)

    def _collect(self) -> list[Output]:
        """Wait for the tokens of the oldest step in progress."""
        if not self.launched:
            return []
        step = self.launched.popleft()
        result = step.tokens()
        tokens, logprobs = result[0].tolist(), result[1].view(torch.float32).tolist()
        return [self._output(t, tokens[slot], logprobs[slot]) for t, slot in step.rows if not t.done]

    def _output(self, text: Text, token: int, logprob: float, top: TopLogprobs = ()) -> Output:
        text.ids.append(token)
        text.count += 1
        return Output(text, token, logprob, text.count == text.limit, top)

    def _collect_all(self) -> list[Output]:
        return [output for _ in range(len(self.launched)) for output in self._collect()]

    def _step_on_host(self, texts: Sequence[Text]) -> list[Output]:
        """A step whose tokens are chosen here, because they depend on the texts so far."""
        rows = np.array([(max(0, text.ids[-1]), text.cached, text.slot) for text in texts]).T
        logits = self.steps.logits(rows, row_count(len(texts)))[: len(texts)]
        for text in texts:
            text.steps += 1
            text.cached += 1
        logprobs = logits.log_softmax(-1)
        tokens = [-1] * len(texts)
        groups: dict[Sampling, list[int]] = {}
        for i, text in enumerate(texts):
            groups.setdefault(text.sampling, []).append(i)
        for sampling, places in groups.items():
            uniform = np.stack(
                [texts[i].uniform(texts[i].steps - 1)[(texts[i].steps - 1) % DRAWS] for i in places]
            )
            ids_of_rows, rules = [texts[i].ids for i in places], [texts[i].rules for i in places]
            chosen_here = choose(logits[places], ids_of_rows, sampling, uniform, rules)
            for i, token in zip(places, chosen_here, strict=True):
                tokens[i] = token
        ids = np.array(tokens).clip(min=0)
        chosen = logprobs.gather(1, self.buffers.send(ids)[:, None])[:, 0].tolist()
        count = min(max(text.top_logprobs for text in texts), logits.shape[-1])
        values, top = (x.tolist() for x in logprobs.topk(count))
        outputs = []
        for i, text in enumerate(texts):
            pairs = tuple(zip(top[i], values[i], strict=True))[: text.top_logprobs]
            outputs.append(self._output(text, tokens[i], chosen[i], pairs))
        return outputs

    # Guesses (see lookup.py) are rows of the same step; right ones are as many steps at once.

    def _step_with_guesses(self, texts: Sequence[Text]) -> list[Output]:
        guesses, room = [], READ[-1] - len(texts)
        for text in texts:
            guesses.append(self._guess(text)[:room])
            room -= len(guesses[-1])
        parts = []
        for text, guess in zip(texts, guesses, strict=True):
            n = 1 + len(guess)
            ids, ahead = [max(0, text.ids[-1]), *guess], np.arange(n)
            parts.append(np.stack([ids, text.cached + ahead, np.full(n, text.slot), ahead]))
        self._write_draws(texts)
        rows = np.concatenate(parts, axis=1)
        check = self.steps.check(rows, row_count(rows.shape[1]), joint_kind(texts))
        result = self.steps.fetch(check)()
        tokens, logprobs = result[0].tolist(), result[1].view(torch.float32).tolist()
        outputs, first = [], 0
        for text, guess in zip(texts, guesses, strict=True):
            right = 0
            while right < len(guess) and guess[right] == tokens[first + right]:
                right += 1
            for row in range(first, first + right + 1):
                outputs.append(self._output(text, tokens[row], logprobs[row]))
            text.steps += right + 1
            text.cached += right + 1
            first += 1 + len(guess)
        self.buffers.place(texts)
        return outputs

    def _guess(self, text: Text) -> list[int]:
        """The tokens after an earlier occurrence of a text's last tokens, as many as fit into its pages."""
        room = min(len(text.pages) * PAGE, self.context) - text.cached - 1
        left = min(text.limit - text.steps - 1, DRAWS - 1 - text.steps % DRAWS, room)
        count = min(text.sampling.prompt_lookup_num_tokens, left)
        return guess_next(text.ids, count)
