"""Tools of a chat: passed to the model's chat template, and read from the model's answer."""

import json
import secrets
from collections.abc import Sequence
from typing import Any, cast

from regard.decode.grammar import JSON_OPTIONS, limit_numbers
from regard.serve.call_formats import PLAIN, find_format
from regard.serve.errors import APIError
from regard.serve.protocol import Json
from regard.serve.structured import Source
from regard.tasks import Task
from regard.text.chat_template import Template
from regard.text.tokenizer import Tokenizer


class Tools:
    """The tools of a request, and the model's format of calls."""

    def __init__(
        self,
        functions: Sequence[Json],
        choice: str | Json,
        parallel: bool,
        template: Template,
        tokenizer: Tokenizer | None = None,
    ):
        self.names = {function["name"]: function for function in functions}
        self.choice, self.parallel, self.functions = choice, parallel, functions
        self.are_strict = any(function.get("strict") for function in functions)
        format = find_format(template)
        if format is None and choice == "auto":  # a required call is held to a format
            message = (
                "tools: this model's chat template asks for calls in a format that can't be read here; "
                'give tool_choice "required" or the name of a function, or leave tools out'
            )
            raise APIError(400, message, "tools", "unknown_tool_format")
        specials = {} if tokenizer is None or format is None else special_ids(tokenizer)
        self.specials = {id: text for id, text in specials.items() if format and text in format.spelling}
        if format is None or (choice != "auto" and (format.has_parameters or self.specials)):
            format, self.specials = PLAIN, {}  # grammars have no special tokens
        self.format = format

    def grammar(self) -> Source | None:
        """The grammar of the answer if a call is required."""
        if self.choice == "auto":
            return None
        functions = self.functions
        if isinstance(self.choice, dict):
            name = self.choice["function"]["name"]
            functions = [function for function in functions if function["name"] == name]
            if not functions:
                raise APIError(400, f"tool_choice: there is no tool {name!r} in tools", "tool_choice")
        calls = " | ".join(f"call{i}" for i in range(len(functions)))
        rules = [f"start: {quote(self.format.begin)} ({calls}) {quote(self.format.end)}"]
        for i, function in enumerate(functions):
            name = json.dumps(function["name"])[1:-1]
            head, tail = quote(self.format.head.replace("NAME", name)), quote(self.format.tail)
            parameters = function.get("parameters") or {"type": "object", "additionalProperties": False}
            schema = limit_numbers(parameters) | {"x-guidance": JSON_OPTIONS}
            # a separate schema, so that its references begin at its own root
            rules += [
                f"call{i}: {head} arguments{i} {tail}",
                f"arguments{i}: %json {json.dumps(schema)}",
            ]
        return "lark", "\n".join(rules)

    def text_length(self, text: str) -> int:
        """The length of the written text that is certainly not part of a call."""
        if marker := self.format.marker:
            at = text.find(marker)
            if at >= 0:
                return at
            tails = (n for n in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:n]))
            return len(text) - next(tails, 0)
        return 0 if text.lstrip()[:1] in ("", "{") else len(text)

    def split(self, text: str) -> tuple[str, list[Json]]:
        """The text of an answer and its calls, in OpenAI's format; an invalid call stays text."""
        begin = self.text_length(text)
        calls = self.format.read(text[begin:], self.names)
        if not calls:
            return text, []
        return text[:begin].strip(), [as_call(*call) for call in (calls if self.parallel else calls[:1])]


def as_call(name: str, arguments: Any) -> Json:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    function = {"name": name, "arguments": written}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def special_ids(tokenizer: Tokenizer) -> dict[int, str]:
    """Special tokens, which are left out of the texts of answers, by their ids."""
    added = tokenizer.inner.get_added_tokens_decoder()
    return {id: token.content for id, token in added.items() if token.special}


def quote(text: str) -> str:
    """A text in a Lark grammar; nothing for an empty one."""
    return json.dumps(text) if text else ""


def read_tools(task: Task, body: Json) -> Tools | None:
    """The tools of a request; None if it has none, or disables them."""
    functions, choice = [tool["function"] for tool in body.get("tools") or ()], body.get("tool_choice")
    if not functions:
        if choice not in (None, "none", "auto"):
            raise APIError(400, "tool_choice: only together with tools", "tool_choice")
        return None
    template = task.template
    if template is None or not template.uses("tools"):
        message = "tools: this model's chat template has no tools; leave them out, or serve a model that has"
        raise APIError(400, message, "tools", "no_tools")
    if choice == "none":
        return None
    parallel = body.get("parallel_tool_calls")
    choice, parallel = choice or "auto", parallel is None or parallel
    return Tools(functions, choice, parallel, template, task.output_tokenizer)


def template_call(call: Json) -> Json:
    """A call of an earlier answer for chat templates: with its arguments as an object."""
    function = dict(call["function"])
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        function["arguments"] = cast("Json", arguments)
    return {"id": call.get("id"), "type": "function", "function": function}
