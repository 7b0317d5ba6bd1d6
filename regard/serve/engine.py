"""Continuous batching: texts come to the running batch and leave it at every step.

A job's tokens are those that `generate` gives for its prompt alone, whatever its company. All computing
happens in one thread of the engine's own.

Shapes: B texts under way, V vocabulary.
"""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import Mistake
from regard.generate import Sampling, Source, choose, dice, numbers, read, window

from .states import join, trim

READ = 1024  # tokens of prompts that one step reads at most, so that texts under way don't wait for long
PICTURE = 128  # tokens that a picture counts as


@dataclass(frozen=True)
class Token:
    """One more token of a job."""

    id: int
    logprob: float  # of it, under the model's own distribution: before temperature and the like
    likeliest: tuple[tuple[int, float], ...]  # (id, logprob), as many as asked for


class Full(Exception):
    """There is no place for one more job."""


class Crashed(Exception):
    """The engine failed during this job. It has begun anew."""


log = logging.getLogger(__name__)
Heard = Callable[[Token | str | Exception], None]


class Job:
    """One text: what it is so far, and who hears of it. All but `cancel` is the engine's."""

    def __init__(
        self,
        engine: "Engine",
        prompt: Sequence[int],
        sampling: Sampling,
        heard: Heard,
        source: Source | None,
        sample: int,
        likeliest: int,
    ):
        self.engine, self.text, self.source, self.heard = engine, list(prompt), source, heard
        self.likeliest, self.left = likeliest, sampling.max_new_tokens
        if source is not None:
            self.left = min(self.left, 1 + engine.context - len(prompt))
        never = tuple(sampling.suppress_tokens)
        self.how = replace(sampling, seed=None, max_new_tokens=1, suppress_tokens=never)  # what rows share
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self.throws = dice(seed, sample, prompt if source is None else [*numbers(source), *prompt])
        self.length = 0  # tokens of it in the engine's state
        self.over = False
        self.telling = threading.RLock()

    def cancel(self) -> None:
        """Its place is free at the next step; `heard` is not called any more."""
        with self.telling:
            self.over = True
        self.engine._forget(self)

    def tell(self, what: Token | str | Exception) -> None:
        with self.telling:
            if self.over:
                return
            self.over = not isinstance(what, Token)
            try:
                self.heard(what)
            except Exception:  # who cannot hear is gone
                self.over = True
                log.exception("nobody hears a job any more")

    @property
    def window(self) -> Sequence[int]:
        """What of the text the model reads."""
        return window(self.text, self.engine.context)

    @property
    def cost(self) -> int:
        """Of reading it, in tokens."""
        if isinstance(self.source, Tensor):
            return len(self.window) + PICTURE
        return len(self.window) + len(self.source or ())


class Engine:
    """A model, and a thread that writes with it: `places` jobs at once, while up to `queue` more wait."""

    def __init__(
        self, model: nn.Module, *, ends: Collection[int] = (), places: int = 32, queue: int = 128
    ) -> None:
        writer: Any = model.eval()
        self.model, self.context = writer, int(writer.config.context)
        self.device = next(model.parameters()).device
        self.ends, self.places, self.queue = frozenset(ends), places, queue
        self.steps = self.tokens = self.restarts = 0
        self._queue: deque[Job] = deque()
        self._unread: list[Job] = []  # they have a place, and are still to be read
        self._rows: list[Job] = []  # row b of the state is _rows[b]
        self._state: Any = None
        self._finish: bool | None = None  # None: not closed
        self._change = threading.Condition()  # held to change who is where, and notified of what is new
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    # From any thread

    @property
    def running(self) -> int:
        with self._change:
            return sum(not job.over for job in (*self._rows, *self._unread))

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def submit(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        heard: Heard,
        *,
        source: Source | None = None,
        sample: int = 0,
        likeliest: int = 0,
    ) -> Job:
        """One more job. The engine's thread calls `heard` with every token and, once, with how it ended:
        "stop" at an end token, which is not told itself, "length", or an exception."""
        self._check(prompt, sampling, source)
        job = Job(self, prompt, sampling, heard, source, sample, likeliest)
        with self._change:
            if self._finish is not None:
                raise Full("the engine is closed: it takes no new jobs")
            if self.running + len(self._queue) >= self.places + self.queue:
                raise Full(f"{self.places} jobs are under way and {self.queue} wait: try again later")
            self._queue.append(job)
            self._change.notify()
        return job

    def close(self, finish: bool = True) -> None:
        """No new jobs. Those that are there are finished, or dropped; then the thread ends."""
        with self._change:
            self._finish = finish and self._finish is not False
            self._change.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check(self, prompt: Sequence[int], sampling: Sampling, source: Source | None) -> None:
        """What would fail while others are under way fails here."""
        if sampling.num_beams > 1:
            raise Mistake(f"num_beams={sampling.num_beams}: what is streamed is not searched; give 1")
        c = self.model.config
        written = getattr(c, "target_vocab", None) or c.vocab
        tokens = () if source is None or isinstance(source, Tensor) else source
        for name, ids, vocab in (
            ("prompt", prompt, written),
            ("source", tokens, c.vocab),
            ("suppress_tokens", sampling.suppress_tokens, written),
        ):
            if not all(0 <= i < vocab for i in ids):
                raise ValueError(f"{name} has tokens beyond the vocabulary: give some from 0 to {vocab - 1}")
        if not len(prompt):
            raise ValueError("the prompt is empty: give at least one token")
        if source is not None and (not len(source) or len(tokens) > c.context):
            raise ValueError(f"a source of {len(source)} tokens: give from 1 to {c.context}, the context")

    def _forget(self, job: Job) -> None:
        with self._change:
            if job in self._queue:
                self._queue.remove(job)

    # In the engine's thread

    @torch.inference_mode()
    def _work(self) -> None:
        while self._awake():
            try:
                self._leave()
                self._take()
                self._step()
            except Exception as error:
                log.exception("the engine begins anew")
                self.restarts += 1
                with self._change:
                    lost, self._rows, self._state = self._rows, [], None
                for job in lost:
                    job.tell(_crashed(error))

    def _awake(self) -> bool:
        """Waits until there is something to do; False at the end."""
        with self._change:
            while not (self._rows or self._unread or self._queue):
                if self._finish is not None:
                    return False
                self._change.wait()
            if self._finish is not False:
                return True
            dropped = [*self._rows, *self._unread, *self._queue]
            self._rows, self._unread, self._state = [], [], None
            self._queue.clear()
        for job in dropped:
            job.tell(Crashed("the engine was closed before the job's end"))
        return False

    def _leave(self) -> None:
        """Drops the rows that are over, and those that have outgrown the context: they are read again."""
        kept = [b for b, job in enumerate(self._rows) if not job.over and job.length < self.context]
        rows = [self._rows[b] for b in kept]
        if not kept:
            self._state = None
        elif len(kept) < len(self._rows):
            self._state.reorder(torch.tensor(kept, device=self.device))
            sources = [job.source for job in rows]
            trim(
                self._state,
                [job.length for job in rows],
                [len(s) for s in sources if s is not None and not isinstance(s, Tensor)],
            )
        full = [job for job in self._rows if job.length == self.context]
        with self._change:
            self._unread = [job for job in (*full, *self._unread) if not job.over]
            self._rows = rows

    def _take(self) -> None:
        """Gives free places to those who wait, first come, first served."""
        with self._change:
            while self._queue and len(self._rows) + len(self._unread) < self.places:
                self._unread.append(self._queue.popleft())
        for job in self._unread:
            if job.left < 1:  # a target that begins with more than the context holds
                job.tell("length")

    def _step(self) -> None:
        """One more token of every job but those whose turn to be read has not come."""
        logits = []
        if self._rows:
            last = torch.tensor([job.text[-1:] for job in self._rows], device=self.device)  # (B, 1)
            following, self._state = self.model.step(last, self._state)
            logits.append(following)  # (B, V)
            for job in self._rows:
                job.length += 1
        for jobs in self._next():
            logits += self._read(jobs)
        if self._rows:
            self.steps += 1
            self._write(torch.cat(logits).float())

    def _next(self) -> list[list[Job]]:
        """Who is read in this step, the first in any case; targets only with those that begin as long."""
        groups: dict[int, list[Job]] = {}
        many = longest = 0
        for job in self._unread:
            if job.over:
                continue
            many, longest = many + 1, max(longest, job.cost)
            if many > 1 and many * longest > READ:
                break
            groups.setdefault(-1 if job.source is None else len(job.window), []).append(job)
        return list(groups.values())

    def _read(self, jobs: list[Job]) -> list[Tensor]:
        """Their rows come below the others: their logits; if they cannot be read, the others go on."""
        sources = [job.source for job in jobs if job.source is not None]
        windows = [job.window for job in jobs]
        try:
            logits, state = read(self.model, windows, sources or None)
        except Exception as error:
            log.exception("prompts could not be read")
            for job in jobs:
                job.tell(_crashed(error))
            return []
        self._state = state if self._state is None else join(self._state, state)
        for job, text in zip(jobs, windows, strict=True):
            job.length = len(text)
        with self._change:
            self._rows = self._rows + jobs
            self._unread = [job for job in self._unread if job not in jobs]
        return [logits]

    def _write(self, logits: Tensor) -> None:
        """Chooses a token for every row, and tells it."""
        logprobs = logits.log_softmax(-1)  # (B, V)
        sound = logits.amax(-1).isfinite().tolist()
        alike: dict[Sampling, list[int]] = {}
        for b, job in enumerate(self._rows):
            if sound[b]:
                alike.setdefault(job.how, []).append(b)
            else:
                job.tell(ValueError("the model's weights gave NaN or infinite logits for this text"))
        for how, rows in alike.items():
            jobs = [self._rows[b] for b in rows]
            uniform = [job.throws.random() for job in jobs]
            ids = choose(logits[rows], [job.text for job in jobs], how, uniform)
            k = min(max(job.likeliest for job in jobs), logits.shape[-1])
            best, which = (x.tolist() for x in logprobs[rows].topk(k))
            own = logprobs[rows, ids].tolist()
            for i, (job, id) in enumerate(zip(jobs, ids, strict=True)):
                if id in self.ends:
                    job.tell("stop")
                    continue
                job.text.append(id)
                job.left -= 1
                self.tokens += 1
                likeliest = tuple(zip(which[i], best[i], strict=True))[: job.likeliest]
                job.tell(Token(id, own[i], likeliest))
                if not job.left:
                    job.tell("length")


def _crashed(error: Exception) -> Crashed:
    """Without the error itself, whose frames would keep tensors alive."""
    return Crashed(f"{type(error).__name__}: {error}")
