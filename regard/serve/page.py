"""The page's routes: its files, traces of the model, and everything that the views ask for."""

import asyncio
import mimetypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from regard.errors import UserError
from regard.runs.load import at_step
from regard.runs.model import Model
from regard.serve.errors import APIError, error_response
from regard.serve.protocol import Json
from regard.serve.registry import copy_modules
from regard.serve.requests import (
    MAX_BODY,
    check_text,
    decode_image,
    parse_object,
    query_int,
    query_slice,
    read_body,
)
from regard.serve.security import SecurityConfig, SecurityMiddleware
from regard.viewer.html import PAGE_FOLDER
from regard.viewer.onefile import index
from regard.viewer.session import Session
from regard.viewer.whatif import compare_runs

MAX_SESSIONS = 4  # traces that stay in memory
MAX_SESSION_BYTES = 2**32  # of all of them; the latest stays anyway
MAX_IDS = 500
MAX_QUERY = 200  # letters of words whose neighbours are asked for


class SessionStore:
    """The latest sessions by id."""

    def __init__(self, first: Session):
        self.first = first
        self.sessions: OrderedDict[str, Session] = OrderedDict({first.id: first})

    def add(self, session: Session) -> None:
        """Add a session, or mark it as the latest; drop the oldest if there are too many."""
        self.sessions[session.id] = session
        self.sessions.move_to_end(session.id)
        while len(self.sessions) > 1 and (
            len(self.sessions) > MAX_SESSIONS or self.nbytes > MAX_SESSION_BYTES
        ):
            self.sessions.popitem(last=False)

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in list(self.sessions.values()))  # a copy: other threads change it

    def get(self, id: object) -> Session:
        try:
            self.sessions.move_to_end(id)  # type: ignore[arg-type]
            return self.sessions[id]  # type: ignore[index]
        except (KeyError, TypeError):
            raise APIError(410, "this trace is no longer in memory; reload the page") from None


@dataclass(frozen=True)
class TraceRequest:
    """The body of /api/trace. Every field may be left out."""

    input: str | None
    answer: str | None
    layers: list[int] | None
    image: object
    checkpoint: int | None
    other: int | None  # one of the models to compare with

    @classmethod
    def parse(cls, body: Json) -> "TraceRequest":
        layers, answer = body.get("layers"), body.get("answer")
        if answer is not None:
            check_text(answer, "answer")
        if layers is not None and not (isinstance(layers, list) and all(type(n) is int for n in layers)):
            raise APIError(400, "layers: give a list of whole numbers")
        step, other = body_int(body, "checkpoint"), body_int(body, "model")
        return cls(body.get("input"), answer, layers, body.get("picture"), step, other)

    @property
    def is_first(self) -> bool:
        """Whether this is the trace that the page opens with, if the input is the first one as well."""
        return self.answer is None and self.layers is None and self.checkpoint is None and self.other is None


class PageRoutes:
    """The page of one model: `first` is shown at first, `others` are models to compare with."""

    def __init__(self, model: Model, first: Session, others: Sequence[Model] = ()):
        assert first.manifest  # computed before anybody waits for it
        self.model, self.first, self.others = model, first, others
        self.sessions = SessionStore(first)
        self.lock = threading.Lock()  # hooks on a model belong to one trace at a time
        self.checkpoint: tuple[int, Model] | None = None  # the latest step that was loaded

    def routes(self) -> list[Route]:
        return [
            Route("/", self.file),
            Route("/page/{name}", self.file),
            Route("/api/trace", self.trace, methods=["POST"]),
            Route("/api/ask", self.ask, methods=["POST"]),
            Route("/api/tensor", self.tensor),
            Route("/api/words", self.words),
            Route("/api/tree", self.tree),
            Route("/api/lens", self.lens),
            Route("/api/models", self.models),
            Route("/api/space", self.space),
            Route("/api/near", self.near),
            Route("/api/change", self.change, methods=["POST"]),
            Route("/api/effects", self.effects),
            Route("/api/versus", self.versus),
            Route("/api/log", self.log),
            Route("/api/page", self.download),
        ]

    def choose_model(self, step: int | None, other: int | None = None) -> Model:
        """The model, the model at a step of its run that has a checkpoint, or one to compare with."""
        if other is not None:
            if not 0 <= other < len(self.others):
                raise APIError(400, f"model: there are {len(self.others)} to compare with, from 0")
            return self.others[other]
        if step is None:
            return self.model
        if self.checkpoint is None or self.checkpoint[0] != step:
            self.checkpoint = step, at_step(self.model, step)
        return self.checkpoint[1]

    def session(self, request: Request) -> Session:
        return self.sessions.get(request.query_params.get("trace"))

    # Files

    def file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        files = {path.name: path for path in PAGE_FOLDER.iterdir() if path.is_file()}
        if name not in files:
            raise APIError(404, "there is no such file")
        if name == "index.html":
            return Response(index(PAGE_FOLDER), media_type="text/html")
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
        return Response(files[name].read_bytes(), media_type=kind)

    def download(self, request: Request) -> Response:
        headers = {"Content-Disposition": 'attachment; filename="regard.html"'}
        return Response(self.session(request).html(), 200, headers, "application/octet-stream")

    # Traces and their tensors

    async def trace(self, request: Request) -> Response:
        body = TraceRequest.parse(await read_object(request))
        return JSONResponse(await run_in_threadpool(self.run_trace, body))

    def run_trace(self, request: TraceRequest) -> Json:
        if request.image is not None:
            input: Any = decode_image(self.model, request.image)
        elif request.input is None or self.first.reads_images:  # never a path: clients may not read files
            input = self.first.input
            if request.is_first:
                self.sessions.add(self.first)
                return self.first.manifest
        else:
            input = check_text(request.input)
        with self.lock:
            model = self.choose_model(request.checkpoint, request.other)
            session = Session(model, input, request.answer, request.layers)
            manifest = session.manifest
        self.sessions.add(session)
        return manifest

    def tensor(self, request: Request) -> Response:
        query = request.query_params
        values = self.session(request).numbers(
            query.get("name", ""),
            query_int(request, "head"),
            query_slice(request, "rows"),
            query_slice(request, "columns"),
            query_int(request, "most", 1),
            query.get("as") == "uint8",
        )
        kind = "uint8" if values.dtype == np.uint8 else "float32"
        headers = {"X-Shape": ",".join(map(str, values.shape)), "X-Type": kind}
        return Response(np.ascontiguousarray(values).tobytes(), 200, headers, "application/octet-stream")

    def words(self, request: Request) -> Response:
        texts = request.query_params.get("ids", "").split(",")
        if len(texts) > MAX_IDS or not all(text.isascii() and text.isdecimal() for text in texts):
            raise APIError(400, f"ids: give up to {MAX_IDS} whole numbers with commas between")
        return JSONResponse(self.first.words([int(text[:9]) for text in texts]))

    # Views

    async def ask(self, request: Request) -> Response:
        body = await read_object(request)
        if body.get("input") is None or self.first.reads_images:
            raise APIError(400, "input: give a text, to a model that reads texts")
        text, step = check_text(body["input"]), body_int(body, "checkpoint")

        def run() -> str:
            with self.lock:
                answer = self.choose_model(step).ask(text)
            return answer if isinstance(answer, str) else "\n".join(answer)

        return JSONResponse({"output": await run_in_threadpool(run)})

    def tree(self, request: Request) -> Response:
        session, beams = self.session(request), query_int(request, "beams", 1)
        with self.lock:
            return JSONResponse(session.tree(beams or 1).to_json())

    def lens(self, request: Request) -> Response:
        return JSONResponse(self.session(request).lens(query_int(request, "row") or 0))

    def models(self, request: Request) -> Response:
        return JSONResponse([str(other.folder or other.kind) for other in self.others])

    def space(self, request: Request) -> Response:
        return JSONResponse(self.session(request).space.mapped(request.query_params.get("name", "")))

    def near(self, request: Request) -> Response:
        query, space, row = request.query_params, self.session(request).space, query_int(request, "row")
        point = query.get("text", "")[:MAX_QUERY] if row is None else row
        return JSONResponse(space.near(query.get("name", ""), point, query.get("distance", "cosine")))

    async def change(self, request: Request) -> Response:
        body = await read_object(request)
        session, row, changes = (
            self.sessions.get(body.get("trace")),
            body_int(body, "row"),
            body.get("changes", []),
        )
        if not isinstance(changes, list) or not all(isinstance(one, dict) for one in changes):
            raise APIError(400, "changes: give a list of objects")

        def run() -> Json:
            parsed = [parse_change(session, one) for one in changes]
            with self.lock:
                return session.whatif.changed(parsed, row)

        return JSONResponse(await run_in_threadpool(run))

    def effects(self, request: Request) -> Response:
        with self.lock:
            return JSONResponse(self.session(request).whatif.ranked())

    def versus(self, request: Request) -> Response:
        other = self.sessions.get(request.query_params.get("other"))
        row, other_row = query_int(request, "row"), query_int(request, "other_row")
        return JSONResponse(compare_runs(self.session(request), other, row, other_row))

    def log(self, request: Request) -> Response:
        return JSONResponse(self.first.log())


def parse_change(session: Session, change: Json) -> Json:
    """A change of /api/change with its input checked: a text, or the pixels of an image, never a path."""
    change = dict(change)
    image = change.pop("picture", None)
    if session.reads_images:
        change["input"] = None if image is None else decode_image(session.model, image)
    elif change.get("input") is not None:
        check_text(change["input"])
    return change


async def read_object(request: Request) -> Json:
    return parse_object(await read_body(request, MAX_BODY))


def body_int(body: Json, name: str) -> int | None:
    value = body.get(name)
    if value is not None and type(value) is not int:
        raise APIError(400, f"{name}: give a whole number")
    return value


async def handle_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        error = APIError(400, str(error))
    return error_response(request.url.path, error)


def page_app(model: Model, first: Session, others: Sequence[Model] = ()) -> ASGIApp:
    """The application of `regard look`: the page of one model, for this machine only."""
    handlers: dict[Any, Callable[..., Any]] = dict.fromkeys(
        (HTTPException, UserError, ValueError), handle_error
    )
    app = Starlette(routes=PageRoutes(model, first, others).routes(), exception_handlers=handlers)
    return SecurityMiddleware(app, SecurityConfig())


class LazyPage:
    """The page in `regard serve`: the first model, compared with the others. It is built at the first request
    and has modules of its own, so that traces don't disturb the engines."""

    def __init__(self, models: Sequence[Model]):
        self.all_models, self.lock = models, asyncio.Lock()
        self.router: Router | None = None

    def build(self) -> Router:
        model, *others = map(copy_modules, self.all_models)
        return Router(PageRoutes(model, Session(model, model.task.example_input()), others).routes())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_page_path(scope["path"]):
            raise APIError(404, "there is no such path")
        async with self.lock:
            if self.router is None:
                self.router = await run_in_threadpool(self.build)
        try:
            await self.router(scope, receive, send)
        except ValueError as error:  # a wrong request, as in `page_app`
            raise APIError(400, str(error)) from None


def is_page_path(path: str) -> bool:
    return path == "/" or path.startswith(("/page/", "/api/", "/models/"))
