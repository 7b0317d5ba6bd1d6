"""The page of models that are served: the first is seen, and compared with the others."""

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from regard.look.page import Shown
from regard.run import Model
from regard.tasks import WordsTask

from .app import application
from .errors import Wrong
from .guard import page
from .house import apart

FIRST = {  # what the page opens on, where a model wants something special
    "fill": "The fox [MASK] over the dog.",
    "restore": "The fox ___ over the dog.",
    "span": "Who sleeps?\tThe old fox sleeps all day.",
    "chat": "Hi how are you",
    "write": "Once upon a time",
}


class Page:
    """Made when it is first asked for, from modules that are not the engine's."""

    def __init__(self, models: Sequence[Model]):
        self.models, self.lock = models, asyncio.Lock()
        self.router: Router | None = None

    def made(self) -> Router:
        model, *others = map(apart, self.models)
        return Router(application(model, Shown(model, opening(model)), others).routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not page(scope["path"]):
            raise HTTPException(404, "there is nothing here")
        async with self.lock:
            if self.router is None:
                self.router = await run_in_threadpool(self.made)
        try:
            await self.router(scope, receive, send)
        except ValueError as e:  # as the page's own server has it
            raise Wrong(400, str(e)) from None


def opening(model: Model) -> Any:
    """What a page opens on, if nobody has said so."""
    config = model.task.config
    if hasattr(config, "size"):
        side = config.size or 1
        return torch.full((config.channels or 1, side, side), 128, dtype=torch.uint8)
    if isinstance(model.task, WordsTask):
        return next(iter(model.task.words))
    return FIRST.get(config.name, "The quick brown fox jumps over the lazy dog.")
