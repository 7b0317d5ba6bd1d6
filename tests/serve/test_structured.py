"""Answers that match a schema, a regular expression or a grammar, whatever the model prefers."""

import json
import re

import pytest

from helpers.schemas import SCHEMAS, untrained
from helpers.serving import serve_models
from regard.decode import grammar
from regard.decode.buffers import Text
from regard.decode.generate import generate
from regard.decode.runner import Runner
from regard.decode.sampling import Sampling, row_generator, row_rules
from regard.errors import UserError
from regard.serve.registry import ServerLimits

jsonschema_rs = pytest.importorskip("jsonschema_rs")
pytest.importorskip("llguidance")
TOKENS = 70


@pytest.fixture(scope="module")
def server():
    models = {"bytes": untrained(), "chars": untrained("char"), "endless": untrained("bpe", ends=False)}
    with serve_models(models, ServerLimits(tokens=300)) as server:
        yield server


def post(server, path, status=200, **body):
    code, _, data = server.ask(path, body)
    assert code == status, data
    return data.decode() if body.get("stream") else json.loads(data)


def chat(server, status=200, **options):
    body = {"messages": [{"role": "user", "content": "the fox"}], "max_tokens": TOKENS}
    return post(server, "/v1/chat/completions", status, **body | options)


def by_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def is_valid(text, schema):
    return jsonschema_rs.is_valid(schema, json.loads(text))


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_matches_its_schema(server, name):
    schema = SCHEMAS[name]
    for options in ({"temperature": 0}, {"temperature": 1.3, "seed": 2, "n": 2}):
        answer = chat(server, response_format=by_schema(schema), **options)
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "stop"
            assert is_valid(choice["message"]["content"], schema)


def test_streams_batches_and_tokenizers(server):
    schema = SCHEMAS["nested"]
    for model in server.registry.models:
        body = {"model": model, "prompt": ["the", "fox jumps"], "n": 2, "max_tokens": TOKENS, "seed": 4}
        answer = post(server, "/v1/completions", **body, guided_json=schema, logprobs=1)
        assert all(is_valid(c["text"], schema) for c in answer["choices"])
        assert {c["finish_reason"] for c in answer["choices"]} == {"stop"}
        texts = [""] * 4
        lines = post(server, "/v1/completions", **body, guided_json=json.dumps(schema), stream=True).split(
            "\n\n"
        )
        for line in lines[:-2]:
            (choice,) = json.loads(line[6:])["choices"]
            texts[choice["index"]] += choice["text"]
        assert texts == [c["text"] for c in answer["choices"]]


def test_object_regex_choice_and_grammar(server):
    text = chat(server, response_format={"type": "json_object"})["choices"][0]["message"]["content"]
    assert isinstance(json.loads(text), dict)
    for options, pattern in (
        ({"guided_regex": "[a-c]{2,4}x"}, "[a-c]{2,4}x"),
        ({"structured_outputs": {"choice": ["yes.", "no?"]}}, r"yes\.|no\?"),
        ({"guided_grammar": 'start: "a" b\nb: "b" | "c" b'}, "ac*b"),
        ({"guided_grammar": 'root ::= "a" | "b" root'}, "b*a"),
    ):
        for model in ("bytes", "endless"):
            (choice,) = chat(server, model=model, **options)["choices"]
            if choice["finish_reason"] == "stop":
                assert re.fullmatch(pattern, choice["message"]["content"]), options


def test_other_options_do_not_break_the_schema(server):
    options = {"no_repeat_ngram_size": 1, "repetition_penalty": 3, "frequency_penalty": 2, "min_tokens": 100}
    options |= {"logit_bias": {str(ord(c)): -100 for c in '{}"'}, "top_k": 2, "top_p": 0.5}
    (choice,) = chat(server, response_format=by_schema(SCHEMAS["person"]), **options)["choices"]
    assert is_valid(choice["message"]["content"], SCHEMAS["person"])


def test_budget_that_is_too_small_ends_by_length(server):
    (choice,) = chat(server, response_format=by_schema(SCHEMAS["nested"]), max_tokens=9)["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")


def test_what_can_not_be_compiled_is_refused(server, monkeypatch):
    deep, bottomless = '{"items": ' * 300 + "{}" + "}" * 300, '{"items": ' * 990 + "{}" + "}" * 990
    chain = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000)) + '\nr4000: "a"'
    for options, words in (
        ({"response_format": by_schema({"type": "nothing"})}, "type"),
        ({"response_format": by_schema(json.loads(deep))}, "recursion"),
        ({"guided_json": bottomless}, "schema"),
        ({"response_format": by_schema({"$ref": "https://example.org/x.json"})}, "schema or grammar"),
        ({"guided_regex": "("}, "regex"),
        ({"guided_grammar": chain}, "schema or grammar"),  # it crashes the compiler
        ({"guided_json": json.dumps({"enum": ["x" * 70_000]})}, "65,536"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_json"),
        ({"guided_regex": "a", "num_beams": 2}, "num_beams"),
    ):
        assert words in chat(server, 400, **options)["error"]["message"], options
    monkeypatch.setattr(grammar, "SECONDS", 0.03)  # a twentieth of what this takes
    slow = "start: " + " ".join(['"a"?'] * 13_000)
    assert "more than 0.03 s" in chat(server, 400, guided_grammar=slow)["error"]["message"]
    assert chat(server, max_tokens=2)["choices"]  # the server goes on


def test_row_that_takes_too_long_ends_alone(server, monkeypatch):
    body = {"prompt": "the", "max_tokens": 5, "model": "bytes", "guided_regex": "[a-z]+"}
    post(server, "/v1/completions", **body)
    monkeypatch.setattr(grammar, "MAX_ROW_SECONDS", 0.0)
    refused = post(server, "/v1/completions", 400, **body)
    assert "too complex" in refused["error"]["message"]
    assert server.registry.models["bytes"].engine.restarts == 0


@pytest.mark.parametrize("ends", [[257], []])
def test_a_complete_text_without_room_for_more_ends(ends):
    """A token that only begins a character: it failed in the engine, for all who were answered."""
    model = untrained("byte")
    compiled = grammar.compile_grammar("regex", ".{0,99}", model.tokenizer, model.model.config.vocab)
    begun = model.tokenizer.encode("é")[0]
    state = compiled.start(ends, 1)
    assert state.allowed()[begun]
    assert state.accept(begun) == (ends[0] if ends else begun)
    assert state.finished == bool(ends)


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_a_long_text_that_a_grammar_asks_for_is_spelled_in_parts(kind, monkeypatch):
    """All of it at every step took 5 s of a thread."""
    lengths, spell = [], grammar._Spelling.__call__

    def count(spelling, data):
        ids = spell(spelling, data)
        lengths.append((len(data), len(ids)))
        return ids

    monkeypatch.setattr(grammar._Spelling, "__call__", count)
    model = untrained(kind)
    V, text = model.model.config.vocab, "the fox and the dog " * 50
    grammar.compile_grammar("regex", "a{9999}", model.tokenizer, V)
    assert max(lengths)[0] > 9000
    assert max(ids for _, ids in lengths) < 500
    state = grammar.compile_grammar("regex", text, model.tokenizer, V).start([], len(text))
    written = []
    while not state.finished:
        written.append(state.accept(int(state.allowed().argmax())))
    assert model.tokenizer.decode(written) == text


def test_words_can_not_be_held_to_a_schema():
    model = untrained("word")
    with pytest.raises(UserError, match="spaces between words"):
        grammar.compile_grammar("json", "{}", model.tokenizer, model.model.config.vocab)


def test_pages_write_the_same(server):
    """The engine for GPUs, whose tokens are chosen on the host where there is a grammar."""
    model = untrained("bpe")
    compiled = grammar.compile_grammar(
        "json", json.dumps(SCHEMAS["person"]), model.tokenizer, model.model.config.vocab
    )
    sampling, ids = Sampling(max_new_tokens=60, grammar=compiled, seed=1), model.tokenizer.encode("the")
    plain = [row[0] for row in generate(model.model, [ids], sampling, end=model.task.ends)]
    runner = Runner(model.model, 2, 90, graphs=False)
    rules = row_rules(sampling, len(ids), model.task.ends, 60)
    runner.add(Text(list(ids), sampling.without_rules(), row_generator(1, 0, ids), 60, rules=rules))
    written = []
    while not rules.finished:
        written += [output.token for output in runner.step()]
    assert [t for t in written if t not in model.task.ends] == plain
    assert is_valid(model.tokenizer.decode(plain), SCHEMAS["person"])
