"""Models over HTTP answer as they do in Python, in OpenAI's formats and by /api/ask."""

import base64
import io
import json
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.looking import captioner, noise, reader, seer
from helpers.serving import serve_models
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.serve.registry import copy_modules, model_names
from regard.text.chat_template import Template
from regard.tracing import trace

WORDS = "the quick brown fox"
TURNS = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}over"


def talker():
    model = reader("write", "gpt")
    model.task.use_template(Template(TURNS))
    return model


@pytest.fixture(scope="module")
def server():
    torch.manual_seed(0)  # the models are made before a test sets its own seed
    models = {
        "writer": reader("write", "gpt"),
        "talker": talker(),
        "chat": reader("chat", "transformer", task_turns=3),
        "translate": reader("translate", "transformer"),
        "embed": reader("embed", "bert"),
        "fill": reader("fill", "bert"),
        "see": seer(),
        "caption": captioner(),
        "classify": reader("classify", "bert", task_labels=("a", "b")),
        "tag": reader("tag", "bert", task_labels=("O", "B-X")),
        "span": reader("span", "bert"),
        "restore": reader("restore", "t5"),
        "words": reader("write", "gpt").words(),
    }
    with serve_models(models) as server:
        yield server


def model(server, name):
    return server.registry.models[name].model


def post(server, path, status=200, **body):
    code, _, data = server.ask(path, body)
    assert code == status, data
    return json.loads(data) if data[:1] == b"{" else data.decode()


def events(text):
    """The events of a stream, which has to end with [DONE]."""
    lines = text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def ids(server, name, prompt, tokens, **options):
    """What `generate` gives."""
    it = model(server, name)
    sampling = Sampling(max_new_tokens=tokens, **{"temperature": 0.0} | options)
    return [row[0] for row in generate(it.model, [it.tokenizer.encode(prompt)], sampling, end=it.task.ends)]


# Completions


def test_models_are_listed(server):
    status, _, data = server.ask("/v1/models")
    assert (status, [m["id"] for m in json.loads(data)["data"]]) == (200, list(server.registry.models))
    assert json.loads(server.ask("/v1/models/fill")[2])["object"] == "model"
    assert (
        post(server, "/v1/completions", 404, model="nobody", prompt="x")["error"]["code"] == "model_not_found"
    )
    assert server.ask("/v1/models/nobody")[0] == 404


def test_greedy_answer_equals_the_models(server):
    answer = post(server, "/v1/completions", model="writer", prompt=WORDS)
    (choice,) = answer["choices"]
    assert choice["text"] == model(server, "writer").ask(WORDS)
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11}
    assert (answer["object"], answer["model"], answer["id"][:5]) == ("text_completion", "writer", "cmpl-")
    assert (
        post(server, "/v1/completions", prompt=WORDS)["choices"] == answer["choices"]
    )  # the first model is the default


def test_stream_equals_the_complete_answer(server):
    body = {"model": "writer", "prompt": [WORDS, "lazy dog"], "max_tokens": 13, "stream": True}
    status, headers, data = server.ask("/v1/completions", body | {"stream_options": {"include_usage": True}})
    assert (status, headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    *answer, last = events(data.decode())
    for i, prompt in enumerate(body["prompt"]):
        own = [e["choices"][0] for e in answer if e["choices"][0]["index"] == i]
        assert "".join(c["text"] for c in own) == model(server, "writer").ask(prompt, max_new_tokens=13)
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + ["length"]
    assert all(e["usage"] is None for e in answer)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 26)
    assert "usage" not in events(server.ask("/v1/completions", body)[2].decode())[0]


def test_sampling_follows_the_seed(server):
    body = {"model": "writer", "prompt": WORDS, "temperature": 0.9, "top_p": 0.8, "n": 5, "seed": 11}
    texts = [c["text"] for c in post(server, "/v1/completions", **body)["choices"]]
    options = {"temperature": 0.9, "top_p": 0.8, "seed": 11, "num_return_sequences": 5}
    assert texts == model(server, "writer").ask(WORDS, **options)
    assert len(set(texts)) > 1
    assert post(server, "/v1/completions", **body | {"seed": -3})["choices"][0]["text"]  # OpenAI's are signed


def test_prompts_of_token_ids(server):
    it = model(server, "writer").tokenizer
    answer = post(server, "/v1/completions", model="writer", prompt=it.encode(WORDS))
    assert answer["choices"][0]["text"] == model(server, "writer").ask(WORDS)
    many = post(server, "/v1/completions", model="writer", prompt=[it.encode(WORDS), [3]], echo=True, n=2)
    assert [c["index"] for c in many["choices"]] == [0, 1, 2, 3]
    assert many["choices"][1]["text"] == WORDS + model(server, "writer").ask(WORDS)
    assert (
        "end at 16" in post(server, "/v1/completions", 400, model="writer", prompt=[99])["error"]["message"]
    )


def test_stop_sequences_are_not_part_of_the_answer(server):
    text = model(server, "writer").ask(WORDS, max_new_tokens=13)
    stop = text[len(text) // 2 :][:3]
    body = {"model": "writer", "prompt": WORDS, "max_tokens": 13, "stop": [stop, "nowhere"]}
    (choice,) = post(server, "/v1/completions", **body)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
    answer = events(server.ask("/v1/completions", body | {"stream": True})[2].decode())
    assert "".join(e["choices"][0]["text"] for e in answer) == choice["text"]
    assert answer[-1]["choices"][0]["finish_reason"] == "stop"


def test_logprobs_equal_the_models(server):
    it, written = model(server, "writer"), ids(server, "writer", WORDS, 5)
    answer = post(server, "/v1/completions", model="writer", prompt=WORDS, max_tokens=5, logprobs=2)
    logprobs = answer["choices"][0]["logprobs"]
    read = it.tokenizer.encode(WORDS)
    with torch.no_grad():
        want = it.model(torch.tensor([read + written]))[0, len(read) - 1 : -1].log_softmax(-1)
    assert logprobs["tokens"] == it.tokenizer.tokens(written)
    assert np.allclose(
        logprobs["token_logprobs"], [p[i] for p, i in zip(want, written, strict=True)], atol=1e-5
    )
    for row, best in zip(want, logprobs["top_logprobs"], strict=True):
        top = row.topk(2)
        assert list(best) == it.tokenizer.tokens(top.indices.tolist())
        assert np.allclose(list(best.values()), top.values, atol=1e-5)
    assert logprobs["text_offset"][:2] == [0, len(logprobs["tokens"][0])]


def test_characters_of_several_tokens_stay_whole():
    """UTF-8 that is split between tokens is never sent in part."""
    from regard.models import GPT, GPTConfig
    from regard.runs.model import Model
    from regard.tasks import Write, WriteConfig
    from regard.text.tokenizer_kinds import train_tokenizer

    tokenizer = train_tokenizer("byte", [], 300, Write.specials)
    text, module = (
        "über 火 und 🦊!",
        GPT(GPTConfig(vocab=tokenizer.vocab, context=61, dim=8, depth=1, heads=1)),
    )
    follow = tokenizer.encode(text)
    true = module.start

    def start(prompt, attention_mask=None):
        _, state = true(prompt, attention_mask)
        return torch.nn.functional.one_hot(torch.tensor([follow[0]]), tokenizer.vocab) * 30.0, state

    said = iter(follow[1:])

    def step(ids, state):
        return torch.nn.functional.one_hot(torch.tensor([next(said)]), tokenizer.vocab) * 30.0, state

    module.start, module.step = start, step
    writer = Model(module.eval(), Write(WriteConfig(name="write"), tokenizer, 61), {"temperature": 0.0})
    with serve_models({"bytes": writer}) as server:
        body = {"prompt": "a", "max_tokens": len(follow), "stream": True, "logprobs": 0}
        answer = [e["choices"][0] for e in events(server.ask("/v1/completions", body)[2].decode())]
    assert "".join(c["text"] for c in answer) == text
    assert not any("\ufffd" in c["text"] for c in answer)
    assert sum(len(c["logprobs"]["tokens"]) for c in answer if c["logprobs"]) == len(follow)


def test_translation_with_beam_search(server):
    it = model(server, "translate")
    assert post(server, "/v1/completions", model="translate", prompt=WORDS)["choices"][0]["text"] == it.ask(
        WORDS
    )
    beams = {"model": "translate", "prompt": WORDS, "num_beams": 3, "n": 2, "length_penalty": 0.5}
    want = it.ask(WORDS, num_beams=3, num_return_sequences=2, length_penalty=0.5)
    assert [c["text"] for c in post(server, "/v1/completions", **beams)["choices"]] == want
    answer = events(server.ask("/v1/completions", beams | {"stream": True})[2].decode())
    assert [e["choices"][0]["text"] for e in answer] == want
    refused = post(server, "/v1/completions", 400, **beams | {"logprobs": 1})
    assert refused["error"]["param"] == "logprobs"


# Chat


def test_chat_with_a_template(server):
    messages = [
        {"role": "system", "content": "the"},
        {"role": "user", "content": [{"type": "text", "text": "quick "}, {"type": "text", "text": "fox"}]},
    ]
    body = {"model": "talker", "messages": messages, "max_completion_tokens": 5}
    answer = post(server, "/v1/chat/completions", **body)
    (choice,) = answer["choices"]
    plain = model(server, "writer").ask("system the user quick fox over", max_new_tokens=5)
    assert choice["message"] == {"role": "assistant", "content": plain, "refusal": None}
    assert answer["usage"]["prompt_tokens"] == 6
    chunks = [e["choices"][0] for e in events(post(server, "/v1/chat/completions", **body, stream=True))]
    assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["delta"].get("content", "") for c in chunks) == plain
    assert [c["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_beam_search_in_a_conversation_only(server):
    messages = [{"role": "user", "content": WORDS}]
    answer = post(server, "/v1/chat/completions", model="talker", messages=messages, num_beams=3)
    assert answer["choices"][0]["message"]["content"] == model(server, "talker").ask(WORDS, num_beams=3)
    refused = post(server, "/v1/completions", 400, model="talker", prompt=WORDS, num_beams=3)
    assert refused["error"]["param"] == "num_beams"


def test_chat_logprobs_have_their_own_format(server):
    body = {"model": "talker", "messages": [{"role": "user", "content": WORDS}], "max_tokens": 3}
    answer = post(server, "/v1/chat/completions", **body, logprobs=True, top_logprobs=2)
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    for one in content:
        assert bytes(one["bytes"]).decode() == one["token"]
        assert (one["top_logprobs"][0]["token"], len(one["top_logprobs"])) == (one["token"], 2)
        assert one["top_logprobs"][0]["logprob"] == one["logprob"] > one["top_logprobs"][1]["logprob"]
    assert (
        post(server, "/v1/chat/completions", 400, **body, top_logprobs=2)["error"]["param"] == "top_logprobs"
    )


def test_chat_of_an_encoder_decoder(server):
    turns = ["the quick fox", "jumps\nover", "the dog"]
    roles = ["user", "assistant", "user"]
    messages = [{"role": r, "content": t} for r, t in zip(roles, turns, strict=True)]
    answer = post(server, "/v1/chat/completions", model="chat", messages=messages)
    it, conversation = model(server, "chat"), "the quick fox\njumps over\nthe dog"
    assert answer["choices"][0]["message"]["content"] == it.ask(conversation)
    assert answer["usage"]["prompt_tokens"] == len(it.task.parts(conversation)[0]) + 1 == 10
    for wrong in (messages[:2], [messages[0]] * 2, [{"role": "system", "content": "x"}, *messages]):
        refused = post(server, "/v1/chat/completions", 400, model="chat", messages=wrong)
        assert refused["error"]["param"] == "messages"


def test_models_without_chat_name_the_route_to_use(server):
    for name in ("writer", "translate"):
        messages = [{"role": "user", "content": "x"}]
        answer = post(server, "/v1/chat/completions", 400, model=name, messages=messages)
        assert "/v1/completions" in answer["error"]["message"]
    for path, more in (("completions", {"prompt": "x"}), ("embeddings", {"input": "x"})):
        assert (
            "/api/ask" in json.dumps(post(server, f"/v1/{path}", 400, model="fill", **more))
            or path != "completions"
        )


# Embeddings


def test_embeddings_equal_the_models(server):
    it, texts = model(server, "embed"), ["the quick fox", "lazy dog"]
    want = it.embed(texts)
    answer = post(server, "/v1/embeddings", model="embed", input=texts)
    assert np.allclose([d["embedding"] for d in answer["data"]], want, atol=1e-6)
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    packed = post(
        server, "/v1/embeddings", model="embed", input=texts, encoding_format="base64", dimensions=12
    )
    vectors = [np.frombuffer(base64.b64decode(d["embedding"]), "<f4") for d in packed["data"]]
    assert np.allclose(vectors, want, atol=1e-6)
    for ids in (it.tokenizer.encode(texts[0]), [it.tokenizer.encode(text) for text in texts]):
        refused = post(server, "/v1/embeddings", 400, model="embed", input=ids)["error"]
        assert "check_embedding_ctx_length=False" in refused["message"]  # perhaps of another tokenizer
    assert post(server, "/v1/embeddings", model="embed", input=texts[1])["data"][0]["index"] == 0
    for wrong in ({"dimensions": 7}, {"input": "fox " * 30}, {"input": []}, {"input": ["x"] * 257}):
        assert "error" in post(server, "/v1/embeddings", 400, **{"model": "embed", "input": "x"} | wrong)


# /api/ask


def test_any_model_can_be_asked(server):
    questions = {
        "fill": "the [MASK] fox",
        "span": f"the fox\t{WORDS}",
        "restore": "the ___ fox",
        "words": "fox",
    }
    for name in ("writer", "talker", "chat", "embed", "classify", "tag", *questions):
        text = questions.get(name, WORDS)
        assert post(server, "/api/ask", model=name, input=text)["output"] == model(server, name).ask(text), (
            name
        )
    it = model(server, "translate")
    both = post(server, "/api/ask", model="translate", input=[WORDS, "lazy dog"], num_beams=2)
    assert both["output"] == it.ask([WORDS, "lazy dog"], num_beams=2)
    score = it.answers("lazy dog", num_beams=2)[0][0].score
    assert both["answers"][1][0]["score"] == pytest.approx(score, abs=1e-5)
    begun = post(server, "/api/ask", model="translate", input=WORDS, prefix="der Fuchs")["output"]
    assert begun == it.ask(WORDS, prefix="der Fuchs")
    options = {"temperature": 0.9, "num_return_sequences": 3, "seed": 5, "max_new_tokens": 11}
    assert post(server, "/api/ask", model="writer", input=WORDS, **options)["output"] == model(
        server, "writer"
    ).ask(WORDS, **options)
    answer = events(server.ask("/api/ask", {"model": "writer", "input": WORDS, "stream": True})[2].decode())
    assert "".join(e["text"] for e in answer) == model(server, "writer").ask(WORDS)


def test_what_an_answer_is_made_of(server):
    """Numbers and parts as such, whether an answer was cut, and what of an input did not fit."""
    for name, text in (("fill", "the [MASK] fox"), ("words", "fox"), ("tag", WORDS)):
        expected = model(server, name).answers(text)[0][0].value
        reply = post(server, "/api/ask", model=name, input=text)
        assert reply["answers"][0][0].get("value") == (expected and json.loads(json.dumps(expected))), name
    cut = post(server, "/api/ask", model="writer", input="the", max_new_tokens=1)
    assert cut["answers"][0][0]["finish_reason"] == "length"
    assert "unread_tokens" not in cut
    task, long = model(server, "classify").task, " ".join([WORDS] * 50)
    read, count = task.count_tokens(long)
    assert post(server, "/api/ask", model="classify", input=long)["unread_tokens"] == count - read > 0
    both = post(server, "/api/ask", model="classify", input=["fox", long])
    assert both["unread_tokens"] == [0, count - read]


def test_images_in_base64_or_as_files(server):
    for name, side in (("see", 6), ("caption", 12)):
        file = io.BytesIO()
        Image.fromarray(noise(side).permute(1, 2, 0).numpy()).save(file, "PNG")
        want = model(server, name).ask([noise(side)])[0]
        data = base64.b64encode(file.getvalue()).decode()
        assert post(server, "/api/ask", model=name, picture=data)["output"] == want
        for wrong in (
            {"input": __file__},
            {"picture": "AAAA"},
            {"picture": "!"},
            {"picture": data, "within": "x"},
        ):
            assert isinstance(post(server, "/api/ask", 400, model=name, **wrong), str)
    assert "input" in post(server, "/api/ask", 400, model="writer", picture=data)
    with serve_models({"see": model(server, "see")}) as alone:
        file = io.BytesIO()
        Image.fromarray(noise(6).permute(1, 2, 0).numpy()).save(file, "PNG")
        status, _, answer = alone.ask("/api/ask", file.getvalue(), {"Content-Type": "image/png"})
        assert (status, json.loads(answer)["output"]) == (200, model(server, "see").ask([noise(6)])[0])


# The page


def test_page_has_modules_of_its_own(server):
    it = model(server, "writer")
    copy = copy_modules(it)
    theirs = dict(copy.model.named_parameters())
    assert all(theirs[name] is p for name, p in it.model.named_parameters())
    assert not {id(m) for m in copy.model.modules()} & {id(m) for m in it.model.modules()}
    answer = json.loads(server.ask("/api/trace", {"input": WORDS})[2])
    assert answer["tokens"] == trace(it, WORDS).tokens
    status, headers, data = server.ask("/")
    assert (status, data[:9]) == (200, b"<!doctype")
    assert headers["Content-Security-Policy"].startswith("default-src 'self'")


def test_tracing_does_not_disturb_generation(server):
    body = {"model": "writer", "prompt": [WORDS, "lazy dog"], "max_tokens": 41}
    want = model(server, "writer").ask(body["prompt"], max_new_tokens=41)
    watched = [threading.Thread(target=server.ask, args=("/api/trace", {"input": WORDS})) for _ in range(5)]
    for thread in watched:
        thread.start()
    answer = [post(server, "/v1/completions", **body) for _ in range(3)]
    for thread in watched:
        thread.join()
    assert [[c["text"] for c in one["choices"]] for one in answer] == [want] * 3


@pytest.mark.parametrize("name", ["fill", "see", "caption", "embed", "translate", "span", "restore"])
def test_every_page_has_a_first_input(server, name):
    with serve_models({"one": model(server, name)}) as alone:
        status, _, data = alone.ask("/api/trace", {})
        assert status == 200, data
        assert json.loads(data)["tensors"]


def test_models_are_named_after_their_folders():
    assert model_names(["runs/a", "b/a", "c/a", "x/with space/", "d/ü"]) == [
        "a",
        "a-2",
        "a-3",
        "with-space",
        "model",
    ]
