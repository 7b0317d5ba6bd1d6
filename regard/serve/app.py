"""The page's server: what it may ask for, and what is refused.

It is meant for the browser on this machine: a request that names another host (DNS rebinding) or comes from
another page is refused, pages may load nothing from elsewhere, and whatever is asked has a limit.
"""

import base64
import binascii
import io
import json
import mimetypes
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.data.pictures import Place, decoded_picture, pillow
from regard.errors import Mistake
from regard.look.page import HERE, Shown
from regard.look.whatif import compared
from regard.run import Model, at_step

LARGEST = 16 * 2**20  # bytes of a request: a picture
LONGEST = 100_000  # letters of an input
LONGEST_WORDS = 200  # letters of words whose neighbours are asked for
KEPT = 4  # runs whose numbers stay at hand
MOST_BYTES = 2**32  # of them together; the latest stays anyway
MOST_IDS = 500
HOSTS = {"127.0.0.1", "localhost"}
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses other hosts and other pages; puts the headers on every answer."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
            await send(message)

        if (refusal := refused(Request(scope))) is not None:
            await refusal(scope, receive, guarded)
        else:
            await self.app(scope, receive, guarded)


def refused(request: Request) -> Response | None:
    host = request.headers.get("host", "")
    if host.rsplit(":", 1)[0] not in HOSTS:
        return PlainTextResponse("this server answers to 127.0.0.1 and localhost only", 421)
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return PlainTextResponse("other pages may not ask this server", 403)
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return PlainTextResponse("other pages may not ask this server", 403)
    return None


@dataclass(frozen=True)
class Bytes(Place):
    """A picture that came with a request."""

    data: bytes = b""

    def opened(self) -> io.BytesIO:
        return io.BytesIO(self.data)


def application(model: Model, first: Shown, against: Sequence[Model] = ()) -> Starlette:
    """The page of one model; `first` is what it opens on, and `against` others that it is compared with."""
    assert first.manifest  # made before anybody waits for it
    shown: OrderedDict[str, Shown] = OrderedDict({first.id: first})
    one_at_a_time = threading.Lock()  # a watched model keeps what it sees
    earlier: dict[int, Model] = {}  # the model at one step of its run

    def chosen(step: Any, other: Any = None) -> Model:
        """The model; what it was at a step of its run that has a checkpoint; or one of those against it."""
        if other is not None:
            if type(other) is not int or not 0 <= other < len(against):
                raise HTTPException(400, f"model: there are {len(against)} to compare with, from 0")
            return against[other]
        if step is None:
            return model
        if type(step) is not int:
            raise HTTPException(400, "checkpoint: give the number of a step")
        if step not in earlier:
            made = at_step(model, step)
            earlier.clear()
            earlier[step] = made
        return earlier[step]

    def at_hand(id: Any) -> Shown:
        try:
            shown.move_to_end(id)
            return shown[id]
        except (KeyError, TypeError):
            raise HTTPException(410, "these numbers are no longer at hand; reload the page") from None

    def held() -> int:
        return sum(s.bytes for s in list(shown.values()))  # a list: others look at them meanwhile

    def found(request: Request) -> Shown:
        return at_hand(request.query_params.get("trace"))

    async def trace(request: Request) -> Response:
        asked = await body(request)
        input, answer, layers = (asked.get(key) for key in ("input", "answer", "layers"))
        if answer is not None and not isinstance(answer, str):
            raise HTTPException(400, "answer: give a text")
        if layers is not None and not (isinstance(layers, list) and all(type(n) is int for n in layers)):
            raise HTTPException(400, "layers: give a list of whole numbers")
        checked(answer)

        def run() -> dict[str, Any]:
            if asked.get("picture") is not None:
                given: Any = picture(model, asked["picture"])
            elif input is None or "pixels" in first.trace:  # never a path: nobody may read files through us
                given = first.given
                plain = all(asked.get(key) is None for key in ("checkpoint", "model"))
                if answer is None and layers is None and plain:
                    shown[first.id] = first
                    shown.move_to_end(first.id)
                    return first.manifest
            else:
                given = checked(input)
            with one_at_a_time:
                made = Shown(chosen(asked.get("checkpoint"), asked.get("model")), given, answer, layers)
                manifest = made.manifest
            shown[made.id] = made
            while len(shown) > 1 and (len(shown) > KEPT or held() > MOST_BYTES):
                shown.popitem(last=False)
            return manifest

        return JSONResponse(await run_in_threadpool(run))

    def tensor(request: Request) -> Response:
        query = request.query_params
        numbers = found(request).numbers(
            query.get("name", ""),
            whole(query.get("head"), "head"),
            part(query.get("rows"), "rows"),
            part(query.get("columns"), "columns"),
            whole(query.get("most"), "most", 1),
            query.get("as") == "uint8",
        )
        kind = "uint8" if numbers.dtype == np.uint8 else "float32"
        headers = {"X-Shape": ",".join(map(str, numbers.shape)), "X-Type": kind}
        return Response(np.ascontiguousarray(numbers).tobytes(), 200, headers, "application/octet-stream")

    def words(request: Request) -> Response:
        texts = request.query_params.get("ids", "").split(",")
        if len(texts) > MOST_IDS or not all(text.isascii() and text.isdecimal() for text in texts):
            raise HTTPException(400, f"ids: give up to {MOST_IDS} whole numbers with commas between")
        return JSONResponse(first.words([int(text[:9]) for text in texts]))

    async def ask(request: Request) -> Response:
        asked = await body(request)
        text = checked(asked.get("input"))
        if text is None or "pixels" in first.trace:
            raise HTTPException(400, "input: give a text, to a model that reads texts")

        def run() -> str:
            with one_at_a_time:
                found = chosen(asked.get("checkpoint")).ask(text)
            return found if isinstance(found, str) else "\n".join(found)

        return JSONResponse({"output": await run_in_threadpool(run)})

    def tree(request: Request) -> Response:
        it, beams = found(request), whole(request.query_params.get("beams"), "beams", 1)
        with one_at_a_time:
            return JSONResponse(it.tree(beams or 1).told())

    def lens(request: Request) -> Response:
        it, row = found(request), whole(request.query_params.get("row"), "row")
        return JSONResponse(it.lens(row or 0))

    def models(request: Request) -> Response:
        return JSONResponse([str(other.folder or other.kind) for other in against])

    def space(request: Request) -> Response:
        return JSONResponse(found(request).space.mapped(request.query_params.get("name", "")))

    def near(request: Request) -> Response:
        query, it = request.query_params, found(request).space
        row, text = whole(query.get("row"), "row"), query.get("text", "")[:LONGEST_WORDS]
        distance = query.get("distance", "cosine")
        return JSONResponse(it.near(query.get("name", ""), text if row is None else row, distance))

    async def change(request: Request) -> Response:
        asked = await body(request)
        it, row, changes = at_hand(asked.get("trace")), asked.get("row"), asked.get("changes", [])
        if row is not None and type(row) is not int:
            raise HTTPException(400, "row: give a whole number")
        if not isinstance(changes, list) or not all(isinstance(one, dict) for one in changes):
            raise HTTPException(400, "changes: give a list of objects")

        def run() -> dict[str, Any]:
            wanted = []
            for one in changes:
                taken = one.pop("picture", None)
                if "pixels" in it.trace:  # never a path, here either
                    one["input"] = None if taken is None else picture(it.model, taken)
                wanted.append(one | {"input": one.get("input") if taken else checked(one.get("input"))})
            with one_at_a_time:
                return it.whatif.changed(wanted, row)

        return JSONResponse(await run_in_threadpool(run))

    def effects(request: Request) -> Response:
        with one_at_a_time:
            return JSONResponse(found(request).whatif.ranked())

    def versus(request: Request) -> Response:
        query = request.query_params
        rows = (whole(query.get(name), name) for name in ("row", "other_row"))
        return JSONResponse(compared(found(request), at_hand(query.get("other")), *rows))

    def log(request: Request) -> Response:
        return JSONResponse(first.log())

    def page(request: Request) -> Response:
        headers = {"Content-Disposition": 'attachment; filename="regard.html"'}
        return Response(found(request).html(), 200, headers, "application/octet-stream")

    def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        known = {path.name: path for path in HERE.iterdir() if path.is_file()}
        if name not in known:
            raise HTTPException(404, "there is no such file")
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
        return Response(known[name].read_bytes(), media_type=kind)

    routes = [
        Route("/", file),
        Route("/page/{name}", file),
        Route("/api/trace", trace, methods=["POST"]),
        Route("/api/ask", ask, methods=["POST"]),
        Route("/api/tensor", tensor),
        Route("/api/words", words),
        Route("/api/tree", tree),
        Route("/api/lens", lens),
        Route("/api/models", models),
        Route("/api/space", space),
        Route("/api/near", near),
        Route("/api/change", change, methods=["POST"]),
        Route("/api/effects", effects),
        Route("/api/versus", versus),
        Route("/api/log", log),
        Route("/api/page", page),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: told, Mistake: told, ValueError: told})
    app.add_middleware(Guard)
    return app


async def told(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 400
    return PlainTextResponse(error.detail if isinstance(error, HTTPException) else str(error), status)


async def body(request: Request) -> dict[str, Any]:
    """The JSON object of a request; other kinds are refused, as a form of another page's would be."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise HTTPException(415, "send JSON, as application/json")
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > LARGEST:
            raise HTTPException(413, f"over {LARGEST:,} bytes; send less")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise HTTPException(400, "this is not JSON") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "send one JSON object")
    return found


def checked(text: Any) -> Any:
    """A text that is not too long, and can be written down."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise HTTPException(400, "input: give a text")
    if len(text) > LONGEST:
        raise HTTPException(413, f"a text of {len(text):,} letters; up to {LONGEST:,} are read")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise HTTPException(400, "input: half of a surrogate pair is no text")
    return text


def picture(model: Model, text: Any) -> torch.Tensor:
    """The pixels of a PNG, JPEG or WebP in base64."""
    config = model.task.config
    if not hasattr(config, "size"):
        raise HTTPException(400, "this model reads texts; give it one")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise HTTPException(400, "picture: give it in base64") from None
    with warnings.catch_warnings():
        warnings.simplefilter("error", pillow().DecompressionBombWarning)
        shape = (config.channels or 1, config.size or 1, config.size or 1)
        return torch.from_numpy(decoded_picture(Bytes("", "the picture", data=data), shape).copy())


def whole(text: str | None, name: str, low: int = 0) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= low):
        raise HTTPException(400, f"{name}={text[:20]}: give a whole number from {low} up")
    return int(text)


def part(text: str | None, name: str) -> slice:
    """ "3:5" of rows or columns."""
    if text is None:
        return slice(None)
    ends = text.split(":")
    if len(ends) != 2:
        raise HTTPException(400, f"{name}={text[:20]}: give a range like 0:8")
    return slice(*(whole(end, name) for end in ends))
