"""Models that are served: how each reads what it is asked, and how answers leave its engine's thread."""

import asyncio
import copy
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from regard.errors import Mistake
from regard.generate import Sampling, Source, Stopper
from regard.run import Model
from regard.tasks import Write
from regard.tasks.pairs import PairTask
from regard.text import Tokenizer

from .engine import Crashed, Engine, Full, Job, Token
from .errors import Gone, Wrong, crashed, full
from .metrics import Gauge, Metrics

WORKERS = 2  # threads for what takes long and is not an engine's
SHORT = 4000  # bytes, letters or tokens that are worked on where they stand
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may be asked, and of how many at once; the rest stands in schema.py."""

    places: int = 32  # answers that a model writes at once
    queue: int = 128  # that wait for a place
    tokens: int = 4096  # of one answer
    timeout: float = 120.0  # seconds for a whole answer
    body: int = 16 * 2**20  # bytes of a request

    def __post_init__(self) -> None:
        for name, least in (("places", 1), ("queue", 0), ("tokens", 1), ("timeout", 0.001), ("body", 1)):
            if getattr(self, name) < least:
                raise Mistake(f"{name}={getattr(self, name)}: give a number from {least} up")


@dataclass(frozen=True)
class Reading:
    """A question as an engine takes it."""

    prompt: list[int]
    source: Source | None = None

    @property
    def tokens(self) -> int:
        return len(self.prompt if self.source is None else self.source)


class Served:
    """A model with a name, and its engine if it writes."""

    def __init__(self, name: str, model: Model, limits: Limits):
        self.name, self.model, self.limits = name, model, limits
        task = model.task
        self.engine: Engine | None = None
        if isinstance(task, Write | PairTask):
            ends = task.ends if isinstance(task, Write) else (task.end,)
            self.engine = Engine(model.model, ends=ends, places=limits.places, queue=limits.queue)

    @property
    def writer(self) -> Tokenizer:
        return getattr(self.model.task, "writer", self.model.task.tokenizer)

    @property
    def vocab(self) -> int:
        config: Any = self.model.model.config
        return config.vocab

    def chosen(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a request over the model's own: `sampling`, `stop`, `samples` and the task's."""
        given = {name: value for name, value in options.items() if value is not None}
        usual = min(self.model.generation.get("max_new_tokens", Sampling.max_new_tokens), self.limits.tokens)
        given.setdefault("max_new_tokens", usual)
        if given.get("temperature", 0) > 0:  # what is drawn is not searched
            given.setdefault("num_beams", 1)
        if "seed" in given:
            given["seed"] %= 2**64
        return self.model._chosen(given)

    def reading(self, given: Any, asked: bool = False) -> Reading | None:
        """A text, token ids, or a conversation as messages; None if it is not to be answered in one go.

        `asked` reads a text as `model.ask` does: where a model answers, it is what a user says.
        """
        task, context = self.model.task, self.model.task.context
        ids = isinstance(given, list) and all(type(i) is int for i in given)
        if isinstance(task, Write):
            if ids:
                prompt = given
            elif asked or not isinstance(given, str):
                prompt = task.read_in(given)
            else:
                prompt = task.plain(given)
            fitting(len(prompt), context)
            within(prompt, self.vocab)
            return Reading(prompt)
        if ids:
            fitting(len(given), context - 1)
            within(given, self.vocab)
        parts = [given] if ids else task.parts(given)
        return Reading([task.begin], task.sourced(parts[0])) if len(parts) == 1 else None


def fitting(tokens: int, most: int) -> None:
    if tokens > most:
        said = f"a prompt of {tokens:,} tokens; this model reads up to {most:,}"
        raise Wrong(400, said, "prompt", "context_length_exceeded")


def within(ids: Sequence[int], vocab: int) -> None:
    if ids and max(ids) >= vocab:
        raise Wrong(
            400, f"prompt: token {max(ids)} is not one of this model's; they end at {vocab - 1}", "prompt"
        )


class Post:
    """What engines' threads say, brought to the event loop: one call for all that has gathered."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.letters: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.called = False

    def put(self, heard: Callable[[Any], None], what: Any) -> None:
        self.letters.append((heard, what))
        if not self.called and self.loop is not None:
            self.called = True
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self.loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        self.called = False  # before the letters are read, so that none stays behind
        while self.letters:
            heard, what = self.letters.popleft()
            heard(what)


@dataclass
class Piece:
    """More of one answer, and how it ended if it did."""

    index: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    reason: str | None = None


class Row:
    """One answer: tokens in, text out up to a stop; with `whole`, all of it in the end, which is cheaper."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], whole: bool):
        self.tokenizer, self.whole = tokenizer, whole and not stop
        self.decoder, self.stopper = tokenizer.decoder(), Stopper(stop)
        self.ids: list[int] = []
        self.held: list[Token] = []  # whose text is held back
        self.over = False

    def push(self, token: Token) -> str:
        self.ids.append(token.id)
        self.held.append(token)
        return "" if self.whole else self.stopper.push(self.decoder.push(token.id))

    def finish(self) -> str:
        if self.whole:
            return self.tokenizer.decode(self.ids)
        return self.stopper.push(self.decoder.finish()) + self.stopper.finish()

    def let_go(self) -> list[Token]:
        held, self.held = self.held, []
        return held


class Writing:
    """Answers to readings as they come from an engine: answer j to reading i is row i * samples + j.

    Who does not listen to the end has to `close` it.
    """

    def __init__(
        self,
        served: Served,
        post: Post,
        readings: Sequence[Reading],
        chosen: dict[str, Any],
        likeliest: int = 0,
        whole: bool = False,
    ):
        assert served.engine is not None
        samples = chosen["samples"]
        self.rows = [Row(served.writer, chosen["stop"], whole) for _ in range(len(readings) * samples)]
        self.read = sum(reading.tokens for reading in readings)
        self.heard: list[tuple[int, Token | str | Exception]] = []
        self.more = asyncio.Event()
        self.jobs: list[Job] = []
        try:
            for i, reading in enumerate(readings):
                for j in range(samples):
                    index = i * samples + j
                    self.jobs.append(
                        served.engine.submit(
                            reading.prompt,
                            chosen["sampling"],
                            partial(post.put, partial(self.hear, index)),
                            source=reading.source,
                            sample=j,
                            likeliest=likeliest,
                        )
                    )
        except Full:
            self.close()
            raise full() from None

    @property
    def written(self) -> int:
        return sum(len(row.ids) for row in self.rows)

    def hear(self, index: int, what: Token | str | Exception) -> None:
        self.heard.append((index, what))
        self.more.set()

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """What has come since the last time, until all answers are whole."""
        while not all(row.over for row in self.rows):
            await self.more.wait()
            self.more.clear()
            letters, self.heard = self.heard, []
            found: dict[int, Piece] = {}
            for index, what in letters:
                row = self.rows[index]
                if row.over:  # it was told before the stop was seen
                    continue
                piece = found.setdefault(index, Piece(index))
                if isinstance(what, Crashed):
                    raise crashed()
                if isinstance(what, Exception):
                    raise Wrong(500, str(what))
                if isinstance(what, str):
                    piece.text += row.finish()
                    piece.reason = "stop" if row.stopper.done else what
                else:
                    piece.text += row.push(what)
                    piece.reason = "stop" if row.stopper.done else None
                if piece.reason is not None:
                    row.over = True
                    self.jobs[index].cancel()
                if (piece.text and not row.stopper.held) or piece.reason is not None:
                    piece.tokens += row.let_go()
            yield list(found.values())

    def close(self) -> None:
        for job in self.jobs:
            job.cancel()


class House:
    """All that is served."""

    def __init__(self, models: dict[str, Model], limits: Limits):
        self.limits, self.metrics, self.post = limits, Metrics(), Post()
        self.models = {name: Served(name, model, limits) for name, model in models.items()}
        self.pool = ThreadPoolExecutor(WORKERS, "regard")

    def find(self, name: str | None) -> Served:
        """The model of this name; without one, the first."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            said = f"there is no model {name[:100]!r}; there {'are' if len(self.models) > 1 else 'is'} "
            raise Wrong(404, said + ", ".join(self.models), "model", "model_not_found")
        return self.models[name]

    async def blocking(self, work: Callable[[], T]) -> T:
        """In a thread; if it has not begun when nobody waits for it any more, it never does."""
        return await asyncio.wrap_future(self.pool.submit(work))

    async def worked(self, size: int, work: Callable[[], T]) -> T:
        """What takes long only where there is much of it."""
        return work() if size <= SHORT else await self.blocking(work)

    def gauges(self) -> list[Gauge]:
        engines = [(name, m.engine) for name, m in self.models.items() if m.engine is not None]
        return [
            (
                f"regard_{what}",
                kind,
                about,
                {(("model", name),): float(getattr(engine, attribute)) for name, engine in engines},
            )
            for what, attribute, kind, about in (
                ("running", "running", "gauge", "Answers that are being written."),
                ("waiting", "waiting", "gauge", "Answers that wait for a place."),
                ("steps_total", "steps", "counter", "Steps of the engine, each of up to a batch of tokens."),
                ("restarts_total", "restarts", "counter", "Times the engine failed and began anew."),
            )
        ]

    def close(self, finish: bool = True) -> None:
        for served in self.models.values():
            if served.engine is not None:
                served.engine.close(finish)
        self.pool.shutdown(wait=finish, cancel_futures=True)


async def unless_gone(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to; it is dropped when the client leaves."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Gone
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def left(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def apart(model: Model) -> Model:
    """The same model and weights in modules of their own: who watches these does not disturb the engine."""
    module = model.model
    shared = {id(t): t for t in (*module.parameters(), *module.buffers())}
    return Model(copy.deepcopy(module, shared), model.task, model.generation, model.folder, model.kind)


def named(folders: Sequence[str]) -> list[str]:
    """A name for each model: its folder's, in letters that an address can have."""
    names: list[str] = []
    for folder in folders:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(folder).resolve().name).strip("-") or "model"
        like = sum(re.fullmatch(re.escape(plain) + r"(-\d+)?", name) is not None for name in names)
        names.append(f"{plain}-{like + 1}" if plain in names else plain)
    return names
