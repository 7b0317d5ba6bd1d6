"""Write many texts at once: a cache of pages that never moves, and steps of fixed shapes.

Everything is rows: a row is one token at one position of one text. A step of generation has a row for every
text; prompts are read so many rows at a time. Every row is computed by itself, so that what is written does
not depend on the others. On a GPU, steps are captured as CUDA graphs for some numbers of rows, tokens are
chosen on the device, and a step begins before the tokens of the last one are known here.

Shapes: R rows, N pages of a text, M pages of a source, V vocabulary, S slots: places for texts.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.core.attention import Attention, split
from regard.core.cache import State
from regard.core.layers import Stack
from regard.core.positions import Positions
from regard.decode import kernels
from regard.decode.blocks import FusedStack, Rows, attentions, find_decoder
from regard.decode.buffers import DRAWS, Buffers, Text
from regard.decode.pages import PagePool
from regard.decode.prompts import Source, collate_sources, fit_context
from regard.decode.sampling import RowOptions, Sampling, choose, choose_by_row

PAGE = 32  # tokens
ROWS = 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512  # a step is filled up to one of these
READ = 16, 64, 256, 1024  # the same for parts of prompts
GROWTH = 4  # pages that a text gets at once, while there are plenty
TopLogprobs = tuple[tuple[int, float], ...]
MEMORY = 0.8  # the share of the free memory that pages may take


@dataclass
class Output:
    """A text's next token, its log-probability, and those of the likeliest tokens if they are asked for."""

    text: Text
    token: int
    logprob: float
    last: bool  # the text has reached its limit
    top: TopLogprobs = ()


@dataclass
class Launched:
    """A step whose tokens have not come yet."""

    rows: list[tuple[Text, int]]  # and their slots
    tokens: Callable[[], Tensor]  # (2, R) int32: the tokens, and the bits of their log-probabilities


class Runner:
    """Writes texts with a model whose decoder is a stack of known blocks; raises ValueError for any other.

    `slots` texts at most are written at once, others wait. When pages run out, the youngest text gives
    its own back and is read again later. With `graphs`, steps are CUDA graphs.
    """

    def __init__(self, model: Any, slots: int = 256, pages: int | None = None, graphs: bool | None = None):
        decoder = find_decoder(model)
        if decoder is None:
            raise ValueError("the model's decoder has parts that can't be computed over pages")
        self.model, self.decoder, self.context = model, decoder, int(model.config.context)
        weight = next(attentions(decoder)).q.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.kernels = kernels.for_device(self.device)
        self.graphs = self.device.type == "cuda" if graphs is None else graphs
        self.has_source = bool(decoder[0].cross)
        self.fused: FusedStack | None = None  # made at the first step, which names the positions
        attn = next(attentions(decoder))
        shape = attn.kv_heads, PAGE, attn.k.out_features // attn.kv_heads
        width = -(-self.context // PAGE)
        regions = getattr(model.config, "side", 0) ** 2  # of an image
        source_width = -(-max(regions, self.context) // PAGE) if self.has_source else 0
        self.text_pages = width + source_width  # that one text may need
        count = self._affordable(slots * self.text_pages, len(decoder), shape) if pages is None else pages
        self.pool = PagePool(max(count, self.text_pages), PAGE)
        self.keys, self.values = (
            torch.zeros(len(decoder), len(self.pool.users), *shape, device=self.device, dtype=self.dtype)
            for _ in "kv"
        )
        self.buffers = Buffers(slots, width, source_width, self.device)
        self.free_slots = list(range(slots))  # a heap: low ones first, so that steps have few rows
        self.texts: list[Text] = []  # those that have a slot, the youngest last
        self.waiting: deque[Text] = deque()
        self.launched: deque[Launched] = deque()
        self.read_rows: dict[int, Tensor] = {}  # by their number: what a part of prompts is, (3, R)
        self.captured: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self.graph_pool: Any = None
        self.searches: dict[tuple[Any, ...], Any] = {}  # the last beam search, with its tensors

    def _affordable(self, count: int, layers: int, shape: tuple[int, int, int]) -> int:
        """So many pages, or as many as the memory has room for."""
        if self.device.type != "cuda":
            return count
        size = 2 * layers * math.prod(shape) * self.dtype.itemsize
        return min(count, int(MEMORY * torch.cuda.mem_get_info(self.device)[0]) // size)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture the graphs of the usual steps, while there are no texts yet."""
        slots = len(self.buffers.tables)
        for R in {n for n in ROWS if n <= slots} | {slots}:
            for kind in range(3):
                self.replay(("step", R, kind), partial(self._generate, R, kind))
        for R in READ:
            self._replay_part(np.zeros((3, 0), np.int32), R)

    # Texts

    def add(self, text: Text) -> None:
        """Queue a text."""
        self.waiting.append(text)

    def remove(self, text: Text) -> None:
        """Stop writing a text; a token of it that is under way is not returned any more."""
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
        """Take the slots and pages of texts. What their full pages hold is remembered."""
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
        """Texts wait again, before all others, to be read from what is known of them."""
        self._evict(texts)
        self.waiting.extendleft(reversed(texts))

    # A step

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """Begin a step, and return the tokens of the one before it, if there was one."""
        outputs = self._make_room()
        self._admit()
        self._read()
        texts = [t for t in self.texts if not t.reading and t.steps < t.limit]
        if not texts:
            return outputs + self._collect()
        if any(text.on_host for text in texts):
            # What has come may end a text, which only the caller knows.
            return outputs + (self._collect_all() if self.launched else self._step_on_host(texts))
        self._launch(texts)
        return outputs + (self._collect() if len(self.launched) > 1 else [])

    def _make_room(self) -> list[Output]:
        """Give every text a page for its next token. Those that outgrew the context, and the youngest when
        pages run out, are read again later."""
        outputs: list[Output] = []
        active = [t for t in self.texts if not t.reading and t.steps < t.limit]
        full = [t for t in active if t.cached == self.context]
        if full:
            outputs += self._collect_all()
            self._requeue([t for t in full if not t.done])
        grown = []
        for text in [t for t in active if t.slot is not None and t.cached == len(t.pages) * PAGE]:
            pages = self._take_pages(text)
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
        """The next page of a text, or several while there are plenty."""
        most = -(-min(self.context, text.cached + text.limit - text.steps) // PAGE) - len(text.pages)
        plenty = self.pool.free >= 2 * GROWTH * len(self.texts)
        return self.pool.take(max(1, min(GROWTH, most)) if plenty else 1)

    def _admit(self) -> None:
        """Give slots and pages to texts that wait, first come, first served."""
        new = []
        while self.waiting and self.free_slots:
            text = self.waiting[0]
            window = fit_context(text.ids, self.context)
            shared = [] if self.has_source else self.pool.lookup(window[:-1])
            text.source_length = self.source_length(text.source)
            own, source = -(-len(window) // PAGE) - len(shared), -(-text.source_length // PAGE)
            # Others need a page now and then: it is no use to take a text in and have it wait again at once.
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
                self.read_sources(new)

    def source_length(self, source: Source | None) -> int:
        if source is None:
            return 0
        return int(self.model.config.side) ** 2 if isinstance(source, Tensor) else len(source)

    # Reading

    def read_sources(self, texts: Sequence[Text]) -> None:
        """Encode sources, and write their keys and values for each layer."""
        sources, mask = collate_sources([t.source for t in texts if t.source is not None], self.device)
        encoded = self.model.begin(sources, mask).encoded  # (B, S, D)
        lengths = np.array([t.source_length for t in texts])
        row = np.repeat(np.arange(len(texts)), lengths)
        column = np.concatenate([np.arange(n) for n in lengths])
        page = np.concatenate([np.repeat(t.source_pages, PAGE)[: t.source_length] for t in texts])
        at, cell, of, token = (self.buffers.send(x) for x in (page, column % PAGE, row, column))
        for i, block in enumerate(self.decoder):
            attn: Attention = block.cross.f  # type: ignore[union-attr, assignment]
            k, v = split(attn.k(encoded), attn.kv_heads), split(attn.v(encoded), attn.kv_heads)
            for pages, new in ((self.keys, attn.k_norm(k)), (self.values, v)):
                pages[i][at, :, cell] = new[of, :, token].to(pages.dtype)

    def _read(self) -> None:
        """Read more of the prompts, but for their last tokens, with which generation begins."""
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
            self._replay_part(rows, next(n for n in READ if n >= rows.shape[1]))
        if read:
            self.buffers.place(read)
            if sampled := [t for t in read if t.kind]:
                self.buffers.write_draws(sampled)
            for text in read if not self.has_source else ():
                self.pool.remember(text.ids[text.begin : text.begin + text.cached], text.pages)

    def _replay_part(self, rows: np.ndarray, R: int) -> None:
        """Read rows (3, up to R) of ids, positions and slots."""
        padded = np.zeros((3, R), np.int32)
        padded[1] = -1
        padded[:, : rows.shape[1]] = rows
        if R not in self.read_rows:
            self.read_rows[R] = torch.zeros(3, R, dtype=torch.int32, device=self.device)
        self.read_rows[R].copy_(self.buffers.send(padded))
        self.replay(("read", R), lambda: self._read_part(self.read_rows[R]))

    def _read_part(self, numbers: Tensor) -> None:
        """Write the keys and values of some tokens: their ids, positions and slots (3, R)."""
        ids, positions, slots = numbers
        b = self.buffers
        source = b.source_tables[slots], b.source_lengths[slots]
        rows = Rows(positions, positions + 1, b.tables[slots], *source, distinct=False)
        self.hidden(ids, rows)

    # The computation, which a graph repeats

    def hidden(self, ids: Tensor, rows: Rows) -> Tensor:
        """The hidden states (R, D) of rows; their keys and values are written."""

        def run(stack: Stack, x: Tensor, positions: Positions | None) -> Tensor:
            if self.fused is None:
                self.fused = FusedStack(stack, positions, self.context, self.kernels)
            return self.fused(x[:, 0], self.keys, self.values, rows)[:, None]

        state = State([], positions=rows.positions.clamp(min=0)[:, None], run=run)
        hidden: Tensor = self.model.decode(ids[:, None], state)
        return hidden[:, 0]

    def _logits(self, R: int) -> Tensor:
        """The logits (R, V) of the first slots, in float32."""
        b = self.buffers
        positions = b.numbers[1, :R]
        source = b.source_tables[:R], b.source_lengths[:R]
        rows = Rows(positions, positions + 1, b.tables[:R], *source, distinct=True)
        hidden = self.hidden(b.numbers[0, :R], rows)
        return self.output_logits(hidden)

    def output_logits(self, hidden: Tensor) -> Tensor:
        """The logits (R, V) of hidden states (R, D), in float32."""
        weight, bias = self.model.output, self.model.output_bias
        return self.kernels.norm_linear(hidden, None, weight, bias, out_dtype=torch.float32)

    def _advance(self, R: int) -> None:
        positions = self.buffers.numbers[1, :R]
        positions.add_((positions >= 0).int())
        self.buffers.numbers[2, :R].add_(1)

    def _generate(self, R: int, kind: int) -> Tensor:
        """A step: the next tokens and the bits of their log-probabilities (2, R). They are the next ids."""
        b, logits = self.buffers, self._logits(R)
        numbers, floats = b.numbers[:, :R], b.numbers.view(torch.float32)[:, :R]
        uniform = b.draws[torch.arange(R, device=self.device), numbers[2] % DRAWS]
        if kind < 2:
            tokens, logprobs = self.kernels.sample(logits, floats[3], uniform)
        else:
            options = RowOptions(floats[3], numbers[4].long(), floats[5], floats[6])
            tokens = choose_by_row(logits, options, uniform)
            chosen = logits.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
            logprobs = chosen - logits.logsumexp(-1)
        numbers[0] = tokens.clamp(min=0)
        self._advance(R)
        return torch.stack([tokens.int(), logprobs.view(torch.int32)])

    def _generate_logits(self, R: int) -> Tensor:
        logits = self._logits(R)
        self._advance(R)
        return logits

    def replay(self, key: tuple[Any, ...], body: Callable[[], Any], *changed: Tensor) -> Any:
        """Run a step: by its graph, captured at the first time, where there are graphs.

        `changed` are tensors that a step changes and reads; those of the slots are among them.
        """
        if not self.graphs:
            return body()
        if key not in self.captured:
            tensors = [self.buffers.numbers, *changed]
            before = [t.clone() for t in tensors]
            body()  # compiles kernels; what it writes to pages is what the graph will write
            for t, old in zip(tensors, before, strict=True):
                t.copy_(old)
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.graph_pool):
                result = body()
            self.graph_pool = self.graph_pool or graph.pool()
            self.captured[key] = graph, result
        graph, result = self.captured[key]
        graph.replay()
        return result

    def fetch(self, result: Tensor) -> Callable[[], Tensor]:
        """Begin to copy a result to the host; the function returned waits for it."""
        if self.device.type != "cuda":
            return result.clone
        host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        host.copy_(result, non_blocking=True)
        event = torch.cuda.Event()
        event.record()

        def wait() -> Tensor:
            event.synchronize()
            return host

        return wait

    # Tokens

    def _begin(self, texts: Sequence[Text]) -> int:
        """Count a step of these texts; return its number of rows. Call `_stop` once it is launched."""
        later = [
            t for t in texts if t.kind and t.steps and t.steps % DRAWS == 0 and t.block < t.steps // DRAWS
        ]
        if later:
            self.buffers.write_draws(later)
        for text in texts:
            text.steps += 1
            text.cached += 1
        most = 1 + max(text.slot or 0 for text in texts)
        return next((n for n in ROWS if most <= n <= len(self.buffers.tables)), len(self.buffers.tables))

    def _stop(self, texts: Sequence[Text]) -> None:
        """Texts that have their last token take no part in further steps."""
        if slots := [t.slot for t in texts if t.steps == t.limit and t.slot is not None]:
            self.buffers.clear(slots)

    def _launch(self, texts: Sequence[Text]) -> None:
        R, kind = self._begin(texts), max(text.kind for text in texts)
        result = self.fetch(self.replay(("step", R, kind), lambda: self._generate(R, kind)))
        self.launched.append(Launched([(text, text.slot or 0) for text in texts], result))
        self._stop(texts)

    def _collect(self) -> list[Output]:
        """The tokens of the oldest step under way, once they are there."""
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
        R = self._begin(texts)
        slots = [text.slot or 0 for text in texts]
        at = self.buffers.send(np.array(slots))
        logits = self.replay(("logits", R), lambda: self._generate_logits(R))[at]
        finite = logits.amax(-1).isfinite().tolist()
        logprobs = logits.log_softmax(-1)
        tokens = [-1] * len(texts)
        groups: dict[Sampling, list[int]] = {}
        for i, text in enumerate(texts):
            if finite[i]:
                groups.setdefault(text.sampling, []).append(i)
        for sampling, rows in groups.items():
            uniform = np.stack(
                [texts[i].uniform(texts[i].steps - 1)[(texts[i].steps - 1) % DRAWS] for i in rows]
            )
            for i, token in zip(
                rows, choose(logits[rows], [texts[i].ids for i in rows], sampling, uniform), strict=True
            ):
                tokens[i] = token
        ids = np.array(tokens).clip(min=0)
        self.buffers.write(self.buffers.numbers[0], 0, slots, ids.astype(np.int32))
        chosen = logprobs.gather(1, self.buffers.send(ids)[:, None])[:, 0].tolist()
        most = min(max(text.top_logprobs for text in texts), logits.shape[-1])
        values, top = (x.tolist() for x in logprobs.topk(most))
        self._stop(texts)
        outputs = []
        for i, text in enumerate(texts):
            pairs = tuple(zip(top[i], values[i], strict=True))[: text.top_logprobs]
            outputs.append(self._output(text, tokens[i], chosen[i], pairs))
        return outputs
