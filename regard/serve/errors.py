"""What goes wrong over HTTP: in OpenAI's shape below /v1, as plain text elsewhere."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class Wrong(HTTPException):
    """An answer that says what is wrong: with which field, if it is one's."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(status, message, headers)
        self.param, self.code = param, code


class Gone(Exception):
    """The client has left."""


def full(message: str = "all places are taken; come again in a moment") -> Wrong:
    return Wrong(429, message, code="queue_full", headers={"Retry-After": "1"})


def crashed() -> Wrong:
    headers = {"Retry-After": "1"}
    return Wrong(503, "the model failed during this answer; it has begun anew", None, "crashed", headers)


def late(seconds: float) -> Wrong:
    return Wrong(408, f"no whole answer within {seconds:g} s; ask for less, or later", None, "timeout")


def error(wrong: HTTPException) -> dict[str, Any]:
    """In OpenAI's shape."""
    status = wrong.status_code
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    param, code = getattr(wrong, "param", None), getattr(wrong, "code", None)
    return {"error": {"message": wrong.detail, "type": kind, "param": param, "code": code}}


def answer(path: str, wrong: HTTPException) -> Response:
    if path.startswith("/v1/"):
        return JSONResponse(error(wrong), wrong.status_code, wrong.headers)
    return PlainTextResponse(wrong.detail, wrong.status_code, wrong.headers)
