"""Types of the JSON that clients send and receive: OpenAI's API below /v1, and /api/ask.

Requests are checked against schema.py before they get these types. Optional fields may be null.
"""

import json
from collections.abc import Callable
from typing import Any, Literal, NotRequired, Required, TypedDict

Json = dict[str, Any]
Prompt = str | list[int]
to_json: Callable[[object], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode_parts(value: Any, depth: int = 5) -> str:
    """Encode like `to_json`, but large values part by part: other threads can run in between, unlike during
    one call of the encoder. The items of a response's lists of log-probabilities are five levels down."""
    if depth and isinstance(value, dict):
        fields = (f"{to_json(str(name))}:{encode_parts(item, depth - 1)}" for name, item in value.items())
        return f"{{{','.join(fields)}}}"
    if depth and isinstance(value, list):
        return f"[{','.join([encode_parts(item, depth - 1) for item in value])}]"
    return to_json(value)


class SamplingFields(TypedDict, total=False):
    model: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    num_beams: int | None
    length_penalty: float | None
    seed: int | None
    stop: str | list[str] | None
    stream: bool | None


class StreamOptions(TypedDict, total=False):
    include_usage: bool | None
    include_obfuscation: bool | None


class GenerateFields(SamplingFields, total=False):
    """The fields that completions and chat share."""

    max_tokens: int | None
    n: int | None
    stream_options: StreamOptions | None
    logit_bias: dict[str, float] | None
    repeat_penalty: float | None
    min_tokens: int | None
    ignore_eos: bool | None


class CompletionRequest(GenerateFields, total=False):
    prompt: Required[Prompt | list[Prompt]]
    logprobs: int | None
    echo: bool | None
    best_of: int | None


class TextPart(TypedDict):
    type: Literal["text"]
    text: str


class Message(TypedDict, total=False):
    role: Required[str]
    content: str | list[TextPart] | None
    name: str | None
    tool_calls: list[Json] | None
    tool_call_id: str | None


class ChatRequest(GenerateFields, total=False):
    messages: Required[list[Message]]
    max_completion_tokens: int | None
    logprobs: bool | None
    top_logprobs: int | None
    chat_template_kwargs: Json | None
    reasoning_effort: str | None
    enable_thinking: bool | None
    tools: list[Json] | None
    tool_choice: str | Json | None
    parallel_tool_calls: bool | None


class EmbeddingRequest(TypedDict, total=False):
    model: str | None
    input: Required[str | list[str]]
    encoding_format: Literal["float", "base64"] | None
    dimensions: int | None


class AskRequest(SamplingFields, total=False):
    input: str | list[str]
    picture: str | bytes  # in base64, or the file itself
    audio: str | bytes  # a WAV file, likewise
    max_new_tokens: int | None
    num_return_sequences: int | None
    prefix: str | None
    distance: str | None
    checkpoint: int | None


class Error(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(TypedDict):
    error: Error


class ModelInfo(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: NotRequired[int]
    total_tokens: int


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]  # with echo, none of the first token
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: NotRequired[list["TokenLogprob"]]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class ScoredText(TypedDict):
    text: str
    score: float | None
    value: NotRequired[Any]  # the value of the text, if it is a number or has parts
    finish_reason: NotRequired[Literal["stop", "length"]]  # length: the answer is cut


class AskResponse(TypedDict):
    model: str
    output: str | list[str]
    answers: list[list[ScoredText]]
    unread_tokens: NotRequired[int | list[int]]  # of the input or of each one, if it does not fit
