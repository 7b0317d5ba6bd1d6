"""Streams whose tokens come one by one or gathered: nothing is lost, and everything stays in order."""

import json
import random
import threading
import time

import pytest

from helpers.looking import reader
from helpers.serving import serve_models
from regard.serve.batch import EngineError, TokenOutput
from regard.serve.endpoint import EventStream
from regard.serve.errors import APIError
from regard.serve.generation import OutputStream
from regard.serve.registry import ServerLimits
from regard.serve.threads import ThreadBridge
from regard.text.tokenizer_kinds import KINDS, train_tokenizer

STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
TEXT = "the quick brown fox jumps über den Hund 😀 and the 狐 jumps again, and again"


def read_in_groups(tokenizer, stop, outputs, sizes):
    """All text, tokens with log-probabilities, the last chunk, and how many tokens were counted."""
    stream, chunks, start = OutputStream(tokenizer, stop, False), [], 0
    for size in sizes:
        if not stream.finished and outputs[start : start + size]:
            chunks.append(stream.read(0, outputs[start : start + size]))
        start += size
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    tokens = [token for chunk in chunks for token in chunk.tokens]
    return "".join(chunk.text for chunk in chunks), tokens, chunks[-1].finish_reason, len(stream.ids)


def split(count, rng):
    sizes = []
    while sum(sizes) < count:
        sizes.append(rng.choice([1, 1, 2, 3, 7, 20]))
    return sizes


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("stop", [[], ["jumps a"], ["Hund \N{GRINNING FACE}", "zebra"], ["never"]])
@pytest.mark.parametrize("kind", KINDS)
def test_gathered_tokens_make_the_same_stream(kind, stop, scored):
    tokenizer, rng = train_tokenizer(kind, [TEXT], 300, ["<s>"]), random.Random(kind)
    ids = tokenizer.encode(TEXT)
    outputs = [TokenOutput(id, -float(i), ()) if scored else id for i, id in enumerate(ids)]
    outputs.append("length")
    text, tokens, reason, count = read_in_groups(tokenizer, stop, outputs, [1] * len(outputs))
    full_text = tokenizer.decode(ids)
    cut = min((at for at in map(full_text.find, stop) if at >= 0), default=len(full_text))
    assert text == full_text[:cut]
    assert reason == ("stop" if cut < len(full_text) else "length")
    assert tokens == (outputs[:count] if scored else [])
    for _ in range(20):
        again = read_in_groups(tokenizer, stop, outputs, split(len(outputs), rng))
        assert again == (text, tokens, reason, count)


@pytest.mark.parametrize("kind", ["bpe", "byte", "word"])
def test_log_probabilities_come_with_the_text_of_their_tokens(kind):
    tokenizer, rng = train_tokenizer(kind, [TEXT], 300, []), random.Random(1)
    outputs = [TokenOutput(id, 0.0, ()) for id in tokenizer.encode(TEXT)]
    stream, ids, text = OutputStream(tokenizer, [], False), [], ""
    while outputs:
        size = rng.randint(1, 9)
        group, outputs = outputs[:size], outputs[size:]
        chunk = stream.read(0, group)
        ids += [token.id for token in chunk.tokens]
        text += chunk.text
        assert tokenizer.decode(ids) == text
    assert text == tokenizer.decode(tokenizer.encode(TEXT))


def test_an_error_after_tokens_is_raised_unless_a_stop_sequence_came_first():
    tokenizer = train_tokenizer("bpe", [TEXT], 300, [])
    outputs = [*tokenizer.encode(TEXT), EngineError("out of memory")]
    with pytest.raises(APIError) as raised:
        OutputStream(tokenizer, [], False).read(0, outputs)
    assert raised.value.status_code == 503
    chunk = OutputStream(tokenizer, [" fox"], False).read(0, outputs)
    assert (chunk.text, chunk.finish_reason) == ("the quick brown", "stop")


@pytest.fixture(scope="module")
def served():
    models = {"one": reader("write", "gpt", context=400), "talk": reader("chat", "transformer")}
    for model in models.values():  # every token has a text
        names = model.task.specials
        specials = [model.tokenizer.id(name) for name in (*names, "<unk>")]
        model.generation = model.generation | {"suppress_tokens": specials}
    return models


def events(data):
    lines = [event.removeprefix("data: ") for event in data.decode().split("\n\n")[:-1]]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def summarize(data):
    """What a client makes of a stream: text, tokens and finish reason of each answer, and the usage."""
    *chunks, last = events(data)
    texts, tokens, reasons = {}, {}, {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        index, logprobs = choice["index"], choice["logprobs"] or {}
        assert reasons.get(index) is None, "nothing comes after the end"
        texts[index] = texts.get(index, "") + choice.get("text", choice.get("delta", {}).get("content", ""))
        tokens[index] = tokens.get(index, []) + (logprobs.get("tokens") or logprobs.get("content") or [])
        reasons[index] = choice["finish_reason"]
    return (texts, tokens, reasons, last["usage"]), len(chunks)


BODIES = {
    "plain": ("/v1/completions", {"prompt": "the quick", "max_tokens": 12, "temperature": 0}),
    "log-probabilities": (
        "/v1/completions",
        {"prompt": "the dog", "max_tokens": 9, "logprobs": 2, "seed": 1},
    ),
    "several": ("/v1/completions", {"prompt": ["the", "fox"], "n": 3, "max_tokens": 9, "seed": 1}),
    "stop": (
        "/v1/completions",
        {"prompt": "the", "max_tokens": 40, "seed": 2, "stop": ["dog", " der Fuchs"]},
    ),
    "chat": (
        "/v1/chat/completions",
        {"model": "talk", "messages": [{"role": "user", "content": "the fox"}], "logprobs": True, "seed": 5},
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_streams_are_the_same_when_the_loop_is_behind(name, served, monkeypatch):
    put, held, gathers = ThreadBridge.put, [], threading.Event()

    def gather(bridge, outputs):
        """Hand over nothing before the end of all requests, or each step when the last one is read."""
        held.extend(outputs)
        if not gathers.is_set() or all(request.finished for request, _ in held):
            put(bridge, held.copy())
            held.clear()
            generations = [request.callback.func.__self__ for request, _ in outputs if not request.closed]
            while bridge.scheduled or any(generation.outputs for generation in generations):
                time.sleep(0.0005)
                generations = [g for g in generations if not all(r.closed for r in g.requests)]

    monkeypatch.setattr(ThreadBridge, "put", gather)
    path, body = BODIES[name]
    body = body | STREAMED
    with serve_models(served) as server:
        alone, count = summarize(server.ask(path, body)[2])
        gathers.set()
        together, gathered_count = summarize(server.ask(path, body)[2])
    assert together == alone
    assert gathered_count < count
    if name == "plain":
        assert count == body["max_tokens"]  # a single stream has an event for each token
        assert gathered_count == 1


def test_parts_of_a_stream_go_to_the_connection_past_all_layers(served, monkeypatch):
    """And the answer is that which passes them, as in a process that another one hands requests to."""
    path, body = BODIES["plain"]
    body, sent, call = body | STREAMED, [], EventStream.__call__

    async def count(self, scope, receive, send):
        async def counting_send(message):
            sent.append(message)
            await send(message)

        if "slow" in hidden:
            del scope["write_part"]
        await call(self, scope, receive, counting_send)

    monkeypatch.setattr(EventStream, "__call__", count)
    hidden, texts, counts = set(), [], []
    with serve_models(served) as server:
        for _ in range(2):
            texts.append(summarize(server.ask(path, body)[2])[0])
            counts.append(len(sent))
            sent.clear()
            hidden.add("slow")
    assert texts[0] == texts[1]
    assert counts[0] == 3  # the start, the first part and the end
    assert counts[1] > 3


def test_what_fails_before_the_first_token_has_a_status_of_its_own(monkeypatch):
    model = reader("write", "gpt")
    true, failing = model.model.start, []

    def start(*args):
        logits, state = true(*args)
        if failing:
            raise RuntimeError("out of memory")
        return logits * float("nan"), state

    monkeypatch.setattr(model.model, "start", start)
    with serve_models({"one": model}) as server:
        body = {"prompt": "the", "stream": True}
        server.check_error(500, "NaN", "/v1/completions", body)
        failing.append(True)
        headers, _ = server.check_error(503, "restarted", "/v1/completions", body)
        assert headers["retry-after"] == "1"


def test_streams_of_many_clients_at_once(served):
    """256 streams, more than the usual places, all get what they get alone."""
    prompts = ["the quick brown fox", "the lazy dog", "and der Fuchs", "springt über den Hund"]
    body = {"max_tokens": 11, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    want, got = {}, {}
    with serve_models(served, ServerLimits(places=256)) as server:
        for prompt in prompts:
            want[prompt] = summarize(server.ask("/v1/completions", body | {"prompt": prompt})[2])[0]

        def ask(i):
            status, _, data = server.ask("/v1/completions", body | {"prompt": prompts[i % 4]})
            got[i] = summarize(data)[0] if status == 200 else status

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(256)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [got[i] == want[prompts[i % 4]] for i in range(256)] == [True] * 256
