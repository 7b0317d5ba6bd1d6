"""The models that are served: their names, engines and limits, and how each encodes a prompt."""

import asyncio
import copy
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

from starlette.responses import Response

from regard.cancel import make_cancellable
from regard.decode.grammar import Grammar, Kind, compile_grammar
from regard.decode.prompts import Source
from regard.decode.sampling import RULES, Sampling
from regard.describe.settings import output_vocab
from regard.errors import UserError
from regard.runs.model import Model
from regard.serve.engine import Engine
from regard.serve.errors import APIError
from regard.serve.monitoring import Labels, Metric, Metrics
from regard.serve.places import PLACES
from regard.serve.protocol import encode_parts
from regard.serve.threads import ThreadBridge, WorkerThreads, call_in_loop
from regard.tasks import Request
from regard.text.chat_template import Conversation
from regard.text.tokenizer import Tokenizer

WORKERS = 2  # threads for long work outside the engines, and as many for short work
SANDBOX_WORKERS = 8  # threads that wait for child processes
READY_TIMEOUT = 5.0  # seconds for an engine to answer a probe
MAX_GRAMMARS = 32  # that a model keeps
INLINE = 4000  # bytes, letters or tokens that are processed in the event loop
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits of requests and answers; schema.py has those of fields, connections.py those of connections."""

    places: int | None = None  # answers that a model generates at once; None: see places.py
    queue: int = 128  # answers that wait for a place
    tokens: int = 4096  # of one answer
    timeout: float = 120.0  # seconds for a complete answer
    body: int = 16 * 2**20  # bytes of a request, enough for an image
    body_seconds: float = 60.0  # until a body is complete
    body_memory: int = 128 * 2**20  # bytes of all large bodies together
    page_places: int = 16  # requests of the page that are answered at once
    page_queue: int = 48  # those that wait for a place

    def __post_init__(self) -> None:
        for name, low in (("places", 1), ("queue", 0), ("tokens", 1), ("timeout", 0.001), ("body", 1)):
            value = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise UserError(f"{name}={value}: give a number from {low} up")

    @property
    def requests(self) -> int:
        """Requests to the API that are answered or wait at once."""
        return (PLACES if self.places is None else self.places) + self.queue


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as an engine takes it; an encoder-decoder also has a source."""

    ids: list[int]
    source: Source | None = None

    @property
    def tokens(self) -> int:
        return len(self.ids if self.source is None else self.source)


class ServedModel:
    """A model, its name, and its engine if it generates text."""

    def __init__(self, name: str, model: Model, limits: ServerLimits, bridge: ThreadBridge):
        self.name, self.model, self.limits = name, model, limits
        self.grammars: dict[tuple[Kind, str], Grammar] = {}
        self.engine: Engine | None = None
        if model.task.streams:
            ends = model.task.end_ids
            self.engine = Engine(
                model.model,
                stop_ids=ends,
                places=limits.places,
                queue=limits.queue,
                step_timeout=limits.timeout,  # no answer may take longer, so no step either
                hand_over=bridge.put,
                pause=bridge.pause,
            )

    @cached_property
    def cancellable(self) -> Model:
        """The model for work in threads, which can be cancelled."""
        return copy_modules(self.model)

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.model.task.output_tokenizer

    @property
    def vocab(self) -> int:
        config: Any = self.model.model.config
        return config.vocab

    @property
    def output_vocab(self) -> int:
        return output_vocab(self.model.model.config)

    @property
    def sandboxed(self) -> bool:
        """Return whether a child process encodes prompts: the model's chat template, or its tokenizer."""
        task = self.model.task
        return task.template is not None or any(t.sandbox is not None for t in self.model.tokenizers)

    def options(self, requested: dict[str, Any]) -> Request:
        """Combine the options of a request with the model's own; those that are None are not set."""
        options = {name: value for name, value in requested.items() if value is not None}
        default = min(
            self.model.generation.get("max_new_tokens", Sampling.max_new_tokens), self.limits.tokens
        )
        options.setdefault("max_new_tokens", default)
        if options.get("temperature", 0) > 0 or any(options.get(name) for name in RULES):
            options.setdefault("num_beams", 1)  # sampling and rules of a row exclude beam search
        if "seed" in options:
            options["seed"] %= 2**64
        if options.get("top_k") == -1:  # vLLM's way to say that it is off
            options["top_k"] = 0
        return self.model.request([], options)

    def compile(self, kind: Kind, text: str) -> Grammar:
        """A grammar for this model; the last ones are kept."""
        if (kind, text) not in self.grammars:
            grammar = compile_grammar(kind, text, self.output_tokenizer, self.output_vocab)
            while len(self.grammars) >= MAX_GRAMMARS:
                self.grammars.pop(next(iter(self.grammars)), None)
            self.grammars[kind, text] = grammar
        return self.grammars[kind, text]

    def encode(
        self, prompt: str | list[int] | Conversation, field: str, as_user: bool = False
    ) -> EncodedPrompt | None:
        """Encode a text, token ids or a conversation, which a `field` of a request has; None if the model
        answers it in several parts.

        `as_user` reads a text as `model.ask` does: a model with a chat template takes it as a user's message.
        """
        task, context = self.model.task, self.model.task.context
        if isinstance(prompt, list) and all(type(i) is int for i in prompt):
            ids = cast("list[int]", prompt)
            check_length(len(ids), context - task.has_source, field)
            check_ids(ids, self.vocab, field)
            return EncodedPrompt(*task.prompt_of_ids(ids))
        prompts = task.prompts(prompt, as_user=as_user)
        for each in prompts if not task.has_source else ():
            check_length(len(each.ids), context, field)
            check_ids(each.ids, self.vocab, field)
        return EncodedPrompt(*prompts[0]) if len(prompts) == 1 else None


def check_length(tokens: int, limit: int, name: str) -> None:
    if tokens > limit:
        # OpenAI's wording: clients search for it
        message = (
            f"This model's maximum context length is {limit} tokens. However, your {name} resulted in "
            f"{tokens} tokens. Please reduce the length of the {name}."
        )
        raise APIError(400, message, name, "context_length_exceeded")


def check_ids(ids: Sequence[int], vocab: int, name: str) -> None:
    if ids and max(ids) >= vocab:
        message = (
            f"{name}: token {max(ids)} is not in the model's vocabulary; ids end at {vocab - 1}. Ids have to "
            "come from the model's own tokenizer: send the text instead"
        )
        raise APIError(400, message, name)


class ModelRegistry:
    """All models that are served, and the threads and metrics that they share."""

    def __init__(self, models: dict[str, Model], limits: ServerLimits):
        self.metrics, self.bridge = Metrics(), ThreadBridge()
        self.models = {name: ServedModel(name, model, limits, self.bridge) for name, model in models.items()}
        places = [served.engine.places for served in self.models.values() if served.engine is not None]
        self.limits = replace(limits, places=max(places, default=limits.places))
        self.long_work = WorkerThreads(WORKERS, limits.timeout)
        self.short_work = WorkerThreads(WORKERS, limits.timeout)
        self.sandbox_work = WorkerThreads(SANDBOX_WORKERS, limits.timeout)
        self.probing: asyncio.Task[str | None] | None = None

    def find(self, name: str | None) -> ServedModel:
        """The model of this name; without a name, the first."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            known = ", ".join(self.models)
            message = f"there is no model {name[:100]!r}; this server has {known}"
            raise APIError(404, message, "model", "model_not_found")
        return self.models[name]

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run long work in a thread. If the caller is cancelled, the work ends before its next module."""
        return await self.long_work.run(work)

    async def run_sized(self, size: int, work: Callable[[], T]) -> T:
        """Run work whose time grows with its size, such as tokenizing: in a thread, unless it is small."""
        return work() if size <= INLINE else await self.short_work.run(work)

    async def respond(self, size: int, content: Callable[[], Any], depth: int = 5) -> Response:
        """The response with this JSON, which grows with its size; what is deeper is encoded at once."""
        data = await self.run_sized(size, lambda: encode_parts(content(), depth).encode())
        return Response(data, media_type="application/json")

    async def find_stuck(self) -> str | None:
        """The name of a model whose engine does not answer in time, if any. Callers share a probe."""
        if self.probing is None or self.probing.done():
            self.probing = asyncio.create_task(self.probe_engines())
        return await asyncio.shield(self.probing)

    async def probe_engines(self) -> str | None:
        """Send an empty job through the queue and the thread of every engine."""
        loop, answers = asyncio.get_running_loop(), dict[str, asyncio.Event]()
        for name, served in self.models.items():
            if served.engine is not None:
                answers[name] = asyncio.Event()
                served.engine.probe(partial(call_in_loop, loop, answers[name].set))
        try:
            async with asyncio.timeout(READY_TIMEOUT):
                for answer in answers.values():
                    await answer.wait()
        except TimeoutError:
            return next(name for name, answer in answers.items() if not answer.is_set())
        return None

    async def encode(
        self, served: ServedModel, prompts: Sequence[Any], size: int, field: str, as_user: bool = False
    ) -> list[EncodedPrompt | None]:
        """Encode prompts of this size, which a field of a request has: never in the event loop if a child
        process does it."""

        def work() -> list[EncodedPrompt | None]:
            return [served.encode(prompt, field, as_user) for prompt in prompts]

        return await (self.sandbox_work.run(work) if served.sandboxed else self.run_sized(size, work))

    def engines_full(self) -> bool:
        """Return whether there are engines, but none would accept a request."""
        engines = [served.engine for served in self.models.values() if served.engine is not None]
        return bool(engines) and all(engine.full for engine in engines)

    def engine_metrics(self) -> list[Metric]:
        engines = [(name, m.engine) for name, m in self.models.items() if m.engine is not None]
        about = {
            "running": ("running", "gauge", "Answers that are being generated."),
            "waiting": ("waiting", "gauge", "Answers that wait for a place."),
            "tokens": ("generated_tokens_total", "counter", "Tokens that the engine has generated by now."),
            "steps": ("steps_total", "counter", "Steps of the engine, each of up to a batch of tokens."),
            "restarts": ("restarts_total", "counter", "Times the engine failed and restarted."),
        }
        metrics = []
        for attribute, (name, kind, help) in about.items():
            values: dict[Labels, float] = {
                (("model", model),): float(getattr(engine, attribute)) for model, engine in engines
            }
            metrics.append(Metric(f"regard_{name}", kind, help, values))
        return metrics

    def close(self, finish: bool = True) -> None:
        for served in self.models.values():
            if served.engine is not None:
                served.engine.close(finish)


def copy_modules(model: Model) -> Model:
    """Copy a model's modules, sharing the weights, so that hooks on them don't disturb the engine.

    Work with the copy can be cancelled.
    """
    module = model.model
    shared = {id(t): t for t in (*module.parameters(), *module.buffers())}
    copied = copy.deepcopy(module, shared)
    make_cancellable(copied)
    return Model(copied, model.task, model.generation, model.folder, model.kind)


def model_names(folders: Sequence[str]) -> list[str]:
    """A unique name for each model: its folder's, in characters that a URL can have."""
    names: list[str] = []
    for folder in folders:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(folder).resolve().name).strip("-") or "model"
        same = sum(re.fullmatch(re.escape(plain) + r"(-\d+)?", name) is not None for name in names)
        names.append(f"{plain}-{same + 1}" if plain in names else plain)
    return names
