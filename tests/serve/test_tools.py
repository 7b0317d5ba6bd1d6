"""Tools through a chat template that has them: calls are read, required ones are always valid."""

import json

import pytest

from helpers.schemas import HERMES, closed, untrained
from helpers.serving import serve_models
from regard.serve.endpoint import IGNORED_HEADER
from regard.serve.errors import APIError
from regard.serve.registry import ServerLimits
from regard.serve.tools import Tools, find_format
from regard.text.chat_template import Template

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
        "<tool_call>\\n<function=f>\\n<parameter=x>1</parameter></function></tool_call>",
        '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
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
    assert named in (format.begin.strip(), format.arguments)


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
