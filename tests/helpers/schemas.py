"""Ten JSON schemas of the kinds that clients send, and an untrained model whose answers are held to them."""

from typing import Any

import torch

from regard.models import GPT, GPTConfig
from regard.runs.model import Model
from regard.tasks import Write, WriteConfig
from regard.text.chat_template import Template
from regard.text.tokenizer_kinds import train_tokenizer

CONTEXT = 768
TEXT = (
    '{"a": [1, "b c"], "name": null, "x": true, "y": false} the quick brown fox jumps, lazy. 0123456789-+e\n'
)
HERMES = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments.city }}</tool_call>"
    "{% endfor %}{{ '\\n' }}{% endfor %}assistant: "
)


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    } | more


SCHEMAS: dict[str, dict[str, Any]] = {
    "person": closed({"name": {"type": "string"}, "age": {"type": "integer"}}),
    "numbers": closed({"x": {"type": "number"}, "n": {"type": "integer", "minimum": 3, "maximum": 90}}),
    "choices": closed({"colour": {"enum": ["red", "green", "blue"]}, "done": {"type": "boolean"}}),
    "list": closed({"tags": {"type": "array", "items": {"type": "string"}, "minItems": 2}}),
    "nested": closed({"at": closed({"city": {"type": "string"}, "zip": {"type": "integer"}})}),
    "optional": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "null"}}},
    "union": closed({"value": {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}}),
    "pattern": closed({"day": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"}}),
    "tree": closed(
        {"root": {"$ref": "#/$defs/node"}},
        **{
            "$defs": {
                "node": closed(
                    {"v": {"type": "integer"}, "next": {"type": "array", "items": {"$ref": "#/$defs/node"}}}
                )
            }
        },
    ),
    "limits": closed({"s": {"type": "string", "minLength": 2, "maxLength": 5}, "c": {"const": "é"}}),
}


def untrained(kind: str = "byte", template: str | None = HERMES, ends: bool = True) -> Model:
    """A small GPT with random weights."""
    tokenizer = train_tokenizer(kind, [TEXT * 3], 300, Write.specials)
    torch.manual_seed(5)
    module = GPT(GPTConfig(vocab=tokenizer.vocab + 3, context=CONTEXT, dim=8, depth=1, heads=1))
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.4 * torch.randn_like(p))
    task = Write(WriteConfig(name="write"), tokenizer, CONTEXT)
    if template is not None:
        task.use_template(Template(template))
    if not ends:
        task.ends = ()
    return Model(module.eval(), task, {"temperature": 1.0, "max_new_tokens": 200})
