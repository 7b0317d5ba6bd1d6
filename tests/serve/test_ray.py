"""deploy/ray_serve.py with two replicas, one of which dies. It needs Ray: pip install 'ray[serve]'."""

import asyncio
import http.client
import importlib.util
import json
from collections import Counter

import pytest
from bench.serve import LONG, make_run, prompt, unambiguous
from bench.workers import Clients, Killer, find_workers, start_server

from regard.runs.load import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray[serve]"),
]
CLIENTS, REQUESTS = 16, 300


def test_two_replicas(tmp_path):
    folder = tmp_path / "tiny"
    make_run(folder)
    asked = unambiguous(load(folder, "cpu"), [prompt(n) for n in range(24)])
    with start_server(folder, 2, ray=True) as (process, port):
        assert len(find_workers(process.pid, ray=True)) == 2
        check_routes(port, *asked[0])
        killer, answers = Killer(process.pid, ray=True), Counter()

        def answered():
            answers["all"] += 1
            if answers["all"] == REQUESTS // 3:
                killer.kill()

        clients = Clients(port, asked, killer)
        asyncio.run(clients.run(CLIENTS, REQUESTS, 0, answered))
    assert killer.kills == 1
    assert (clients.counts.pop("right"), clients.counts.pop("mixed up", 0)) == (REQUESTS, 0)
    assert clients.counts.total() <= CLIENTS  # what was under way, at most


def check_routes(port, text, answer):
    def get(method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, body if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        lines = list(response)
        connection.close()
        return response.status, lines

    assert get("GET", "/health")[0] == get("GET", "/ready")[0] == get("GET", "/v1/models")[0] == 200
    for path in ("/", "/metrics", "/api/tensor"):
        status, lines = get("GET", path)
        assert (status, len(lines), b"regard look" in lines[0]) == (404, 1, True)
    body = {"prompt": text, "max_tokens": LONG, "temperature": 0, "stream": True}
    events = [line[6:] for line in get("POST", "/v1/completions", body)[1] if line.startswith(b"data: {")]
    assert len(events) > 9
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == answer
