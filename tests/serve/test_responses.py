"""/v1/responses: the answers of chat in another format, read by OpenAI's own client."""

import json

import openai
import pytest

from helpers.schemas import SCHEMAS, untrained
from helpers.serving import serve_models
from regard.serve.endpoint import IGNORED_HEADER
from regard.serve.registry import ServerLimits

GREEDY = {"model": "talker", "temperature": 0, "max_output_tokens": 9}


@pytest.fixture(scope="module")
def server():
    models = {"talker": untrained(), "writer": untrained(template=None)}
    with serve_models(models, ServerLimits(tokens=100)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}v1", api_key="any", max_retries=0) as client:
        yield client


def test_text_in_and_out(client):
    turns = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "the fox"}]
    chat = client.chat.completions.create(model="talker", messages=turns, temperature=0, max_tokens=9)
    answer = client.responses.create(**GREEDY, instructions="be kind", input="the fox")
    assert answer.output_text == chat.choices[0].message.content
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.usage.output_tokens == chat.usage.completion_tokens == 9
    parts = [{"type": "input_text", "text": "the fox"}]
    again = client.responses.create(**GREEDY, input=[turns[0], {"role": "user", "content": parts}])
    assert again.output_text == answer.output_text
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
    replayed = client.responses.create(**GREEDY, input=[turns[0], thought, turns[1]])
    assert replayed.output_text == answer.output_text, "another model's reasoning is left out"
    longer = client.responses.create(**GREEDY, input=[turns[1], answer.output[0], turns[1]])
    assert longer.usage.input_tokens > answer.usage.input_tokens


def test_stream_of_events(client):
    response = client.responses.create(**GREEDY, input="the fox")
    events = list(client.responses.create(**GREEDY, input="the fox", stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:4]] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == response.output_text == events[-1].response.output_text
    assert events[-1].type == "response.incomplete"
    with client.responses.stream(**GREEDY, input="the fox") as stream:
        assert [e.type for e in stream][-1] == "response.incomplete"


def test_answer_by_a_schema(client):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "name": "person", "schema": SCHEMAS["person"], "strict": True}
    body = {"model": "talker", "max_output_tokens": 60, "input": "the fox", "text": {"format": form}}
    answer = client.responses.create(**body)
    assert (answer.status, json.loads(answer.output_text).keys()) == ("completed", {"name", "age"})


def test_what_is_not_there_is_refused(server):
    call = {"type": "function_call", "role": "user", "content": "x"}
    for body, words in (
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools: give an empty list"),
        ({"input": [call]}, "function_call"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0]"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "give a message"),
        ({"input": [{"role": "user"}]}, "input[0].content: this field is required"),
        ({"input": "x", "model": "writer"}, "/v1/completions"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({}, "input"),
    ):
        server.check_error(400, words, "/v1/responses", body)
    body = {
        "input": "the",
        "store": False,
        "truncation": "auto",
        "max_output_tokens": 2,
        "parallel_tool_calls": True,
    }
    status, headers, _ = server.ask("/v1/responses", body | {"previous_response_id": None})
    assert (status, headers[IGNORED_HEADER]) == (200, "store, truncation")
