"""What may be asked: JSON schemas, which requests are checked against and /openapi.json is made of."""

import math
from typing import Any

from regard import __version__

from .errors import Wrong

Schema = dict[str, Any]
LONGEST = 100_000  # letters of a text
STOPS = 4
LIKELIEST = 20  # tokens told beside the one that came
CHOICES = 64  # answers in one request
TEXTS = 256  # to embed in one request
TURNS = 1024  # of a conversation
PARTS = 64  # of a turn

TEXT: Schema = {"type": "string", "maxLength": LONGEST}
SOME: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST}
BOOL: Schema = {"type": "boolean"}
ANY: Schema = {}


def whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def several(items: Schema, most: int, least: int = 1) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def only(*values: Any) -> Schema:
    """What can't be done is taken where it changes nothing."""
    return {"enum": list(values)}


def record(fields: dict[str, Schema], *needed: str) -> Schema:
    found = {"type": "object", "properties": fields, "additionalProperties": False}
    return found | ({"required": list(needed)} if needed else {})


def maybe(fields: dict[str, Schema]) -> dict[str, Schema]:
    """OpenAI's clients send null for what is left open."""
    return {name: {"anyOf": [schema, {"type": "null"}]} for name, schema in fields.items()}


IDS = several(whole(0, 2**31 - 1), LONGEST)
MODEL: Schema = {"type": "string", "maxLength": 200}
DRAWN: dict[str, Schema] = maybe(
    {
        "temperature": number(0, 100),
        "top_p": number(0, 1),
        "top_k": whole(0, 2**31 - 1),
        "min_p": number(0, 1),
        "repetition_penalty": number(1e-3, 1e3),
        "no_repeat_ngram_size": whole(0, 1000),
        "num_beams": whole(1, 16),
        "length_penalty": number(-100, 100),
        "seed": whole(-(2**63), 2**63 - 1),
        "stop": {"anyOf": [SOME, several(SOME, STOPS, 0)]},
    }
)
HARMLESS: dict[str, Schema] = dict.fromkeys(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "prediction"),
    ),
    ANY,
)


def writing(tokens: int) -> dict[str, Schema]:
    """What completions and chat have in common."""
    return (
        {"model": MODEL}
        | DRAWN
        | HARMLESS
        | maybe(
            {
                "max_tokens": whole(1, tokens),
                "n": whole(1, CHOICES),
                "stream": BOOL,
                "stream_options": record(maybe({"include_usage": BOOL, "include_obfuscation": BOOL})),
                "presence_penalty": only(0),
                "frequency_penalty": only(0),
                "logit_bias": record({}),
            }
        )
    )


def completion(tokens: int) -> Schema:
    fields = {
        "prompt": {"anyOf": [TEXT, several(TEXT, CHOICES), IDS, several(IDS, CHOICES)]},
        **maybe({"logprobs": whole(0, LIKELIEST), "echo": BOOL, "best_of": only(1), "suffix": only("")}),
    }
    return record(writing(tokens) | fields, "prompt")


def chat(tokens: int) -> Schema:
    parts = several(record({"type": only("text"), "text": TEXT}, "type", "text"), PARTS)
    message = record(
        {
            "role": only("system", "developer", "user", "assistant"),
            "content": {"anyOf": [TEXT, parts]},
            "name": {"type": "string", "maxLength": 200},
            **maybe({"refusal": only(""), "tool_calls": several(ANY, 0, 0), "annotations": ANY}),
            "audio": {"type": "null"},
        },
        "role",
        "content",
    )
    fields = {
        "messages": several(message, TURNS),
        **maybe(
            {
                "max_completion_tokens": whole(1, tokens),
                "logprobs": BOOL,
                "top_logprobs": whole(0, LIKELIEST),
                "response_format": record({"type": only("text")}, "type"),
                "modalities": {"enum": [["text"]]},
                "tools": several(ANY, 0, 0),
                "tool_choice": only("none"),
                "parallel_tool_calls": BOOL,
            }
        ),
    }
    return record(writing(tokens) | fields, "messages")


EMBEDDING = record(
    {
        "model": MODEL,
        "input": {"anyOf": [SOME, several(SOME, TEXTS), IDS, several(IDS, TEXTS)]},
        **maybe({"encoding_format": only("float", "base64"), "dimensions": whole(1, 2**31 - 1)}),
        "user": ANY,
    },
    "input",
)


def asking(tokens: int) -> Schema:
    """The native way: `regard ask`'s options."""
    fields = {
        "model": MODEL,
        "input": {"anyOf": [TEXT, several(TEXT, CHOICES)]},
        "picture": {"type": "string", "contentEncoding": "base64"},
        **DRAWN,
        **maybe(
            {
                "max_new_tokens": whole(1, tokens),
                "num_return_sequences": whole(1, CHOICES),
                "prefix": TEXT,
                "distance": only("cosine", "euclidean"),
                "checkpoint": whole(0, 2**53),
                "stream": BOOL,
            }
        ),
    }
    return record(fields)


# Checking


def check(value: Any, schema: Schema, where: str = "") -> None:
    """Raises what is wrong, and where."""
    top = where.split(".")[0].split("[")[0] or None
    if not fits(value, schema):
        raise Wrong(400, f"{where or 'the request'}: give {need(schema)}", top)
    for option in schema.get("anyOf", ()):
        if not fits(value, option):
            continue
        return check(value, option, where)
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        inside = f"{where}." if where else ""
        for name, part in value.items():
            if name not in known:
                field = f"{inside}{name}"[:200]
                raise Wrong(400, f"{field}: not supported here", field, "unknown_parameter")
            check(part, known[name], inside + name)
        for name in schema.get("required", ()):
            if name not in value:
                raise Wrong(400, f"{inside}{name}: this is needed", inside + name, "missing_parameter")
    if isinstance(value, list):
        items = schema.get("items", ANY)
        for i, part in enumerate(value):
            if isinstance(part, dict | list) or not fits(part, items):
                check(part, items, f"{where}[{i}]")
    return None


def fits(value: Any, schema: Schema) -> bool:
    """As far as the outside goes; of a list, the first item tells which kind it is."""
    if "anyOf" in schema:
        return any(fits(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in schema["enum"])
    match schema.get("type"):
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "number":
            real = type(value) in (int, float) and math.isfinite(value)
            return real and schema["minimum"] <= value <= schema["maximum"]
        case "string":
            least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
            return isinstance(value, str) and least <= len(value) <= most and writable(value)
        case "array":
            if not (isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]):
                return False
            return not value or fits(value[0], schema["items"])
        case "object":
            return isinstance(value, dict)
    return True


def writable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def need(schema: Schema) -> str:
    if "anyOf" in schema:
        return ", or ".join(need(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"])) + " (others are not supported)"
    match schema.get("type"):
        case "boolean":
            return "true or false"
        case "integer":
            return f"a whole number from {schema['minimum']} to {schema['maximum']}"
        case "number":
            return f"a number from {schema['minimum']} to {schema['maximum']}"
        case "string":
            most = f" of up to {schema['maxLength']:,} letters" if "maxLength" in schema else ""
            return f"a{' whole' if not schema.get('minLength') else ''} text{most}"
        case "array":
            return f"a list of {schema['minItems']} to {schema['maxItems']:,}, each {need(schema['items'])}"
    return "an object"


# Telling


def document(tokens: int, key: bool) -> Schema:
    """/openapi.json"""
    problem = record(
        {
            "error": record(
                {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
                *("message", "type", "param", "code"),
            )
        },
        "error",
    )
    wrong = {
        str(status): {"description": about, "content": {"application/json": {"schema": problem}}}
        for status, about in WRONG.items()
    }
    plain = {
        status: answer | {"content": {"text/plain": {"schema": {"type": "string"}}}}
        for status, answer in wrong.items()
    }

    def post(about: str, asked: Schema, told: Schema, streams: bool, errors: Schema) -> Schema:
        content: Schema = {"application/json": {"schema": told}}
        if streams:
            one = {"type": "object", "properties": {"data": {"type": "string"}}}  # an event
            content["text/event-stream"] = {"schema": one}
        body = {"required": True, "content": {"application/json": {"schema": asked}}}
        fine = {"200": {"description": "the answer", "content": content}}
        return {"post": {"summary": about, "requestBody": body, "responses": fine | errors}}

    def get(about: str, kind: str, told: Schema, errors: Schema, *statuses: str) -> Schema:
        fine = {"200": {"description": about, "content": {kind: {"schema": told}}}}
        some = {status: errors[status] for status in ("401", "403", "421", *statuses)}
        return {"get": {"summary": about, "responses": fine | some}}

    models = get("the models", "application/json", listed(MODEL_TOLD), wrong)
    one = get("one model", "application/json", MODEL_TOLD, wrong, "404")
    one["get"]["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    state = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    health = get("whether it is there", "application/json", state, plain)
    paths: Schema = {
        "/v1/models": models,
        "/v1/models/{model}": one,
        "/v1/completions": post("go on from a text", completion(tokens), WRITTEN, True, wrong),
        "/v1/chat/completions": post("answer in a conversation", chat(tokens), WRITTEN, True, wrong),
        "/v1/embeddings": post("texts as vectors", EMBEDDING, listed(VECTOR), False, wrong),
        "/api/ask": post("ask any model", asking(tokens), TOLD, True, plain),
        "/health": health,
        "/ready": health,
        "/metrics": get("Prometheus metrics", "text/plain", {"type": "string"}, plain),
        "/openapi.json": get("this", "application/json", {"type": "object"}, plain),
    }
    found: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "Regard", "version": __version__},
        "paths": paths,
    }
    if key:
        found["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        for path, methods in paths.items():
            if path not in ("/health", "/ready"):
                for method in methods.values():
                    method["security"] = [{"key": []}]
    return found


WRONG = {
    400: "the request can't be understood or is not supported",
    401: "no key, or a wrong one",
    403: "it comes from another page",
    404: "there is no such model",
    408: "it took too long",
    413: "too much at once",
    415: "not JSON",
    421: "meant for another host",
    429: "all places are taken; see Retry-After",
    500: "a fault of the server's",
    503: "the model failed; it has begun anew",
}
NUMBER: Schema = {"type": "integer"}
USAGE: Schema = {
    "type": "object",
    "properties": {"prompt_tokens": NUMBER, "completion_tokens": NUMBER, "total_tokens": NUMBER},
    "required": ["prompt_tokens", "total_tokens"],
}
MODEL_TOLD: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": only("model"),
        "created": NUMBER,
        "owned_by": {"type": "string"},
    },
    "required": ["id", "object", "created", "owned_by"],
}
VECTOR: Schema = {
    "type": "object",
    "properties": {
        "object": only("embedding"),
        "index": NUMBER,
        "embedding": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]},
    },
    "required": ["object", "index", "embedding"],
}
WRITTEN: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": only("text_completion", "chat.completion"),
        "created": NUMBER,
        "model": {"type": "string"},
        "choices": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"index": NUMBER, "finish_reason": only("stop", "length")},
                "required": ["index", "finish_reason", "logprobs"],
            },
        },
        "usage": USAGE,
    },
    "required": ["id", "object", "created", "model", "choices", "usage"],
}
TOLD: Schema = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "output": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "answers": {"type": "array", "items": {"type": "array"}},
    },
    "required": ["model", "output", "answers"],
}


def listed(item: Schema) -> Schema:
    fields = {"object": only("list"), "data": {"type": "array", "items": item}}
    return {"type": "object", "properties": fields, "required": ["object", "data"]}
