"""The page of a model's run: its manifest for the server, or the whole page in one file or a notebook."""

import secrets
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.files.atomic import as_private_as, atomic_file
from regard.runs.model import Model
from regard.tracing import Trace
from regard.viewer.html import html_page, page_data
from regard.viewer.manifest import Manifest, build_manifest, describe_progress
from regard.viewer.onefile import frame_html
from regard.viewer.tours import Tour
from regard.viewer.trace_data import TraceData


class Session(TraceData):
    """A run that the page can ask for by its id."""

    state: dict[str, str] | None = None  # the view that the page in one file opens with
    tour: Tour | None = None  # written for this model
    key: tuple[Any, ...] | None = None  # the request of the page: model, input, answer and layers
    base: str | None = None  # the id of the session without the changes of What if, if this one has some

    @cached_property
    def id(self) -> str:
        return secrets.token_hex(8)

    @cached_property
    def manifest(self) -> Manifest:
        tours = {} if self.tour is None else {"own": self.tour}
        changed = {} if self.base is None else {"base": self.base, "difference": None}
        return build_manifest(self) | {"id": self.id, "tours": tours} | changed

    def progress(self) -> Manifest:
        """The fields of the manifest that change while the model's run is trained."""
        return describe_progress(self.model)

    def data(self, state: dict[str, str] | None = None) -> dict[str, Any]:
        """The content of the page in one file."""
        return page_data(self, self.manifest, state or self.state or {})

    def html(self, state: dict[str, str] | None = None) -> str:
        """The page and its numbers in one file, which needs no server."""
        return html_page(self.data(state))

    def _repr_html_(self) -> str:
        """In a notebook: the page in a sandboxed frame."""
        return frame_html(self.html())

    def save(self, path: str | Path, state: dict[str, str] | None = None) -> None:
        with as_private_as(self.model.weight_files), atomic_file(Path(path)) as temporary:
            temporary.write_text(self.html(state), encoding="utf-8")


def page(model: Model, input: Any, answer: str | None = None, **state: Any) -> Session:
    """The page of a model's run, which a notebook displays and `save` writes to one file.

    `state` is the state in the page's address: view="next", layer=2, head=1.
    """
    session = Session(model, model.open_input(input), answer)
    session.state = {name: str(value) for name, value in state.items()}
    return session


def trace_session(computed: Trace) -> Session | None:
    """The session of a trace; None for a trace read from a file, which has no model."""
    if computed.model is None:
        return None
    has_answer = isinstance(computed.input, tuple | list)
    input, answer = (*computed.input, None)[:2] if has_answer else (computed.input, None)
    return Session(computed.model, input, answer, computed=computed)
