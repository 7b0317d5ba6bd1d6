"""The computation of steps on the device, captured as CUDA graphs for some numbers of rows.

Shapes: R rows, P pages of L tokens, G key/value heads, d width of a head, V vocabulary, S source tokens.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from regard.core.attention import Attention, split
from regard.core.cache import State
from regard.core.layers import Stack
from regard.core.positions import Positions
from regard.decode import kernels
from regard.decode.blocks import FusedStack, Rows, attentions
from regard.decode.buffers import DRAWS, Buffers, Kind, Text
from regard.decode.filters import RowOptions
from regard.decode.prompts import attend_quickly, collate_sources
from regard.decode.sampling import LEVELS, choose_by_row
from regard.models.base import EncoderDecoder, LanguageModel

PAGE = 32  # tokens
TRIED = 17  # rows that are computed to test a model
TOLERANCE = 0.05  # tolerance between two orders of summation in bfloat16, relative to the largest number
MEMORY = 0.8  # the share of the free memory that pages may take


class Steps:
    """The computation of a `Runner` with its model: the keys and values of all pages, and steps over them."""

    def __init__(
        self, model: LanguageModel, decoder: Stack, slots: int, pages: int | None, graphs: bool | None
    ):
        self.model, self.decoder, self.context = model, decoder, int(model.config.context)
        attn = next(attentions(decoder))
        self.device, self.dtype = attn.q.weight.device, attn.q.weight.dtype
        self.kernels = kernels.for_device(self.device)
        self.graphs = self.device.type == "cuda" if graphs is None else graphs
        self.has_source = bool(decoder[0].cross)
        width = -(-self.context // PAGE)
        regions = getattr(model.config, "side", 0) ** 2  # of an image
        source_width = -(-max(regions, self.context) // PAGE) if self.has_source else 0
        needed = width + source_width  # by one text, at most
        shape = attn.kv_heads, PAGE, attn.k.out_features // attn.kv_heads
        count = max(needed, self._affordable(slots * needed, shape) if pages is None else pages)
        self.keys, self.values = (
            torch.zeros(len(decoder), count, *shape, device=self.device, dtype=self.dtype) for _ in "kv"
        )
        self.buffers = Buffers(slots, width, source_width, self.device)
        self.first_slots = torch.arange(slots, device=self.device)
        self.fused: FusedStack | None = None  # made at the first step, when the positions are known
        self.inputs: dict[tuple[int, int], Tensor] = {}  # rows that the host sends, by their shape
        self.captured: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self.graph_pool: Any = None

    def _affordable(self, count: int, shape: tuple[int, int, int]) -> int:
        """Return `pages`, or as many pages as fit into memory."""
        if self.device.type != "cuda":
            return count
        size = 2 * len(self.decoder) * math.prod(shape) * self.dtype.itemsize
        return min(count, int(MEMORY * torch.cuda.mem_get_info(self.device)[0]) // size)

    # Rows

    def hidden(self, ids: Tensor, rows: Rows) -> Tensor:
        """The hidden states (R, D) of rows; their keys and values are written."""

        def run(stack: Stack, x: Tensor, pos: Any, positions: Positions | None, mask: Any) -> Tensor:
            if self.fused is None:
                self.fused = FusedStack(stack, positions, self.context, self.kernels)
            return self.fused(x[:, 0], self.keys, self.values, rows)[:, None]

        state = State([], positions=rows.positions.clamp(min=0)[:, None], run=run)
        hidden: Tensor = self.model.decode(ids[:, None], state)
        return hidden[:, 0]

    def output_logits(self, hidden: Tensor) -> Tensor:
        """The logits (R, V) of hidden states (R, D), in float32."""
        weight, bias = self.model.output, self.model.output_bias
        return self.kernels.norm_linear(hidden, None, weight, bias, out_dtype=torch.float32)

    def choose(self, logits: Tensor, numbers: Tensor, uniform: Tensor, never: Tensor, kind: Kind) -> Tensor:
        """The next tokens of rows (R, V), and the bits of their log-probabilities: (2, R).

        For each row: the numbers of its slot (FIELDS, R), random numbers (R, LEVELS), suppressed tokens.
        """
        floats, suppressed = numbers.view(torch.float32), never if kind.suppressed else None
        if kind.filtered:
            total = self.log_total(logits)
            if suppressed is not None:
                bound = torch.where(suppressed >= 0, -math.inf, math.inf)
                logits = logits.scatter_reduce(1, suppressed.clamp(min=0), bound, "amin")
            options = RowOptions(floats[3], numbers[4].long(), floats[5], floats[6])
            tokens = choose_by_row(logits, options, uniform, kind.filtered)
            logprobs = logits.gather(1, tokens.clamp(min=0)[:, None])[:, 0] - total
        else:
            tokens, logprobs = self.kernels.sample(logits, floats[3], uniform, suppressed)
        return torch.stack([tokens.int(), logprobs.view(torch.int32)])

    def log_total(self, logits: Tensor) -> Tensor:
        """log Σ exp of rows (R, V), by the operation that gives the most likely token's log-probability."""
        zeros = logits.new_zeros(len(logits))
        tokens, logprobs = self.kernels.sample(logits, zeros, zeros[:, None].expand(-1, LEVELS).contiguous())
        highest: Tensor = logits.gather(1, tokens.clamp(min=0)[:, None])[:, 0] - logprobs
        return highest

    @torch.inference_mode()
    def try_out(self) -> bool:
        """Compute some rows while there are no texts, to check that the model calls its blocks as a stack,
        and that the device's operations agree with the plain ones."""
        hidden = self._try_rows()
        if self.fused is None:
            return False
        self.fused.use(kernels.plain)
        expected = self._try_rows()
        self.fused.use(self.kernels)
        close = bool((hidden - expected).abs().max() <= TOLERANCE * expected.abs().max())
        return close and self._samples_as_plainly() and self._copies_pages()

    def _samples_as_plainly(self) -> bool:
        """Check sampling against the plain operation: greedy and not, without suppressed tokens."""
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(4, len(self.model.output), generator=generator).to(self.device)
        temperature = torch.tensor([0.0, 0.0, 1.0, 0.5], device=self.device)
        uniform = torch.rand(4, LEVELS, generator=generator).to(self.device)
        suppressed = torch.cat([logits.argmax(-1)[:, None], logits.argmin(-1)[:, None]], 1)
        for never in (None, suppressed):
            tokens, logprobs = self.kernels.sample(logits, temperature, uniform, never)
            expected, expected_logprobs = kernels.plain.sample(logits, temperature, uniform, never)
            if not torch.equal(tokens, expected) or (logprobs - expected_logprobs).abs().max() > 1e-3:
                return False
        return True

    def _copies_pages(self) -> bool:
        """Check that the first page can be copied to the last."""
        first, last, length = (
            torch.tensor([n], dtype=torch.int32, device=self.device)
            for n in (0, self.keys.shape[1] - 1, PAGE - 1)
        )
        content = torch.randn(self.keys[:, 0].shape, generator=torch.Generator().manual_seed(0))
        for pages in (self.keys, self.values):
            pages[:, 0], pages[:, -1] = content.to(pages), 0.0
        self.kernels.copy_pages(self.keys, self.values, first, last, length)
        return all(torch.equal(p[:, 0, :, :-1], p[:, -1, :, :-1]) for p in (self.keys, self.values))

    def _try_rows(self) -> Tensor:
        """The hidden states of the first tokens of a text, and again of the last one, in float32."""
        positions = torch.arange(min(TRIED, self.context), dtype=torch.int32, device=self.device)
        slots = torch.zeros_like(positions)
        together = self._hidden_of_slots(slots, positions, slots)
        b, last = self.buffers, positions[-1:]
        rows = Rows(last, last + 1, b.tables[:1], b.source_tables[:1], b.source_lengths[:1], distinct=True)
        return torch.cat([together, self.hidden(slots[:1], rows)]).float()

    # Steps

    def generate(self, R: int, kind: Kind) -> Tensor:
        """Choose the next tokens of the first R slots, and store them there: (2, R) as by `choose`."""

        def step() -> Tensor:
            b, numbers = self.buffers, self.buffers.numbers[:, :R]
            uniform = b.draws[self.first_slots[:R], numbers[2] % DRAWS]
            source = b.source_tables[:R], b.source_lengths[:R]
            rows = Rows(numbers[1], numbers[1] + 1, b.tables[:R], *source, distinct=True)
            logits = self.output_logits(self.hidden(numbers[0], rows))
            result = self.choose(logits, numbers, uniform, b.suppressed[:R], kind)
            torch.clamp(result[0], min=0, out=numbers[0])
            numbers[1:3].add_(numbers[1] >= 0)  # the slots that are used advance
            return result

        result: Tensor = self.replay(("generate", R, kind), step)
        return result

    def logits(self, rows: np.ndarray, R: int) -> Tensor:
        """The logits (R, V) after up to R tokens (3, R) of as many texts: their ids, positions and slots."""
        numbers = self._send_rows(rows, R)

        def step() -> Tensor:
            ids, positions, slots = numbers
            return self.output_logits(self._hidden_of_slots(ids, positions, slots, distinct=True))

        result: Tensor = self.replay(("logits", R), step)
        return result

    def read(self, rows: np.ndarray, R: int) -> None:
        """Write the keys and values of up to R tokens (3, R): their ids, positions and slots."""
        numbers = self._send_rows(rows, R)
        self.replay(("read", R), lambda: self._hidden_of_slots(*numbers))

    def check(self, rows: np.ndarray, R: int, kind: Kind) -> Tensor:
        """The next token after each of up to R tokens (4, R), as by `choose`: their ids, positions, slots,
        and the number of steps that they are ahead of their text."""
        numbers = self._send_rows(rows, R)

        def step() -> Tensor:
            ids, positions, slots, ahead = numbers
            logits = self.output_logits(self._hidden_of_slots(ids, positions, slots))
            b, chosen = self.buffers, self.buffers.numbers[:, slots]
            uniform = b.draws[slots, (chosen[2] + ahead) % DRAWS]
            return self.choose(logits, chosen, uniform, b.suppressed[slots], kind)

        result: Tensor = self.replay(("check", R, kind), step)
        return result

    def _hidden_of_slots(
        self, ids: Tensor, positions: Tensor, slots: Tensor, distinct: bool = False
    ) -> Tensor:
        b = self.buffers
        source = b.source_tables[slots], b.source_lengths[slots]
        return self.hidden(ids, Rows(positions, positions + 1, b.tables[slots], *source, distinct))

    def _send_rows(self, rows: np.ndarray, R: int) -> Tensor:
        """Copy rows to the tensor that graphs read, padded with unused ones."""
        padded = np.zeros((len(rows), R), np.int32)
        padded[1] = -1
        padded[:, : rows.shape[1]] = rows
        if padded.shape not in self.inputs:
            self.inputs[padded.shape] = torch.zeros(padded.shape, dtype=torch.int32, device=self.device)
        return self.inputs[padded.shape].copy_(self.buffers.send(padded))

    def read_sources(self, texts: Sequence[Text]) -> None:
        """Encode sources, and write their keys and values for each layer."""
        sources, mask = collate_sources([t.source for t in texts if t.source is not None], self.device)
        lengths = np.array([t.source_length for t in texts])
        with attend_quickly(int(lengths.max())):
            encoded = cast(EncoderDecoder, self.model).begin(sources, mask).encoded  # (B, S, D)
        row = np.repeat(np.arange(len(texts)), lengths)
        column = np.concatenate([np.arange(n) for n in lengths])
        page = np.concatenate([np.repeat(t.source_pages, PAGE)[: t.source_length] for t in texts])
        at, cell, of, token = (self.buffers.send(x) for x in (page, column % PAGE, row, column))
        for i, block in enumerate(self.decoder):
            attn: Attention = block.cross.f  # type: ignore[union-attr, assignment]
            k, v = split(attn.k(encoded), attn.kv_heads), split(attn.v(encoded), attn.kv_heads)
            for pages, new in ((self.keys, attn.k_norm(k)), (self.values, v)):
                pages[i][at, :, cell] = new[of, :, token].to(pages.dtype)

    # Graphs

    def replay(self, key: tuple[Any, ...], body: Callable[[], Any], *changed: Tensor) -> Any:
        """Run a step, with graphs by its graph, which is captured the first time.

        `changed` are tensors that a step changes and reads; those of the slots are among them.
        """
        if not self.graphs:
            return body()
        if key not in self.captured:
            tensors = [self.buffers.numbers, *changed]
            before = [t.clone() for t in tensors]
            body()  # compiles kernels; it writes to pages the same as the graph
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
