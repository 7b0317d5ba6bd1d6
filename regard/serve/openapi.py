"""/openapi.json: the description of all routes of `regard serve`."""

from regard import __version__
from regard.serve.schema import (
    EMBEDDING_REQUEST,
    Schema,
    ask_request,
    chat_request,
    completion_request,
    enum,
    obj,
    responses_request,
)
from regard.serve.security import PUBLIC_PATHS

ERRORS = {
    400: "The request is invalid or not supported.",
    401: "The API key is missing or wrong.",
    403: "The request comes from another website.",
    404: "There is no such model.",
    408: "The request or its answer took too long.",
    413: "The request is too large.",
    415: "The body is not JSON.",
    421: "The request is meant for another host.",
    429: "All places are taken; see Retry-After.",
    500: "The server failed.",
    503: "The model failed and has been restarted, or other requests take all memory; see Retry-After.",
}
INTEGER: Schema = {"type": "integer"}
STRING: Schema = {"type": "string"}
OPTIONAL_STRING: Schema = {"type": ["string", "null"]}


def response(fields: dict[str, Schema], *required: str) -> Schema:
    """An object that may have further fields; without names, all of its fields are required."""
    return {"type": "object", "properties": fields, "required": list(required or fields)}


def list_of(item: Schema) -> Schema:
    return response({"object": enum("list"), "data": {"type": "array", "items": item}})


ERROR_FIELDS = {"message": STRING, "type": STRING, "param": OPTIONAL_STRING, "code": OPTIONAL_STRING}
ERROR = obj({"error": obj(ERROR_FIELDS, *ERROR_FIELDS)}, "error")
USAGE = response(
    {"prompt_tokens": INTEGER, "completion_tokens": INTEGER, "total_tokens": INTEGER},
    *("prompt_tokens", "total_tokens"),
)
MODEL = response({"id": STRING, "object": enum("model"), "created": INTEGER, "owned_by": STRING})
EMBEDDING = response(
    {
        "object": enum("embedding"),
        "index": INTEGER,
        "embedding": {"anyOf": [{"type": "array", "items": {"type": "number"}}, STRING]},
    }
)
CHOICE = response(
    {"index": INTEGER, "finish_reason": enum("stop", "length", "tool_calls")},
    *("index", "finish_reason", "logprobs"),
)
COMPLETION = response(
    {
        "id": STRING,
        "object": enum("text_completion", "chat.completion"),
        "created": INTEGER,
        "model": STRING,
        "choices": {"type": "array", "items": CHOICE},
        "usage": USAGE,
    }
)
RESPONSE = response(
    {
        "id": STRING,
        "object": enum("response"),
        "status": enum("completed", "incomplete"),
        "model": STRING,
        "output": {"type": "array", "items": {"type": "object"}},
        "usage": {"type": "object"},
    }
)
SCORED = response(
    {
        "text": STRING,
        "score": {"type": ["number", "null"]},  # a probability, of classes
        "value": {"description": "The value of the text, if it is a number or has parts."},
        "finish_reason": enum("stop", "length"),
    },
    *("text", "score"),
)
ANSWER = response(
    {
        "model": STRING,
        "output": {"anyOf": [STRING, {"type": "array", "items": STRING}]},
        "answers": {"type": "array", "items": {"type": "array", "items": SCORED}},
        "unread_tokens": {"anyOf": [INTEGER, {"type": "array", "items": INTEGER}]},
    },
    *("model", "output", "answers"),
)
JSON_ERRORS: Schema = {
    str(status): {"description": about, "content": {"application/json": {"schema": ERROR}}}
    for status, about in ERRORS.items()
}
TEXT_ERRORS: Schema = {
    status: error | {"content": {"text/plain": {"schema": STRING}}} for status, error in JSON_ERRORS.items()
}


def post(summary: str, request: Schema, answer: Schema, errors: Schema, streams: bool = True) -> Schema:
    content: Schema = {"application/json": {"schema": answer}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "object", "properties": {"data": STRING}}}
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
            "responses": {"200": {"description": "The answer.", "content": content}} | errors,
        }
    }


def get(summary: str, kind: str, answer: Schema, errors: Schema, *statuses: str) -> Schema:
    ok = {"200": {"description": summary, "content": {kind: {"schema": answer}}}}
    responses = ok | {status: errors[status] for status in ("401", "403", "421", *statuses)}
    return {"get": {"summary": summary, "responses": responses}}


def openapi_document(max_tokens: int, key: bool) -> Schema:
    """The OpenAPI document; `key`: whether an API key is needed."""
    one_model = get("Describe one model.", "application/json", MODEL, JSON_ERRORS, "404")
    one_model["get"]["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": STRING}]
    status = response({"status": STRING})
    completion, chat = completion_request(max_tokens), chat_request(max_tokens)
    paths: Schema = {
        "/v1/models": get("List the models.", "application/json", list_of(MODEL), JSON_ERRORS),
        "/v1/models/{model}": one_model,
        "/v1/completions": post("Continue a text.", completion, COMPLETION, JSON_ERRORS),
        "/v1/chat/completions": post("Answer in a conversation.", chat, COMPLETION, JSON_ERRORS),
        "/v1/responses": post(
            "Answer a text or a conversation.", responses_request(max_tokens), RESPONSE, JSON_ERRORS
        ),
        "/v1/embeddings": post(
            "Embed texts as vectors.", EMBEDDING_REQUEST, list_of(EMBEDDING), JSON_ERRORS, streams=False
        ),
        "/api/ask": post("Ask any model.", ask_request(max_tokens), ANSWER, TEXT_ERRORS),
        "/health": get("Whether the server is up.", "application/json", status, TEXT_ERRORS),
        "/ready": get("Whether all models answer.", "application/json", status, TEXT_ERRORS, "503"),
        "/metrics": get("Metrics in Prometheus' text format.", "text/plain", STRING, TEXT_ERRORS),
        "/openapi.json": get("This document.", "application/json", {"type": "object"}, TEXT_ERRORS),
    }
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "Regard", "version": __version__},
        "paths": paths,
    }
    if key:
        document["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        for path, methods in paths.items():
            if path not in PUBLIC_PATHS:
                for method in methods.values():
                    method["security"] = [{"key": []}]
    return document
