"""What is asked of every client of OpenAI's API."""

import pytest

from helpers.schemas import CONTEXT, SCHEMAS

QUESTION = [{"role": "user", "content": "the fox"}]
TOO_LONG = "fox " * CONTEXT
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "now",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Paris"], "type": "string"}},
            "required": ["city"],
        },
    },
}


def check(value, name):
    """Ten schemas, each with a title, as clients want one."""
    assert pytest.importorskip("jsonschema_rs").is_valid(SCHEMAS[name], value), (name, value)


def check_errors(ask_too_much, ask_without_key):
    """Clients that are built on openai-python raise its errors."""
    import openai

    with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
        ask_too_much()
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError) as caught:
        ask_without_key()
    assert (caught.value.code, caught.value.status_code) == ("invalid_api_key", 401)
