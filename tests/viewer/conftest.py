"""A server for each kind of model, and browser tabs."""

import contextlib
import functools

import pytest

from helpers.browsing import Tab, hostile, shown
from helpers.serving import serve_session


@pytest.fixture(scope="module")
def server():
    """A server for each kind of model, while the tests run."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def started(kind):
            it = hostile() if kind == "hostile" else shown(kind)
            return stack.enter_context(serve_session(it))

        yield started


@pytest.fixture
def tab(browser, server):
    tabs = []

    def opened(kind, state="", **options):
        url = kind if kind.startswith("file:") else server(kind).url
        tabs.append(Tab(browser, url, **options))
        return tabs[-1].open(state)

    yield opened
    for one in tabs:
        one.page.close()
        assert one.wrong == []
