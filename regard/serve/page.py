"""The page's routes: its files, traces of the model, and the data of its views."""

import asyncio
import contextvars
import json
import mimetypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from torch import Tensor

from regard.cancel import paused_by
from regard.data.images import resize_pixels
from regard.runs.load import at_step
from regard.runs.model import Model
from regard.serve.errors import APIError
from regard.serve.lines import stream_lines
from regard.serve.page_requests import TraceRequest, check_changes, check_turns, parse_change, try_change
from regard.serve.protocol import Json, encode_parts
from regard.serve.registry import ServerLimits
from regard.serve.requests import (
    body_int,
    check_text,
    decode_file,
    parse_object,
    query_int,
    query_slice,
    read_body,
)
from regard.serve.sessions import SessionStore
from regard.serve.threads import ExclusiveThreads, let_catch_up
from regard.viewer.head_corpus import head_corpus
from regard.viewer.html import PAGE_FOLDER
from regard.viewer.onefile import index
from regard.viewer.session import Session
from regard.viewer.talk import talk
from regard.viewer.whatif import MAX_CHANGES, compare_runs

MAX_TENSOR_BYTES = 64 * 2**20  # of one response
MAX_IDS = 500
HEAVY = 2  # threads for work that takes much memory; each keeps a part of it
INLINE = 4000  # bytes of JSON that are parsed in the event loop
MAX_QUERY = 200  # letters of a word whose neighbours are requested
T = TypeVar("T")


def respond(content: Any) -> Response:
    """The response with this JSON, encoded by parts: call it in a thread, and the event loop can catch up."""
    return Response(encode_parts(content).encode(), media_type="application/json")


class PageRoutes:
    """The page of one model: `first` is shown at first, `compared_models` can be compared with it."""

    def __init__(
        self,
        model: Model,
        first: Session,
        compared_models: Sequence[Model] = (),
        step_timeout: float = ServerLimits.timeout,
        names: Sequence[str] | None = None,
    ):
        assert first.manifest  # computed before it is needed
        self.names = list(names or map(model_name, (model, *compared_models)))  # of all models
        self.model, self.first, self.compared_models = model, first, compared_models
        self.sessions = SessionStore(first)
        self.exclusive = ExclusiveThreads(step_timeout)  # one at a time; what hangs is given up
        self.heavy = ThreadPoolExecutor(HEAVY, "page")
        self.checkpoint: tuple[int, Model] | None = None  # the latest step that was loaded
        self.files = {path.name: path.read_bytes() for path in PAGE_FOLDER.iterdir() if path.is_file()}
        self.files["index.html"] = index(PAGE_FOLDER).encode()

    def routes(self) -> list[Route]:
        return [
            Route("/", self.file),
            Route("/page/{name}", self.file),
            Route("/api/trace", self.trace, methods=["POST"]),
            Route("/api/ask", self.ask, methods=["POST"]),
            Route("/api/talk", self.talk, methods=["POST"]),
            Route("/api/tensor", self.tensor),
            Route("/api/words", self.words),
            Route("/api/tree", self.tree),
            Route("/api/lens", self.lens),
            Route("/api/attribution", self.attribution),
            Route("/api/heads", self.heads),
            Route("/api/models", self.models),
            Route("/api/space", self.space),
            Route("/api/near", self.near),
            Route("/api/change", self.change, methods=["POST"]),
            Route("/api/effects", self.effects),
            Route("/api/versus", self.versus),
            Route("/api/log", self.log),
            Route("/api/progress", self.progress),
            Route("/api/page", self.download),
        ]

    def choose_model(self, step: int | None, other: int | None = None) -> Model:
        """The model, the model at a step of its run that has a checkpoint, or one to compare with."""
        if other is not None:
            if not 0 <= other < len(self.compared_models):
                raise APIError(400, f"model: there are {len(self.compared_models)} to compare with, from 0")
            return self.compared_models[other]
        if step is None:
            return self.model
        if self.checkpoint is None or self.checkpoint[0] != step:
            self.checkpoint = step, at_step(self.model, step)
        return self.checkpoint[1]

    def run_heavy(self, work: Callable[[], T]) -> T:
        """Run work on large bodies, images or tensors, little of it at once."""
        return self.heavy.submit(contextvars.copy_context().run, work).result()

    def session(self, request: Request) -> Session:
        return self.sessions.get(request.query_params.get("trace"))

    def session_or_first(self, request: Request) -> Session:
        return self.session(request) if "trace" in request.query_params else self.first

    # Files

    def file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in self.files:
            raise APIError(404, "there is no such file")
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
        return Response(self.files[name], media_type=kind)

    def download(self, request: Request) -> Response:
        session, headers = (
            self.session(request),
            {"Content-Disposition": 'attachment; filename="regard.html"'},
        )
        html = self.run_heavy(lambda: session.html().encode())
        return Response(html, 200, headers, "application/octet-stream")

    # Traces and their tensors

    async def trace(self, request: Request) -> Response:
        body = await self.read_checked(request, TraceRequest.parse)
        chosen = 0 if body.other is None else body.other + 1
        models = {"models": self.names, "chosen": chosen}

        def run() -> Response:
            session = self.open_session(body)
            self.sessions.add(session)
            return respond(session.manifest | self.describe_progress(session) | models)

        return await self.exclusive.run(run)

    def open_session(self, request: TraceRequest) -> Session:
        base = self.open_base(request)
        if not request.changes or base.outputs() is None:
            return base
        self.sessions.add(base)  # What if continues with it
        key = base.id, json.dumps(request.changes, sort_keys=True)
        if (known := self.sessions.find(key)) is not None:
            return known
        changes = self.run_heavy(lambda: [try_change(base, one) for one in request.changes])
        computed = base.whatif.trace_changed(changes, base.layers)
        session = Session(base.model, base.input, base.fixed_answer, base.layers, computed)
        session.key, session.base = key, base.id
        assert session.manifest  # computed here, not in the event loop
        return session

    def open_base(self, request: TraceRequest) -> Session:
        model = self.choose_model(request.checkpoint, request.other)
        input: Any = request.ids
        if input is None:
            input = self.read_input(model, request.input, request.file)
        elif request.written:
            input = input, request.written
        if request.is_first and input is self.first.input:
            return self.first
        key = model, input, request.answer, request.layers
        if isinstance(input, str) and (known := self.sessions.find(key)):
            return known
        session = Session(*key)
        session.key = key if isinstance(input, str) else None
        session.tour = self.first.tour
        assert session.manifest  # computed here, not in the event loop
        return session

    def read_input(self, model: Model, text: object, file: object) -> Any:
        """A text, or the pixels of a file, as the model reads it; by default, the first input of the page.

        A model that reads files ignores texts, so that none can be the path of one.
        """
        first = self.first.input
        if file is not None:
            return self.run_heavy(lambda: decode_file(model, file))
        if model.task.reads == "text" and text is not None:
            return check_text(text)
        if model.task.reads != self.model.task.reads:
            return model.task.example_input()
        if (
            model.task.reads == "image"
            and isinstance(first, Tensor)
            and first.shape != model.task.image_shape
        ):
            return resize_pixels(first, model.task.image_shape)
        return first

    def tensor(self, request: Request) -> Response:
        query, session = request.query_params, self.session(request)

        def numbers() -> np.ndarray:
            values = session.numbers(
                query.get("name", ""),
                query_int(request, "head"),
                query_slice(request, "rows"),
                query_slice(request, "columns"),
                query_int(request, "most", 1),
                query.get("as") == "uint8",
            )
            if values.nbytes > MAX_TENSOR_BYTES:
                message = f"name: over {MAX_TENSOR_BYTES:,} bytes; ask for less with rows, columns or most"
                raise APIError(413, message)
            return np.ascontiguousarray(values)

        values = self.run_heavy(numbers)
        kind = "uint8" if values.dtype == np.uint8 else "float32"
        headers = {"X-Shape": ",".join(map(str, values.shape)), "X-Type": kind}
        data = values.reshape(-1).view(np.uint8).data  # no copy
        return Response(data, 200, headers, "application/octet-stream")

    def words(self, request: Request) -> Response:
        texts = request.query_params.get("ids", "").split(",")
        if len(texts) > MAX_IDS or not all(text.isascii() and text.isdecimal() for text in texts):
            raise APIError(400, f"ids: give up to {MAX_IDS} whole numbers with commas between")
        return respond(self.session_or_first(request).words([int(text[:9]) for text in texts]))

    # Views

    async def ask(self, request: Request) -> Response:
        body = await self.read_object(request)
        if body.get("input") is None:
            raise APIError(400, "input: give a text, to a model that reads texts")
        text, step, name = check_text(body["input"]), body_int(body, "checkpoint"), body.get("model")
        other = self.model_number(name)

        def run() -> str:
            model = self.choose_model(step, other)
            if model.task.reads != "text":
                raise APIError(400, "input: give a text, to a model that reads texts")
            answers = model.task.answers(model.model, replace(model.request([], {}), inputs=[text]))
            return "\n".join(answer.text for answer in answers[0])

        return await self.exclusive.run(lambda: respond({"output": run()}))

    async def talk(self, request: Request) -> Response:
        body = await self.read_checked(request, check_turns)
        texts, step, other = body["turns"], body_int(body, "checkpoint"), self.model_number(body.get("model"))

        def events() -> Iterator[Json]:
            model = self.choose_model(step, other)
            if model.task.reads != "text":
                raise APIError(400, "turns: this model reads no texts")
            return talk(model, texts)

        return await stream_lines(self.exclusive, events)

    def model_number(self, name: object) -> int | None:
        """The index of the model with this name among those to compare with; None: the page's first model."""
        if name is None:
            return None
        if name not in self.names:
            raise APIError(400, f"model: give one of {', '.join(self.names)}")
        return self.names.index(str(name)) - 1 if name != self.names[0] else None

    async def tree(self, request: Request) -> Response:
        session, beams = self.session(request), query_int(request, "beams", 1)
        return await self.exclusive.run(lambda: respond(session.tree(beams or 1).to_json()))

    def lens(self, request: Request) -> Response:
        return respond(self.session(request).lens(query_int(request, "row") or 0))

    def attribution(self, request: Request) -> Response:
        session, row, token = self.session(request), query_int(request, "row"), query_int(request, "token")
        return respond(self.run_heavy(lambda: session.attribution(row or 0, token)))

    async def heads(self, request: Request) -> Response:
        """What the model's heads do on built-in texts: between them, others can trace."""
        model = self.session(request).model
        corpus = await self.exclusive.run(lambda: head_corpus(model))
        while corpus.inputs:
            await self.exclusive.run(lambda: corpus.step(model))
        return await self.exclusive.run(lambda: respond(corpus.to_json()))

    def models(self, request: Request) -> Response:
        return respond(self.names[1:])

    def space(self, request: Request) -> Response:
        return respond(self.session(request).space.mapped(request.query_params.get("name", "")))

    def near(self, request: Request) -> Response:
        query, space, row = request.query_params, self.session(request).space, query_int(request, "row")
        point = query.get("text", "")[:MAX_QUERY] if row is None else row
        return respond(space.near(query.get("name", ""), point, query.get("distance", "cosine")))

    async def change(self, request: Request) -> Response:
        body = await self.read_checked(request, check_changes)
        session, row = self.sessions.get(body.get("trace")), body_int(body, "row")
        changes = body.get("changes") or []

        def run() -> Response:
            first_changes = changes[: MAX_CHANGES + 1]  # one more id is refused with the right message
            if body.get("lenient"):
                tried = self.run_heavy(lambda: [try_change(session, one) for one in first_changes])
                return respond(session.whatif.changed_if_valid(tried, row))
            parsed = self.run_heavy(lambda: [parse_change(session, one) for one in first_changes])
            return respond(session.whatif.changed(parsed, row))

        return await self.exclusive.run(run)

    async def effects(self, request: Request) -> Response:
        session = self.session(request)
        if "stream" in request.query_params:
            return await stream_lines(self.exclusive, session.whatif.each_effect)
        return await self.exclusive.run(lambda: respond(session.whatif.ranked()))

    def versus(self, request: Request) -> Response:
        other = self.sessions.get(request.query_params.get("other"))
        row, other_row = query_int(request, "row"), query_int(request, "other_row")
        return respond(compare_runs(self.session(request), other, row, other_row))

    def log(self, request: Request) -> Response:
        return respond(self.session_or_first(request).log())

    def progress(self, request: Request) -> Response:
        return respond(self.describe_progress(self.session_or_first(request)))

    def describe_progress(self, session: Session) -> Json:
        """The facts that may change while the run is trained."""
        return session.progress()

    async def read_object(self, request: Request) -> Json:
        """The JSON of a body; a large one is parsed in a thread."""
        return await self.read_checked(request, lambda body: body)

    async def read_checked(self, request: Request, check: Callable[[Json], T]) -> T:
        """What `check` makes of the JSON of a body; a large one in a thread."""
        data = await read_body(request)
        if len(data) <= INLINE:
            return check(parse_object(data))
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()

        def parse() -> T:
            with paused_by(partial(let_catch_up, loop)):
                return check(parse_object(data))

        return await asyncio.wrap_future(self.heavy.submit(context.run, parse))


def model_name(model: Model) -> str:
    name = str(model.folder or model.kind)
    return name if model.step is None else f"{name}, step {model.step:,}"
