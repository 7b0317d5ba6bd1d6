"""Continuous batching: requests join and leave the running batch at every decoding step.

A request gets the tokens that `generate` gives for its prompt alone, whatever else is in the batch. One
thread owned by the engine does all the computing.

Shapes: B running requests, V vocabulary.
"""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.decode.generate import Source, fit_context, read_rows, source_key
from regard.decode.sampling import Sampling, choose, row_generator
from regard.decode.states import join, trim
from regard.errors import UserError

MAX_PREFILL_TOKENS = 1024  # prompt tokens read in one step, so that running requests don't wait for long
IMAGE_TOKENS = 128  # prefill cost of an image, in tokens


@dataclass(frozen=True)
class TokenOutput:
    """One generated token."""

    id: int
    logprob: float  # under the model's own distribution, before temperature and other sampling options
    top_logprobs: tuple[tuple[int, float], ...]  # (id, logprob) of the most likely tokens, if requested


class QueueFull(Exception):
    """The engine accepts no further requests."""


class EngineError(Exception):
    """The engine failed while it processed a request. It has restarted."""


log = logging.getLogger(__name__)
FinishReason = Literal["stop", "length"]
Output = TokenOutput | FinishReason | Exception
OutputCallback = Callable[[Output], None]


class GenerationRequest:
    """One prompt and its tokens so far. Everything but `cancel` belongs to the engine."""

    def __init__(
        self,
        engine: "Engine",
        prompt: Sequence[int],
        sampling: Sampling,
        callback: OutputCallback,
        source: Source | None,
        sample: int,
        top_logprobs: int,
    ):
        self.engine, self.ids, self.source, self.callback = engine, list(prompt), source, callback
        self.top_logprobs, self.remaining = top_logprobs, sampling.max_new_tokens
        if source is not None:
            self.remaining = min(self.remaining, 1 + engine.context - len(prompt))
        suppressed = tuple(sampling.suppress_tokens)
        # Requests with equal settings are sampled together: leave out what is particular to each of them.
        self.sampling = replace(sampling, seed=None, max_new_tokens=1, suppress_tokens=suppressed)
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self.rng = row_generator(seed, sample, prompt if source is None else [*source_key(source), *prompt])
        self.cached = 0  # tokens in the engine's state
        self.finished = False
        self.lock = threading.RLock()

    def cancel(self) -> None:
        """Free the place at the next step. The callback is not called again."""
        with self.lock:
            self.finished = True
        self.engine._dequeue(self)

    def emit(self, output: Output) -> None:
        with self.lock:
            if self.finished:
                return
            self.finished = not isinstance(output, TokenOutput)
            try:
                self.callback(output)
            except Exception:  # nobody receives the output any more
                self.finished = True
                log.exception("the callback of a request failed; the request is dropped")

    @property
    def window(self) -> Sequence[int]:
        """The part of the text that fits into the context."""
        return fit_context(self.ids, self.engine.context)

    @property
    def prefill_cost(self) -> int:
        """Tokens to read."""
        if isinstance(self.source, Tensor):
            return len(self.window) + IMAGE_TOKENS
        return len(self.window) + len(self.source or ())


class Engine:
    """A model and a thread that generates with it: `places` requests at once, up to `queue` more wait."""

    def __init__(
        self, model: nn.Module, *, stop_ids: Collection[int] = (), places: int = 32, queue: int = 128
    ) -> None:
        decoder: Any = model.eval()
        self.model, self.context = decoder, int(decoder.config.context)
        self.device = next(model.parameters()).device
        self.stop_ids, self.places, self.queue = frozenset(stop_ids), places, queue
        self.steps = self.tokens = self.restarts = 0
        self._waiting: deque[GenerationRequest] = deque()
        self._admitted: list[GenerationRequest] = []  # have a place; their prompts are still to be read
        self._running: list[GenerationRequest] = []  # row b of the state is _running[b]
        self._state: Any = None
        self._finish: bool | None = None  # None: not closed
        self._changed = threading.Condition()  # guards the three lists above
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # Called from any thread

    @property
    def running(self) -> int:
        with self._changed:
            return sum(not request.finished for request in (*self._running, *self._admitted))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        callback: OutputCallback,
        *,
        source: Source | None = None,
        sample: int = 0,
        top_logprobs: int = 0,
    ) -> GenerationRequest:
        """Queue a request. The engine's thread calls `callback` with every token and then once with the
        result: "stop" at an end token, which is not passed on itself, "length", or an exception."""
        self._check(prompt, sampling, source)
        request = GenerationRequest(self, prompt, sampling, callback, source, sample, top_logprobs)
        with self._changed:
            if self._finish is not None:
                raise QueueFull("the engine is closed and accepts no new requests")
            if self.running + len(self._waiting) >= self.places + self.queue:
                raise QueueFull(f"{self.places} requests are running and {self.queue} wait: try again later")
            self._waiting.append(request)
            self._changed.notify()
        return request

    def close(self, finish: bool = True) -> None:
        """Accept no new requests, finish or drop the present ones, then end the thread."""
        with self._changed:
            self._finish = finish and self._finish is not False
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check(self, prompt: Sequence[int], sampling: Sampling, source: Source | None) -> None:
        """Raise now what would otherwise fail in the middle of a batch."""
        if sampling.num_beams > 1:
            raise UserError(f"num_beams={sampling.num_beams}: beam search can't be streamed; give 1")
        c = self.model.config
        output_vocab = getattr(c, "target_vocab", None) or c.vocab
        source_ids = () if source is None or isinstance(source, Tensor) else source
        for name, ids, vocab in (
            ("prompt", prompt, output_vocab),
            ("source", source_ids, c.vocab),
            ("suppress_tokens", sampling.suppress_tokens, output_vocab),
        ):
            if not all(0 <= i < vocab for i in ids):
                raise ValueError(f"{name} has tokens outside the vocabulary: give ids from 0 to {vocab - 1}")
        if not len(prompt):
            raise ValueError("the prompt is empty: give at least one token")
        if source is not None and (not len(source) or len(source_ids) > c.context):
            raise ValueError(f"a source of {len(source)} tokens: give from 1 to {c.context}, the context")

    def _dequeue(self, request: GenerationRequest) -> None:
        with self._changed:
            if request in self._waiting:
                self._waiting.remove(request)

    # Called in the engine's thread

    @torch.inference_mode()
    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._remove_finished()
                self._admit()
                self._step()
            except Exception as error:
                log.exception("the engine failed and restarts")
                self.restarts += 1
                with self._changed:
                    lost, self._running, self._state = self._running, [], None
                for request in lost:
                    request.emit(_engine_error(error))

    def _wait_for_work(self) -> bool:
        """Block until there is something to do. Return False when the thread is to end."""
        with self._changed:
            while not (self._running or self._admitted or self._waiting):
                if self._finish is not None:
                    return False
                self._changed.wait()
            if self._finish is not False:
                return True
            dropped = [*self._running, *self._admitted, *self._waiting]
            self._running, self._admitted, self._state = [], [], None
            self._waiting.clear()
        for request in dropped:
            request.emit(EngineError("the engine was closed before the request was finished"))
        return False

    def _remove_finished(self) -> None:
        """Drop the rows that are finished and those that outgrew the context, which are read again."""
        keep = [
            b
            for b, request in enumerate(self._running)
            if not request.finished and request.cached < self.context
        ]
        rows = [self._running[b] for b in keep]
        if not keep:
            self._state = None
        elif len(keep) < len(self._running):
            self._state.reorder(torch.tensor(keep, device=self.device))
            sources = [request.source for request in rows]
            trim(
                self._state,
                [request.cached for request in rows],
                [len(s) for s in sources if s is not None and not isinstance(s, Tensor)],
            )
        outgrown = [request for request in self._running if request.cached == self.context]
        with self._changed:
            self._admitted = [request for request in (*outgrown, *self._admitted) if not request.finished]
            self._running = rows

    def _admit(self) -> None:
        """Give free places to waiting requests, first come, first served."""
        with self._changed:
            while self._waiting and len(self._running) + len(self._admitted) < self.places:
                self._admitted.append(self._waiting.popleft())
        for request in self._admitted:
            if request.remaining < 1:  # a target prefix that is longer than the context
                request.emit("length")

    def _step(self) -> None:
        """Generate one token for every request, except for those whose prompt is not read yet."""
        logits = []
        if self._running:
            last = torch.tensor([request.ids[-1:] for request in self._running], device=self.device)  # (B, 1)
            following, self._state = self.model.step(last, self._state)
            logits.append(following)  # (B, V)
            for request in self._running:
                request.cached += 1
        for group in self._select_prefills():
            logits += self._prefill(group)
        if self._running:
            self.steps += 1
            self._sample(torch.cat(logits).float())

    def _select_prefills(self) -> list[list[GenerationRequest]]:
        """The prompts to read in this step, at least one; target prefixes are grouped by their length."""
        groups: dict[int, list[GenerationRequest]] = {}
        count = longest = 0
        for request in self._admitted:
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
            log.exception("prompts could not be read")
            for request in group:
                request.emit(_engine_error(error))
            return []
        self._state = state if self._state is None else join(self._state, state)
        for request, ids in zip(group, windows, strict=True):
            request.cached = len(ids)
        with self._changed:
            self._running = self._running + group
            self._admitted = [request for request in self._admitted if request not in group]
        return [logits]

    def _sample(self, logits: Tensor) -> None:
        """Choose a token for every row of logits (B, V) and emit it."""
        logprobs = logits.log_softmax(-1)  # (B, V)
        finite = logits.amax(-1).isfinite().tolist()
        groups: dict[Sampling, list[int]] = {}
        for b, request in enumerate(self._running):
            if finite[b]:
                groups.setdefault(request.sampling, []).append(b)
            else:
                request.emit(ValueError("the model's weights gave NaN or infinite logits for this text"))
        for sampling, rows in groups.items():
            requests = [self._running[b] for b in rows]
            uniform = [request.rng.random() for request in requests]
            ids = choose(logits[rows], [request.ids for request in requests], sampling, uniform)
            k = min(max(request.top_logprobs for request in requests), logits.shape[-1])
            top_values, top_ids = (x.tolist() for x in logprobs[rows].topk(k))
            chosen = logprobs[rows, ids].tolist()
            for i, (request, id) in enumerate(zip(requests, ids, strict=True)):
                top = tuple(zip(top_ids[i], top_values[i], strict=True))[: request.top_logprobs]
                self._append(request, TokenOutput(id, chosen[i], top))

    def _append(self, request: GenerationRequest, token: TokenOutput) -> None:
        if token.id in self.stop_ids:
            request.emit("stop")
            return
        request.ids.append(token.id)
        request.remaining -= 1
        self.tokens += 1
        request.emit(token)
        if not request.remaining:
            request.emit("length")


def _engine_error(error: Exception) -> EngineError:
    """Without the error itself, whose frames would keep tensors alive."""
    return EngineError(f"{type(error).__name__}: {error}")
