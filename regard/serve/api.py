"""The routes: OpenAI's below /v1, our own below /api, and what a server tells of itself.

What is asked is checked against schema.py; what can't be done is refused by name, never left out in silence.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from regard.errors import Mistake
from regard.run import Model, at_step
from regard.tasks import Embed

from . import schema
from .app import picture
from .errors import Gone, Wrong, answer, error, late
from .guard import GONE, Door, Manners
from .house import House, Piece, Reading, Served, Writing, fitting, unless_gone, within
from .openai import Chat, Completion, conversation
from .pages import Page

DRAWN = tuple(name for name in schema.DRAWN if name != "stop")
LAST = 5.0  # seconds for the end of a stream to be taken
Handler = Callable[[Request, dict[str, Any]], Coroutine[Any, Any, Response]]


class Events(Response):
    """Server-sent events, as they come; an error on the way is the last of them."""

    media_type = "text/event-stream"

    def __init__(self, lines: AsyncIterator[bytes], house: House, until: float, close: Callable[[], None]):
        super().__init__()
        del self.headers["content-length"]
        self.lines, self.house, self.until, self.close = lines, house, until, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        async def sent() -> None:
            async for line in self.lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})

        last = b""
        try:
            async with asyncio.timeout_at(self.until):
                await unless_gone(receive, sent())
        except Gone:
            self.house.metrics.gone += 1
        except TimeoutError:
            last = event(error(late(self.house.limits.timeout)))
        except HTTPException as e:
            last = event(error(e))
        finally:
            self.close()
        with suppress(TimeoutError):  # who does not read is not waited for
            async with asyncio.timeout(LAST):
                await send({"type": "http.response.body", "body": last, "more_body": False})


def event(what: Any) -> bytes:
    return b"data: " + json.dumps(what, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def parsed(data: bytearray, asked: schema.Schema) -> dict[str, Any]:
    try:
        found = json.loads(data, parse_constant=lambda name: json.loads(""))
    except (ValueError, RecursionError):
        raise Wrong(400, "this is not JSON") from None
    if not isinstance(found, dict):
        raise Wrong(400, "send one JSON object")
    schema.check(found, asked)
    return found


DONE = b"data: [DONE]\n\n"


class Api:
    def __init__(self, house: House, key: bool = False):
        self.house, self.limits, self.key = house, house.limits, key
        self.began = int(time.time())

    def routes(self) -> list[Route]:
        most = self.limits.tokens
        return [
            Route("/v1/models", self.list_models),
            Route("/v1/models/{model}", self.one_model),
            Route(
                "/v1/completions", self.answering(schema.completion(most), self.complete), methods=["POST"]
            ),
            Route("/v1/chat/completions", self.answering(schema.chat(most), self.chat), methods=["POST"]),
            Route("/v1/embeddings", self.answering(schema.EMBEDDING, self.embed), methods=["POST"]),
            Route("/api/ask", self.answering(schema.asking(most), self.ask), methods=["POST"]),
            Route("/health", self.health),
            Route("/ready", self.health),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
        ]

    # What it tells of itself

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.house.metrics.text(self.house.gauges()), media_type=PROMETHEUS)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(self.document)

    @cached_property
    def document(self) -> dict[str, Any]:
        return schema.document(self.limits.tokens, self.key)

    def about(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self.began, "owned_by": "regard"}

    async def list_models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self.about(name) for name in self.house.models]})

    async def one_model(self, request: Request) -> Response:
        return JSONResponse(self.about(self.house.find(request.path_params["model"]).name))

    # What it answers

    def answering(self, asked: schema.Schema, handle: Handler) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint: the body read and checked, then answered in time, as long as somebody waits for it."""

        async def endpoint(request: Request) -> Response:
            self.house.post.loop = loop = asyncio.get_running_loop()
            request.scope["until"] = until = loop.time() + self.limits.timeout
            try:
                async with asyncio.timeout_at(until):
                    given = await self.body(request, asked)
                    return await unless_gone(request.receive, handle(request, given))
            except TimeoutError:
                raise late(self.limits.timeout) from None
            except (Gone, ClientDisconnect):
                self.house.metrics.gone += 1
                return Response(status_code=GONE)  # which nobody hears

        return endpoint

    async def body(self, request: Request, asked: schema.Schema) -> dict[str, Any]:
        """The JSON object of a request, if it is as asked; or, to our own route, a picture as it is."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        raw = request.url.path == "/api/ask" and kind.startswith("image/")
        if kind != "application/json" and not raw:
            raise Wrong(415, "send JSON, as application/json")
        most = self.limits.body
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and len(length) < 20 and int(length) > most:
            raise Wrong(413, f"over {most:,} bytes; send less")
        data = bytearray()
        async for piece in request.stream():
            data += piece
            if len(data) > most:
                raise Wrong(413, f"over {most:,} bytes; send less")
        if raw:
            return {"picture": base64.b64encode(data).decode()}
        return await self.house.worked(len(data), partial(parsed, data, asked))

    async def complete(self, request: Request, asked: dict[str, Any]) -> Response:
        served = self.writes(asked)
        prompt = asked["prompt"]
        prompts = (
            prompt if prompt and isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
        )
        likeliest, echo = asked.get("logprobs"), asked.get("echo") or False
        if echo and likeliest is not None:
            raise Wrong(400, "echo: log-probabilities of the prompt are not told; leave one out", "echo")

        def before(index: int, samples: int) -> str:
            one = prompts[index // samples]
            return "" if not echo else one if isinstance(one, str) else served.model.tokenizer.decode(one)

        return await self.write(request, asked, served, prompts, likeliest, Completion(served, before))

    async def chat(self, request: Request, asked: dict[str, Any]) -> Response:
        served = self.writes(asked)
        if asked.get("max_completion_tokens") is not None:
            asked["max_tokens"] = asked["max_completion_tokens"]
        likeliest = asked.get("top_logprobs") or 0 if asked.get("logprobs") else None
        if likeliest is None and asked.get("top_logprobs"):
            raise Wrong(400, "top_logprobs: only with logprobs", "top_logprobs")
        told = [conversation(served.model, asked["messages"])]
        return await self.write(request, asked, served, told, likeliest, Chat(served))

    def writes(self, asked: dict[str, Any]) -> Served:
        served = self.house.find(asked.get("model"))
        if served.engine is None or hasattr(served.model.task.config, "size"):
            raise Wrong(400, f"{served.name} does not write on from texts; ask it by /api/ask", "model")
        return served

    async def write(
        self,
        request: Request,
        asked: dict[str, Any],
        served: Served,
        prompts: list[Any],
        likeliest: int | None,
        shape: Completion,
    ) -> Response:
        options = {name: asked.get(name) for name in (*DRAWN, "stop")}
        options |= {"max_new_tokens": asked.get("max_tokens"), "num_return_sequences": asked.get("n")}
        chosen, streams = served.chosen(options), bool(asked.get("stream"))
        if len(prompts) * chosen["samples"] > schema.CHOICES:
            raise Wrong(400, f"n: up to {schema.CHOICES} answers in one request", "n")
        size = sum(map(letters, prompts))
        readings = await self.house.worked(size, lambda: [served.reading(p) for p in prompts])
        whole = not streams and likeliest is None
        answers = self.answers(served, prompts, readings, chosen, likeliest or 0, whole)
        if isinstance(answers, Found) and likeliest is not None:
            said = "logprobs: not told of a search, or of a text in parts; give num_beams 1, and less text"
            raise Wrong(400, said, "logprobs")
        if (
            isinstance(answers, Found)
            and getattr(served.model.task, "template", None)
            and isinstance(prompts[0], str)
        ):
            raise Wrong(400, "num_beams: only in a conversation, with this model", "num_beams")
        head = {"created": int(time.time()), "model": served.name}
        head = {"id": f"{shape.prefix}-{request.scope['note'].id}", "object": shape.name} | head
        note = request.scope["note"]
        note.model, note.read = served.name, answers.read
        wanted = likeliest is not None

        def usage() -> dict[str, int]:
            note.read, note.written = answers.read, answers.written
            read, written = answers.read, answers.written
            return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

        samples = chosen["samples"]
        pieces = answers.pieces()
        try:
            if not streams:
                choices = [Piece(i) for i in range(len(prompts) * samples)]
                async for some in pieces:
                    for piece in some:
                        choices[piece.index].text += piece.text
                        choices[piece.index].tokens += piece.tokens
                        choices[piece.index].reason = piece.reason
                told = [shape.choice(piece, wanted, samples) for piece in choices]
                return JSONResponse(head | {"choices": told, "usage": usage()})
            first = await anext(pieces)  # what goes wrong until here has a status of its own
        except BaseException:
            note.written = answers.written
            answers.close()
            raise
        usual = (asked.get("stream_options") or {}).get("include_usage") or False
        head |= {"object": shape.streamed} | ({"usage": None} if usual else {})

        async def lines() -> AsyncIterator[bytes]:
            begun = [shape.opening(i, samples) for i in range(len(prompts) * samples)]
            yield b"".join(event(head | {"choices": [choice]}) for choice in begun if choice)
            places: dict[int, int] = {}
            async for some in after(first, pieces):
                said = [c for piece in some for c in shape.delta(piece, wanted, places)]
                if said:
                    yield b"".join(event(head | {"choices": [choice]}) for choice in said)
            told = usage()
            yield (event(head | {"choices": [], "usage": told}) if usual else b"") + DONE

        def close() -> None:
            note.written = answers.written
            answers.close()

        return Events(lines(), self.house, request.scope["until"], close)

    def answers(
        self,
        served: Served,
        texts: list[Any],
        readings: list[Reading | None],
        chosen: dict[str, Any],
        likeliest: int = 0,
        whole: bool = True,
    ) -> "Writing | Found":
        """From the engine, where each text is one reading and nothing is searched; else from a thread."""
        own = chosen.keys() - {"sampling", "stop", "samples"}
        some = [reading for reading in readings if reading is not None]
        if chosen["sampling"].num_beams == 1 and len(some) == len(texts) and not own:
            return Writing(served, self.house.post, some, chosen, likeliest, whole)
        if any(isinstance(text, list) and text and type(text[0]) is int for text in texts):
            raise Wrong(400, "prompt: token ids are for what is not searched; give num_beams 1", "prompt")
        return Found(self.house, lambda: served.model, texts, chosen)

    async def embed(self, request: Request, asked: dict[str, Any]) -> Response:
        served = self.house.find(asked.get("model"))
        task, model = served.model.task, served.model.model
        if not isinstance(task, Embed):
            raise Wrong(
                400, f"{served.name} makes no vectors of texts; serve one trained with embed", "model"
            )
        dim = model.config.dim
        if asked.get("dimensions") not in (None, dim):
            raise Wrong(400, f"dimensions: this model's vectors have {dim}", "dimensions")
        given = asked["input"]
        several = isinstance(given, list) and not isinstance(given[0], int)
        inputs = given if several else [given]

        def run() -> tuple[np.ndarray, int]:
            ids = [task.tokenizer.encode(x) if isinstance(x, str) else x for x in inputs]
            for row in ids:
                fitting(len(row), task.room - 2)
                within(row, served.vocab)
            found = task.vectors(model, inputs)
            return found.numpy().astype("<f4"), sum(map(len, ids))

        vectors, read = await self.house.blocking(run)
        note = request.scope["note"]
        note.model, note.read = served.name, read
        packed = asked.get("encoding_format") == "base64"
        data = [
            {
                "object": "embedding",
                "index": i,
                "embedding": base64.b64encode(v.tobytes()).decode() if packed else v.tolist(),
            }
            for i, v in enumerate(vectors)
        ]
        usage = {"prompt_tokens": read, "total_tokens": read}
        return JSONResponse({"object": "list", "data": data, "model": served.name, "usage": usage})

    async def ask(self, request: Request, asked: dict[str, Any]) -> Response:
        """Any model, as `regard ask` does; a path is never read."""
        served = self.house.find(asked.get("model"))
        model, given = served.model, asked.get("input")
        if hasattr(model.task.config, "size"):
            if asked.get("picture") is None:
                raise Wrong(
                    400, "picture: give a PNG, JPEG or WebP in base64, to a model that sees", "picture"
                )
            inputs: list[Any] = [await self.house.blocking(lambda: picture(model, asked["picture"]))]
        elif given is None or asked.get("picture") is not None:
            raise Wrong(400, "input: give a text, to a model that reads texts", "input")
        else:
            inputs = given if isinstance(given, list) else [given]
        names = (*DRAWN, "stop", "max_new_tokens", "num_return_sequences", "prefix", "distance")
        chosen = served.chosen({name: asked.get(name) for name in names})
        if len(inputs) * chosen["samples"] > schema.CHOICES:
            raise Wrong(400, f"up to {schema.CHOICES} answers in one request", "num_return_sequences")
        streams, step = bool(asked.get("stream")), asked.get("checkpoint")
        answers: Writing | Found
        if step is not None:
            answers = Found(self.house, lambda: at_step(model, step), inputs, chosen)
        else:
            readings: list[Reading | None] = [None]
            if served.engine is not None:
                readings = await self.house.worked(
                    sum(map(letters, inputs)), lambda: [served.reading(x, asked=True) for x in inputs]
                )
            answers = self.answers(served, inputs, readings, chosen, 0, not streams)
        note, pieces = request.scope["note"], answers.pieces()
        note.model = served.name
        try:
            if not streams:
                rows = [Piece(i) for i in range(len(inputs) * chosen["samples"])]
                async for some in pieces:
                    for piece in some:
                        rows[piece.index].text += piece.text
                return JSONResponse(self.outcome(served, isinstance(given, list), answers, rows, len(inputs)))
            first = await anext(pieces)
        except BaseException:
            answers.close()
            raise
        finally:
            note.read, note.written = answers.read, answers.written

        async def lines() -> AsyncIterator[bytes]:
            async for some in after(first, pieces):
                yield b"".join(event({"index": p.index, "text": p.text}) for p in some if p.text)
            yield DONE

        def close() -> None:
            note.written = answers.written
            answers.close()

        return Events(lines(), self.house, request.scope["until"], close)

    def outcome(
        self, served: Served, several: bool, answers: "Writing | Found", rows: list[Piece], inputs: int
    ) -> dict[str, Any]:
        if isinstance(answers, Found):
            told = [[{"text": a.text, "score": a.score} for a in some] for some in answers.found]
        else:
            n = len(rows) // inputs
            told = [
                [{"text": p.text, "score": None} for p in rows[i : i + n]] for i in range(0, len(rows), n)
            ]
        texts = [one["text"] for some in told for one in some]
        output = texts[0] if len(texts) == 1 and not several else texts
        return {"model": served.name, "output": output, "answers": told}


class Found:
    """Answers that a thread finds all at once, in the manner of a `Writing`."""

    read = written = 0

    def __init__(self, house: House, model: Callable[[], Model], texts: list[Any], chosen: dict[str, Any]):
        self.house, self.model, self.texts, self.chosen = house, model, texts, chosen
        self.found: list[list[Any]] = []

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        texts = await self.house.blocking(self.work)
        yield [Piece(i, text, [], "stop") for i, text in enumerate(texts)]

    def work(self) -> list[str]:
        model = self.model()
        task = model.task
        self.found = task.answers(model.model, self.texts, **self.chosen)
        texts = [answer.text for some in self.found for answer in some]
        writer = getattr(task, "writer", task.tokenizer)
        if writer is not None:
            self.read = sum(len(task.tokenizer.encode(text)) for text in self.texts if isinstance(text, str))
            self.written = sum(len(writer.encode(text)) for text in texts)
        return texts

    def close(self) -> None: ...


def letters(given: Any) -> int:
    """How much there is to read; pictures are read already."""
    if isinstance(given, str):
        return len(given)
    if isinstance(given, list) and given and isinstance(given[0], dict):
        return sum(len(message["content"]) for message in given)
    return len(given) if isinstance(given, list) else 0


async def after(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    yield first
    async for one in rest:
        yield one


# Everything together


def serving(house: House, manners: Manners) -> Door:
    """All routes behind the door; what has none is the page's."""
    api = Api(house, manners.key is not None)
    routes = api.routes()

    async def told(request: Request, e: Exception) -> Response:
        if isinstance(e, Mistake):
            e = Wrong(400, str(e))
        return answer(request.url.path, e if isinstance(e, HTTPException) else FAULT)

    app = Starlette(routes=routes, exception_handlers={HTTPException: told, Mistake: told, Exception: told})
    app.router.default = Page([served.model for served in house.models.values()])
    app.router.redirect_slashes = False
    return Door(app, manners, house.metrics, [route.path for route in routes])


FAULT = Wrong(500, "a fault of the server's; its log says more")
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
