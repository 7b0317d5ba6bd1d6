"""Many clients at once, of all kinds, half of which leave: afterwards everything is free and works."""

import gc
import http.client
import json
import random
import threading
import time

import pytest
import torch

from helpers.looking import reader
from helpers.serving import serve_models, wait_for_workers
from helpers.waiting import wait_until
from regard.core.cache import State
from regard.serve.registry import ServerLimits

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog"]


@pytest.fixture
def server():
    torch.manual_seed(0)
    models = {
        "writer": reader("write", "gpt"),
        "translate": reader("translate", "transformer"),
        "embed": reader("embed", "bert"),
    }
    with serve_models(models, ServerLimits(places=7, queue=64, timeout=60), finish=False) as server:
        yield server


def request(rng):
    """A path, a body, and how to ask the model for what the answer should be."""
    text = " ".join(rng.choices(WORDS, k=rng.randint(1, 5)))
    kind = rng.choice(("stream", "whole", "beams", "embeddings", "trace"))
    if kind == "embeddings":
        return kind, "/v1/embeddings", {"model": "embed", "input": [text] * rng.randint(1, 9)}
    if kind == "trace":
        return kind, "/api/trace", {"input": text}
    body = {"prompt": text, "max_tokens": rng.randint(1, 60), "temperature": 0, "stream": kind == "stream"}
    if kind == "beams":
        return kind, "/v1/completions", body | {"model": "translate", "num_beams": 3, "max_tokens": 15}
    return kind, "/v1/completions", body | {"model": "writer"}


def read_text(kind, data):
    if kind != "stream":
        return json.loads(data)["choices"][0]["text"]
    rows = [json.loads(row[6:]) for row in data.split(b"\n\n") if row[:7] == b"data: {"]
    return "".join(row["choices"][0]["text"] for row in rows)


def expected(server, kind, body):
    model = server.registry.models[body["model"]].model
    options = {"max_new_tokens": body["max_tokens"], "num_beams": body.get("num_beams")}
    return model.ask(body["prompt"], temperature=0.0, **options)


def find_caches():
    return [each for each in gc.get_objects() if type(each) is State]


def test_fifty_clients_of_which_half_leave(server):
    rng, failures, earlier = random.Random(5), [], find_caches()  # those of other tests
    requests = [(*request(rng), rng.random() < 0.5, rng.random() * 0.05) for _ in range(50)]

    def ask(kind, path, body, leaves, seconds):
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        try:
            line.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            if leaves:
                time.sleep(seconds)
                return
            answer = line.getresponse()
            data = answer.read()
            if answer.status != 200:
                failures.append((kind, answer.status, data))
            elif path == "/v1/completions" and (text := read_text(kind, data)) != expected(
                server, kind, body
            ):
                failures.append((kind, text))
        except BaseException as error:
            failures.append((kind, error))
        finally:
            line.close()

    threads = [threading.Thread(target=ask, args=one) for one in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    registry = server.registry
    engines = [served.engine for served in registry.models.values() if served.engine is not None]
    wait_until(lambda: all((engine.running, engine.waiting) == (0, 0) for engine in engines))
    wait_until(lambda: all(not engine._batch.requests and engine._batch.state is None for engine in engines))
    wait_until(lambda: registry.long_work.running == registry.short_work.running == 0)
    wait_for_workers()
    gc.collect()
    assert {id(cache) for cache in find_caches()} <= {id(cache) for cache in earlier}
    assert all(engine.restarts == 0 for engine in engines)
    assert server.ask("/ready")[0] == 200
    kind, path, body = next(one[:3] for one in requests if one[0] == "whole")
    assert read_text(kind, server.ask(path, body)[2]) == expected(server, kind, body)
