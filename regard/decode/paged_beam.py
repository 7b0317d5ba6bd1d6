"""Beam search over pages: steps of fixed shapes, with all choices on the device.

The results are those of `beam_search`. Beams are reordered by their tables of pages; only the page that a
beam writes to is its own, copied from the beam that it continues. A beam has two such pages, which it uses
in turns, so that none is written while others copy it. A finished sentence makes room for another one.

Shapes: B sentences searched at once, K beams, C candidates, V vocabulary, T the most tokens of an answer,
N pages of a beam, M of a source, L tokens of a page.
"""

import math
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.decode.beam import NO_TOKEN, Hypothesis, make_hypotheses, penalize_length
from regard.decode.blocks import Rows
from regard.decode.buffers import Text
from regard.decode.kernels.plain import Beams, follow_beams
from regard.decode.prompts import Source
from regard.decode.runner import READ, ROWS, Runner
from regard.decode.sampling import NOT_FINITE, Sampling, row_generator
from regard.decode.steps import PAGE
from regard.errors import UserError

LAG = 2  # steps that are started before the end of one is checked
REFILL = 4  # new sentences are read once one of this many places is free
SEARCHES = 8  # kinds of searches, each with its own graph, that a runner keeps


class PagedBeams:
    """The search of B sentences at once with a runner, which has no other user meanwhile."""

    def __init__(
        self, runner: Runner, B: int, N: int, M: int, new: int, ends: Collection[int], sampling: Sampling
    ):
        K, penalty = sampling.num_beams, sampling.length_penalty
        self.runner, self.B, self.K, self.N, self.T = runner, B, K, N, new
        device = runner.steps.device
        self.ends = sorted(ends)
        lengths = [penalize_length(max(1, t), penalty) for t in range(new + 2)]
        # Sums only fall: at best, a beam keeps its sum until the length at which its score is highest.
        bounds = [lengths[new]] * (new + 1) if penalty > 0 else lengths[1:]
        self.suppressed = torch.tensor(sampling.suppress_tokens, dtype=torch.long, device=device)
        own = torch.zeros(2, B * K, N, dtype=torch.int32, device=device)
        sums, scores = (torch.full((B, K), -math.inf, device=device) for _ in range(2))
        texts, finished = (
            torch.full((B, K, new), NO_TOKEN, dtype=torch.int32, device=device) for _ in range(2)
        )
        self.beams = Beams(
            sums=sums,
            scores=scores,
            texts=texts,
            finished=finished,
            steps=torch.zeros(B, dtype=torch.long, device=device),
            over=torch.ones(B, dtype=torch.bool, device=device),
            ids=torch.zeros(B * K, dtype=torch.int32, device=device),
            positions=torch.full((B * K,), -1, dtype=torch.int32, device=device),
            tables=torch.zeros_like(own[0]),
            own=own,
            penalties=torch.tensor(lengths, device=device),
            bounds=torch.tensor(bounds, device=device),
            ends=torch.tensor(self.ends, dtype=torch.long, device=device),
        )
        self.source_pages = np.zeros((B, M), np.int32)
        self.source_tables = torch.zeros(B * K, M, dtype=torch.int32, device=device)
        self.source_lengths = torch.zeros(B * K, dtype=torch.int32, device=device)

    @property
    def state(self) -> list[Tensor]:
        """The tensors that a step changes."""
        b = self.beams
        return [b.tables, b.ids, b.positions, b.sums, b.scores, b.texts, b.finished, b.steps, b.over]

    # On the device

    def step(self) -> Tensor:
        """Add a token to every beam; return whether each sentence is finished (B,)."""
        beams, steps = self.beams, self.runner.steps
        source = self.source_tables, self.source_lengths
        rows = Rows(beams.positions, beams.positions + 1, beams.tables, *source, distinct=True)
        logits = steps.output_logits(steps.hidden(beams.ids, rows))
        totals = steps.log_total(logits)
        if self.suppressed.numel():
            logits = logits.index_fill(1, self.suppressed, -math.inf)
        pages = steps.kernels.advance_beams(beams, logits, totals, PAGE)
        steps.kernels.copy_pages(steps.keys, steps.values, *pages)
        return beams.over

    # On the host

    def acquire(self) -> None:
        """Take pages, which `release` gives back."""
        pages = self.runner.pool.take(self.beams.own.numel())
        sources = self.runner.pool.take(self.source_pages.size)
        if pages is None or sources is None:
            raise UserError(
                f"{self.B} sentences with {self.K} beams don't fit into memory; ask for fewer at once"
            )
        self.source_pages = np.array(sources, np.int32).reshape(self.B, -1)
        send, beams = self.runner.buffers.send, self.beams
        beams.own.copy_(send(np.array(pages, np.int32).reshape(beams.own.shape)))
        self.source_tables.copy_(send(self.source_pages.repeat(self.K, 0)))
        beams.tables.copy_(beams.own[0])
        beams.over.fill_(True)
        beams.positions.fill_(-1)

    def place(self, places: Sequence[int], texts: Sequence[Text]) -> None:
        """Begin the search for sentences."""
        for b, text in zip(places, texts, strict=True):
            text.source_length = self.runner.source_length(text.source)
            text.source_pages = self.source_pages[b].tolist()
        if self.runner.has_source:
            self.runner.steps.read_sources(texts)
        send, K = self.runner.buffers.send, self.K
        beams = np.concatenate([np.arange(b * K, b * K + K) for b in places])
        at, first, several = (send(x) for x in (np.array(places), np.repeat(places, K) * K, beams))
        lengths = np.array([len(text.ids) - 1 for text in texts], np.int32)
        state, steps = self.beams, self.runner.steps
        state.tables[several] = state.own[0, several]
        self.source_lengths[several] = send(
            np.repeat([text.source_length for text in texts], K).astype(np.int32)
        )
        self.read(places, texts)
        state.ids[several] = send(np.repeat([text.ids[-1] for text in texts], K).astype(np.int32))
        # All beams of a sentence begin with the prompt that its first one has read.
        positions = send(np.repeat(lengths, K))
        state.tables[several], pages = follow_beams(
            state.tables[first], state.own[:, several], positions, PAGE
        )
        steps.kernels.copy_pages(steps.keys, steps.values, *pages)
        state.positions[several] = positions
        state.sums[at], state.scores[at] = -math.inf, -math.inf
        state.sums[at, 0] = 0.0  # at first, all beams are the same
        state.texts[at], state.finished[at] = NO_TOKEN, NO_TOKEN
        state.steps[at], state.over[at] = 0, False

    def read(self, places: Sequence[int], texts: Sequence[Text]) -> None:
        """Read prompts, except their last tokens, into the pages of each sentence's first beam."""
        parts = [
            np.stack([text.ids[:-1], np.arange(len(text.ids) - 1), np.full(len(text.ids) - 1, b * self.K)])
            for b, text in zip(places, texts, strict=True)
        ]
        numbers = np.concatenate(parts, axis=1).astype(np.int32)
        for i in range(0, numbers.shape[1], READ[-1]):
            ids, positions, beams = self.runner.buffers.send(numbers[:, i : i + READ[-1]].copy())
            source = self.source_tables[beams], self.source_lengths[beams]
            self.runner.steps.hidden(
                ids, Rows(positions, positions + 1, self.beams.tables[beams], *source, distinct=False)
            )

    def result(self, places: Sequence[int]) -> list[list[Hypothesis]]:
        at = self.runner.buffers.send(np.array(places))
        finished, scores = self.beams.finished[at].cpu(), self.beams.scores[at].cpu()
        return [make_hypotheses(f, s, self.ends) for f, s in zip(finished, scores, strict=True)]

    def release(self) -> None:
        self.runner.pool.release(self.beams.own.flatten().tolist())
        self.runner.pool.release(self.source_pages.flatten().tolist())


@torch.inference_mode()
def search_by_runner(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    ends: Collection[int],
    max_new_tokens: int,
    sources: Sequence[Source] | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses for each prompt, best first."""
    rng = row_generator(0, 0, [])
    texts = [
        Text(list(prompt), sampling, rng, max_new_tokens, None if sources is None else sources[i])
        for i, prompt in enumerate(prompts)
    ]
    key, beams = find_beams(runner, texts, sampling, ends, max_new_tokens)
    beams.acquire()
    try:
        results = search_all(beams, key, texts)
    finally:
        beams.release()
    if not all(results.values()):
        raise UserError(NOT_FINITE)
    return [results[n] for n in range(len(texts))]


def find_beams(
    runner: Runner, texts: Sequence[Text], sampling: Sampling, ends: Collection[int], new: int
) -> tuple[tuple[Any, ...], PagedBeams]:
    """Return a search of as many texts at once as there are pages for, perhaps one that the runner has kept,
    and the key of its graph."""
    K, longest = sampling.num_beams, max(len(text.ids) for text in texts)
    N = -(-(longest + new) // PAGE)
    # As many pages of a source as the longest one needs, since attention reads all of them.
    M = max((-(-runner.source_length(text.source) // PAGE) for text in texts if runner.has_source), default=0)
    wanted = next((n for n in ROWS if n >= len(texts)), ROWS[-1])
    B = max(1, min(wanted, ROWS[-1] // K, runner.pool.free // (2 * K * N + M)))
    key = "beams", B, K, N, M, new, tuple(ends), sampling
    beams: PagedBeams = runner.searches.pop(key, None) or PagedBeams(runner, B, N, M, new, ends, sampling)
    runner.searches[key] = beams  # the most recently used one is last
    for oldest in list(runner.searches)[:-SEARCHES]:
        del runner.searches[oldest]
        runner.steps.captured.pop(oldest, None)
    return key, beams


def search_all(beams: PagedBeams, key: tuple[Any, ...], texts: Sequence[Text]) -> dict[int, list[Hypothesis]]:
    """The hypotheses for each text by its number; one that is finished makes room for another."""
    steps, B = beams.runner.steps, beams.B
    waiting, results = deque(range(len(texts))), dict[int, list[Hypothesis]]()
    places: list[int | None] = [None] * B  # the text of each place
    left = [0] * B  # steps that it may still take
    begun: deque[tuple[list[int | None], Any]] = deque()
    while waiting or any(n is not None for n in places):
        free = [b for b, n in enumerate(places) if n is None]
        if waiting and (len(free) * REFILL >= B or len(free) == B):
            chosen = [(b, waiting.popleft()) for b in free[: len(waiting)]]
            beams.place([b for b, _ in chosen], [texts[n] for _, n in chosen])
            for b, n in chosen:
                places[b], left[b] = n, beams.T
        if any(left):
            begun.append((list(places), steps.fetch(steps.replay(key, beams.step, *beams.state))))
            left = [max(0, n - 1) for n in left]
            if len(begun) <= LAG:
                continue
        searched, fetched = begun.popleft()
        over = fetched().tolist()
        done = [b for b, n in enumerate(places) if n is not None and over[b] and searched[b] == n]
        if done:
            for b, hypotheses in zip(done, beams.result(done), strict=True):
                results[places[b] or 0] = hypotheses
                places[b], left[b] = None, 0
    return results
