"""The application of `regard serve`: all routes, error handling and middleware."""

from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from regard.errors import UserError
from regard.serve.admission import AdmissionMiddleware, Share
from regard.serve.ask import AskRoute
from regard.serve.connections import Refuse
from regard.serve.endpoint import CancellationMiddleware
from regard.serve.errors import APIError, error_response
from regard.serve.lazy_page import LazyPage, is_page_path
from regard.serve.log import LogWriter
from regard.serve.monitoring import MonitoringMiddleware
from regard.serve.openai import OpenAIRoutes
from regard.serve.openapi import openapi_document
from regard.serve.page_app import build_routes
from regard.serve.peers import Peers, PeersMiddleware
from regard.serve.refusals import QuickRefusals
from regard.serve.registry import ModelRegistry
from regard.serve.responses import ResponsesRoute
from regard.serve.security import SecurityConfig, SecurityMiddleware

GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/responses")  # routes that need an engine
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class ModelApp:
    """The application with all its layers, and the checks that refuse requests before it.

    `routes` is its innermost part, for requests that another process has already admitted.
    """

    app: ASGIApp
    refuse: Refuse
    routes: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def create_app(
    registry: ModelRegistry,
    security: SecurityConfig,
    log: LogWriter | None = None,
    peers: Peers | None = None,
) -> ModelApp:
    """The API of all models, and the page for every other path; a `log` gets a line for each request.

    `peers` are the processes that serve the same models at the same address.
    """
    api = OpenAIRoutes(registry)
    routes = [
        *api.routes(),
        ResponsesRoute(api).route(),
        AskRoute(registry).route(),
        *status_routes(registry, security.key is not None),
    ]
    handlers = dict.fromkeys((HTTPException, UserError, Exception), handle_error)
    app = Starlette(routes=routes, exception_handlers=handlers)
    models, timeout = [served.model for served in registry.models.values()], registry.limits.timeout
    page = LazyPage(lambda: build_routes(models, timeout, names=list(registry.models)), timeout)
    app.router.default = CancellationMiddleware(page, timeout)
    app.router.redirect_slashes = False
    paths = {route.path for route in routes}

    def route_label(path: str) -> str:
        if path in paths:
            return path
        if path.startswith("/v1/models/"):
            return "/v1/models/{model}"
        return "page" if is_page_path(path) else "other"

    def share(method: str, path: str) -> Share | None:
        if path in paths:
            return "api" if method == "POST" else None
        return "page" if is_page_path(path) else None

    def is_full(path: str) -> bool:
        return path in GENERATING and registry.engines_full()

    def is_page(method: str, path: str) -> bool:
        return share(method, path) == "page"

    together = app if peers is None else PeersMiddleware(app, peers, is_page)
    admission = AdmissionMiddleware(together, registry.limits, share, is_full)
    secured = SecurityMiddleware(admission, security)
    monitored = MonitoringMiddleware(secured, registry.metrics, route_label, log, peers is not None)
    return ModelApp(monitored, QuickRefusals(admission, secured, monitored).refuse, app)


def status_routes(registry: ModelRegistry, key: bool) -> list[Route]:
    """Health, metrics and the description of the API."""
    document = openapi_document(registry.limits.tokens, key)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        stuck = await registry.find_stuck()
        if stuck is not None:
            raise APIError(503, f"the engine of {stuck} does not answer")
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(registry.metrics.text(registry.engine_metrics()), media_type=PROMETHEUS)

    async def openapi(request: Request) -> Response:
        return JSONResponse(document)

    return [
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route("/openapi.json", openapi),
    ]


async def handle_error(request: Request, error: Exception) -> Response:
    if isinstance(error, UserError):
        error = APIError(400, str(error))
    elif not isinstance(error, HTTPException):
        error = APIError(500, "internal server error; see the server's log")
    return error_response(request.url.path, error)
