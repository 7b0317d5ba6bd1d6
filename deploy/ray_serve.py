"""The API of `regard serve` as a Ray Serve application: replicas on many machines, as many as requests need.

    pip install regard 'ray[serve]'
    serve run deploy.ray_serve:build models=runs/chat,runs/embed replicas=2 max_replicas=8 gpus=1

`models` are folders that every machine can read. A replica is one process with all of them. There are
`replicas` at least, and up to `max_replicas` while more requests run and wait than `places` of each replica
hold. Further settings are `places`, `queue`, `timeout`, `tokens` and `dtype`, as options of `regard serve`;
`cpus` and `gpus` of a replica; and `host_names`, with commas between. Clients need the key REGARD_API_KEY.

The page and /metrics are those of one process, so they are not here: use `regard look`, and Ray's metrics.
"""

import os
from typing import Any

import torch
from ray import serve
from ray.serve import Application
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from regard.errors import UserError, suggest
from regard.runs.load import load
from regard.serve.app import create_app
from regard.serve.lazy_page import is_page_path
from regard.serve.places import PLACES
from regard.serve.registry import ModelRegistry, ServerLimits, model_names
from regard.serve.security import SecurityConfig
from regard.serve.server import DRAIN

DEFAULTS: dict[str, Any] = {
    "models": "",
    "replicas": 1,
    "max_replicas": 0,  # as many as `replicas`
    "cpus": 1.0,
    "gpus": 0.0,
    "places": PLACES,
    "queue": ServerLimits.queue,
    "timeout": ServerLimits.timeout,
    "tokens": ServerLimits.tokens,
    "dtype": "auto",
    "host_names": "",
}
OF_ONE_PROCESS = "is of one process, and this server has several; use regard look, or Ray's metrics\n"


@serve.ingress()
class Replica:
    """One process that serves all models."""

    def __init__(self, settings: dict[str, Any]):
        torch.set_num_threads(max(1, int(settings["cpus"])))
        limits = ServerLimits(**{name: settings[name] for name in ("places", "queue", "timeout", "tokens")})
        folders = settings["models"].split(",")
        models = {
            name: load(folder, dtype=settings["dtype"])
            for name, folder in zip(model_names(folders), folders, strict=True)
        }
        self.registry = ModelRegistry(models, limits)
        names = frozenset(name.lower() for name in settings["host_names"].split(",") if name)
        key = os.environ.get("REGARD_API_KEY")
        self.security = SecurityConfig(host="0.0.0.0", names=names, key=key)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return without_page(create_app(self.registry, self.security))

    async def check_health(self) -> None:
        """Ray calls this, and replaces a replica for which it fails again and again."""
        if (stuck := await self.registry.find_stuck()) is not None:
            raise RuntimeError(f"the engine of {stuck} does not answer")


def without_page(app: ASGIApp) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == "/metrics" or (is_page_path(path) and path != "/api/ask"):
            await PlainTextResponse(f"{path} {OF_ONE_PROCESS}", 404)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return call


def build(settings: dict[str, str]) -> Application:
    """The application with these settings; see above."""
    for name in settings.keys() - DEFAULTS.keys():
        raise UserError(f"{name}: {suggest(name, DEFAULTS)}")
    full = DEFAULTS | {name: type(DEFAULTS[name])(value) for name, value in settings.items()}
    if not full["models"]:
        raise UserError("models: give folders of models, with commas between")
    replicas, places = full["replicas"], full["places"]
    deployment = serve.deployment(
        Replica,
        name="regard",
        max_ongoing_requests=places,  # the others wait in Ray's queue, for the first replica that has a place
        max_queued_requests=full["queue"] * max(replicas, full["max_replicas"]),
        autoscaling_config={
            "min_replicas": replicas,
            "max_replicas": max(replicas, full["max_replicas"]),
            "target_ongoing_requests": max(1, round(0.75 * places)),  # with those that wait
        },
        ray_actor_options={"num_cpus": full["cpus"], "num_gpus": full["gpus"]},
        graceful_shutdown_timeout_s=full["timeout"] + DRAIN,  # running answers are finished
    )
    return deployment.bind(full)
