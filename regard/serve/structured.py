"""The format of an answer: OpenAI's `response_format`, and vLLM's names for the same."""

import json
import re
from collections.abc import Mapping
from typing import Any

from regard.decode.grammar import Kind
from regard.serve.errors import APIError
from regard.serve.schema import format_fields

Source = tuple[Kind, str]
FIELDS = tuple(format_fields())


def has_format(body: Mapping[str, Any]) -> bool:
    """Return whether a request asks for a format of its answer."""
    return any(body.get(name) is not None for name in FIELDS)


def read_format(body: Mapping[str, Any]) -> Source | None:
    """Read the format of the answer, if the request asks for one; it may do so only once."""
    sources: dict[str, Source] = {}
    if format := body.get("response_format"):
        if format["type"] == "json_object":
            schema = format.get("schema")
            sources["response_format"] = any_object() if schema is None else read_schema(schema)
        elif format["type"] == "json_schema":
            if (described := format.get("json_schema")) is None:
                name = "response_format.json_schema"
                raise APIError(400, f"{name}: this field is required", name, "missing_parameter")
            sources["response_format"] = read_schema(described["schema"])
    structured = body.get("structured_outputs") or {}
    for name, read in READERS.items():
        if (value := body.get(f"guided_{name}")) is not None:
            sources[f"guided_{name}"] = read(value)
        if (value := structured.get(name)) is not None:
            sources[f"structured_outputs.{name}"] = read(value)
    if structured.get("json_object"):
        sources["structured_outputs.json_object"] = any_object()
    if len(sources) > 1:
        first, second, *_ = sources
        raise APIError(400, f"{second}: not together with {first}; give one of them", second)
    return next(iter(sources.values()), None)


def any_object() -> Source:
    return "json", '{"type": "object"}'


def read_schema(value: Any) -> Source:
    return "json", value if isinstance(value, str) else json.dumps(value)


READERS: dict[str, Any] = {
    "json": read_schema,
    "regex": lambda value: ("regex", value),
    "choice": lambda value: ("regex", "|".join(map(re.escape, value))),
    "grammar": lambda value: ("lark", value),
}
