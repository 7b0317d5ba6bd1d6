"""OpenAI's two formats of an answer, completions and chat, and the conversation that a chat model reads."""

from collections.abc import Sequence
from typing import ClassVar
from weakref import WeakKeyDictionary

from regard.runs.model import Model
from regard.serve.batch import TokenOutput
from regard.serve.errors import APIError
from regard.serve.generation import Chunk
from regard.serve.protocol import ChatLogprobs, CompletionLogprobs, Json, Message, TokenLogprob, to_json
from regard.serve.tools import Tools, template_call
from regard.text.chat_template import Conversation
from regard.text.tokenizer import BYTES, Decoder, Tokenizer

MIN_LOGPROB = -9999.0  # JSON has no infinity
TOKEN_TEXTS: WeakKeyDictionary[Tokenizer, dict[int, tuple[str, list[int]]]] = WeakKeyDictionary()


class CompletionFormat:
    """Answers to /v1/completions. If it `echoes`, each answer begins with its prompt."""

    id_prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"
    input_field = "prompt"
    specials: ClassVar[dict[int, str]] = {}  # that are part of the text

    def __init__(self, tokenizer: Tokenizer, logprobs: bool, echoes: bool = False):
        self.tokenizer, self.with_logprobs, self.echoes = tokenizer, logprobs, echoes
        self.echo: list[str] = []  # with `echoes`: the prompt of each answer
        self.decoders: dict[int, Decoder] = {}  # letters of each answer, which give the places of its tokens
        self.offsets: dict[int, int] = {}  # letters of each answer so far
        self.prompts: list[CompletionLogprobs] = []  # with echo and logprobs: of each prompt

    def prefix(self, index: int) -> str:
        return self.echo[index] if self.echo else ""

    def choice(self, answer: Chunk) -> Json:
        """A complete answer."""
        return {
            "index": answer.index,
            "text": self.prefix(answer.index) + answer.text,
            "logprobs": self.all_logprobs(answer) if self.with_logprobs else None,
            "finish_reason": answer.finish_reason or "stop",
        }

    def all_logprobs(self, answer: Chunk) -> CompletionLogprobs:
        """The log-probabilities of a complete answer, after the prompt's."""
        own = self.logprobs(answer.tokens, answer.index)
        if not self.prompts:
            return own
        first = self.prompts[answer.index]
        return {
            "tokens": first["tokens"] + own["tokens"],
            "token_logprobs": first["token_logprobs"] + own["token_logprobs"],
            "top_logprobs": first["top_logprobs"] + own["top_logprobs"],
            "text_offset": first["text_offset"] + own["text_offset"],
        }

    def add_prompts(
        self, prompts: Sequence[Sequence[int]], scores: Sequence[list[TokenOutput]], samples: int
    ) -> None:
        """Echo the log-probabilities of prompts, too; the first token has none."""
        for ids, tokens in zip(prompts, scores, strict=True):
            decoder, offset, offsets = self.tokenizer.decoder(), 0, []
            for id in ids:
                offsets.append(offset)
                offset += len(decoder.push(id))
            prompt: CompletionLogprobs = {
                "tokens": [token_text(self.tokenizer, id)[0] for id in ids],
                "token_logprobs": [None, *(finite(token.logprob) for token in tokens)],
                "top_logprobs": [None, *map(self.top_logprobs, tokens)],
                "text_offset": offsets,
            }
            self.prompts += [prompt] * samples

    def first_event(self, index: int) -> Json | None:
        """The event that a stream sends before the first token of an answer."""
        if not (text := self.prefix(index)):
            return None
        logprobs = self.prompts[index] if self.prompts else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}

    def choices(self, chunk: Chunk) -> list[str]:
        """The JSON that a stream sends for a chunk. Assembled here, as a general encoder is slow."""
        if not chunk.text and chunk.finish_reason is None:
            return []
        logprobs, reason = "null", "null" if chunk.finish_reason is None else to_json(chunk.finish_reason)
        if self.with_logprobs:
            logprobs = to_json(self.logprobs(chunk.tokens, chunk.index))
        text = to_json(chunk.text)
        return [f'{{"index":{chunk.index},"text":{text},"logprobs":{logprobs},"finish_reason":{reason}}}']

    def logprobs(self, tokens: list[TokenOutput], index: int) -> CompletionLogprobs:
        """The log-probabilities of the next tokens of an answer."""
        tokens = [token for token in tokens if self.prompts or not token.ends]
        decoder = self.decoders.setdefault(index, self.tokenizer.decoder())
        offset, offsets = self.offsets.get(index, len(self.prefix(index))), []
        for token in tokens:
            offsets.append(offset)
            offset += len(decoder.push(token.id))
        self.offsets[index] = offset
        return {
            "tokens": [token_text(self.tokenizer, token.id)[0] for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [*map(self.top_logprobs, tokens)],
            "text_offset": offsets,
        }

    def top_logprobs(self, token: TokenOutput) -> dict[str, float]:
        return {token_text(self.tokenizer, id)[0]: finite(p) for id, p in token.top_logprobs}


class ChatFormat:
    """Answers to /v1/chat/completions. With `tools`, an answer may contain calls of them."""

    id_prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"
    input_field = "messages"

    def __init__(self, tokenizer: Tokenizer, logprobs: bool, tools: Tools | None = None):
        self.tokenizer, self.with_logprobs, self.tools = tokenizer, logprobs, tools
        self.specials = {} if tools is None else tools.specials
        self.texts: dict[int, str] = {}  # with tools: the text of each answer so far
        self.sent: dict[int, int] = {}  # letters of it that were sent as text

    def choice(self, answer: Chunk) -> Json:
        text, calls = (answer.text, []) if self.tools is None else self.tools.split(answer.text)
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        return {
            "index": answer.index,
            "message": message,
            "logprobs": self.logprobs(answer.tokens),
            "finish_reason": "tool_calls" if calls else answer.finish_reason or "stop",
        }

    def first_event(self, index: int) -> Json | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def choices(self, chunk: Chunk) -> list[str]:
        index, reason, choices = chunk.index, chunk.finish_reason, []
        piece, calls = (chunk.text, []) if self.tools is None else self.split_chunk(chunk, self.tools)
        if piece or (self.tools is not None and chunk.tokens and self.with_logprobs):
            text, logprobs = to_json(piece), "null"
            if self.with_logprobs:
                logprobs = to_json(self.logprobs(chunk.tokens))
            delta = f'{{"content":{text}}}'
            choices.append(f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":null}}')
        if calls:
            delta_calls = [{"index": i} | call for i, call in enumerate(calls)]
            event = {"index": index, "delta": {"tool_calls": delta_calls}, "logprobs": None}
            choices.append(to_json(event | {"finish_reason": None}))
        if reason is not None:
            reason_given = "tool_calls" if calls else reason
            end = {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason_given}
            choices.append(to_json(end))
        return choices

    def split_chunk(self, chunk: Chunk, tools: Tools) -> tuple[str, list[Json]]:
        """The new text of an answer that is not part of a call; at the end, its calls."""
        text = self.texts[chunk.index] = self.texts.get(chunk.index, "") + chunk.text
        sent, calls = self.sent.get(chunk.index, 0), list[Json]()
        if chunk.finish_reason is None:
            stop = max(sent, tools.text_length(text))
        else:
            _, calls = tools.split(text)
            stop = sent if calls else len(text)
        self.sent[chunk.index] = stop
        return text[sent:stop], calls

    def logprobs(self, tokens: list[TokenOutput]) -> ChatLogprobs | None:
        def describe(id: int, logprob: float) -> TokenLogprob:
            name, spelling = token_text(self.tokenizer, id)
            return {"token": name, "logprob": finite(logprob), "bytes": spelling}

        if not self.with_logprobs:
            return None
        content: list[TokenLogprob] = [
            {
                **describe(token.id, token.logprob),
                "top_logprobs": [describe(*top) for top in token.top_logprobs],
            }
            for token in tokens
            if not token.ends
        ]
        return {"content": content, "refusal": None}


def finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)


def token_text(tokenizer: Tokenizer, id: int) -> tuple[str, list[int]]:
    """A token as readable text, and its bytes; cached, since a request may ask for very many."""
    known = TOKEN_TEXTS.setdefault(tokenizer, {})
    if id not in known:
        (name,) = tokenizer.tokens([id])
        symbols = tokenizer.inner.id_to_token(id) or ""
        in_symbols = name.startswith("<0x") and symbols and all(s in BYTES for s in symbols)
        known[id] = name, [BYTES[s] for s in symbols] if in_symbols else list(name.encode())
    return known[id]


def read_conversation(model: Model, messages: list[Message]) -> str | Conversation:
    """The input of a chat model: messages for its template, or one text of all turns."""
    task = model.task
    if not task.converses:
        message = "this model has no chat template, so it cannot hold conversations; use /v1/completions"
        raise APIError(400, message, "model", "no_chat_template")
    turns = [read_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if task.takes_messages:
        return Conversation(turns)
    expected = [("user", "assistant")[(len(turns) - n) % 2] for n in range(1, len(turns) + 1)]
    if [turn["role"] for turn in turns] != expected:
        message = "messages: this model takes user and assistant messages in turn, the last from the user"
        raise APIError(400, message, "messages")
    return task.conversation([turn["content"] for turn in turns])


def read_turn(message: Message, name: str) -> Json:
    """A message for a chat template, whose content is one string."""
    content, calls = message.get("content"), message.get("tool_calls")
    if content is None and message["role"] != "assistant":
        raise APIError(400, f"{name}.content: give a text", "messages")
    text = content if isinstance(content, str) else "".join(part["text"] for part in content or ())
    turn: Json = {"role": message["role"], "content": text}
    if calls:
        turn["tool_calls"] = [template_call(call) for call in calls]
    for field in ("name", "tool_call_id"):
        if message.get(field) is not None:
            turn[field] = message.get(field)
    return turn
