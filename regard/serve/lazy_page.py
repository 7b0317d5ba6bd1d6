"""A page that is built when it is needed, and again if one of its operations hangs."""

import asyncio
import contextvars
from collections.abc import Callable

from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from regard.serve.errors import APIError, page_restarts
from regard.serve.threads import ExclusiveThreads, WorkHangs


class LazyPage:
    """A page that is built at the first request, unless there is a `router`, and again after it hung."""

    def __init__(self, build: Callable[[], Router], timeout: float, router: Router | None = None):
        self.build, self.timeout, self.router = build, timeout, router
        self.building: asyncio.Task[Router] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_page_path(scope["path"]):
            raise APIError(404, "there is no such path")
        router = None
        try:
            router = self.router or await self.wait_for_router()
            await router(scope, receive, send)
        except WorkHangs:
            if router is self.router:
                self.router = None
            raise page_restarts() from None
        except ValueError as error:  # a wrong request
            raise APIError(400, str(error)) from None

    async def wait_for_router(self) -> Router:
        """All requests wait for the same router, which is built even if their clients leave."""
        if self.building is None or self.building.done():
            self.building = asyncio.create_task(self.build_router(), context=contextvars.Context())
        return await asyncio.shield(self.building)

    async def build_router(self) -> Router:
        self.router = await ExclusiveThreads(self.timeout).run(self.build)
        return self.router


def is_page_path(path: str) -> bool:
    return path == "/" or path.startswith(("/page/", "/api/", "/models/"))
