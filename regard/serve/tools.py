"""Tools of a chat: passed to the model's chat template, and read from the model's answer."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from regard.decode.grammar import JSON_OPTIONS, limit_numbers
from regard.serve.errors import APIError
from regard.serve.protocol import Json
from regard.serve.structured import Source
from regard.tasks import Task
from regard.text.chat_template import Template


@dataclass(frozen=True)
class CallFormat:
    """The format of a call: JSON with a name and `arguments`, between two texts."""

    begin: str = ""
    end: str = ""
    arguments: str = "arguments"


HERMES = CallFormat("<tool_call>\n", "\n</tool_call>")
LLAMA = CallFormat(arguments="parameters")
XML = re.compile(r"<function=|<arg_key|<parameter|<invoke")  # in <tool_call>, instead of JSON
# A call in JSON alone; in a string of Jinja, its quotes may be escaped. Descriptions of tools are longer.
BARE = re.compile(r'\{\\?"name\\?": (?:(?!description)[^{}]){1,60}?"(arguments|parameters)\\?":')
AROUND = re.compile(r"""[<\[][|｜]?tool.?call|functools|"tool_calls\\?":""", re.IGNORECASE)  # not alone


def find_format(template: Template) -> CallFormat | None:
    """How the template wants calls to be written; None if that is not known here."""
    text = template.text
    if "<tool_call>" in text:
        return None if XML.search(text) else HERMES
    if AROUND.search(text) or not (call := BARE.search(text)):
        return None
    return LLAMA if call[1] == "parameters" else CallFormat()


class Tools:
    """The tools of a request, and the model's format of calls."""

    def __init__(self, functions: Sequence[Json], choice: str | Json, parallel: bool, template: Template):
        self.names = [function["name"] for function in functions]
        self.choice, self.parallel, self.functions = choice, parallel, functions
        self.are_strict = any(function.get("strict") for function in functions)
        format = find_format(template)
        if format is None and choice == "auto":  # a required call is held to a format
            message = (
                "tools: this model's chat template asks for calls in a format that can't be read here; "
                'give tool_choice "required" or the name of a function, or leave tools out'
            )
            raise APIError(400, message, "tools", "unknown_tool_format")
        self.format = format or CallFormat()

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
        rules = [
            f"start: {quote(self.format.begin)} ({' | '.join(f'call{i}' for i in range(len(functions)))})"
        ]
        rules[0] += f" {quote(self.format.end)}"
        for i, function in enumerate(functions):
            head = f'{{"name": {json.dumps(function["name"])}, "{self.format.arguments}": '
            parameters = function.get("parameters") or {"type": "object", "additionalProperties": False}
            schema = limit_numbers(parameters) | {"x-guidance": JSON_OPTIONS}
            # a separate schema, so that its references begin at its own root
            rules += [
                f'call{i}: {quote(head)} arguments{i} "}}"',
                f"arguments{i}: %json {json.dumps(schema)}",
            ]
        return "lark", "\n".join(rules)

    def text_length(self, text: str) -> int:
        """The length of the written text that is certainly not part of a call."""
        if marker := self.format.begin.strip():
            at = text.find(marker)
            if at >= 0:
                return at
            tails = (n for n in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:n]))
            return len(text) - next(tails, 0)
        return 0 if text.lstrip()[:1] in ("", "{") else len(text)

    def split(self, text: str) -> tuple[str, list[Json]]:
        """The text of an answer and its calls, in OpenAI's format; an invalid call stays text."""
        begin = self.text_length(text)
        calls, rest = [], text[begin:]
        marker, end = self.format.begin.strip(), self.format.end.strip()
        while rest.lstrip().startswith(marker or "{"):
            part = rest.lstrip().removeprefix(marker).lstrip()
            try:
                value, stop = json.JSONDecoder().raw_decode(part)
            except (ValueError, RecursionError):
                break
            read = [self.read_call(each) for each in (value if isinstance(value, list) else [value])]
            if not all(read):
                break
            calls += [call for call in read if call is not None]
            rest = part[stop:].lstrip().removeprefix(end).lstrip(" \n;")
            if not marker and not rest.startswith("{"):
                break
        if not calls:
            return text, []
        return text[:begin].strip(), calls if self.parallel else calls[:1]

    def read_call(self, value: Any) -> Json | None:
        if not isinstance(value, dict) or value.get("name") not in self.names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        function = {"name": value["name"], "arguments": written}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


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
    return Tools(functions, choice or "auto", parallel is None or parallel, template)


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
