"""Models over HTTP: what comes back is what the model says, in OpenAI's shapes and in our own."""

import base64
import io
import json
import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from looking import captioner, noise, reader, seer
from PIL import Image
from serving import Server

from regard.generate import Sampling, generate
from regard.serve import listening
from regard.serve.api import serving
from regard.serve.guard import Manners
from regard.serve.house import House, Limits, apart, named
from regard.template import Template
from regard.trace import trace

WORDS = "the quick brown fox"
TURNS = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}over"


@contextmanager
def open_house(limits=None, manners=None, **models):
    house = House(models, limits or Limits())
    try:
        with listening(serving(house, manners or Manners())) as port:
            yield Server(port, house)
    finally:
        house.close()


def writer():
    """A GPT that answers to token ids and texts alike: the end is never likely."""
    return reader("write", "gpt")


def talker():
    model = reader("write", "gpt")
    model.task.speak(Template(TURNS))
    return model


@pytest.fixture(scope="module")
def house():
    torch.manual_seed(0)  # what is made for many tests is made before a test's own seed
    with ExitStack() as stack:
        models = {
            "writer": writer(),
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
        yield stack.enter_context(open_house(**models))


def model(house, name):
    return house.first.models[name].model


def post(house, path, status=200, **body):
    found, _, data = house.ask(path, body)
    assert found == status, data
    return json.loads(data) if data[:1] == b"{" else data.decode()


def events(text):
    """What a stream tells, and that it ends as it should."""
    lines = text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def ids(house, name, prompt, tokens, **options):
    """What `generate` writes."""
    it = model(house, name)
    sampling = Sampling(max_new_tokens=tokens, **{"temperature": 0.0} | options)
    return [row[0] for row in generate(it.model, [it.tokenizer.encode(prompt)], sampling, end=it.task.ends)]


# Completions


def test_models_are_listed(house):
    status, _, data = house.ask("/v1/models")
    assert (status, [m["id"] for m in json.loads(data)["data"]]) == (200, list(house.first.models))
    assert json.loads(house.ask("/v1/models/fill")[2])["object"] == "model"
    assert (
        post(house, "/v1/completions", 404, model="nobody", prompt="x")["error"]["code"] == "model_not_found"
    )
    assert house.ask("/v1/models/nobody")[0] == 404


def test_a_greedy_answer_is_the_models(house):
    told = post(house, "/v1/completions", model="writer", prompt=WORDS)
    (choice,) = told["choices"]
    assert choice["text"] == model(house, "writer").ask(WORDS)
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert told["usage"] == {"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11}
    assert (told["object"], told["model"], told["id"][:5]) == ("text_completion", "writer", "cmpl-")
    assert (
        post(house, "/v1/completions", prompt=WORDS)["choices"] == told["choices"]
    )  # the first is the usual one


def test_the_same_in_a_stream(house):
    asked = {"model": "writer", "prompt": [WORDS, "lazy dog"], "max_tokens": 13, "stream": True}
    status, headers, data = house.ask("/v1/completions", asked | {"stream_options": {"include_usage": True}})
    assert (status, headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    *told, last = events(data.decode())
    for i, prompt in enumerate(asked["prompt"]):
        own = [e["choices"][0] for e in told if e["choices"][0]["index"] == i]
        assert "".join(c["text"] for c in own) == model(house, "writer").ask(prompt, max_new_tokens=13)
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + ["length"]
    assert all(e["usage"] is None for e in told)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 26)
    assert "usage" not in events(house.ask("/v1/completions", asked)[2].decode())[0]


def test_drawing_goes_by_the_seed(house):
    asked = {"model": "writer", "prompt": WORDS, "temperature": 0.9, "top_p": 0.8, "n": 5, "seed": 11}
    texts = [c["text"] for c in post(house, "/v1/completions", **asked)["choices"]]
    options = {"temperature": 0.9, "top_p": 0.8, "seed": 11, "num_return_sequences": 5}
    assert texts == model(house, "writer").ask(WORDS, **options)
    assert len(set(texts)) > 1
    assert post(house, "/v1/completions", **asked | {"seed": -3})["choices"][0]["text"]  # OpenAI's are signed


def test_tokens_stand_for_a_text(house):
    it = model(house, "writer").tokenizer
    told = post(house, "/v1/completions", model="writer", prompt=it.encode(WORDS))
    assert told["choices"][0]["text"] == model(house, "writer").ask(WORDS)
    many = post(house, "/v1/completions", model="writer", prompt=[it.encode(WORDS), [3]], echo=True, n=2)
    assert [c["index"] for c in many["choices"]] == [0, 1, 2, 3]
    assert many["choices"][1]["text"] == WORDS + model(house, "writer").ask(WORDS)
    assert "end at 16" in post(house, "/v1/completions", 400, model="writer", prompt=[99])["error"]["message"]


def test_it_stops_before_a_stop_and_tells_nothing_of_it(house):
    whole = model(house, "writer").ask(WORDS, max_new_tokens=13)
    stop = whole[len(whole) // 2 :][:3]
    asked = {"model": "writer", "prompt": WORDS, "max_tokens": 13, "stop": [stop, "nowhere"]}
    (choice,) = post(house, "/v1/completions", **asked)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (whole[: whole.index(stop)], "stop")
    told = events(house.ask("/v1/completions", asked | {"stream": True})[2].decode())
    assert "".join(e["choices"][0]["text"] for e in told) == choice["text"]
    assert told[-1]["choices"][0]["finish_reason"] == "stop"


def test_logprobs_are_the_models(house):
    it, written = model(house, "writer"), ids(house, "writer", WORDS, 5)
    told = post(house, "/v1/completions", model="writer", prompt=WORDS, max_tokens=5, logprobs=2)
    found = told["choices"][0]["logprobs"]
    read = it.tokenizer.encode(WORDS)
    with torch.no_grad():
        want = it.model(torch.tensor([read + written]))[0, len(read) - 1 : -1].log_softmax(-1)
    assert found["tokens"] == it.tokenizer.tokens(written)
    assert np.allclose(found["token_logprobs"], [p[i] for p, i in zip(want, written, strict=True)], atol=1e-5)
    for row, best in zip(want, found["top_logprobs"], strict=True):
        top = row.topk(2)
        assert list(best) == it.tokenizer.tokens(top.indices.tolist())
        assert np.allclose(list(best.values()), top.values, atol=1e-5)
    assert found["text_offset"][:2] == [0, len(found["tokens"][0])]


def test_letters_of_several_tokens_stay_whole():
    """UTF-8 that is cut between tokens is never shown in part, and its bytes are told."""
    from regard.models import GPT, GPTConfig
    from regard.run import Model
    from regard.tasks import Write, WriteConfig
    from regard.text import train_tokenizer

    tokenizer = train_tokenizer("byte", [], 300, Write.specials)
    text, module = (
        "über 火 und 🦊!",
        GPT(GPTConfig(vocab=tokenizer.vocab, context=61, dim=8, depth=1, heads=1)),
    )
    follow = tokenizer.encode(text)
    true = module.start

    def start(prompt, real=None):
        _, state = true(prompt, real)
        return torch.nn.functional.one_hot(torch.tensor([follow[0]]), tokenizer.vocab) * 30.0, state

    said = iter(follow[1:])

    def step(ids, state):
        return torch.nn.functional.one_hot(torch.tensor([next(said)]), tokenizer.vocab) * 30.0, state

    module.start, module.step = start, step
    made = Model(module.eval(), Write(WriteConfig(name="write"), tokenizer, 61), {"temperature": 0.0})
    with open_house(bytes=made) as house:
        asked = {"prompt": "a", "max_tokens": len(follow), "stream": True, "logprobs": 0}
        told = [e["choices"][0] for e in events(house.ask("/v1/completions", asked)[2].decode())]
    assert "".join(c["text"] for c in told) == text
    assert not any("\ufffd" in c["text"] for c in told)
    assert sum(len(c["logprobs"]["tokens"]) for c in told if c["logprobs"]) == len(follow)


def test_a_translator_searches_as_usual(house):
    it = model(house, "translate")
    assert post(house, "/v1/completions", model="translate", prompt=WORDS)["choices"][0]["text"] == it.ask(
        WORDS
    )
    beams = {"model": "translate", "prompt": WORDS, "num_beams": 3, "n": 2, "length_penalty": 0.5}
    want = it.ask(WORDS, num_beams=3, num_return_sequences=2, length_penalty=0.5)
    assert [c["text"] for c in post(house, "/v1/completions", **beams)["choices"]] == want
    told = events(house.ask("/v1/completions", beams | {"stream": True})[2].decode())
    assert [e["choices"][0]["text"] for e in told] == want
    refused = post(house, "/v1/completions", 400, **beams | {"logprobs": 1})
    assert refused["error"]["param"] == "logprobs"


# Chat


def test_chat_by_a_template(house):
    messages = [
        {"role": "system", "content": "the"},
        {"role": "user", "content": [{"type": "text", "text": "quick "}, {"type": "text", "text": "fox"}]},
    ]
    asked = {"model": "talker", "messages": messages, "max_completion_tokens": 5}
    told = post(house, "/v1/chat/completions", **asked)
    (choice,) = told["choices"]
    plain = model(house, "writer").ask("system the user quick fox over", max_new_tokens=5)
    assert choice["message"] == {"role": "assistant", "content": plain, "refusal": None}
    assert told["usage"]["prompt_tokens"] == 6
    chunks = [e["choices"][0] for e in events(post(house, "/v1/chat/completions", **asked, stream=True))]
    assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["delta"].get("content", "") for c in chunks) == plain
    assert [c["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_a_conversation_can_be_searched_but_not_a_text(house):
    messages = [{"role": "user", "content": WORDS}]
    told = post(house, "/v1/chat/completions", model="talker", messages=messages, num_beams=3)
    assert told["choices"][0]["message"]["content"] == model(house, "talker").ask(WORDS, num_beams=3)
    refused = post(house, "/v1/completions", 400, model="talker", prompt=WORDS, num_beams=3)
    assert refused["error"]["param"] == "num_beams"


def test_chats_logprobs_have_their_own_shape(house):
    asked = {"model": "talker", "messages": [{"role": "user", "content": WORDS}], "max_tokens": 3}
    told = post(house, "/v1/chat/completions", **asked, logprobs=True, top_logprobs=2)
    content = told["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    for one in content:
        assert bytes(one["bytes"]).decode() == one["token"]
        assert (one["top_logprobs"][0]["token"], len(one["top_logprobs"])) == (one["token"], 2)
        assert one["top_logprobs"][0]["logprob"] == one["logprob"] > one["top_logprobs"][1]["logprob"]
    assert (
        post(house, "/v1/chat/completions", 400, **asked, top_logprobs=2)["error"]["param"] == "top_logprobs"
    )


def test_chat_of_an_encoder_decoder_reads_the_turns(house):
    turns = ["the quick fox", "jumps\nover", "the dog"]
    roles = ["user", "assistant", "user"]
    messages = [{"role": r, "content": t} for r, t in zip(roles, turns, strict=True)]
    told = post(house, "/v1/chat/completions", model="chat", messages=messages)
    it, whole = model(house, "chat"), "the quick fox\njumps over\nthe dog"
    assert told["choices"][0]["message"]["content"] == it.ask(whole)
    assert told["usage"]["prompt_tokens"] == len(it.task.parts(whole)[0]) + 1 == 10
    for wrong in (messages[:2], [messages[0]] * 2, [{"role": "system", "content": "x"}, *messages]):
        refused = post(house, "/v1/chat/completions", 400, model="chat", messages=wrong)
        assert refused["error"]["param"] == "messages"


def test_who_cannot_talk_says_what_to_use(house):
    for name in ("writer", "translate"):
        messages = [{"role": "user", "content": "x"}]
        told = post(house, "/v1/chat/completions", 400, model=name, messages=messages)
        assert "/v1/completions" in told["error"]["message"]
    for path, more in (("completions", {"prompt": "x"}), ("embeddings", {"input": "x"})):
        assert (
            "/api/ask" in json.dumps(post(house, f"/v1/{path}", 400, model="fill", **more))
            or path != "completions"
        )


# Vectors


def test_embeddings_are_the_models(house):
    it, texts = model(house, "embed"), ["the quick fox", "lazy dog"]
    want = it.embed(texts)
    told = post(house, "/v1/embeddings", model="embed", input=texts)
    assert np.allclose([d["embedding"] for d in told["data"]], want, atol=1e-6)
    assert told["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    packed = post(
        house, "/v1/embeddings", model="embed", input=texts, encoding_format="base64", dimensions=12
    )
    found = [np.frombuffer(base64.b64decode(d["embedding"]), "<f4") for d in packed["data"]]
    assert np.allclose(found, want, atol=1e-6)
    rows = post(house, "/v1/embeddings", model="embed", input=[it.tokenizer.encode(text) for text in texts])
    assert rows["data"] == told["data"]
    assert post(house, "/v1/embeddings", model="embed", input=texts[1])["data"][0]["index"] == 0
    for wrong in ({"dimensions": 7}, {"input": "fox " * 30}, {"input": []}, {"input": ["x"] * 257}):
        assert "error" in post(house, "/v1/embeddings", 400, **{"model": "embed", "input": "x"} | wrong)


# Our own way


def test_any_model_can_be_asked(house):
    questions = {
        "fill": "the [MASK] fox",
        "span": f"the fox\t{WORDS}",
        "restore": "the ___ fox",
        "words": "fox",
    }
    for name in ("writer", "talker", "chat", "embed", "classify", "tag", *questions):
        text = questions.get(name, WORDS)
        assert post(house, "/api/ask", model=name, input=text)["output"] == model(house, name).ask(text), name
    it = model(house, "translate")
    both = post(house, "/api/ask", model="translate", input=[WORDS, "lazy dog"], num_beams=2)
    assert both["output"] == it.ask([WORDS, "lazy dog"], num_beams=2)
    score = it.answers("lazy dog", num_beams=2)[0][0].score
    assert both["answers"][1][0]["score"] == pytest.approx(score, abs=1e-5)
    begun = post(house, "/api/ask", model="translate", input=WORDS, prefix="der Fuchs")["output"]
    assert begun == it.ask(WORDS, prefix="der Fuchs")
    drawn = {"temperature": 0.9, "num_return_sequences": 3, "seed": 5, "max_new_tokens": 11}
    assert post(house, "/api/ask", model="writer", input=WORDS, **drawn)["output"] == model(
        house, "writer"
    ).ask(WORDS, **drawn)
    told = events(house.ask("/api/ask", {"model": "writer", "input": WORDS, "stream": True})[2].decode())
    assert "".join(e["text"] for e in told) == model(house, "writer").ask(WORDS)


def test_pictures_come_in_base64_or_as_they_are(house):
    for name, side in (("see", 6), ("caption", 12)):
        file = io.BytesIO()
        Image.fromarray(noise(side).permute(1, 2, 0).numpy()).save(file, "PNG")
        want = model(house, name).ask([noise(side)])[0]
        data = base64.b64encode(file.getvalue()).decode()
        assert post(house, "/api/ask", model=name, picture=data)["output"] == want
        for wrong in (
            {"input": __file__},
            {"picture": "AAAA"},
            {"picture": "!"},
            {"picture": data, "within": "x"},
        ):
            assert isinstance(post(house, "/api/ask", 400, model=name, **wrong), str)
    assert "input" in post(house, "/api/ask", 400, model="writer", picture=data)
    with open_house(see=model(house, "see")) as alone:
        file = io.BytesIO()
        Image.fromarray(noise(6).permute(1, 2, 0).numpy()).save(file, "PNG")
        status, _, told = alone.ask("/api/ask", file.getvalue(), {"Content-Type": "image/png"})
        assert (status, json.loads(told)["output"]) == (200, model(house, "see").ask([noise(6)])[0])


# The page


def test_the_page_watches_modules_of_its_own(house):
    it = model(house, "writer")
    copy = apart(it)
    theirs = dict(copy.model.named_parameters())
    assert all(theirs[name] is p for name, p in it.model.named_parameters())
    assert not {id(m) for m in copy.model.modules()} & {id(m) for m in it.model.modules()}
    told = json.loads(house.ask("/api/trace", {"input": WORDS})[2])
    assert told["tokens"] == trace(it, WORDS).tokens
    status, headers, data = house.ask("/")
    assert (status, data[:9]) == (200, b"<!doctype")
    assert headers["Content-Security-Policy"].startswith("default-src 'self'")


def test_watching_does_not_disturb_those_who_write(house):
    asked = {"model": "writer", "prompt": [WORDS, "lazy dog"], "max_tokens": 41}
    want = model(house, "writer").ask(asked["prompt"], max_new_tokens=41)
    watched = [threading.Thread(target=house.ask, args=("/api/trace", {"input": WORDS})) for _ in range(5)]
    for thread in watched:
        thread.start()
    told = [post(house, "/v1/completions", **asked) for _ in range(3)]
    for thread in watched:
        thread.join()
    assert [[c["text"] for c in one["choices"]] for one in told] == [want] * 3


@pytest.mark.parametrize("name", ["fill", "see", "caption", "embed", "translate", "span", "restore"])
def test_every_page_opens_on_something(house, name):
    with open_house(one=model(house, name)) as alone:
        status, _, data = alone.ask("/api/trace", {})
        assert status == 200, data
        assert json.loads(data)["tensors"]


def test_models_are_named_like_their_folders():
    assert named(["runs/a", "b/a", "c/a", "x/with space/", "d/ü"]) == [
        "a",
        "a-2",
        "a-3",
        "with-space",
        "model",
    ]
