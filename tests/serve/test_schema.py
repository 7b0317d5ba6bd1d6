"""What /openapi.json promises is kept, for requests that fit it and for those that don't (schemathesis)."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from looking import reader
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from regard.serve import listening, schema
from regard.serve.api import serving
from regard.serve.errors import Wrong
from regard.serve.guard import Manners
from regard.serve.house import House, Limits
from regard.template import Template

PATHS = (
    *("/v1/models", "/v1/models/{model}", "/v1/completions", "/v1/chat/completions", "/v1/embeddings"),
    *("/api/ask", "/health", "/ready", "/metrics", "/openapi.json"),
)
FEW, MANY = 25, 500  # examples an operation
REFUSED = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]  # 413: too long a text


@pytest.fixture(scope="module")
def found():
    talker = reader("write", "gpt")
    talker.task.speak(Template("{% for m in messages %}{{ m.content }} {% endfor %}"))
    house = House({"talker": talker, "embed": reader("embed", "bert")}, Limits(tokens=7))
    checks = {"negative_data_rejection": {"expected-statuses": REFUSED}}
    config = schemathesis.Config.from_dict({"checks": checks})
    with listening(serving(house, Manners())) as port:
        yield schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json", config=config)
    house.close()


def held(found, path, examples):
    method = "POST" if "post" in schema.document(7, False)["paths"][path] else "GET"
    for mode in GenerationMode:
        if mode.is_negative and method == "GET":
            continue  # there is nothing to get wrong

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=found[path][method].as_strategy(generation_mode=mode))
        def keeps(case):
            # a prompt that fits the schema can be too long for the model
            answer = case.call_and_validate(excluded_checks=[positive_data_acceptance], timeout=60)
            assert answer.status_code < 500
            if case.path.startswith("/v1/") and answer.status_code >= 400:
                assert json.loads(answer.content)["error"]["message"]

        keeps()


@pytest.mark.parametrize("path", PATHS)
def test_promises_are_kept(found, path):
    held(found, path, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_promises_are_kept_many_times(found, path):
    held(found, path, MANY)


def test_all_paths_are_there(found):
    assert set(schema.document(7, True)["paths"]) == set(PATHS)
    secured = schema.document(7, True)["paths"]["/v1/models"]["get"]["security"]
    assert secured == [{"key": []}]


def test_what_does_not_fit_is_named():
    asked = schema.record({"a": schema.several(schema.whole(1, 3), 2), "b": schema.only("x", 1)}, "a")
    schema.check({"a": [1, 3], "b": "x"}, asked)
    for value, where in (
        ({}, "a"),
        ({"a": []}, "a"),
        ({"a": [1, 4]}, "a"),
        ({"a": [True]}, "a"),
        ({"a": [1], "b": True}, "b"),
        ({"a": [1], "c": 1}, "c"),
    ):
        with pytest.raises(Wrong) as caught:
            schema.check(value, asked)
        assert caught.value.param == where
