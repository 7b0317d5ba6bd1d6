"""Log-probabilities of prompts: `echo` with `logprobs`, as lm-eval asks for them."""

import json
import threading

import numpy as np
import pytest
import torch

from helpers.looking import reader
from helpers.serving import serve_models
from regard.serve import registry, schema, scoring
from regard.serve.formats import CompletionFormat
from regard.serve.generation import EngineGeneration
from regard.serve.protocol import encode_parts, to_json
from regard.serve.registry import ServerLimits

WORDS = "the quick brown fox"
CHOICES = ["jumps over the dog", "and der Hund", "lazy"]


@pytest.fixture(scope="module")
def server():
    torch.manual_seed(0)
    models = {"writer": reader("write", "gpt"), "translate": reader("translate", "transformer")}
    with serve_models(models, ServerLimits(tokens=50)) as server:
        yield server


@pytest.fixture(scope="module")
def writer(server):
    return server.registry.models["writer"].model


def complete(server, status=200, **body):
    code, _, data = server.ask("/v1/completions", {"model": "writer"} | body)
    assert code == status, data
    return data if body.get("stream") else json.loads(data)


def logprobs_of(writer, ids):
    """The log-probabilities (T - 1, V) after each token but the last."""
    with torch.no_grad():
        return writer.model(torch.tensor([ids]))[0, :-1].log_softmax(-1)


def test_requests_of_lm_eval_score_choices(server, writer):
    """What lm-eval's local-completions sends and reads: the sum over [ctxlen:-1], whatever is generated."""
    encode = writer.tokenizer.encode
    context, rows = encode(WORDS), [encode(f"{WORDS} {choice}") for choice in CHOICES]
    body = {"prompt": rows, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    for bias in ({}, {"logit_bias": {str(writer.task.ends[0]): 100}}):  # the end token comes: it counts too
        answer = complete(server, **body, **bias)
        for choice, ids in zip(answer["choices"], rows, strict=True):
            token_logprobs = choice["logprobs"]["token_logprobs"]
            assert (token_logprobs[0], choice["logprobs"]["top_logprobs"][0]) == (None, None)
            assert len(token_logprobs) == len(ids) + 1
            true = logprobs_of(writer, ids)
            want = true[range(len(ids) - 1), ids[1:]].numpy()
            assert np.allclose(token_logprobs[1:-1], want, atol=1e-5)
            greedy = [
                p == max(t.values())
                for p, t in list(zip(token_logprobs, choice["logprobs"]["top_logprobs"], strict=True))[
                    len(context) : -1
                ]
            ]
            assert (
                greedy == (true[len(context) - 1 :].argmax(-1) == torch.tensor(ids[len(context) :])).tolist()
            )


def test_prompts_alone_in_openais_layout(server, writer, monkeypatch):
    monkeypatch.setattr(scoring, "MAX_LOGITS", 40)  # in parts
    monkeypatch.setattr(scoring, "MAX_TOKENS", 9)
    prompts = [f"{WORDS} {choice}" for choice in CHOICES]
    answer = complete(server, prompt=prompts, max_tokens=0, echo=True, logprobs=2, n=2)
    assert [c["text"] for c in answer["choices"]] == [p for p in prompts for _ in range(2)]
    assert answer["usage"]["completion_tokens"] == 0
    for choice in answer["choices"]:
        scores, ids = choice["logprobs"], writer.tokenizer.encode(choice["text"])
        assert (choice["finish_reason"], scores["tokens"]) == ("length", writer.tokenizer.tokens(ids))
        true = logprobs_of(writer, ids)
        assert np.allclose(scores["token_logprobs"][1:], true[range(len(ids) - 1), ids[1:]], atol=1e-5)
        for best, row in zip(scores["top_logprobs"][1:], true, strict=True):
            assert list(best) == writer.tokenizer.tokens(row.topk(2).indices.tolist())
        offsets = [len(writer.tokenizer.decode(ids[:i])) for i in range(len(ids))]
        assert scores["text_offset"] == offsets


def test_echo_in_a_stream_and_without_scores(server):
    body = {"prompt": WORDS, "max_tokens": 3, "echo": True, "logprobs": 1}
    (unstreamed,) = complete(server, **body)["choices"]
    events = [
        json.loads(e[6:])["choices"][0]
        for e in complete(server, **body, stream=True).decode().split("\n\n")[:-2]
    ]
    assert "".join(e["text"] for e in events) == unstreamed["text"]
    for name in ("tokens", "text_offset"):
        assert [x for e in events for x in e["logprobs"][name]] == unstreamed["logprobs"][name]
    assert complete(server, prompt=WORDS, max_tokens=0)["choices"][0]["text"] == ""
    assert complete(server, prompt=WORDS, max_tokens=0, stream=True).endswith(b"data: [DONE]\n\n")
    refused = complete(server, 400, model="translate", prompt=WORDS, echo=True, logprobs=1)
    assert refused["error"]["param"] == "echo"


def test_log_probabilities_of_a_response_are_limited(server, monkeypatch):
    """3 answers of up to 5 tokens, each with its own and those of 2 others; with echo, of 4 more tokens."""
    body = {"prompt": WORDS, "n": 3, "max_tokens": 5, "logprobs": 2}
    for limit, more in ((45, {}), (81, {"echo": True}), (36, {"echo": True, "max_tokens": 0})):
        for stream in (False, True):
            monkeypatch.setattr(schema, "MAX_LOGPROBS", limit)
            complete(server, **body | more, stream=stream)
            monkeypatch.setattr(schema, "MAX_LOGPROBS", limit - 1)
            asked = {"model": "writer", "stream": stream} | body | more
            server.check_error(400, f"up to {limit - 1}", "/v1/completions", asked)
            complete(server, **body | more | {"logprobs": None}, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
def test_large_responses_are_made_outside_of_the_event_loop(server, stream, monkeypatch):
    threads = {"loop": set(), "work": set()}

    def note(owner, name, kind):
        method = getattr(owner, name)

        def noted(*args):
            threads[kind].add(threading.get_ident())
            return method(*args)

        monkeypatch.setattr(owner, name, noted)

    note(EngineGeneration, "receive", "loop")
    for name in ("add_prompts", "first_event" if stream else "choice"):
        note(CompletionFormat, name, "work")
    body = {"prompt": WORDS, "max_tokens": 5, "logprobs": 2, "echo": True, "seed": 1, "stream": stream}
    small = complete(server, **body)
    assert len(threads["loop"]) == 1
    monkeypatch.setattr(registry, "INLINE", 3)
    threads["work"].clear()
    large = complete(server, **body)
    assert threads["work"]
    assert not threads["work"] & threads["loop"]
    if not stream:
        assert small["choices"] == large["choices"]


def test_json_by_parts_is_the_same():
    tokens = [{"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [{"a": 1}]}] * 3
    choice = {"index": 0, "text": 'a"\n', "logprobs": {"content": tokens, "refusal": None, "none": []}}
    for value in ({"choices": [choice, choice], "usage": {}}, choice, [], {}, "é", None, 3, [[[[[[[1]]]]]]]):
        for depth in range(9):
            assert encode_parts(value, depth) == to_json(value)
