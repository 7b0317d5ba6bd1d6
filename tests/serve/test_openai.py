"""OpenAI's own client, as it is, talks to the server as to the real one."""

import asyncio

import numpy as np
import openai
import pytest
import torch
from looking import reader

from regard.serve import listening
from regard.serve.api import serving
from regard.serve.guard import Manners
from regard.serve.house import House, Limits
from regard.template import Template

WORDS = "the quick brown fox"


@pytest.fixture(scope="module")
def address():
    torch.manual_seed(0)
    talker = reader("write", "gpt")
    talker.task.speak(Template("{% for m in messages %}{{ m.content }} {% endfor %}"))
    models = {"writer": reader("write", "gpt"), "talker": talker, "embed": reader("embed", "bert")}
    house = House(models, Limits(tokens=50))
    with listening(serving(house, Manners(key="sesame"))) as port:
        yield f"http://127.0.0.1:{port}/v1", models
    house.close()


@pytest.fixture
def client(address):
    with openai.OpenAI(base_url=address[0], api_key="sesame", max_retries=0) as client:
        yield client


def test_models(client):
    assert [m.id for m in client.models.list()] == ["writer", "talker", "embed"]
    assert client.models.retrieve("embed").owned_by == "regard"


def test_completions(client, address):
    told = client.completions.create(model="writer", prompt=WORDS, max_tokens=5, temperature=0, logprobs=1)
    assert told.choices[0].text == address[1]["writer"].ask(WORDS, max_new_tokens=5)
    assert told.usage.completion_tokens == len(told.choices[0].logprobs.tokens) == 5
    pieces = client.completions.create(model="writer", prompt=WORDS, max_tokens=5, temperature=0, stream=True)
    assert "".join(p.choices[0].text for p in pieces) == told.choices[0].text


def test_chat(client, address):
    asked = {"model": "talker", "messages": [{"role": "user", "content": WORDS}], "max_completion_tokens": 6}
    told = client.chat.completions.create(**asked, temperature=0, logprobs=True, top_logprobs=2, n=2, seed=1)
    want = address[1]["talker"].ask(WORDS, max_new_tokens=6)
    assert [c.message.content for c in told.choices] == [want, want]
    assert len(told.choices[1].logprobs.content[5].top_logprobs) == 2
    chunks = list(
        client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}, top_p=0.5
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 6


def test_what_goes_on_from_an_answer(client):
    """The client sends back what it was given, with all its empty fields."""
    asked = [{"role": "user", "content": "the quick"}]
    first = client.chat.completions.create(model="talker", messages=asked, max_tokens=2)
    again = [*asked, first.choices[0].message, {"role": "user", "content": "fox"}]
    assert (
        client.chat.completions.create(model="talker", messages=again, max_tokens=2).usage.prompt_tokens > 3
    )


def test_embeddings(client, address):
    told = client.embeddings.create(model="embed", input=[WORDS, "lazy dog"])  # in base64, as it likes it
    assert np.allclose(
        [d.embedding for d in told.data], address[1]["embed"].embed([WORDS, "lazy dog"]), atol=1e-6
    )
    plain = client.embeddings.create(model="embed", input=WORDS, encoding_format="float")
    assert np.allclose(plain.data[0].embedding, told.data[0].embedding, atol=1e-6)


def test_errors_are_of_their_kinds(client, address):
    words, many = {"prompt": "x"}, {"prompt": "fox " * 40}
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}
    write, talk = client.completions.create, client.chat.completions.create
    for kind, code, ask, body in (
        (openai.NotFoundError, "model_not_found", write, {"model": "nobody"} | words),
        (openai.BadRequestError, "context_length_exceeded", write, {"model": "writer"} | many),
        (openai.BadRequestError, None, write, {"model": "writer", "max_tokens": 51} | words),
        (openai.BadRequestError, None, talk, {"model": "talker"} | chat),
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


def test_many_at_once_get_their_own(address):
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy"]
    prompts = [f"{a} {b}" for a in words for b in words]

    async def asked():
        async with openai.AsyncOpenAI(base_url=address[0], api_key="sesame", max_retries=0) as client:
            made = (client.completions.create(model="writer", prompt=p, temperature=0) for p in prompts)
            return [told.choices[0].text for told in await asyncio.gather(*made)]

    assert asyncio.run(asked()) == address[1]["writer"].ask(prompts)
