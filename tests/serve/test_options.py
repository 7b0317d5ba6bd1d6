"""Options of other servers and clients: honoured, ignored with a header, or refused by name."""

import json
from collections import Counter

import pytest
import torch

from helpers.looking import reader
from helpers.serving import serve_models
from regard.serve.endpoint import IGNORED_HEADER
from regard.serve.registry import ServerLimits
from regard.text.chat_template import Template

WORDS = "the quick brown fox"
TURNS = (
    "{% for m in messages %}{{ m.content }} {% endfor %}{% if polite %}over {% endif %}{{ reasoning_effort }}"
)


@pytest.fixture(scope="module")
def server():
    torch.manual_seed(0)
    talker = reader("write", "gpt")
    talker.task.use_template(Template(TURNS))
    models = {
        "writer": reader("write", "gpt"),
        "talker": talker,
        "translate": reader("translate", "transformer"),
    }
    with serve_models(models, ServerLimits(tokens=50)) as server:
        yield server


def post(server, path, status=200, **body):
    code, headers, data = server.ask(path, body)
    assert code == status, data
    return json.loads(data), headers


def write(server, **options):
    answer, _ = post(
        server, "/v1/completions", **{"model": "writer", "prompt": WORDS, "max_tokens": 30} | options
    )
    return answer["choices"][0]["text"]


def chat(server, status=200, **options):
    messages = [{"role": "user", "content": "the quick"}]
    body = {"model": "talker", "messages": messages, "max_tokens": 5, "temperature": 0}
    return post(server, "/v1/chat/completions", status, **body | options)


def test_null_stands_for_any_field_that_is_not_set(server):
    message = {"role": "user", "content": "the", "function_call": None, "tool_calls": None, "surprise": None}
    nothing = dict.fromkeys(
        ("functions", "tools", "tool_choice", "stop", "model", "audio", "surprise", "logit_bias")
    )
    answer, headers = post(
        server, "/v1/chat/completions", **nothing | {"messages": [message], "model": "talker"}
    )
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert IGNORED_HEADER not in headers
    refused, _ = post(server, "/v1/completions", 400, prompt="x", surprise=1)
    assert refused["error"]["code"] == "unknown_parameter"
    assert post(server, "/v1/completions", 400, prompt=None)[0]["error"]["param"] == "prompt"


def test_ignored_fields_are_named_in_a_header(server):
    for stream in (False, True):
        body = {
            "prompt": WORDS,
            "max_tokens": 2,
            "user": "me",
            "store": True,
            "metadata": None,
            "guided_decoding_backend": "outlines",
            "stream": stream,
            "stream_options": {"continuous_usage_stats": True},
        }
        status, headers, _ = server.ask("/v1/completions", body)
        usage = ", stream_options.continuous_usage_stats"
        ignored = f"user, store, guided_decoding_backend{usage if stream else ''}"
        assert (status, headers[IGNORED_HEADER]) == (200, ignored)


def test_other_names_of_the_same_option(server):
    assert write(server, repeat_penalty=3.0) == write(server, repetition_penalty=3.0) != write(server)
    sampled = {"temperature": 1.0, "seed": 3}
    assert write(server, top_k=-1, **sampled) == write(server, top_k=0, **sampled)


def test_values_that_switch_an_option_off_change_nothing(server):
    off = {
        "typical_p": 1.0,
        "tfs_z": 1,
        "mirostat": 0,
        "dry_multiplier": 0.0,
        "xtc_probability": 0,
        "top_a": 0,
    }
    off |= {"early_stopping": False, "detokenize": True, "skip_special_tokens": True}
    assert write(server, **off, temperature=1.0, seed=3) == write(server, temperature=1.0, seed=3)
    for name, value in (("typical_p", 0.9), ("mirostat", 2), ("early_stopping", True)):
        refused, _ = post(server, "/v1/completions", 400, prompt="x", **{name: value})
        assert refused["error"]["param"] == name


def test_best_of_as_many_as_are_sent(server):
    answers = [
        post(server, "/v1/completions", model="writer", prompt=WORDS, seed=3, n=3, **more)[0]["choices"]
        for more in ({}, {"best_of": 3}, {"best_of": 1})
    ]
    assert answers[0] == answers[1] == answers[2]
    for more in ({"best_of": 4}, {"best_of": 2}):
        server.check_error(400, "best_of", "/v1/completions", {"prompt": "x", "n": 3} | more)


def test_minus_one_token_is_no_limit(server):
    """LM Studio's examples and clients of llama.cpp send it."""
    for path, body in (
        ("completions", {"model": "writer", "prompt": WORDS}),
        ("chat/completions", {"model": "talker", "messages": [{"role": "user", "content": "the"}]}),
    ):
        answers = [
            post(server, f"/v1/{path}", **body, temperature=0, **limit)[0]
            for limit in ({"max_tokens": -1}, {})
        ]
        assert answers[0]["choices"] == answers[1]["choices"]
        post(server, f"/v1/{path}", 400, **body, max_tokens=-2)


def test_marks_of_other_servers_in_a_history(server):
    """Prompt caching by Anthropic's rules, the reasoning of OpenRouter, a parsed answer of openai-python."""
    marked = [{"type": "text", "text": "the quick", "cache_control": {"type": "ephemeral"}}]
    earlier = {"role": "assistant", "content": "fox", "reasoning_details": [{"text": "hm"}], "parsed": {}}
    plain = {"role": "user", "content": "the quick"}
    answers = [
        chat(server, messages=messages)[0]["choices"][0]["message"]["content"]
        for messages in (
            [plain, {"role": "assistant", "content": "fox"}, plain],
            [plain | {"content": marked}, earlier, plain | {"cache_control": {"type": "ephemeral"}}],
        )
    ]
    assert answers[0] == answers[1]
    empty = [chat(server, messages=[plain, plain | {"content": c}])[0]["usage"] for c in ("", [])]
    assert empty[0] == empty[1]


def test_penalties_count_what_was_written(server):
    task = server.registry.models["writer"].model.task
    counts = {
        name: Counter(task.tokenizer.encode(write(server, **options)))
        for name, options in (
            ("plain", {}),
            ("often", {"frequency_penalty": 2}),
            ("once", {"presence_penalty": 2}),
        )
    }
    assert max(counts["often"].values()) < max(counts["plain"].values())
    assert len(counts["once"]) >= len(counts["plain"])
    again = write(server, frequency_penalty=-2)
    assert len(set(task.tokenizer.encode(again))) <= len(counts["plain"])


def test_logit_bias_bans_and_forces(server):
    tokenizer = server.registry.models["writer"].model.tokenizer
    (fox,) = tokenizer.encode("fox")
    assert set(tokenizer.encode(write(server, logit_bias={str(fox): 100}))) == {fox}
    first = tokenizer.encode(write(server))[0]
    assert first not in tokenizer.encode(write(server, logit_bias={str(first): -100}))


def test_min_tokens_and_ignore_eos_hold_the_end_back(server):
    (end,) = server.registry.models["writer"].model.task.ends
    force = {"logit_bias": {str(end): 100}, "max_tokens": 9}
    for more, tokens, reason in (
        ({}, 0, "stop"),
        ({"min_tokens": 4}, 4, "stop"),
        ({"ignore_eos": True}, 9, "length"),
    ):
        answer, _ = post(server, "/v1/completions", model="writer", prompt=WORDS, **force | more)
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (
            tokens,
            reason,
        )


def test_rules_work_where_beam_search_is_the_default(server):
    served = server.registry.models["translate"]
    served.model.generation = served.model.generation | {"num_beams": 2}
    body = {"model": "translate", "prompt": WORDS}
    post(server, "/v1/completions", **body, frequency_penalty=1)
    refused, _ = post(server, "/v1/completions", 400, **body, frequency_penalty=1, num_beams=2)
    assert "num_beams" in refused["error"]["message"]


def test_variables_of_the_chat_template(server):
    plain, headers = chat(server)
    polite, headers = chat(
        server, chat_template_kwargs={"polite": True, "unheard": 1}, reasoning_effort="low"
    )
    assert headers[IGNORED_HEADER] == "unheard"
    assert polite["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + 2
    _, headers = chat(server, enable_thinking=False)  # this template has no such variable
    assert headers[IGNORED_HEADER] == "enable_thinking"
    for wrong in ({"messages": []}, {"new\nline": 1}, {"ü": 1}, {f"v{n}": 1 for n in range(65)}):
        refused, _ = chat(server, 400, chat_template_kwargs=wrong)
        assert refused["error"]["param"] == "chat_template_kwargs"


def test_context_error_has_openais_words(server):
    for path, body, name in (
        ("completions", {"model": "writer", "prompt": "fox " * 30}, "prompt"),
        (
            "chat/completions",
            {"model": "talker", "messages": [{"role": "user", "content": "fox " * 30}]},
            "messages",
        ),
    ):
        error = post(server, f"/v1/{path}", 400, **body)[0]["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", name)
        assert error["message"].startswith("This model's maximum context length is 23 tokens. However, ")
