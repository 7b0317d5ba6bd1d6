"""The page as an application: of `regard look`, and as a part of `regard serve`."""

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp

from regard.cancel import make_cancellable
from regard.runs.model import Model
from regard.serve.admission import AdmissionMiddleware
from regard.serve.endpoint import CancellationMiddleware
from regard.serve.errors import error_response
from regard.serve.lazy_page import LazyPage
from regard.serve.page import PageRoutes
from regard.serve.registry import ServerLimits, copy_modules
from regard.serve.security import SecurityConfig, SecurityMiddleware
from regard.viewer.session import Session


def build_routes(
    models: Sequence[Model],
    timeout: float,
    input: Any = None,
    answer: str | None = None,
    layers: list[int] | None = None,
    names: Sequence[str] | None = None,
) -> Router:
    """The page of the first model, which can switch to the others or compare them. It has its own
    modules, so that traces don't disturb other users of the models. Without an input, it shows an example."""
    model, *compared_models = map(copy_modules, models)
    input = model.task.example_input() if input is None else input
    first = Session(model, input, answer, layers)
    return Router(PageRoutes(model, first, compared_models, timeout, names).routes())


async def handle_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(request.url.path, error)


def page_app(
    model: Model, first: Session, compared_models: Sequence[Model] = (), limits: ServerLimits | None = None
) -> ASGIApp:
    """The application of `regard look`: the page of one model, for this machine only."""
    limits = limits or ServerLimits()
    models = (model, *compared_models)
    copies = [copy_modules(each) for each in models]  # its modules have no hooks, even if work hangs later
    for each in models:
        make_cancellable(each.model)
    page = LazyPage(
        lambda: build_routes(copies, limits.timeout, first.input, first.fixed_answer, first.layers),
        limits.timeout,
        Router(PageRoutes(model, first, compared_models, limits.timeout).routes()),
    )
    return protect_page(page, limits)


def protect_page(page: LazyPage, limits: ServerLimits) -> ASGIApp:
    """The application of a page: only for requests of this machine and this page, with a limit."""
    app = Starlette(exception_handlers={HTTPException: handle_error})
    app.router.default = page
    app.router.redirect_slashes = False
    admitted = AdmissionMiddleware(CancellationMiddleware(app), limits, lambda method, path: "page")
    return SecurityMiddleware(admitted, SecurityConfig())
