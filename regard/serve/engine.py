"""Continuous batching: requests join and leave the running batch at every decoding step.

One thread owned by the engine does all the computing. If it dies or hangs, another takes its place. The
answer to a request does not depend on the others in the batch, up to rounding: see docs/serving.md.
"""

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.decode.prompts import Source
from regard.decode.runner import Runner
from regard.decode.runners import make_runner
from regard.decode.sampling import Sampling
from regard.describe.settings import output_vocab
from regard.errors import UserError
from regard.serve.batch import (
    Batch,
    EngineError,
    GenerationRequest,
    OutputCallback,
    Outputs,
    deliver_outputs,
    describe_error,
    end_requests,
)
from regard.serve.paged import PagedBatch
from regard.serve.places import places_for

WATCH_INTERVAL = 1.0  # seconds between two checks of the engine's thread
log = logging.getLogger(__name__)


class QueueFull(Exception):
    """The engine accepts no further requests."""


class Engine:
    """A model and a thread that generates with it: `places` requests at once (None: see
    `places_for`), up to `queue` more wait.

    A step that takes longer than `step_timeout` seconds counts as hanging. `hand_over` gets the outputs of
    each step; unless it is given, the engine's thread delivers them. `pause` is called before each step.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        stop_ids: Collection[int] = (),
        places: int | None = None,
        queue: int = 128,
        step_timeout: float = math.inf,
        hand_over: Callable[[Outputs], None] = deliver_outputs,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        decoder: Any = model.eval()
        self.model, self.context = decoder, int(decoder.config.context)
        self.stop_ids, self.queue = frozenset(stop_ids), queue
        self.places = places_for(model, next(model.parameters()).device) if places is None else places
        self.step_timeout, self.restarts, self.hand_over, self.pause = step_timeout, 0, hand_over, pause
        self._counts: Counter[str] = Counter()
        self._waiting: deque[GenerationRequest] = deque()
        self._probes: list[Callable[[], object]] = []
        self._finish: bool | None = None  # None: not closed
        self._ended = threading.Event()  # closed, and all work is done
        self._changed = threading.Condition()  # guards all requests
        runner = make_runner(decoder, self.places)
        self._paged = runner is not None
        self._start_thread(runner)
        threading.Thread(target=self._watch, name="engine watchdog", daemon=True).start()

    # Called from any thread

    @property
    def steps(self) -> int:
        return self._counts["steps"]

    @property
    def tokens(self) -> int:
        return self._counts["tokens"]

    @property
    def running(self) -> int:
        with self._changed:
            return sum(not request.finished for request in self._batch.requests)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        with self._changed:
            return self.running + len(self._waiting) >= self.places + self.queue

    def submit(self, *args: Any, **options: Any) -> GenerationRequest:
        """Make a request and queue it."""
        request = self.make_request(*args, **options)
        self.queue_request(request)
        return request

    def make_request(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        callback: OutputCallback,
        *,
        source: Source | None = None,
        sample: int = 0,
        top_logprobs: int | None = None,
    ) -> GenerationRequest:
        """Make a request without queueing it. `callback` is called with every token and then once with the
        result: "stop" at an end token, which is not passed on itself, "length", or an exception. A token is
        its id; with `top_logprobs`, it has its log-probability, and as many of the most likely tokens with
        theirs."""
        self._check(prompt, sampling, source)
        return GenerationRequest(
            prompt,
            sampling,
            callback,
            source,
            sample,
            top_logprobs,
            self.context,
            self._dequeue,
            self.stop_ids,
        )

    def queue_request(self, request: GenerationRequest) -> None:
        """Queue a request; raise QueueFull if there is no place."""
        with self._changed:
            if self._finish is not None:
                raise QueueFull("the engine is closed and accepts no new requests")
            if self.full:
                raise QueueFull(f"{self.places} requests are running and {self.queue} wait: try again later")
            self._waiting.append(request)
            self._changed.notify()

    def probe(self, callback: Callable[[], object]) -> None:
        """Let the engine's thread call `callback` before its next step, which shows that the thread works."""
        with self._changed:
            self._probes.append(callback)
            self._changed.notify()

    def close(self, finish: bool = True) -> None:
        """Accept no new requests, finish or drop the present ones, then end the thread."""
        with self._changed:
            self._finish = finish and self._finish is not False
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._ended.wait()
            self._thread.join()

    def _check(self, prompt: Sequence[int], sampling: Sampling, source: Source | None) -> None:
        """Raise errors that would otherwise occur in the middle of a batch."""
        if sampling.num_beams > 1:
            raise UserError(f"num_beams={sampling.num_beams}: beam search can't be streamed; give 1")
        c = self.model.config
        written = output_vocab(c)
        source_ids = () if source is None or isinstance(source, Tensor) else source
        for name, ids, vocab in (
            ("prompt", prompt, written),
            ("source", source_ids, c.vocab),
            ("suppress_tokens", sampling.suppress_tokens, written),
            ("logit_bias", [token for token, _ in sampling.logit_bias], written),
        ):
            if len(ids) and not 0 <= min(ids) <= max(ids) < vocab:
                raise ValueError(f"{name} has tokens outside the vocabulary: give ids from 0 to {vocab - 1}")
        if not len(prompt):
            raise ValueError("the prompt is empty: give at least one token")
        if source is not None and (not len(source) or len(source_ids) > c.context):
            raise ValueError(f"a source of {len(source)} tokens: give from 1 to {c.context}, the context")

    def _dequeue(self, request: GenerationRequest) -> None:
        with self._changed:
            if request in self._waiting:
                self._waiting.remove(request)

    # The engine's thread, and its replacement

    def _start_thread(self, runner: Runner | None = None) -> None:
        """Start a thread with its own batch, which makes its own runner unless it gets one."""
        how = self.model, self.stop_ids, self._changed, self._counts, self.hand_over
        self._batch = PagedBatch(self.places, runner, *how) if self._paged else Batch(*how)
        self._thread = threading.Thread(target=self._run, args=(self._batch,), name="engine", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_INTERVAL):
            batch = self._batch
            began = batch.step_began
            if began is not None and time.monotonic() - began > self.step_timeout:
                self._replace_thread(batch, f"a step takes more than {self.step_timeout:g} s")

    def _replace_thread(self, batch: Batch, cause: str) -> None:
        """Give up a batch and its thread, which ends when it returns, and continue with new ones."""
        with self._changed:
            if batch is not self._batch:
                return
            self.restarts += 1
            self._start_thread()
        log.error("the engine restarts: %s", cause)
        end_requests(batch.requests, EngineError(cause), self.hand_over)

    def _run(self, batch: Batch) -> None:
        try:
            self._generate(batch)
        except BaseException as error:
            self._replace_thread(batch, describe_error(error))

    @torch.inference_mode()
    def _generate(self, batch: Batch) -> None:
        batch.warm_up()
        while self._wait_for_work(batch):
            self.pause()
            batch.step_began = time.monotonic()
            try:
                self._answer_probes()
                batch.remove_finished()
                self._admit(batch)
                batch.step()
            except Exception as error:
                self.restarts += 1
                log.error("the engine restarts: %s", cause := describe_error(error))
                end_requests(batch.drop_running(), EngineError(cause), self.hand_over)
            batch.step_began = None

    def _wait_for_work(self, batch: Batch) -> bool:
        """Block until there is work. Return False when the thread should end."""
        with self._changed:
            while batch is self._batch and self._finish is None:
                if batch.requests or self._waiting or self._probes:
                    return True
                self._changed.wait()
            if batch is not self._batch:
                return False
            dropped = [*batch.requests, *self._waiting]
            if self._finish and dropped:
                return True
            batch.running, batch.admitted, batch.state = [], [], None
            self._waiting.clear()
        closed = EngineError("the engine was closed before the request was finished")
        end_requests(dropped, closed, self.hand_over)
        self._ended.set()
        return False

    def _answer_probes(self) -> None:
        with self._changed:
            probes, self._probes = self._probes, []
        for callback in probes:
            callback()

    def _admit(self, batch: Batch) -> None:
        """Give free places to waiting requests, first come, first served."""
        with self._changed:
            while batch is self._batch and self._waiting and len(batch.requests) < self.places:
                batch.admitted.append(self._waiting.popleft())
