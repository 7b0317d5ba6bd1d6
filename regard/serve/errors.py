"""Errors over HTTP: JSON in OpenAI's format below /v1, plain text elsewhere."""

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from regard.serve.protocol import ErrorResponse

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class APIError(HTTPException):
    """An error response; `param` is the field of the request that caused it."""

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


def queue_full() -> APIError:
    return APIError(
        429, "all places are taken; try again in a moment", code="queue_full", headers={"Retry-After": "1"}
    )


def engine_crashed() -> APIError:
    message = "the model failed while it generated this answer and has been restarted; try again"
    return APIError(503, message, code="crashed", headers={"Retry-After": "1"})


def page_restarts() -> APIError:
    message = "the page hung and was restarted; reload it, and ask for less if that repeats"
    return APIError(503, message, code="crashed", headers={"Retry-After": "1"})


def timed_out(seconds: float) -> APIError:
    return APIError(
        408, f"no complete answer within {seconds:g} s; ask for less, or try later", code="timeout"
    )


def error_body(error: HTTPException) -> ErrorResponse:
    """The error in OpenAI's format."""
    status = error.status_code
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    param, code = getattr(error, "param", None), getattr(error, "code", None)
    param = param if param is None else encodable(param)
    return {"error": {"message": encodable(error.detail), "type": kind, "param": param, "code": code}}


def error_response(path: str, error: HTTPException) -> Response:
    if path.startswith("/v1/"):
        return JSONResponse(error_body(error), error.status_code, error.headers)
    return PlainTextResponse(encodable(error.detail), error.status_code, error.headers)


def encodable(text: str) -> str:
    """A message without unpaired surrogates, which a client's JSON may contain."""
    return text.encode(errors="replace").decode()
