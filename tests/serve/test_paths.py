"""No route takes a path: a file that exists and one that does not give the same answer; none is touched."""

import builtins
import os
import re

import pytest

from helpers.errors import user_error
from helpers.images import noise, save
from helpers.looking import captioner, every_task, seer
from helpers.page_routes import page_routes
from helpers.serving import serve_models, serve_session
from helpers.slow import slow_after
from regard.tasks import TASKS, Request
from regard.viewer.session import Session, page

TEXT = "the quick brown fox"


@pytest.fixture
def touched(monkeypatch):
    """The names of all files that are opened or looked for."""
    names = []
    for module, function in ((builtins, "open"), (os, "open"), (os, "stat"), (os, "lstat")):
        original = getattr(module, function)

        def record(name, *args, _original=original, **kwargs):
            names.append(str(name))
            return _original(name, *args, **kwargs)

        monkeypatch.setattr(module, function, record)
    return names


def api_requests(names, path):
    for name in names:
        for body in (
            {"input": path},
            {"input": [path]},
            {"picture": path},
            {"audio": path},
            {"input": TEXT, "prefix": path},
        ):
            yield "/api/ask", body | {"model": name}
        yield "/v1/completions", {"model": name, "prompt": path, "temperature": 0}
        yield "/v1/embeddings", {"model": name, "input": path}
        message = {"role": "user", "content": path}
        yield "/v1/chat/completions", {"model": name, "messages": [message], "temperature": 0}


def page_requests(compared, trace, path):
    """Every field of every route that takes a body, and some together."""
    for route, (method, names) in page_routes().items():
        if method == "POST" and route != "/api/training":  # which takes no text
            for name in names:
                yield route, {"trace": trace, "input": TEXT, "turns": [TEXT]} | {name: path}
                yield route, {"trace": trace, "input": TEXT, "turns": [TEXT]} | {name: [path]}
    for other in (None, *range(compared)):
        for body in ({"input": path}, {"picture": path}, {"input": TEXT, "answer": path}, {"answer": path}):
            yield "/api/trace", body | ({} if other is None else {"model": other})
        yield "/api/trace", {"input": f"{path}\t{path}", "model": other}
    for field in ("input", "picture", "part", "kind"):
        change = {"kind": "take", "part": "embed", "input": TEXT} | {field: path}
        yield "/api/change", {"trace": trace, "changes": [change]}
    yield "/api/change", {"trace": path, "changes": []}


def check_paths(server, requests, queries, path, touched):
    """The answers to the same requests before the file exists and after."""

    def answers():
        got = [(*request, *server.ask(*request)[::2]) for request in requests(str(path))]
        got += [(*query, *server.ask(query[0], **query[1])[::2]) for query in queries(str(path))]
        return [re.sub(rb'"(id|created)": ?("[^"]*"|\d+),?', b"", b"%r" % (each,)) for each in got]

    missing = answers()
    save(path, noise(12, 12))
    touched.clear()
    for before, after in zip(missing, answers(), strict=True):
        assert after == before
        assert b" 500, " not in after
    assert [name for name in touched if path.name in name] == []


def test_api_takes_no_path(tmp_path, touched):
    models = every_task()
    assert models.keys() == TASKS.keys()
    with serve_models(models) as server:
        check_paths(
            server, lambda path: api_requests(models, path), lambda path: (), tmp_path / "a.png", touched
        )


@pytest.mark.parametrize("first", slow_after(1, ["see", "write"]))
def test_page_takes_no_path(tmp_path, touched, first):
    models = every_task()
    model = models.pop(first)
    session = Session(model, model.task.example_input())
    with serve_session(session, list(models.values())) as server:
        check_paths(
            server,
            lambda path: page_requests(len(models), session.id, path),
            lambda path: page_queries(session.id, path),
            tmp_path / "a.png",
            touched,
        )


def page_queries(trace, path):
    for route, (method, names) in page_routes().items():
        for name in names if method == "GET" else ():
            yield route, {"trace": trace} | {name: path}
    yield "/page/app.js", {"name": path}


def test_tasks_take_strings_for_no_paths(tmp_path):
    path = str(save(tmp_path / "a.png", noise(12, 12)))
    for model in (seer(), captioner()):
        user_error(lambda model=model: model.task.answers(model.model, Request([path])), "reads images")
        user_error(lambda model=model: Session(model, path), "reads images")
        user_error(lambda model=model: Session(model, (path, "fox")), "images")


def test_python_takes_paths(tmp_path):
    """What the user of this process says is read as ever: by a model that reads images, as a path."""
    path = save(tmp_path / "a.png", noise(12, 12))
    for model in (seer(), captioner()):
        pixels = page(model, str(path)).trace["pixels"]
        assert pixels.shape == model.task.image_shape
        assert page(model, path).trace["pixels"].equal(pixels)
        assert model.ask(str(path)) == model.ask([pixels])[0]
        user_error(lambda model=model: model.ask("nowhere.png"), "nowhere.png", "no such image")
    assert page(captioner(), f"{path}\tthe fox").trace.tokens["written"][:2] == ["the", "fox"]
