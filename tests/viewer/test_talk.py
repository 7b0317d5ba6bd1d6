"""Talk: answers token by token, each of which can be traced as the model computed it."""

import json

import pytest
import torch

from helpers.looking import TEXT, every_task, reader
from helpers.serving import serve_session
from helpers.slow import slow_after
from regard.errors import UserError
from regard.text.chat_template import Template
from regard.tracing import trace
from regard.viewer.session import Session
from regard.viewer.talk import talk


def template():
    text = "{% for m in messages %}{{ m.content }} the {% endfor %}quick"
    return Template(text, {}, "chat_template.jinja")


@pytest.fixture(scope="module")
def talker():
    model = reader("converse", "gpt")
    model.task.template, model.task.converses = template(), True
    return model


def said(events):
    return "".join(event.get("text", "") for event in events)


@pytest.mark.parametrize("task", slow_after(3, ["write", "translate", "classify", "chat", "fill", "restore"]))
def test_an_answer_is_that_of_ask(task):
    model = every_task()[task]
    model.generation = {k: v for k, v in model.generation.items() if k != "temperature"}
    question = (
        "the quick ___ fox" if task == "restore" else "the quick [MASK]" if task == "fill" else "the fox"
    )
    if "max_new_tokens" in model.generation:
        model.generation["temperature"] = 0.0
    assert said(talk(model, [question])) == model.ask(question)


def test_turns_are_remembered_and_the_template_is_read(talker):
    first, *_ = talk(talker, ["fox", "dog", "lazy"])
    assert first["ids"] == talker.task.prompt(
        [{"role": r, "content": c} for r, c in (("user", "fox"), ("assistant", "dog"), ("user", "lazy"))]
    )


def test_every_token_can_be_traced_as_it_was_computed(talker):
    """Greedily, each is the likeliest after exactly what the model had read."""
    first, *events = talk(talker, ["the brown fox"])
    written = [event["id"] for event in events if "id" in event]
    assert len(written) > 2
    for n, id in enumerate(written):
        traced = trace(talker, first["ids"] + written[:n])
        assert traced.ids["text"] == first["ids"] + written[:n]
        assert int(traced["logits"][-1].argmax()) == id
    pair = reader("chat", "t5")
    first, *events = talk(pair, ["the brown fox"])
    written = [event["id"] for event in events if "id" in event]
    traced = trace(pair, (first["source"], written))
    assert traced.ids["source"] == first["source"]
    assert traced["logits"].argmax(-1).tolist() == written


def test_token_ids_are_checked(talker):
    for ids in ([10**6], [-1]):
        with pytest.raises(UserError, match="is not a token id"):
            trace(talker, ids)
    with pytest.raises(UserError, match="models that write"):
        trace(reader("fill", "bert"), [1, 2])


def test_a_trace_of_tokens_on_the_page(talker):
    ids = talker.task.prompt([{"role": "user", "content": "fox"}])
    session = Session(talker, ids)
    assert session.manifest["exact"]
    assert session.manifest["ids"]["text"] == ids
    assert "fox" in session.manifest["input"]
    assert session.whatif.changed([])["mean"] == 0


def test_talk_by_http(talker):
    with serve_session(Session(talker, TEXT)) as server:
        status, headers, data = server.ask("/api/talk", {"turns": ["the brown fox"]})
        events = [json.loads(line) for line in data.splitlines()]
        assert (status, headers["Content-Type"]) == (200, "application/x-ndjson")
        assert said(events) == talker.ask("the brown fox")
        written = [event["id"] for event in events if "id" in event]
        body = {"ids": events[0]["ids"] + written}
        manifest = json.loads(server.ask("/api/trace", body)[2])
        assert manifest["ids"]["text"] == body["ids"]
        for turns in ([], "x", [1], None):
            server.check_error(400, "turns", "/api/talk", {"turns": turns})
        server.check_error(400, "ids", "/api/trace", {"ids": ["x"]})
        server.check_error(400, "is not a token id", "/api/trace", {"ids": [10**6]})
        data = server.ask("/api/effects", trace=manifest["id"], stream=1)[2]
        streamed = [json.loads(line) for line in data.splitlines()]
        ranked = json.loads(server.ask("/api/effects", trace=manifest["id"])[2])
        assert sorted(streamed, key=lambda effect: -effect["kl"]) == ranked
        assert torch.tensor([effect["kl"] for effect in ranked]).isfinite().all()
