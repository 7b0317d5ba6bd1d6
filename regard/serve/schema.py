"""JSON schemas of requests, and the check of a request against them. /openapi.json shows the same schemas."""

import math
import re
from typing import Any

from regard.serve.errors import APIError

Schema = dict[str, Any]
MAX_TEXT = 100_000  # letters
MAX_STOPS = 4  # stop sequences
MAX_TOP_LOGPROBS = 20
MAX_LOGPROBS = 2**19  # log-probabilities in one response
MAX_CHOICES = 64  # answers in one request
MAX_EMBEDDINGS = 256  # texts in one request
MAX_MESSAGES = 1024  # of a conversation
MAX_PARTS = 64  # of a message
MAX_TOOLS = 128
MAX_VARIABLES = 64  # of a chat template
MAX_BIASES = 1024  # tokens in logit_bias
MAX_SCHEMA = 2**16  # characters of a schema, a grammar or a regular expression

TEXT: Schema = {"type": "string", "maxLength": MAX_TEXT}
NONEMPTY_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
BOOLEAN: Schema = {"type": "boolean"}
ANY: Schema = {}
NULL: Schema = {"type": "null"}
OBJECT: Schema = {"type": "object"}


def integer(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def array(items: Schema, max_items: int, min_items: int = 1) -> Schema:
    return {"type": "array", "items": items, "minItems": min_items, "maxItems": max_items}


def enum(*values: object) -> Schema:
    """For unsupported options: the values that change nothing."""
    return {"enum": list(values)}


def obj(fields: dict[str, Schema], *required: str) -> Schema:
    """An object of these fields. Null stands for any field that is not set."""
    optional = nullable({name: field for name, field in fields.items() if name not in required})
    schema = {"type": "object", "properties": fields | optional, "additionalProperties": NULL}
    return schema | ({"required": list(required)} if required else {})


def mapping(keys: str, values: Schema, max_items: int) -> Schema:
    """An object whose keys match a regular expression."""
    names = {"pattern": keys, "type": "string"}
    return {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": values,
        "maxProperties": max_items,
    }


def nullable(fields: dict[str, Schema]) -> dict[str, Schema]:
    """OpenAI's clients send null for options that are not set."""
    return {name: or_null(schema) if schema else schema for name, schema in fields.items()}


def or_null(schema: Schema) -> Schema:
    options = schema.get("anyOf", [schema])
    about = {key: value for key, value in schema.items() if key != "anyOf"} if "anyOf" in schema else {}
    return {**about, "anyOf": [*options, *([] if NULL in options else [NULL])]}


TOKEN_IDS = array(integer(0, 2**31 - 1), MAX_TEXT)
NAME: Schema = {"type": "string", "maxLength": 200}
MODEL = NAME
SAMPLING: dict[str, Schema] = nullable(
    {
        "temperature": number(0, 100),
        "top_p": number(0, 1),
        "top_k": integer(-1, 2**31 - 1),
        "min_p": number(0, 1),
        "repetition_penalty": number(1e-3, 1e3),
        "no_repeat_ngram_size": integer(0, 1000),
        "presence_penalty": number(-2, 2),
        "frequency_penalty": number(-2, 2),
        "num_beams": integer(1, 16),
        "length_penalty": number(-100, 100),
        "seed": integer(-(2**63), 2**63 - 1),
        "stop": {"anyOf": [NONEMPTY_TEXT, array(NONEMPTY_TEXT, MAX_STOPS, 0)]},
    }
)
# Fields that other servers know and that do not change the answer here. A response's header names them.
IGNORED: dict[str, Schema] = dict.fromkeys(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "prediction", "verbosity", "stream_moderation", "moderation"),
        *("cache_prompt", "cache_salt", "priority", "request_id", "session_id", "keep_alive"),
        *("truncation", "include", "max_tool_calls", "guided_decoding_backend"),
        *("spaces_between_special_tokens", "return_tokens_as_token_ids", "return_token_ids"),
    ),
    ANY,
)
MARKS: dict[str, Schema] = {"cache_control": ANY}  # what clients of Anthropic's models add to parts


GRAMMAR_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_SCHEMA}
CHOICES: Schema = array({"type": "string", "minLength": 1, "maxLength": 1000}, 256)
JSON_SCHEMA: Schema = {"anyOf": [OBJECT, GRAMMAR_TEXT]}


def format_fields() -> dict[str, Schema]:
    """The fields of a request for the format of its answer."""
    by_schema = obj({"name": ANY, "description": ANY, "schema": OBJECT, "strict": BOOLEAN}, "schema")
    structured = {"json": JSON_SCHEMA, "regex": GRAMMAR_TEXT, "choice": CHOICES, "grammar": GRAMMAR_TEXT}
    return {
        "response_format": obj(
            {
                "type": enum("text", "json_object", "json_schema"),
                "json_schema": by_schema,
                "schema": OBJECT,  # llama.cpp's, of a json_object
            },
            "type",
        ),
        "guided_json": JSON_SCHEMA,
        "guided_regex": GRAMMAR_TEXT,
        "guided_choice": CHOICES,
        "guided_grammar": GRAMMAR_TEXT,
        "structured_outputs": obj({**structured, "json_object": BOOLEAN}),
    }


def generate_fields(max_tokens: int, min_tokens: int = 1) -> dict[str, Schema]:
    """The fields that completions and chat share."""
    return {
        "model": MODEL,
        **SAMPLING,
        **IGNORED,
        "max_tokens": {"anyOf": [integer(min_tokens, max_tokens), enum(-1)]},  # llama.cpp: no limit
        "n": integer(1, MAX_CHOICES),
        "stream": BOOLEAN,
        "stream_options": obj(
            {
                "include_usage": BOOLEAN,
                "include_obfuscation": BOOLEAN,
                "continuous_usage_stats": BOOLEAN,  # ignored, see `OpenAIRoutes.generate`
            }
        ),
        "logit_bias": mapping("^[0-9]{1,9}$", number(-100, 100), MAX_BIASES),
        "repeat_penalty": number(1e-3, 1e3),  # llama.cpp's name of repetition_penalty
        "min_tokens": integer(0, max_tokens),
        "ignore_eos": BOOLEAN,
        **format_fields(),
        # other servers', only with the values that change nothing
        **dict.fromkeys(("skip_special_tokens", "detokenize"), enum(True)),
        **dict.fromkeys(("include_stop_str_in_output", "use_beam_search", "early_stopping"), enum(False)),
        **dict.fromkeys(("typical_p", "tfs_z"), enum(1)),
        **dict.fromkeys(("mirostat", "dry_multiplier", "xtc_probability", "top_a"), enum(0)),
    }


def completion_request(max_tokens: int) -> Schema:
    fields = {
        "prompt": {"anyOf": [TEXT, array(TEXT, MAX_CHOICES), TOKEN_IDS, array(TOKEN_IDS, MAX_CHOICES)]},
        "logprobs": integer(0, MAX_TOP_LOGPROBS),
        "echo": BOOLEAN,
        "best_of": integer(1, MAX_CHOICES),  # only 1 or n, see `OpenAIRoutes.create_completion`
        "suffix": enum(""),
    }
    return obj(generate_fields(max_tokens, min_tokens=0) | fields, "prompt")


def chat_request(max_tokens: int) -> Schema:
    parts = array(obj({"type": enum("text"), "text": TEXT, **MARKS}, "type", "text"), MAX_PARTS, 0)
    called = obj({"name": NAME, "arguments": TEXT}, "name", "arguments")
    call = obj({"id": NAME, "type": enum("function"), "index": ANY, "function": called}, "function")
    message = obj(
        {
            "role": enum("system", "developer", "user", "assistant", "tool"),
            "content": {"anyOf": [TEXT, parts]},
            "name": NAME,
            "tool_calls": array(call, MAX_TOOLS, 0),
            "tool_call_id": NAME,
            # fields of an answer that clients send back, besides its text
            **dict.fromkeys(("refusal", "annotations", "reasoning", "reasoning_content"), ANY),
            **dict.fromkeys(("thinking_blocks", "provider_specific_fields", "id", "status"), ANY),
            **dict.fromkeys(("reasoning_details", "parsed"), ANY),
            **MARKS,
        },
        "role",
    )
    function = obj({"name": NAME, "description": TEXT, "parameters": OBJECT, "strict": BOOLEAN}, "name")
    named = obj({"type": enum("function"), "function": obj({"name": NAME}, "name")}, "type", "function")
    fields = {
        "messages": array(message, MAX_MESSAGES),
        "max_completion_tokens": integer(1, max_tokens),
        "logprobs": BOOLEAN,
        "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
        "modalities": {"enum": [["text"]]},
        "tools": array(
            obj({"type": enum("function"), "function": function, **MARKS}, "type", "function"), MAX_TOOLS, 0
        ),
        "tool_choice": {"anyOf": [enum("none", "auto", "required"), named]},
        "parallel_tool_calls": BOOLEAN,
        "functions": array(ANY, 0, 0),
        "function_call": enum("none", "auto"),
        "chat_template_kwargs": mapping("^[A-Za-z_][A-Za-z0-9_]{0,63}$", ANY, MAX_VARIABLES),
        "reasoning_effort": {"type": "string", "maxLength": 50},
        "enable_thinking": BOOLEAN,
        "echo": enum(False),
        "add_generation_prompt": enum(True),
        "continue_final_message": enum(False),
    }
    return obj(generate_fields(max_tokens) | fields, "messages")


def responses_request(max_tokens: int) -> Schema:
    kinds = enum("text", "input_text", "output_text")
    part = obj({"type": kinds, "text": TEXT, "annotations": ANY, "logprobs": ANY}, "type", "text")
    item = obj(
        {
            "type": NAME,
            "role": enum("system", "developer", "user", "assistant"),
            "content": {"anyOf": [TEXT, array(part, MAX_PARTS, 0)]},
            **dict.fromkeys(("id", "status", "phase"), ANY),
            **dict.fromkeys(("summary", "encrypted_content"), ANY),  # of an item of reasoning
        }
    )
    form = obj(
        {
            "type": enum("text", "json_object", "json_schema"),
            "schema": OBJECT,
            **dict.fromkeys(("name", "description", "strict"), ANY),
        },
        "type",
    )
    fields = {
        "model": MODEL,
        **SAMPLING,
        **IGNORED,
        "input": {"anyOf": [TEXT, array(item, MAX_MESSAGES)]},
        "instructions": TEXT,
        "max_output_tokens": integer(1, max_tokens),
        "stream": BOOLEAN,
        "text": obj({"format": form, "verbosity": ANY}),
        "reasoning": obj({"effort": NAME, "summary": ANY, "generate_summary": ANY}),
        # only with their default values
        "background": enum(False),
        "top_logprobs": enum(0),
        "tools": array(ANY, 0, 0),
        "tool_choice": enum("none", "auto"),
        "parallel_tool_calls": BOOLEAN,
    }
    return obj(fields, "input")


TEXTS_ONLY = (
    "Token ids are not taken, since ids of another tokenizer would give wrong vectors without a word "
    "(LangChain's OpenAIEmbeddings sends texts with check_embedding_ctx_length=False)."
)
EMBEDDING_REQUEST = obj(
    {
        "model": MODEL,
        "input": {"anyOf": [NONEMPTY_TEXT, array(NONEMPTY_TEXT, MAX_EMBEDDINGS)], "description": TEXTS_ONLY},
        "encoding_format": enum("float", "base64"),
        "dimensions": integer(1, 2**31 - 1),
        **IGNORED,
    },
    "input",
)


PAIR = "A text or several; a tab separates the two texts of a pair, such as a sentence and the next."


def ask_request(max_tokens: int) -> Schema:
    """The options of `regard ask`."""
    fields = {
        "max_new_tokens": integer(1, max_tokens),
        "num_return_sequences": integer(1, MAX_CHOICES),
        "prefix": TEXT,
        "distance": enum("cosine", "euclidean"),
        "checkpoint": integer(0, 2**53),
        "stream": BOOLEAN,
        "model": MODEL,
        "input": {"anyOf": [TEXT, array(TEXT, MAX_CHOICES)], "description": PAIR},
        "picture": {"type": "string", "contentEncoding": "base64"},
        "audio": {"type": "string", "contentEncoding": "base64"},
        **SAMPLING,
    }
    return obj(fields)


def check(value: object, schema: Schema, path: str = "") -> None:
    """Raise an APIError that names the first field that does not match the schema."""
    if not matches(value, schema):
        top = path.split(".")[0].split("[")[0] or None
        more = f". {schema['description']}" if "description" in schema else ""
        raise APIError(400, f"{path or 'the request'}: give {describe(schema)}{more}", top)
    for option in schema.get("anyOf", ()):
        if matches(value, option):
            return check(value, option, path)
    if isinstance(value, dict) and "properties" in schema:
        _check_fields(value, schema, f"{path}." if path else "")
    if isinstance(value, dict) and "propertyNames" in schema:
        for name, item in value.items():
            if not re.fullmatch(schema["propertyNames"]["pattern"], name):
                raise APIError(400, f"{path}: {name[:50]!r} is not one of its keys", path)
            check(item, schema["additionalProperties"], f"{path}.{name}")
    if isinstance(value, list):
        items = schema.get("items", ANY)
        for i, item in enumerate(value):
            if isinstance(item, dict | list) or not matches(item, items):
                check(item, items, f"{path}[{i}]")
    return None


def _check_fields(value: dict[str, Any], schema: Schema, prefix: str) -> None:
    known = schema["properties"]
    for name, item in value.items():
        if name not in known:
            if item is None:
                continue
            field = f"{prefix}{name}"[:200]
            raise APIError(400, f"{field}: not supported here", field, "unknown_parameter")
        check(item, known[name], prefix + name)
    for name in schema.get("required", ()):
        if name not in value:
            raise APIError(400, f"{prefix}{name}: this field is required", prefix + name, "missing_parameter")


def matches(value: object, schema: Schema) -> bool:
    """Return whether the type and limits match. Of a list, only the first item is checked."""
    if "anyOf" in schema:
        return any(matches(value, option) for option in schema["anyOf"])
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
            if type(value) is not int and type(value) is not float:
                return False
            return schema["minimum"] <= value <= schema["maximum"]  # false for NaN and infinity
        case "string":
            low, high = schema.get("minLength", 0), schema.get("maxLength", math.inf)
            return isinstance(value, str) and low <= len(value) <= high and is_unicode(value)
        case "array":
            if not (isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]):
                return False
            return not value or matches(value[0], schema["items"])
        case "object":
            return isinstance(value, dict) and len(value) <= schema.get("maxProperties", math.inf)
    return True


def is_unicode(text: str) -> bool:
    """Return whether a string can be encoded: JSON may contain an unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def describe(schema: Schema) -> str:
    """Describe the values that a schema accepts, for error messages."""
    if "anyOf" in schema:
        return ", or ".join(describe(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"])) + " (other values are not supported)"
    match schema.get("type"):
        case "boolean":
            return "true or false"
        case "integer":
            return f"a whole number from {schema['minimum']} to {schema['maximum']}"
        case "number":
            return f"a number from {schema['minimum']} to {schema['maximum']}"
        case "string":
            limit = f" of up to {schema['maxLength']:,} letters" if "maxLength" in schema else ""
            return f"a{' non-empty' if schema.get('minLength') else ''} text{limit}"
        case "array" if schema["maxItems"] == 0:
            return "an empty list (others are not supported)"
        case "array":
            count = f"{schema['minItems']} to {schema['maxItems']:,}"
            return f"a list of {count} items, each {describe(schema['items'])}"
    return "an object"
