"""The traces that a page keeps in memory."""

from collections import OrderedDict
from typing import Any

from regard.serve.errors import APIError
from regard.viewer.session import Session

MAX_SESSIONS = 4  # traces that stay in memory
MAX_SESSION_BYTES = 2**32  # of all of them; the latest always stays


class SessionStore:
    """The latest sessions by id."""

    def __init__(self, first: Session):
        self.first = first
        self.sessions: OrderedDict[str, Session] = OrderedDict({first.id: first})

    def add(self, session: Session) -> None:
        """Add a session, or mark it as the latest; drop the oldest if there are too many."""
        self.sessions[session.id] = session
        self.sessions.move_to_end(session.id)
        while len(self.sessions) > 1 and (
            len(self.sessions) > MAX_SESSIONS or self.nbytes > MAX_SESSION_BYTES
        ):
            self.sessions.popitem(last=False)

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in list(self.sessions.values()))  # a copy: other threads change it

    def find(self, key: tuple[Any, ...]) -> Session | None:
        """The session of this model, input, answer and layers, if it is still in memory."""
        return next((session for session in list(self.sessions.values()) if session.key == key), None)

    def get(self, id: object) -> Session:
        try:
            self.sessions.move_to_end(id)  # type: ignore[arg-type]
            return self.sessions[id]  # type: ignore[index]
        except (KeyError, TypeError):
            raise APIError(410, "this trace is no longer in memory; reload the page") from None
