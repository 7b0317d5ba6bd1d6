"""Requests of the page: the body of a trace, and changes of What if."""

from dataclasses import dataclass

from regard.serve.errors import APIError
from regard.serve.protocol import Json
from regard.serve.requests import body_int, check_text, decode_file, is_int
from regard.viewer.session import Session
from regard.viewer.whatif import MAX_CHANGES

MAX_TRACE_IDS = 100_000
MAX_TURNS = 1000


@dataclass(frozen=True)
class TraceRequest:
    """The body of /api/trace. Every field may be left out."""

    input: str | None
    answer: str | None
    layers: list[int] | None
    file: object  # an image, or a recording
    checkpoint: int | None
    other: int | None  # one of the models to compare with
    ids: list[int] | None  # the tokens that the model read, instead of an input
    written: list[int] | None  # and that it wrote, if it reads a source
    changes: list[Json]  # changes of What if; impossible ones are left out

    @classmethod
    def parse(cls, body: Json) -> "TraceRequest":
        layers, answer = body.get("layers"), body.get("answer")
        if answer is not None:
            check_text(answer, "answer")
        if layers is not None and not (isinstance(layers, list) and all(map(is_int, layers))):
            raise APIError(400, "layers: give a list of whole numbers")
        step, other = body_int(body, "checkpoint"), body_int(body, "model")
        ids, written = body_ids(body, "ids"), body_ids(body, "written")
        changes = check_changes(body).get("changes") or []
        file = body.get("picture")
        return cls(body.get("input"), answer, layers, file, step, other, ids, written, changes[:MAX_CHANGES])

    @property
    def is_first(self) -> bool:
        """Return whether this is the trace that the page opens with, if the input is also the first one."""
        optional = (self.answer, self.layers, self.checkpoint, self.other, self.ids)
        return all(field is None for field in optional)


def check_changes(body: Json) -> Json:
    """A body that may have changes."""
    changes = body.get("changes")
    if changes is not None and not (isinstance(changes, list) and all(isinstance(c, dict) for c in changes)):
        raise APIError(400, "changes: give a list of objects")
    return body


def check_turns(body: Json) -> Json:
    """A body with the turns of a conversation."""
    turns = body.get("turns")
    if not isinstance(turns, list) or not 1 <= len(turns) <= MAX_TURNS:
        raise APIError(400, f"turns: give a list of 1 to {MAX_TURNS:,} texts")
    for turn in turns:
        check_text(turn, "turns")
    return body


def body_ids(body: Json, name: str) -> list[int] | None:
    """A list of token ids in a body."""
    ids = body.get(name)
    if ids is not None and not (
        isinstance(ids, list) and 0 < len(ids) <= MAX_TRACE_IDS and all(map(is_int, ids))
    ):
        raise APIError(400, f"{name}: give 1 to {MAX_TRACE_IDS:,} token ids")
    return ids


def parse_change(session: Session, change: Json) -> Json:
    """A change of /api/change with its input checked: a text, or the pixels of a file, never a path."""
    change = dict(change)
    file = change.pop("picture", None)
    if session.model.task.reads != "text":
        change["input"] = None if file is None else decode_file(session.model, file)
    elif change.get("input") is not None:
        check_text(change["input"])
    return change


def try_change(session: Session, change: Json) -> Json | str:
    """Parse a change, or return the error in it."""
    try:
        return parse_change(session, change)
    except APIError as error:
        return error.detail
