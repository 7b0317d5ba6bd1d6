"""The formats in which models write calls of tools: what their chat templates contain, how each is read."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.serve.protocol import Json
from regard.text.chat_template import Template

Call = tuple[str, Any]  # a name, and arguments: an object, or JSON that was written as a string
Functions = Mapping[str, Json]  # the functions of a request by their names

# Of formats that are not read here.
UNKNOWN = re.compile(r"<arg_key|<invoke|[<\[][|｜]?tool.?call|functools|\"tool_calls\\?\":", re.IGNORECASE)
XML = re.compile(r"<function=|<arg_key|<parameter|<invoke")  # in <tool_call>, instead of JSON
# A call in JSON alone; in a string of Jinja, its quotes may be escaped. Descriptions of tools are longer.
BARE = re.compile(r'\{\\?"name\\?": (?:(?!description)[^{}]){1,60}?"(arguments|parameters)\\?":')
FENCE = re.compile(r"\s*(?:```(?:json)?\s*)?")
PARAMETER = re.compile(r"\s*<parameter=([^>\n]{1,200})>\n?(.*?)\n?</parameter>", re.DOTALL)
DECODER = json.JSONDecoder()


@dataclass(frozen=True, kw_only=True)
class CallFormat:
    """A format of calls. A call that has to be made is `begin head JSON tail end`; `head` has the name."""

    asks: re.Pattern[str]  # what a template that asks for it contains
    marker: str = ""  # the text that every answer with calls has before them
    begin: str = ""
    head: str = '{"name": "NAME", "arguments": '
    tail: str = "}"
    end: str = ""
    call: re.Pattern[str] | None = None  # of calls whose names are outside their JSON: what precedes that
    after: re.Pattern[str] = re.compile("")  # and what follows it
    has_parameters: bool = False  # each argument for itself, instead of JSON

    @property
    def spelling(self) -> str:
        """All texts of a call that may be special tokens."""
        return f"{self.marker} {self.begin} {self.head} {self.tail} {self.end}"

    def read(self, text: str, functions: Functions) -> list[Call]:
        """Return the calls with which a text begins, up to the first invalid one."""
        calls: list[Call] = []
        rest = text.lstrip()
        while True:
            several = self.read_named(rest, functions) if self.call else self.read_json(rest)
            if several is None or not all(name in functions for name, _ in several[0]):
                return calls
            calls += several[0]
            rest = several[1]

    def read_json(self, text: str) -> tuple[list[Call], str] | None:
        """Read an object with the name and the arguments of a call, or a list of such objects."""
        if not text.startswith(self.marker or "{"):
            return None
        part = text.removeprefix(self.marker)
        part = part[FENCE.match(part).end() :]  # type: ignore[union-attr] # matches always
        value, stop = decode_json(part)
        calls = [read_object(each) for each in (value if isinstance(value, list) else [value])]
        rest = part[stop:].lstrip().removeprefix(self.end.strip()).lstrip(" \n;")
        return None if None in calls or not calls else ([call for call in calls if call], rest)

    def read_named(self, text: str, functions: Functions) -> tuple[list[Call], str] | None:
        """Read a call whose name is outside the JSON of its arguments."""
        assert self.call is not None
        if (head := self.call.match(text)) is None:
            return None
        name, rest = head["name"].strip(), text[head.end() :]
        if self.has_parameters:
            value, stop = read_parameters(rest, functions.get(name, {}))
        else:
            value, stop = decode_json(rest)
        tail = self.after.match(rest, stop)
        return None if not isinstance(value, dict) or tail is None else ([(name, value)], rest[tail.end() :])


def decode_json(text: str) -> tuple[Any, int]:
    """Return the JSON with which a text begins, and where it ends; None and 0 if there is none."""
    try:
        return DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None, 0


def read_object(value: Any) -> Call | None:
    if not isinstance(value, dict):
        return None
    name = value.get("name", value.get("tool_name"))
    arguments = value.get("arguments", value.get("parameters", {}))
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict | str) else None


def read_parameters(text: str, function: Json) -> tuple[Json, int]:
    """Return the arguments that each have their own element, and where they end. Where the function's schema
    does not say that one is a text, it is JSON, if it can be read as such."""
    properties = (function.get("parameters") or {}).get("properties") or {}
    values: Json = {}
    stop = 0
    while (match := PARAMETER.match(text, stop)) is not None:
        name, written = match[1].strip(), match[2]
        schema = properties.get(name)
        is_text = isinstance(schema, dict) and schema.get("type") == "string"
        value, end = (None, 0) if is_text else decode_json(written.strip())
        values[name] = value if end and end == len(written.strip()) else written
        stop = match.end()
    return values, stop


def contains(*texts: str) -> re.Pattern[str]:
    """A pattern of templates that contain all of these."""
    return re.compile("".join(f"(?=.*{re.escape(text)})" for text in texts), re.DOTALL)


def named(head: str, after: str) -> dict[str, Any]:
    return {"call": re.compile(head), "after": re.compile(after)}


PLAIN = CallFormat(asks=BARE)
LLAMA = CallFormat(asks=BARE, head='{"name": "NAME", "parameters": ')
HERMES = CallFormat(
    asks=contains("<tool_call>"), marker="<tool_call>", begin="<tool_call>\n", end="\n</tool_call>"
)
# The first one whose `asks` is in a template counts.
FORMATS: dict[str, CallFormat] = {
    "Qwen3-Coder": CallFormat(
        asks=contains("<tool_call>", "<function=", "<parameter="),
        marker="<tool_call>",
        has_parameters=True,
        **named(
            r"<tool_call>\s*<function=(?P<name>[^>\n]{1,200})>", r"\s*</function>\s*(?:</tool_call>)?\s*"
        ),
    ),
    "DeepSeek-V3": CallFormat(
        asks=contains("<｜tool▁sep｜>", "```json"),
        marker="<｜tool▁calls▁begin｜>",
        begin="<｜tool▁calls▁begin｜>",
        head="<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        tail="\n```<｜tool▁call▁end｜>",
        end="<｜tool▁calls▁end｜>",
        **named(
            r"(?:<｜tool▁calls▁begin｜>)?\s*<｜tool▁call▁begin｜>\w+<｜tool▁sep｜>(?P<name>[^\n]{1,200})\n```json\s*",
            r"\s*```\s*<｜tool▁call▁end｜>\s*",
        ),
    ),
    "DeepSeek-V3.1": CallFormat(
        asks=contains("<｜tool▁sep｜>"),
        marker="<｜tool▁calls▁begin｜>",
        begin="<｜tool▁calls▁begin｜>",
        head="<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
        tail="<｜tool▁call▁end｜>",
        end="<｜tool▁calls▁end｜>",
        **named(
            r"(?:<｜tool▁calls▁begin｜>)?\s*<｜tool▁call▁begin｜>(?P<name>[^<\n]{1,200})<｜tool▁sep｜>\s*",
            r"\s*<｜tool▁call▁end｜>\s*",
        ),
    ),
    "Mistral, later": CallFormat(
        asks=contains("[TOOL_CALLS]", "[ARGS]"),
        marker="[TOOL_CALLS]",
        head="[TOOL_CALLS]NAME[ARGS]",
        tail="",
        **named(r"\[TOOL_CALLS\]\s*(?P<name>[\w.-]{1,200}?)(?:\[CALL_ID\]\w*)?\[ARGS\]\s*", r"\s*"),
    ),
    "Mistral": CallFormat(
        asks=contains("[TOOL_CALLS]"), marker="[TOOL_CALLS]", begin="[TOOL_CALLS][", end="]"
    ),
    "Command R7B": CallFormat(
        asks=contains("<|START_ACTION|>"),
        marker="<|START_ACTION|>",
        begin="<|START_ACTION|>[\n    ",
        head='{"tool_call_id": "0", "tool_name": "NAME", "parameters": ',
        end="\n]<|END_ACTION|>",
    ),
    "Command R": CallFormat(
        asks=contains("Action:", "tool_name"),
        marker="Action:",
        begin="Action: ```json\n[\n    ",
        head='{"tool_name": "NAME", "parameters": ',
        end="\n]```",
    ),
    "Granite": CallFormat(
        asks=contains("<|tool_call|>"), marker="<|tool_call|>", begin="<|tool_call|>[", end="]"
    ),
    "Phi-4-mini": CallFormat(asks=contains("functools["), marker="functools", begin="functools[", end="]"),
    "Functionary": CallFormat(
        # Atomic: tried at the first place only, or a hostile template would take minutes.
        asks=re.compile("(?!.*<tool_call>)(?>.*?<function=).*</function>", re.DOTALL),
        marker="<function=",
        head="<function=NAME>",
        tail="</function>",
        **named(r"<function=(?P<name>[^>\n]{1,200})>\s*", r"\s*</function>\s*"),
    ),
    "Hermes": HERMES,
}


def find_format(template: Template) -> CallFormat | None:
    """Return the format in which a template wants calls to be written; None if that is not known here."""
    text = template.text
    for format in FORMATS.values():
        if format.asks.match(text):
            return None if format is HERMES and XML.search(text) else format
    if UNKNOWN.search(text) or not (call := BARE.search(text)):
        return None
    return LLAMA if call[1] == "parameters" else PLAIN
