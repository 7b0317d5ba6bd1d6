"""Requests that are generated together, one token of each at every step.

Shapes: B running requests, V vocabulary.
"""

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard.decode.prompts import Source, Writer, fit_context, read_rows, source_key
from regard.decode.sampling import Sampling, choose, draw_uniform, row_generator, row_rules
from regard.decode.states import join, trim

MAX_PREFILL_TOKENS = 1024  # prompt tokens read in one step, so that running requests don't wait for long
IMAGE_TOKENS = 128  # prefill cost of an image, in tokens


@dataclass(frozen=True)
class TokenOutput:
    """One generated token of a request that asks for log-probabilities."""

    id: int
    logprob: float  # under the model's own distribution, before temperature and other sampling options
    top_logprobs: tuple[tuple[int, float], ...]  # (id, logprob) of the most likely tokens, if requested
    ends: bool = False  # it ends the answer, and is not part of its text


class EngineError(Exception):
    """The engine failed while it processed a request. It has restarted."""


log = logging.getLogger(__name__)
FinishReason = Literal["stop", "length"]
Output = int | TokenOutput | FinishReason | Exception  # a token's id, unless log-probabilities are asked for
OutputCallback = Callable[[Output], None]
Outputs = list[tuple["GenerationRequest", Output]]  # in the order in which they were generated


def describe_error(error: BaseException) -> str:
    """The cause of a failure in one line. Keeping the error itself would keep tensors alive."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class GenerationRequest:
    """One prompt and its tokens so far. Everything but `cancel` and `deliver` belongs to the engine."""

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        callback: OutputCallback,
        source: Source | None,
        sample: int,
        top_logprobs: int | None,
        context: int,
        dequeue: Callable[["GenerationRequest"], None],
        ends: Collection[int] = (),
    ):
        self.ids, self.source, self.callback = list(prompt), source, callback
        self.context, self.dequeue = context, dequeue
        self.top_logprobs, self.remaining = top_logprobs, sampling.max_new_tokens
        if source is not None:
            self.remaining = min(self.remaining, 1 + context - len(prompt))
        self.rules = row_rules(sampling, len(prompt), ends, self.remaining)
        # Requests with equal settings are sampled together: leave out settings of a single request.
        self.sampling = replace(sampling.without_rules(), seed=None, max_new_tokens=1)
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self.rng = row_generator(seed, sample, prompt if source is None else [*source_key(source), *prompt])
        self.cached = 0  # tokens in the batch's state
        self.finished = False  # nothing more is generated
        self.closed = False  # nothing more is delivered
        self.lock = threading.RLock()

    def cancel(self) -> None:
        """Free the place at the next step. The callback is not called again."""
        with self.lock:
            self.finished = self.closed = True
        self.dequeue(self)

    def deliver(self, outputs: Sequence[Output]) -> None:
        """Call the callback with each, unless it has got the end: a thread that hung may return later with
        more."""
        with self.lock:
            for output in outputs:
                if self.closed:
                    return
                self.closed = type(output) is not int and not isinstance(output, TokenOutput)
                try:
                    self.callback(output)
                except Exception as error:  # the output has no receiver any more
                    self.finished = self.closed = True
                    log.error("a request is dropped, its callback failed: %s", describe_error(error))

    @property
    def window(self) -> Sequence[int]:
        """The part of the text that fits into the context."""
        return fit_context(self.ids, self.context)

    @property
    def prefill_cost(self) -> int:
        """The cost of reading the prompt, in tokens."""
        if isinstance(self.source, Tensor):
            return len(self.window) + IMAGE_TOKENS
        return len(self.window) + len(self.source or ())


def deliver_outputs(outputs: Outputs) -> None:
    """Deliver each request's outputs together, in their order."""
    by_request: dict[GenerationRequest, list[Output]] = {}
    for request, output in outputs:
        if request in by_request:
            by_request[request].append(output)
        else:
            by_request[request] = [output]
    for request, its_outputs in by_request.items():
        request.deliver(its_outputs)


def end_requests(
    requests: Sequence[GenerationRequest], reason: Exception, hand_over: Callable[[Outputs], None]
) -> None:
    """End requests outside of a step."""
    for request in requests:
        request.finished = True
    if requests:
        hand_over([(request, reason) for request in requests])


class Batch:
    """The requests that have a place, and the model's state for those whose prompts are read.

    One thread changes it; `lock` guards the two lists, which others may read. At the end of every step,
    `hand_over` gets the outputs of all requests in one list, and has `deliver` called for each.
    """

    def __init__(
        self,
        model: Writer,
        stop_ids: Collection[int],
        lock: threading.Condition,
        counts: Counter[str],
        hand_over: Callable[[Outputs], None] = deliver_outputs,
    ):
        self.model, self.stop_ids, self.lock, self.counts = model, stop_ids, lock, counts
        self.hand_over = hand_over
        self.outputs: Outputs = []  # of the present step
        self.context, self.device = int(model.config.context), next(model.parameters()).device
        self.admitted: list[GenerationRequest] = []  # have a place; their prompts are still to be read
        self.running: list[GenerationRequest] = []  # row b of the state is running[b]
        self.state: Any = None
        self.step_began: float | None = None  # time.monotonic() at which the present step began

    @property
    def requests(self) -> list[GenerationRequest]:
        with self.lock:
            return [*self.running, *self.admitted]

    def warm_up(self) -> None:
        """Do the work that would otherwise delay the first requests."""

    def drop_running(self) -> list[GenerationRequest]:
        """After a failed step, drop and return the running requests, or the ones to be read if none runs."""
        with self.lock:
            dropped, self.running, self.state = self.running, [], None
            if not dropped:  # otherwise the same step would fail again and again
                dropped, self.admitted = self.admitted, []
        return dropped

    def remove_finished(self) -> None:
        """Drop finished rows, and rows that outgrew the context, which are read again."""
        keep = [
            b
            for b, request in enumerate(self.running)
            if not request.finished and request.cached < self.context
        ]
        rows = [self.running[b] for b in keep]
        if not keep:
            self.state = None
        elif len(keep) < len(self.running):
            self.state.reorder(torch.tensor(keep, device=self.device))
            sources = [request.source for request in rows]
            trim(
                self.state,
                [request.cached for request in rows],
                [len(s) for s in sources if s is not None and not isinstance(s, Tensor)],
            )
        outgrown = [request for request in self.running if request.cached == self.context]
        with self.lock:
            self.admitted = [request for request in (*outgrown, *self.admitted) if not request.finished]
            self.running = rows

    def step(self) -> None:
        """Generate one token for every request, except for those whose prompt is not read yet."""
        try:
            self._generate_tokens()
        finally:
            self.hand_over_outputs()

    def hand_over_outputs(self) -> None:
        outputs, self.outputs = self.outputs, []
        if outputs:
            self.hand_over(outputs)

    def _generate_tokens(self) -> None:
        for request in self.admitted:
            if request.remaining < 1:  # a target prefix that is longer than the context
                self._end(request, "length")
        logits = []
        if self.running:
            last = torch.tensor([request.ids[-1:] for request in self.running], device=self.device)  # (B, 1)
            following, self.state = self.model.step(last, self.state)
            logits.append(following)  # (B, V)
            for request in self.running:
                request.cached += 1
        for group in self._select_prefills():
            logits += self._prefill(group)
        if self.running:
            self.counts["steps"] += 1
            self._sample(torch.cat(logits).float())

    def _select_prefills(self) -> list[list[GenerationRequest]]:
        """The prompts to read in this step, at least one; target prefixes are grouped by their length."""
        groups: dict[int, list[GenerationRequest]] = {}
        count = longest = 0
        for request in self.admitted:
            if request.finished:
                continue
            count, longest = count + 1, max(longest, request.prefill_cost)
            if count > 1 and count * longest > MAX_PREFILL_TOKENS:
                break
            groups.setdefault(-1 if request.source is None else len(request.window), []).append(request)
        return list(groups.values())

    def _prefill(self, group: list[GenerationRequest]) -> list[Tensor]:
        """Read prompts, append their rows to the batch and return their logits. A failure ends only them."""
        sources = [request.source for request in group if request.source is not None]
        windows = [request.window for request in group]
        try:
            logits, state = read_rows(self.model, windows, sources or None)
        except Exception as error:
            log.error("prompts could not be read: %s", cause := describe_error(error))
            for request in group:
                self._end(request, EngineError(cause))
            return []
        self.state = state if self.state is None else join(self.state, state)
        for request, ids in zip(group, windows, strict=True):
            request.cached = len(ids)
        with self.lock:
            self.running = self.running + group
            self.admitted = [request for request in self.admitted if request not in group]
        return [logits]

    def _sample(self, logits: Tensor) -> None:
        """Choose a token for every row of logits (B, V) and emit it."""
        finite = logits.amax(-1).isfinite().tolist()
        groups: dict[Sampling, list[int]] = {}
        for b, request in enumerate(self.running):
            if finite[b]:
                groups.setdefault(request.sampling, []).append(b)
            else:
                self._end(
                    request, ValueError("the model's weights gave NaN or infinite logits for this text")
                )
        for sampling, rows in groups.items():
            requests = [self.running[b] for b in rows]
            uniform = draw_uniform([request.rng for request in requests])
            texts, rules = [request.ids for request in requests], [request.rules for request in requests]
            ids = choose(logits[rows], texts, sampling, uniform, rules)
            scored = [i for i, request in enumerate(requests) if request.top_logprobs is not None]
            outputs: list[int | TokenOutput] = list(ids)
            if scored:
                tops = [requests[i].top_logprobs or 0 for i in scored]
                scores = score_tokens(logits[[rows[i] for i in scored]], [ids[i] for i in scored], tops)
                for i, score in zip(scored, scores, strict=True):
                    outputs[i] = score
            for request, output in zip(requests, outputs, strict=True):
                self._append(request, output)

    def _append(self, request: GenerationRequest, output: int | TokenOutput) -> None:
        """Add a token to its text and to the outputs of the step."""
        id = output if isinstance(output, int) else output.id
        if request.rules is not None and request.rules.error is not None:
            self._end(request, request.rules.error)
            return
        if id in self.stop_ids:
            if isinstance(output, TokenOutput):
                self.outputs.append((request, replace(output, ends=True)))
            self._end(request, "stop")
            return
        request.ids.append(id)
        request.remaining -= 1
        self.counts["tokens"] += 1
        self.outputs.append((request, output))
        if request.rules is not None and request.rules.finished:
            self._end(request, "stop")
        elif not request.remaining:
            self._end(request, "length")

    def _end(self, request: GenerationRequest, reason: FinishReason | Exception) -> None:
        request.finished = True
        self.outputs.append((request, reason))


def score_tokens(logits: Tensor, ids: Sequence[int], tops: Sequence[int]) -> list[TokenOutput]:
    """Tokens with their log-probabilities from logits (B, V), and the `tops` most likely ones."""
    logprobs = logits.log_softmax(-1)  # (B, V)
    values, indices = (x.tolist() for x in logprobs.topk(min(max(tops), logits.shape[-1])))
    chosen = logprobs[range(len(ids)), ids].tolist()
    return [
        TokenOutput(id, chosen[b], tuple(zip(indices[b], values[b], strict=True))[: tops[b]])
        for b, id in enumerate(ids)
    ]
