"""Responses match /openapi.json, for valid and invalid requests (schemathesis), and errors name the field."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from helpers.looking import reader
from helpers.serving import serve_models
from regard.serve import schema
from regard.serve.errors import APIError
from regard.serve.openapi import openapi_document
from regard.serve.registry import ServerLimits
from regard.text.chat_template import Template

PATHS = (
    *("/v1/models", "/v1/models/{model}", "/v1/completions", "/v1/chat/completions", "/v1/embeddings"),
    *("/v1/responses", "/api/ask", "/health", "/ready", "/metrics", "/openapi.json"),
)
FEW, MANY = 6, 500  # examples an operation
REFUSED = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]  # 413: too long a text


@pytest.fixture(scope="module")
def api():
    talker = reader("write", "gpt")
    talker.task.use_template(Template("{% for m in messages %}{{ m.content }} {% endfor %}"))
    models = {"talker": talker, "embed": reader("embed", "bert")}
    checks = {"negative_data_rejection": {"expected-statuses": REFUSED}}
    config = schemathesis.Config.from_dict({"checks": checks})
    with serve_models(models, ServerLimits(tokens=7)) as server:
        yield schemathesis.openapi.from_url(f"{server.url}openapi.json", config=config)


def check_responses(api, path, examples):
    method = "POST" if "post" in openapi_document(7, False)["paths"][path] else "GET"
    for mode in GenerationMode:
        if mode.is_negative and method == "GET":
            continue  # no parameters that could be invalid

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=api[path][method].as_strategy(generation_mode=mode))
        def check(case):
            # a prompt that fits the schema can be too long for the model
            answer = case.call_and_validate(excluded_checks=[positive_data_acceptance], timeout=60)
            assert answer.status_code < 500
            if case.path.startswith("/v1/") and answer.status_code >= 400:
                assert json.loads(answer.content)["error"]["message"]

        check()


@pytest.mark.parametrize("path", PATHS)
def test_responses_match_the_schema(api, path):
    check_responses(api, path, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_responses_match_the_schema_many_times(api, path):
    check_responses(api, path, MANY)


def test_all_paths_are_documented(api):
    assert set(openapi_document(7, True)["paths"]) == set(PATHS)
    secured = openapi_document(7, True)["paths"]["/v1/models"]["get"]["security"]
    assert secured == [{"key": []}]


def test_errors_name_the_field():
    expected = schema.obj({"a": schema.array(schema.integer(1, 3), 2), "b": schema.enum("x", 1)}, "a")
    schema.check({"a": [1, 3], "b": "x"}, expected)
    for value, where in (
        ({}, "a"),
        ({"a": []}, "a"),
        ({"a": [1, 4]}, "a"),
        ({"a": [True]}, "a"),
        ({"a": [1], "b": True}, "b"),
        ({"a": [1], "c": 1}, "c"),
    ):
        with pytest.raises(APIError) as caught:
            schema.check(value, expected)
        assert caught.value.param == where
