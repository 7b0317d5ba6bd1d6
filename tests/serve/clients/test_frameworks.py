"""Frameworks that speak to a model through OpenAI's API, where they are installed."""

import asyncio
import contextlib
import json

import pytest

from helpers.clients import QUESTION, TOO_LONG, WEATHER, check_errors
from helpers.schemas import SCHEMAS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
TEXT = QUESTION[0]["content"]
LONG_ERROR, KEY_ERROR = "maximum context length", "valid API key"


def person():
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    return Person


def run(address, ask):
    """Run this coroutine with a function that makes a client, and close these."""
    import openai

    async def run_and_close():
        async with contextlib.AsyncExitStack() as stack:

            def connect(key=address.key):
                client = openai.AsyncOpenAI(base_url=address.url, api_key=key, max_retries=0)
                stack.push_async_callback(client.close)
                return client

            await ask(connect)

    asyncio.run(run_and_close())


def test_pydantic_ai(address):
    ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.exceptions import ModelHTTPError
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def ask(connect):
        def talker(*key):
            return OpenAIChatModel("talker", provider=OpenAIProvider(openai_client=connect(*key)))

        agent = ai.Agent(talker(), model_settings={"temperature": 0, "max_tokens": 9})
        complete = await agent.run(TEXT)
        assert complete.usage.output_tokens == 9
        async with agent.run_stream(TEXT) as stream:
            assert "".join([piece async for piece in stream.stream_text(delta=True)]) == complete.output
        kind = person()
        for output in (ai.NativeOutput(kind), ai.ToolOutput(kind)):
            agent = ai.Agent(talker(), output_type=output, model_settings={"max_tokens": 150})
            assert isinstance((await agent.run(TEXT)).output, kind)
        for key, text, code in (
            (address.key, TOO_LONG, "context_length_exceeded"),
            ("wrong", "x", "invalid_api_key"),
        ):
            with pytest.raises(ModelHTTPError) as caught:
                await ai.Agent(talker(key)).run(text)
            assert caught.value.body["code"] == code

    run(address, ask)


def test_openai_agents(address):
    """By chat with a tool, and by responses; both complete, as a stream and with a replayed history."""
    agents = pytest.importorskip("agents")
    import openai

    agents.set_tracing_disabled(True)
    kind = person()

    async def ask(model, connect):
        talker = model(model="talker", openai_client=connect())
        how = agents.ModelSettings(max_tokens=150, temperature=0)
        agent = agents.Agent(name="a", model=talker, model_settings=how, output_type=kind)
        complete = await agents.Runner.run(agent, TEXT)
        assert isinstance(complete.final_output, kind)
        stream = agents.Runner.run_streamed(agent, TEXT)
        kinds = [event.data.type async for event in stream.stream_events() if hasattr(event, "data")]
        assert kinds.count("response.output_text.delta") > 1
        assert stream.final_output == complete.final_output
        history = [*complete.to_input_list(), *QUESTION]
        assert isinstance((await agents.Runner.run(agent, history)).final_output, kind)
        with pytest.raises(openai.BadRequestError) as caught:
            await agents.Runner.run(agent, TOO_LONG)
        assert caught.value.code == "context_length_exceeded"
        agent.model = model(model="talker", openai_client=connect("wrong"))
        with pytest.raises(openai.AuthenticationError):
            await agents.Runner.run(agent, TEXT)

    async def use_a_tool(connect):
        cities = []
        tool = agents.FunctionTool(
            name="weather",
            description="now",
            params_json_schema=WEATHER["function"]["parameters"],
            on_invoke_tool=lambda _, arguments: note(json.loads(arguments)["city"]),
            strict_json_schema=False,
        )

        async def note(city):
            cities.append(city)
            return f"sunny in {city}"

        talker = agents.OpenAIChatCompletionsModel(model="talker", openai_client=connect())
        how = agents.ModelSettings(max_tokens=100, tool_choice="weather")
        agent = agents.Agent(name="a", model=talker, model_settings=how, tools=[tool])
        result = await agents.Runner.run(agent, TEXT, max_turns=3)
        assert len(cities) == 1
        assert cities[0] in ("Rome", "Paris")
        assert isinstance(result.final_output, str)

    async def ask_all(connect):
        await ask(agents.OpenAIChatCompletionsModel, connect)
        await ask(agents.OpenAIResponsesModel, connect)
        await use_a_tool(connect)

    run(address, ask_all)


def test_dspy(address, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # not from the network
    dspy = pytest.importorskip("dspy")
    how = {"api_base": address.url, "api_key": address.key, "cache": False, "num_retries": 0}
    form = {"type": "json_schema", "json_schema": {"name": "choices", "schema": SCHEMAS["choices"]}}
    (text,) = dspy.LM("openai/talker", max_tokens=9, **how)(TEXT)
    assert isinstance(text, str)
    signature = dspy.Signature(
        {"question": (str, dspy.InputField())}
        | {name: (kind, dspy.OutputField()) for name, kind in (("colour", str), ("done", bool))}
    )
    talker = dspy.LM("openai/talker", max_tokens=100, response_format=form, **how)
    with dspy.context(lm=talker, adapter=dspy.JSONAdapter()):
        answer = dspy.Predict(signature)(question=TEXT)
    assert answer.colour in ("red", "green", "blue")
    assert isinstance(answer.done, bool)
    embedder = dspy.Embedder("openai/embed", api_base=address.url, api_key=address.key, caching=False)
    assert embedder(["the fox", "dog"]).shape == (2, 12)
    with pytest.raises(Exception, match=LONG_ERROR):
        dspy.LM("openai/talker", **how)(TOO_LONG)
    with pytest.raises(Exception, match=KEY_ERROR):
        dspy.LM("openai/talker", **how | {"api_key": "wrong"})(TEXT)


def test_haystack(address):
    pytest.importorskip("haystack")
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage, Document
    from haystack.tools import Tool
    from haystack.utils import Secret

    key, pieces, asked = Secret.from_token(address.key), [], [ChatMessage.from_user(TEXT)]
    server = {"api_key": key, "api_base_url": address.url, "max_retries": 0}

    def ask(messages, key=address.key, stream=None, tools=None, **options):
        how = server | {"api_key": Secret.from_token(key), "streaming_callback": stream, "tools": tools}
        return OpenAIChatGenerator(model="talker", generation_kwargs=options, **how).run(messages)["replies"][
            0
        ]

    complete = ask(asked, max_tokens=9, temperature=0)
    again = ask(asked, stream=lambda piece: pieces.append(piece.content), max_tokens=9, temperature=0)
    assert "".join(pieces) == again.text == complete.text
    kind = person()
    assert kind.model_validate_json(ask(asked, max_tokens=150, response_format=kind).text)
    weather = WEATHER["function"] | {"function": lambda city: f"sunny in {city}"}
    called = ask(asked, tools=[Tool(**weather)], max_tokens=100, tool_choice="required")
    (call,) = called.tool_calls
    assert call.arguments["city"] in ("Rome", "Paris")
    replayed = [*asked, called, ChatMessage.from_tool("sunny", call)]
    assert ask(replayed, tools=[Tool(**weather)], max_tokens=9).text is not None
    assert len(OpenAITextEmbedder(model="embed", **server).run(TEXT)["embedding"]) == 12
    documents = [Document(content="the fox"), Document(content="dog")]
    embedder = OpenAIDocumentEmbedder(model="embed", progress_bar=False, **server)
    assert [len(d.embedding) for d in embedder.run(documents)["documents"]] == [12, 12]
    check_errors(lambda: ask([ChatMessage.from_user(TOO_LONG)]), lambda: ask(asked, key="wrong"))


def test_semantic_kernel(address):
    pytest.importorskip("semantic_kernel")
    from semantic_kernel.connectors.ai.open_ai import (
        OpenAIChatCompletion,
        OpenAIChatPromptExecutionSettings,
        OpenAITextEmbedding,
    )
    from semantic_kernel.contents import ChatHistory

    def talk(text, client):
        history = ChatHistory()
        history.add_user_message(text)
        return OpenAIChatCompletion(ai_model_id="talker", async_client=client), history

    async def ask(connect):
        service, history = talk(TEXT, connect())
        how = OpenAIChatPromptExecutionSettings(max_tokens=9, temperature=0)
        complete = str(await service.get_chat_message_content(history, how))
        pieces = [str(p) async for p in service.get_streaming_chat_message_content(history, how)]
        assert "".join(pieces) == complete
        kind = person()
        how = OpenAIChatPromptExecutionSettings(max_tokens=150, response_format=kind)
        assert kind.model_validate_json(str(await service.get_chat_message_content(history, how)))
        embedding = OpenAITextEmbedding(ai_model_id="embed", async_client=connect())
        assert (await embedding.generate_embeddings(["the fox", "dog"])).shape == (2, 12)
        for text, key, words in ((TOO_LONG, address.key, LONG_ERROR), ("x", "wrong", KEY_ERROR)):
            service, history = talk(text, connect(key))
            with pytest.raises(Exception, match="failed to complete") as caught:
                await service.get_chat_message_content(history, OpenAIChatPromptExecutionSettings())
            assert words in str(caught.value)

    run(address, ask)


def test_chroma(address):
    """Its vectors come from the server; the nearest text is the same one."""
    chromadb = pytest.importorskip("chromadb")
    from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

    def embed(key=address.key):
        return OpenAIEmbeddingFunction(api_key=key, api_base=address.url, model_name="embed")

    database = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    texts = database.create_collection("texts", embedding_function=embed())
    texts.add(ids=["a", "b"], documents=["the fox", "dog"])
    assert texts.query(query_texts=["dog"], n_results=1)["ids"] == [["b"]]
    check_errors(lambda: embed()([TOO_LONG]), lambda: embed("wrong")(["x"]))


def test_smolagents(address):
    smol = pytest.importorskip("smolagents")

    @smol.tool
    def weather(city: str) -> str:
        """Say the weather.

        Args:
            city: where
        """
        return "rain"

    def talker(key=address.key, **settings):
        return smol.OpenAIServerModel(
            "talker", api_base=address.url, api_key=key, client_kwargs={"max_retries": 0}, **settings
        )

    def ask(model, text=TEXT, **options):
        return model.generate([{"role": "user", "content": [{"type": "text", "text": text}]}], **options)

    model = talker(temperature=0, max_tokens=9)
    text = ask(model).content
    pieces = model.generate_stream(QUESTION)
    assert "".join(piece.content or "" for piece in pieces) == text
    stopped = ask(model, stop_sequences=[text[-1], "Observation:"])
    assert stopped.content == text[: text.index(text[-1])]
    schema = {"name": "person", "strict": True, "schema": SCHEMAS["person"]}
    form = {"type": "json_schema", "json_schema": schema}
    person().model_validate_json(ask(talker(max_tokens=150), response_format=form).content)
    (call,) = ask(talker(max_tokens=150), tools_to_call_from=[weather]).tool_calls
    assert call.function.name == "weather"
    for model, text, words in ((talker(), TOO_LONG, LONG_ERROR), (talker("wrong"), "x", KEY_ERROR)):
        with pytest.raises(Exception, match=words):
            ask(model, text)


def test_aisuite(address):
    suite = pytest.importorskip("aisuite")

    def ask(text, key=address.key, **options):
        client = suite.Client({"openai": {"api_key": key, "base_url": address.url}})
        messages = [{"role": "user", "content": text}]
        return client.chat.completions.create(model="openai:talker", messages=messages, **options)

    options = {"temperature": 0, "max_tokens": 9, "stop": None, "n": 2}
    assert len({choice.message.content for choice in ask(TEXT, **options).choices}) == 1
    for text, key, words in ((TOO_LONG, address.key, LONG_ERROR), ("x", "wrong", KEY_ERROR)):
        with pytest.raises(Exception, match=words):
            ask(text, key)
