"""Python's clients of OpenAI's API, where they are installed: chat, streams, objects, tools, errors."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from helpers.clients import QUESTION, TOO_LONG, WEATHER, check, check_errors
from helpers.schemas import SCHEMAS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # theirs, not ours


def titled(name):
    return {"title": name, "description": name} | SCHEMAS[name]


def test_litellm(address, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # not from the network
    litellm = pytest.importorskip("litellm")
    how = {"model": "openai/talker", "api_base": address.url, "api_key": address.key, "messages": QUESTION}
    complete = litellm.completion(**how, max_tokens=9, temperature=0)
    pieces = litellm.completion(**how, max_tokens=9, temperature=0, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == complete.choices[0].message.content
    for name in SCHEMAS:
        form = {"type": "json_schema", "json_schema": {"name": name, "schema": SCHEMAS[name]}}
        answer = litellm.completion(**how, max_tokens=100, response_format=form)
        check(json.loads(answer.choices[0].message.content), name)
    (call,) = (
        litellm.completion(**how, max_tokens=100, tools=[WEATHER], tool_choice="required")
        .choices[0]
        .message.tool_calls
    )
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Paris")
    again = [*QUESTION, complete.choices[0].message.model_dump(), *QUESTION]
    assert litellm.completion(**how | {"messages": again}, max_tokens=2).choices
    vectors = litellm.embedding(
        model="openai/embed", api_base=address.url, api_key=address.key, input=["the fox", "dog"]
    )
    assert len(vectors.data) == 2
    long = how | {"messages": [{"role": "user", "content": TOO_LONG}]}
    for stream in (False, True):
        with pytest.raises(litellm.ContextWindowExceededError):
            litellm.completion(**long, stream=stream)
        with pytest.raises(litellm.AuthenticationError):
            litellm.completion(**how | {"api_key": "wrong"}, stream=stream)


def test_langchain(address):
    langchain = pytest.importorskip("langchain_openai")
    how = {"base_url": address.url, "api_key": address.key, "max_retries": 0}
    model = langchain.ChatOpenAI(model="talker", temperature=0, max_tokens=9, **how)
    complete = model.invoke("the fox")
    assert "".join(piece.content for piece in model.stream("the fox")) == complete.content
    assert complete.usage_metadata["output_tokens"] == 9
    longer = langchain.ChatOpenAI(model="talker", max_tokens=100, **how)
    for name in SCHEMAS:
        for method in ("json_schema", "function_calling"):
            check(longer.with_structured_output(titled(name), method=method).invoke("the fox"), name)
    (call,) = longer.bind_tools([WEATHER], tool_choice="required").invoke("the fox").tool_calls
    assert call["args"]["city"] in ("Rome", "Paris")
    embeddings = langchain.OpenAIEmbeddings(model="embed", check_embedding_ctx_length=False, **how)
    assert len(embeddings.embed_documents(["the fox", "dog"])) == 2
    writer = langchain.OpenAI(model="writer", max_tokens=5, **how)
    assert isinstance(writer.invoke("the"), str)
    wrong = how | {"api_key": "wrong"}
    stranger = langchain.ChatOpenAI(model="talker", **wrong)
    other = langchain.OpenAI(model="writer", **wrong)
    check_errors(lambda: model.invoke(TOO_LONG), lambda: stranger.invoke("x"))
    check_errors(lambda: list(model.stream(TOO_LONG)), lambda: list(stranger.stream("x")))
    check_errors(lambda: writer.invoke(TOO_LONG), lambda: other.invoke("x"))
    other = langchain.OpenAIEmbeddings(model="embed", check_embedding_ctx_length=False, **wrong)
    check_errors(lambda: embeddings.embed_query(TOO_LONG), lambda: other.embed_query("x"))


def test_llama_index(address):
    llms = pytest.importorskip("llama_index.llms.openai_like")
    core = pytest.importorskip("llama_index.core.llms")
    how = {"api_base": address.url, "api_key": address.key, "max_retries": 0}
    model = llms.OpenAILike(model="talker", is_chat_model=True, temperature=0, max_tokens=9, **how)
    messages = [core.ChatMessage(role="user", content="the fox")]
    complete = model.chat(messages).message.content
    assert "".join(piece.delta or "" for piece in model.stream_chat(messages)) == complete
    writer = llms.OpenAILike(model="writer", is_chat_model=False, max_tokens=5, **how)
    assert writer.complete("the").text is not None
    long = [core.ChatMessage(role="user", content=TOO_LONG)]
    wrong = how | {"api_key": "wrong"}
    stranger = llms.OpenAILike(model="talker", is_chat_model=True, **wrong)
    check_errors(lambda: model.chat(long), lambda: stranger.chat(messages))
    check_errors(lambda: list(model.stream_chat(long)), lambda: list(stranger.stream_chat(messages)))
    stranger = llms.OpenAILike(model="writer", is_chat_model=False, **wrong)
    check_errors(lambda: writer.complete(TOO_LONG), lambda: stranger.complete("the"))
    embedding = pytest.importorskip("llama_index.embeddings.openai_like")
    model = embedding.OpenAILikeEmbedding(model_name="embed", **how)
    assert len(model.get_text_embedding("the fox")) == 12
    stranger = embedding.OpenAILikeEmbedding(model_name="embed", **wrong)
    check_errors(lambda: model.get_text_embedding(TOO_LONG), lambda: stranger.get_text_embedding("x"))


def test_llm(address, tmp_path):
    pytest.importorskip("llm")
    entry = {"model_id": "toy", "model_name": "talker", "api_base": address.url, "supports_schema": True}
    entry["api_key_name"] = "toy"  # without a name, llm sends no key, not even that of --key
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))  # JSON is YAML
    environment = {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": "", "HOME": str(tmp_path)}

    def llm(*words, key=address.key):
        command = [sys.executable, "-m", "llm", "-m", "toy", "--key", key, *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)

    for more in ((), ("--no-stream",)):
        answer = llm("the fox", "-o", "max_tokens", "9", *more)
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout
    answer = llm("the fox", "--schema", json.dumps(SCHEMAS["person"]), "-o", "max_tokens", "80")
    assert answer.returncode == 0, answer.stderr
    check(json.loads(answer.stdout), "person")
    for answer, code in ((llm(TOO_LONG), "maximum context length"), (llm("x", key="wrong"), "API key")):
        assert answer.returncode == 1
        assert code in answer.stderr


def test_instructor(address):
    instructor = pytest.importorskip("instructor")
    from typing import Literal

    import openai
    from instructor.core import InstructorRetryException
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        name: str
        age: int

    class Numbers(BaseModel):
        x: float
        n: int = Field(ge=3, le=90)

    class Choice(BaseModel):
        colour: Literal["red", "green", "blue"]
        done: bool

    class Tags(BaseModel):
        tags: list[str] = Field(min_length=2)

    class Town(BaseModel):
        person: Person
        zip: int

    class Maybe(BaseModel):
        a: str | None = None
        b: int | None = None

    class Either(BaseModel):
        value: int | str | None

    class Day(BaseModel):
        day: str = Field(pattern="^[0-9]{4}-[0-9]{2}$")

    class Node(BaseModel):
        v: int
        next: list["Node"]

    class Short(BaseModel):
        s: str = Field(min_length=2, max_length=5)

    with openai.OpenAI(base_url=address.url, api_key=address.key, max_retries=0) as client:
        for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
            patched = instructor.from_openai(client, mode=mode)
            for kind in (Person, Numbers, Choice, Tags, Town, Maybe, Either, Day, Node, Short):
                how = {"model": "talker", "messages": QUESTION, "max_tokens": 200, "max_retries": 0}
                assert isinstance(patched.chat.completions.create(response_model=kind, **how), kind)
        create = patched.chat.completions.create
        long = {"model": "talker", "messages": [{"role": "user", "content": TOO_LONG}], "max_retries": 0}
        with pytest.raises(InstructorRetryException, match="maximum context length"):
            create(response_model=Person, **long)
        client.api_key = "wrong"
        with pytest.raises(InstructorRetryException, match="API key"):
            create(response_model=Person, **long)


def test_locust(address, tmp_path):
    if find_spec("locust") is None:  # importing it would patch this process's sockets
        pytest.skip("not installed")
    (tmp_path / "locustfile.py").write_text(
        "from locust import HttpUser, task\n\n\n"
        "class Talker(HttpUser):\n"
        "    @task\n"
        "    def talk(self):\n"
        f"        body = {{'model': 'talker', 'messages': {QUESTION!r}, 'max_tokens': 3}}\n"
        f"        headers = {{'Authorization': 'Bearer {address.key}'}}\n"
        "        self.client.post('/chat/completions', json=body, headers=headers)\n"
    )
    command = [
        sys.executable,
        "-m",
        "locust",
        "--headless",
        "-u",
        "4",
        "-r",
        "4",
        "-t",
        "3s",
        "-H",
        address.url,
    ]
    run = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    (row,) = json.loads(run.stdout)
    assert (row["num_failures"], row["num_requests"] > 0) == (0, True)
