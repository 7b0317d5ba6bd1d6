"""OpenAI's /v1/responses: text in, text out, whole or as events. Nothing is stored."""

import time
from collections.abc import AsyncIterator
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from regard.serve import schema
from regard.serve.endpoint import json_endpoint, stream_response
from regard.serve.errors import APIError
from regard.serve.formats import read_conversation
from regard.serve.generation import BlockingGeneration, Generation, begin, collect, start_generation
from regard.serve.monitoring import RequestInfo
from regard.serve.openai import OpenAIRoutes, check_blocking, generation_options, prompt_size
from regard.serve.protocol import ChatRequest, Json, Message, to_json
from regard.text.chat_template import Conversation


class ResponsesRoute:
    def __init__(self, api: OpenAIRoutes):
        self.api, self.registry = api, api.registry

    def route(self) -> Route:
        request_schema = schema.responses_request(self.registry.limits.tokens)
        return Route(
            "/v1/responses", json_endpoint(self.registry, request_schema, self.create), methods=["POST"]
        )

    async def create(self, request: Request, body: Json) -> Response:
        served, chat = self.api.find_generator(body.get("model")), as_chat(body)
        conversation = await self.registry.run_sized(
            request.scope["size"], lambda: read_conversation(served.model, chat["messages"])
        )
        if isinstance(conversation, Conversation):
            conversation.variables = self.api.template_variables(request, served, chat)
        options = generation_options(served, chat, 1, await self.api.compile(served, chat))
        encoded = await self.registry.encode(served, [conversation], prompt_size(conversation), "input")
        streams, info = bool(body.get("stream")), request.scope["request_info"]
        generation = await start_generation(
            self.registry, served, [conversation], encoded, options, text_at_end=not streams
        )
        if isinstance(generation, BlockingGeneration):
            check_blocking(served, [conversation], None)
        info.model, info.prompt_tokens = served.name, generation.prompt_tokens
        head = describe_response(f"resp_{info.id}", served.name, body, options.sampling.temperature)
        if not streams:
            (answer,) = await collect(generation, 1, info)
            return JSONResponse(complete(head, answer.text, answer.finish_reason, info))
        await begin(generation, info)
        return stream_response(request, self.registry, generation, stream_events(head, generation))


def as_chat(body: Json) -> ChatRequest:
    """The same request to /v1/chat/completions."""
    messages: list[Message] = []
    if body.get("instructions") is not None:
        messages.append({"role": "system", "content": body["instructions"]})
    content = body["input"]
    items = [{"role": "user", "content": content}] if isinstance(content, str) else content
    for i, item in enumerate(items):
        if item.get("type") == "reasoning":  # another model's, in a history that is sent back
            continue
        if item.get("type") not in (None, "message"):
            raise APIError(400, f"input: items of type {item['type'][:50]!r} are not supported", "input")
        for name in ("role", "content"):
            if item.get(name) is None:
                message = f"input[{i}].{name}: this field is required"
                raise APIError(400, message, "input", "missing_parameter")
        messages.append({"role": item["role"], "content": item["content"]})
    if not messages:
        raise APIError(400, "input: give a message", "input")
    chat: Json = {name: body.get(name) for name in schema.SAMPLING}
    chat |= {"messages": messages, "max_tokens": body.get("max_output_tokens")}
    chat["reasoning_effort"] = (body.get("reasoning") or {}).get("effort")
    if format := (body.get("text") or {}).get("format"):
        described = {"name": format.get("name"), "schema": format.get("schema")}
        if format["type"] == "json_schema" and described["schema"] is None:
            raise APIError(400, "text.format.schema: this field is required", "text", "missing_parameter")
        chat["response_format"] = {"type": format["type"], "json_schema": described}
    return cast("ChatRequest", chat)


def describe_response(id: str, model: str, body: Json, temperature: float) -> Json:
    """A response that has just begun."""
    text = body.get("text") or {}
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "reasoning": {"effort": (body.get("reasoning") or {}).get("effort"), "summary": None},
        "store": False,
        "temperature": temperature,
        "text": {"format": {"type": (text.get("format") or {"type": "text"})["type"]}},
        "tool_choice": "none",
        "tools": [],
        "top_p": body.get("top_p"),
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def output_message(id: str, text: str, status: str) -> Json:
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [text_part(text)] if status != "in_progress" else [],
    }


def text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def complete(head: Json, text: str, reason: str | None, counted: RequestInfo | Generation) -> Json:
    """The response with its text."""
    cut = reason == "length"
    status = "incomplete" if cut else "completed"
    message = output_message(message_id(head), text, status)
    prompt, completion = counted.prompt_tokens, counted.completion_tokens
    usage: Json = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens": completion, "output_tokens_details": {"reasoning_tokens": 0}}
    usage["total_tokens"] = prompt + completion
    details = {"reason": "max_output_tokens"} if cut else None
    return head | {"status": status, "incomplete_details": details, "output": [message], "usage": usage}


def message_id(head: Json) -> str:
    return str(head["id"]).replace("resp_", "msg_")


async def stream_events(head: Json, generation: Generation) -> AsyncIterator[bytes]:
    """The events of a stream, each with its type and number."""
    id, text, reason, number = message_id(head), "", None, 0
    place = {"item_id": id, "output_index": 0, "content_index": 0}

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal number
        data = {"type": f"response.{kind}", "sequence_number": number} | fields
        number += 1
        return f"event: response.{kind}\ndata: {to_json(data)}\n\n".encode()

    yield event("created", response=head) + event("in_progress", response=head)
    item = output_message(id, "", "in_progress")
    yield event("output_item.added", output_index=0, item=item)
    yield event("content_part.added", **place, part=text_part(""))
    async for chunks in generation.chunks():
        for chunk in chunks:
            text, reason = text + chunk.text, chunk.finish_reason
            if chunk.text:
                yield event("output_text.delta", **place, delta=chunk.text, logprobs=[])
    response = complete(head, text, reason, generation)
    yield event("output_text.done", **place, text=text, logprobs=[])
    yield event("content_part.done", **place, part=text_part(text))
    yield event("output_item.done", output_index=0, item=response["output"][0])
    yield event(response["status"], response=response)
