"""Tools through a chat template that has them: calls are read, required ones are always valid."""

import json
import time

import pytest

from helpers.schemas import HERMES, closed, untrained
from helpers.serving import serve_models
from regard.decode.grammar import compile_grammar
from regard.serve.call_formats import FORMATS, find_format
from regard.serve.endpoint import IGNORED_HEADER
from regard.serve.errors import APIError
from regard.serve.formats import ChatFormat
from regard.serve.generation import Chunk, OutputStream
from regard.serve.registry import ServerLimits
from regard.serve.tools import Tools
from regard.text.chat_template import Template
from regard.text.tokenizer_kinds import train_tokenizer

WEATHER = {
    "name": "weather",
    "description": "now",
    "parameters": closed({"city": {"enum": ["Paris", "Rome"]}}),
}
CLOCK = {"name": "clock"}
TOOLS = [{"type": "function", "function": f} for f in (WEATHER, CLOCK)]
LLAMA = (
    '{% if tools %}{"name": "f", "parameters": {}}{% endif %}'
    "{% for m in messages %}{{ m.content }} {% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def server():
    models = {"hermes": untrained(), "llama": untrained(template=LLAMA), "plain": untrained(template=PLAIN)}
    with serve_models(models, ServerLimits(tokens=300)) as server:
        yield server


def chat(server, status=200, **options):
    body = {"messages": [{"role": "user", "content": "the fox"}], "max_tokens": 100, "tools": TOOLS}
    code, _, data = server.ask("/v1/chat/completions", body | options)
    assert code == status, data
    return data.decode() if options.get("stream") else json.loads(data)


@pytest.mark.parametrize("model", ["hermes", "llama"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_required_calls_are_valid(server, model, choice):
    pytest.importorskip("llguidance")
    options = {"model": model, "tool_choice": choice, "seed": 3, "max_tokens": 150}
    (unstreamed,) = chat(server, **options)["choices"]
    (call,) = unstreamed["message"]["tool_calls"]
    assert (unstreamed["finish_reason"], unstreamed["message"]["content"]) == ("tool_calls", None)
    arguments = json.loads(call["function"]["arguments"])
    if choice != "required":
        assert call["function"]["name"] == "weather"
    if call["function"]["name"] == "weather":
        assert arguments["city"] in ("Paris", "Rome")
    lines = chat(server, **options, stream=True).split("\n\n")[:-2]
    deltas = [json.loads(line[6:])["choices"][0] for line in lines]
    (streamed,) = [call for d in deltas for call in d["delta"].get("tool_calls", ())]
    assert streamed["function"] == call["function"]
    assert not any(d["delta"].get("content") for d in deltas)
    assert deltas[-1]["finish_reason"] == "tool_calls"


def test_models_without_tools_say_so(server):
    refused = chat(server, 400, model="plain")["error"]
    assert (refused["param"], "chat template has no tools" in refused["message"]) == ("tools", True)
    assert chat(server, model="plain", tools=[], tool_choice="auto")["choices"]
    assert chat(server, 400, tools=None, tool_choice="required")["error"]["param"] == "tool_choice"
    other = {"type": "function", "function": {"name": "other"}}
    assert "other" in chat(server, 400, tool_choice=other)["error"]["message"]


@pytest.mark.parametrize(
    "asks",
    [
        "<tool_call>f\\n<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>",
        "<tool_call><invoke name=f></invoke></tool_call>",
        '{"tool_calls": [{"name": "f", "arguments": {}}]}',
        "<|tool_call_start|>[f(x=1)]",
        '{"name": "f", "description": "g", "parameters": {}}',
    ],
)
def test_formats_that_cannot_be_read_are_refused(asks):
    """Unless a call is required, which is held to a format."""
    template = Template("{% for t in tools %}{{ t }}{% endfor %}" + asks)
    with pytest.raises(APIError, match="tool_choice"):
        Tools([WEATHER], "auto", True, template)
    assert Tools([WEATHER], "required", True, template).grammar()


@pytest.mark.parametrize(
    ("asks", "named"),
    [
        (r"<tool_call>\n{\"name\": <function-name>, \"arguments\": <args>}\n</tool_call>", "<tool_call>"),
        ('{"name": function name, "parameters": dictionary of arguments}', "parameters"),
        (r"{\"name\": function name, \"arguments\": dictionary of arguments}", "arguments"),
    ],
)
def test_formats_are_known_by_what_templates_ask_for(asks, named):
    format = find_format(Template(asks + "{{ tools }}"))
    assert named in format.spelling


@pytest.mark.parametrize(
    "part", ["<function=", '{"name": ', "<tool_call", "[tool", "Action:", '{"name": "a" ']
)
def test_hostile_templates_are_looked_through_once(part):
    """A pattern that began anew at each part would take minutes, in the server's process."""
    template = Template(part * (2**20 // len(part)))
    began = time.process_time()
    find_format(template)
    assert time.process_time() - began < 20


def test_strict_functions_hold_only_required_calls(server):
    tools = [{"type": "function", "function": WEATHER | {"strict": True}}]
    body = {"messages": [{"role": "user", "content": "the fox"}], "max_tokens": 1, "tools": tools}
    for choice, ignored in (("auto", "tools.function.strict"), ("none", None)):
        _, headers, _ = server.ask("/v1/chat/completions", body | {"tool_choice": choice})
        assert headers[IGNORED_HEADER] == ignored


def test_conversation_with_calls_and_results(server):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "function_call": None},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    plain, full = (
        chat(server, messages=messages[:n], max_tokens=1)["usage"]["prompt_tokens"] for n in (1, 3)
    )
    assert full - plain == len("assistant: <tool_call>Rome</tool_call>\ntool: sunny\n")
    none = chat(server, tool_choice="none", max_tokens=1)["usage"]["prompt_tokens"]
    assert none == chat(server, tools=None, max_tokens=1)["usage"]["prompt_tokens"]
    assert "content" in chat(server, 400, messages=[{"role": "user", "content": None}])["error"]["message"]


def test_calls_are_read_from_what_a_model_writes():
    hermes = Tools([WEATHER, CLOCK], "auto", True, Template(HERMES))
    first = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    both = f'I look.\n{first}\n<tool_call>{{"name": "clock", "arguments": {{}}}}</tool_call>'
    text, calls = hermes.split(both)
    assert (text, [c["function"]["name"] for c in calls]) == ("I look.", ["weather", "clock"])
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Rome"}
    for no_call in ('<tool_call>{"name": "nobody"}</tool_call>', "<tool_call>{", "a < b", "plain"):
        assert hermes.split(no_call) == (no_call, [])
    assert [hermes.text_length(t) for t in ("ab<tool", "ab<x", "<tool_call>{")] == [2, 4, 0]
    llama = Tools([WEATHER], "auto", True, Template(LLAMA))
    text, calls = llama.split(' {"name": "weather", "parameters": {"city": "Rome"}}')
    assert (text, len(calls)) == ("", 1)
    assert llama.split('{"other": 1}') == ('{"other": 1}', [])
    both = '<tool_call>[{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": {}}]</tool_call>'
    assert [call["function"]["name"] for call in hermes.split(both)[1]] == ["clock", "weather"]
    assert len(Tools([WEATHER, CLOCK], "auto", False, Template(HERMES)).split(both)[1]) == 1


# What models write, from the cards of their makers and from vLLM's tests of its readers (August 2026):
# https://github.com/vllm-project/vllm/tree/a014e35f38c/tests/tool_parsers. By the name of the format: what a
# template of it contains, an answer, and the text and the calls that it has.
TOKYO, QUERY = {"city": "Tokyo"}, {"query": "query1"}
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, STOP = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
PUBLISHED = {
    "Hermes": (
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
        'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Tokyo"}}\n</tool_call>',
        ("I look.", [("get_weather", TOKYO)]),
    ),
    "Qwen3-Coder": (
        "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\n</parameter>",
        "I check.<tool_call>\n<function=area>\n<parameter=shape>\n12\n</parameter>\n<parameter=sides>\n"
        '{"a": 3,\n "b": [4]}\n</parameter>\n<parameter=digits>\n2\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        ("I check.", [("area", {"shape": "12", "sides": {"a": 3, "b": [4]}, "digits": 2}), ("get_time", {})]),
    ),
    "DeepSeek-V3": (
        f"{CALL}function{SEP}<function_name>\n```json\n<function_arguments_in_json_format>\n```{STOP}",
        f'I check.{BEGIN}{CALL}function{SEP}get_weather\n```json\n{{"city": "Tokyo"}}\n```{STOP}\n'
        f"{CALL}function{SEP}get_time\n```json\n{{}}\n```{STOP}{END}",
        ("I check.", [("get_weather", TOKYO), ("get_time", {})]),
    ),
    "DeepSeek-V3.1": (
        f"{CALL}tool_call_name{SEP}tool_call_arguments{STOP}",
        f'I check.{BEGIN}{CALL}get_weather{SEP}{{"city": "Tokyo"}}{STOP}{CALL}get_time{SEP}{{}}{STOP}{END}',
        ("I check.", [("get_weather", TOKYO), ("get_time", {})]),
    ),
    "Mistral": (
        '[TOOL_CALLS] [{"name": ',
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Tokyo"}, "id": "VvvODy9mT"}]',
        ("", [("get_weather", TOKYO)]),
    ),
    "Mistral, later": (
        "[TOOL_CALLS]name[CALL_ID]id[ARGS]arguments",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Tokyo"}[TOOL_CALLS]get_time[CALL_ID]VvvODy9mT[ARGS]{}',
        ("", [("get_weather", TOKYO), ("get_time", {})]),
    ),
    "Command R7B": (
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ',
        '<|START_ACTION|>\n[\n    {"tool_call_id": "0", "tool_name": "foo", '
        '"parameters": {"query": "query1"}}\n]\n<|END_ACTION|>',
        ("", [("foo", QUERY)]),
    ),
    "Command R": (
        """Write 'Action:' followed by a json-formatted list: "tool_name": title of the tool""",
        'Action: ```json\n[\n    {\n        "tool_name": "foo",\n        "parameters": {"query": "query1"}\n'
        "    }\n]```",
        ("", [("foo", QUERY)]),
    ),
    "Granite": (
        "respond with <|tool_call|> followed by a JSON list of tools used",
        'I look.\n<|tool_call|> [\n  {"name": "get_weather", "arguments": {"city": "Tokyo"}},\n'
        '  {"name": "get_time", "arguments": {}}\n]',
        ("I look.", [("get_weather", TOKYO), ("get_time", {})]),
    ),
    "Phi-4-mini": (
        'functools[{"name": [function name], "arguments": [function arguments as JSON]}, ...]',
        'functools[{"name": "get_weather", "arguments": {"city": "Tokyo"}}]',
        ("", [("get_weather", TOKYO)]),
    ),
    "Functionary": (
        '<function={{ function_name }}>{"example_name": "example_value"}</function>',
        '<function=get_weather>{"city": "Tokyo"}</function><function=get_time>{}</function>',
        ("", [("get_weather", TOKYO), ("get_time", {})]),
    ),
}
AREA = {"shape": {"type": "string"}, "sides": {"type": "object"}, "digits": {"type": "integer"}}
KNOWN = [{"name": name} for name in ("get_weather", "get_time", "foo")]
KNOWN += [{"name": "area", "parameters": {"type": "object", "properties": AREA}}]


def read_calls(calls):
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("name", FORMATS)
def test_published_formats(name):
    """Whole, letter by letter, and with what is not a call: unknown functions, and calls that are cut off."""
    asks, written, expected = PUBLISHED[name]
    template = Template("{{ tools }}{% raw %}" + asks + "{% endraw %}")
    assert find_format(template) is FORMATS[name]
    tools = Tools(KNOWN, "auto", True, template)
    text, calls = tools.split(written)
    assert (text, read_calls(calls)) == expected
    stream, sent, streamed = ChatFormat(None, False, tools), "", []
    for n, letter in enumerate(written, 1):
        chunk = Chunk(0, letter, finish_reason="stop" if n == len(written) else None)
        for choice in map(json.loads, stream.choices(chunk)):
            sent += choice["delta"].get("content", "")
            streamed += choice["delta"].get("tool_calls", [])
    assert (sent.strip(), read_calls(streamed)) == expected
    first = calls[0]["function"]["name"]
    for other in (written.replace(first, "unknown"), written[: written.index(first) + len(first)]):
        assert tools.split(other) == (other, [])
    assert tools.text_length("no call at all") == 14


@pytest.mark.parametrize("name", FORMATS)
def test_a_required_call_is_written_in_the_format(name):
    """Its grammar accepts what is read as the call."""
    pytest.importorskip("llguidance")
    template = Template("{{ tools }}{% raw %}" + PUBLISHED[name][0] + "{% endraw %}")
    tools = Tools([WEATHER], "required", True, template)
    head = tools.format.head.replace("NAME", "weather")
    written = f'{tools.format.begin}{head}{{"city": "Rome"}}{tools.format.tail}{tools.format.end}'
    text, calls = tools.split(written)
    assert (text, read_calls(calls)) == ("", [("weather", {"city": "Rome"})])
    tokenizer = train_tokenizer("byte", [], 0, [])
    matcher = compile_grammar(*tools.grammar(), tokenizer, tokenizer.vocab).matcher
    for wrong in (False, True):
        matcher.reset()
        ids = tokenizer.encode(written.replace("Rome", "Bonn") if wrong else written)
        assert (matcher.validate_tokens(ids) == len(ids)) != wrong


def test_special_tokens_of_calls_are_read():
    """[TOOL_CALLS] is a special token of Mistral's: elsewhere it is left out of answers."""
    tokenizer = untrained("bpe", template=None).tokenizer
    tokenizer.inner.add_special_tokens(["[TOOL_CALLS]", "[ARGS]", "[INST]"])
    template = Template("{{ tools }}{% raw %}" + PUBLISHED["Mistral, later"][0] + "{% endraw %}")
    tools = Tools(KNOWN, "auto", True, template, tokenizer)
    assert sorted(tools.specials.values()) == ["[ARGS]", "[TOOL_CALLS]"]
    written = 'I look.[INST][TOOL_CALLS]foo[ARGS]{"a": 1}'
    ids = tokenizer.encode_spelling(written)
    for stop, at_end in (((), True), ((), False), (("never",), False)):
        stream = OutputStream(tokenizer, stop, at_end, ChatFormat(tokenizer, False, tools).specials)
        chunks = [stream.read(0, [id]) for id in ids]
        text = "".join(chunk.text for chunk in [*chunks, stream.read(0, ["stop"])])
        assert text == written.replace("[INST]", "")
    text, calls = tools.split(text)
    assert (text, read_calls(calls)) == ("I look.", [("foo", {"a": 1})])
    required = Tools(KNOWN, "required", True, template, tokenizer)
    assert "TOOL_CALLS" not in required.grammar()[1], "grammars are of texts alone"
