"""OpenAI's own client works with the server."""

import asyncio
import json

import numpy as np
import openai
import pytest
import torch

from helpers.looking import reader
from helpers.serving import Server, serve_models
from regard.serve.registry import ServerLimits
from regard.text.chat_template import Template

WORDS = "the quick brown fox"
TOOL = {"type": "function", "function": {"name": "look"}}


@pytest.fixture(scope="module")
def address():
    torch.manual_seed(0)
    talker = reader("write", "gpt")
    talker.task.use_template(Template("{% for m in messages %}{{ m.content }} {% endfor %}"))
    models = {"writer": reader("write", "gpt"), "talker": talker, "embed": reader("embed", "bert")}
    with serve_models(models, ServerLimits(tokens=50), key="sesame") as server:
        yield f"{server.url}v1", models


@pytest.fixture
def client(address):
    with openai.OpenAI(base_url=address[0], api_key="sesame", max_retries=0) as client:
        yield client


def test_models(client):
    assert [m.id for m in client.models.list()] == ["writer", "talker", "embed"]
    assert client.models.retrieve("embed").owned_by == "regard"


def test_completions(client, address):
    answer = client.completions.create(model="writer", prompt=WORDS, max_tokens=5, temperature=0, logprobs=1)
    assert answer.choices[0].text == address[1]["writer"].ask(WORDS, max_new_tokens=5)
    assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.tokens) == 5
    pieces = client.completions.create(model="writer", prompt=WORDS, max_tokens=5, temperature=0, stream=True)
    assert "".join(p.choices[0].text for p in pieces) == answer.choices[0].text


def test_chat(client, address):
    body = {"model": "talker", "messages": [{"role": "user", "content": WORDS}], "max_completion_tokens": 6}
    answer = client.chat.completions.create(**body, temperature=0, logprobs=True, top_logprobs=2, n=2, seed=1)
    want = address[1]["talker"].ask(WORDS, max_new_tokens=6)
    assert [c.message.content for c in answer.choices] == [want, want]
    assert len(answer.choices[1].logprobs.content[5].top_logprobs) == 2
    chunks = list(
        client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}, top_p=0.5)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 6


def test_conversation_with_an_earlier_answer(client):
    """The client sends an answer back with all its empty fields."""
    body = [{"role": "user", "content": "the quick"}]
    first = client.chat.completions.create(model="talker", messages=body, max_tokens=2)
    again = [*body, first.choices[0].message, {"role": "user", "content": "fox"}]
    assert (
        client.chat.completions.create(model="talker", messages=again, max_tokens=2).usage.prompt_tokens > 3
    )


def test_embeddings(client, address):
    answer = client.embeddings.create(model="embed", input=[WORDS, "lazy dog"])  # the client asks for base64
    assert np.allclose(
        [d.embedding for d in answer.data], address[1]["embed"].embed([WORDS, "lazy dog"]), atol=1e-6
    )
    plain = client.embeddings.create(model="embed", input=WORDS, encoding_format="float")
    assert np.allclose(plain.data[0].embedding, answer.data[0].embedding, atol=1e-6)


def test_errors_have_their_types(client, address):
    words, many = {"prompt": "x"}, {"prompt": "fox " * 40}
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    write, talk = client.completions.create, client.chat.completions.create
    for kind, code, ask, body in (
        (openai.NotFoundError, "model_not_found", write, {"model": "nobody"} | words),
        (openai.BadRequestError, "context_length_exceeded", write, {"model": "writer"} | many),
        (openai.BadRequestError, None, write, {"model": "writer", "max_tokens": 51} | words),
        (openai.BadRequestError, "no_tools", talk, {"model": "talker"} | chat),
        (openai.BadRequestError, None, client.embeddings.create, {"model": "writer", "input": "x"}),
    ):
        with pytest.raises(kind) as caught:
            ask(**body)
        assert (caught.value.code, bool(caught.value.param)) == (code, True)
        assert caught.value.request_id
    with (
        openai.OpenAI(base_url=address[0], api_key="wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError),
    ):
        other.models.list()


def test_errors_on_the_wire(address):
    """What clients go by at every address, also of streams: the status, the type and code of the error."""
    server, text = Server(int(address[0].split(":")[2].split("/")[0])), "fox " * 40
    key, wrong = ({"Authorization": f"Bearer {name}"} for name in ("sesame", "wrong"))
    for path, field, model, content in (
        ("chat/completions", "messages", "talker", [{"role": "user", "content": text}]),
        ("completions", "prompt", "writer", text),
        ("responses", "input", "talker", text),
        ("embeddings", "input", "embed", text),
    ):
        for headers, change, expected in (
            ({}, {}, (401, "authentication_error", "invalid_api_key", None)),
            (wrong, {}, (401, "authentication_error", "invalid_api_key", None)),
            (key, {"model": "none"}, (404, "invalid_request_error", "model_not_found", "model")),
            (key, {}, (400, "invalid_request_error", "context_length_exceeded", field)),
            (key, {field: None}, (400, "invalid_request_error", None, field)),
        ):
            for stream in [{}] if model == "embed" else [{}, {"stream": True}]:
                body = {"model": model, field: content} | stream | change
                status, about, data = server.ask(f"/v1/{path}", body, headers)
                error = json.loads(data)["error"]
                assert (status, error["type"], error["code"], error["param"]) == expected, (path, error)
                assert about["Content-Type"] == "application/json"
                if error["code"] == "context_length_exceeded":  # OpenAI's words, which clients search for
                    assert "This model's maximum context length is" in error["message"]
                    assert f"your {field} resulted in" in error["message"]


def test_concurrent_requests_get_their_own_answers(address):
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy"]
    prompts = [f"{a} {b}" for a in words for b in words]

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=address[0], api_key="sesame", max_retries=0) as client:
            requests = (client.completions.create(model="writer", prompt=p, temperature=0) for p in prompts)
            return [answer.choices[0].text for answer in await asyncio.gather(*requests)]

    assert asyncio.run(ask_all()) == address[1]["writer"].ask(prompts)
