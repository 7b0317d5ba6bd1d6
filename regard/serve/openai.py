"""OpenAI's two shapes of an answer, and how a conversation comes in."""

from collections.abc import Callable
from typing import Any

from regard.run import Model
from regard.tasks import Write
from regard.text import BYTES, Tokenizer

from .engine import Token
from .errors import Wrong
from .house import Piece, Served

LOWEST = -9999.0  # a log-probability that JSON can hold


class Completion:
    prefix, name, streamed = "cmpl", "text_completion", "text_completion"

    def __init__(self, served: Served, before: Callable[[int, int], str] = lambda index, samples: ""):
        self.writer, self.before = served.writer, before

    def choice(self, piece: Piece, wanted: bool, samples: int) -> dict[str, Any]:
        text = self.before(piece.index, samples) + piece.text
        told = self.logprobs(piece.tokens, 0) if wanted else None
        return {"index": piece.index, "text": text, "logprobs": told, "finish_reason": piece.reason or "stop"}

    def opening(self, index: int, samples: int) -> dict[str, Any] | None:
        text = self.before(index, samples)
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None} if text else None

    def delta(self, piece: Piece, wanted: bool, places: dict[int, int]) -> list[dict[str, Any]]:
        if not piece.text and piece.reason is None:
            return []
        told = self.logprobs(piece.tokens, places.get(piece.index, 0)) if wanted else None
        places[piece.index] = places.get(piece.index, 0) + len(piece.text)
        return [{"index": piece.index, "text": piece.text, "logprobs": told, "finish_reason": piece.reason}]

    def logprobs(self, tokens: list[Token], place: int) -> dict[str, Any]:
        names = [spelt(self.writer, token.id)[0] for token in tokens]
        places = [place + sum(map(len, names[:i])) for i in range(len(names))]
        return {
            "tokens": names,
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [
                {spelt(self.writer, id)[0]: finite(p) for id, p in token.likeliest} for token in tokens
            ],
            "text_offset": places,
        }


class Chat(Completion):
    prefix, name, streamed = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, piece: Piece, wanted: bool, samples: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        told = self.said(piece.tokens) if wanted else None
        reason = piece.reason or "stop"
        return {"index": piece.index, "message": message, "logprobs": told, "finish_reason": reason}

    def opening(self, index: int, samples: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, piece: Piece, wanted: bool, places: dict[int, int]) -> list[dict[str, Any]]:
        told = self.said(piece.tokens) if wanted else None
        found = []
        if piece.text:
            delta = {"content": piece.text}
            found += [{"index": piece.index, "delta": delta, "logprobs": told, "finish_reason": None}]
        if piece.reason is not None:
            found += [{"index": piece.index, "delta": {}, "logprobs": None, "finish_reason": piece.reason}]
        return found

    def said(self, tokens: list[Token]) -> dict[str, Any]:
        def one(id: int, p: float) -> dict[str, Any]:
            name, spelling = spelt(self.writer, id)
            return {"token": name, "logprob": finite(p), "bytes": spelling}

        content = [
            one(token.id, token.logprob) | {"top_logprobs": [one(*other) for other in token.likeliest]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def spelt(tokenizer: Tokenizer, id: int) -> tuple[str, list[int]]:
    """A token as people read it, and its bytes."""
    (name,) = tokenizer.tokens([id])
    symbols = tokenizer.inner.id_to_token(id) or ""
    if name.startswith("<0x") and symbols and all(s in BYTES for s in symbols):
        return name, [BYTES[s] for s in symbols]
    return name, list(name.encode())


def conversation(model: Model, messages: list[dict[str, Any]]) -> Any:
    """What a model reads of a conversation."""
    turns = [
        {
            "role": m["role"],
            "content": m["content"] if isinstance(m["content"], str) else joined(m["content"]),
        }
        for m in messages
    ]
    task = model.task
    if isinstance(task, Write):
        if task.template is None:
            said = "this model writes on and has no chat template; use /v1/completions"
            raise Wrong(400, said, "model", "no_chat_template")
        return turns
    if not task.talks:
        raise Wrong(400, "this model does not talk; use /v1/completions", "model", "no_chat_template")
    wanted = [("user", "assistant")[(len(turns) - n) % 2] for n in range(1, len(turns) + 1)]
    if [turn["role"] for turn in turns] != wanted:
        said = "messages: this model knows users and assistants only, in turn, the last a user"
        raise Wrong(400, said, "messages")
    return task.conversation([turn["content"] for turn in turns])


def joined(parts: list[dict[str, str]]) -> str:
    return "".join(part["text"] for part in parts)
