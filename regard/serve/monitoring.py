"""Request ids, the request log, and metrics in Prometheus' text format."""

import json
import os
import re
import secrets
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.log import LogWriter

CLIENT_CLOSED = 499  # the status that is logged if the client left before it was answered
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")  # ids of clients that are accepted
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
Labels = tuple[tuple[str, str], ...]


@dataclass
class RequestInfo:
    """The facts that are logged and counted for a request. Handlers fill in the model and its tokens."""

    id: str
    route: str = "other"
    status: int = 0
    model: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token: float | None = None  # time.perf_counter() of its arrival
    started: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True)
class Metric:
    name: str
    kind: str  # counter or gauge
    help: str
    values: Mapping[Labels, float]

    def lines(self) -> list[str]:
        head = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"]
        return head + [
            f"{self.name}{format_labels(labels)} {value:g}" for labels, value in self.values.items()
        ]


class Histogram:
    """The number of times (in seconds) in each bucket, for every value of a label."""

    def __init__(self, name: str, label: str, help: str):
        self.name, self.label, self.help = name, label, help
        self.buckets: dict[str, list[int]] = {}
        self.sums: dict[str, float] = {}

    def add(self, value: str, seconds: float) -> None:
        buckets = self.buckets.setdefault(value, [0] * (len(BUCKETS) + 1))
        buckets[bisect_left(BUCKETS, seconds)] += 1
        self.sums[value] = self.sums.get(value, 0.0) + seconds

    def lines(self) -> list[str]:
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} histogram"]
        for value, buckets in self.buckets.items():
            label, total = (self.label, value), 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), buckets, strict=True):
                total += count
                lines.append(f"{self.name}_bucket{format_labels((label, ('le', bound)))} {total}")
            lines.append(f"{self.name}_sum{format_labels((label,))} {self.sums[value]:.6f}")
            lines.append(f"{self.name}_count{format_labels((label,))} {total}")
        return lines


class Metrics:
    """Counters of the server. Only the event loop's thread changes them."""

    def __init__(self) -> None:
        self.requests: Counter[Labels] = Counter()
        self.tokens: Counter[Labels] = Counter()
        self.queue_full = 0
        self.clients_gone = 0  # clients that left before their answer was complete
        self.seconds = Histogram(
            "regard_request_seconds", "route", "From a request to the end of its answer."
        )
        self.first_token = Histogram(
            "regard_first_token_seconds", "model", "From a request to the first token of its answer."
        )

    def count(self, info: RequestInfo, status: int, seconds: float) -> None:
        self.requests[("route", info.route), ("status", str(status))] += 1
        self.seconds.add(info.route, seconds)
        self.queue_full += status == 429
        if info.model is not None:
            self.tokens[("model", info.model), ("kind", "prompt")] += info.prompt_tokens
            self.tokens[("model", info.model), ("kind", "completion")] += info.completion_tokens
            if info.first_token is not None:
                self.first_token.add(info.model, info.first_token - info.started)

    def text(self, engine_metrics: Iterable[Metric]) -> str:
        """All metrics, with those of the engines."""
        own = [
            Metric("regard_requests_total", "counter", "Requests by route and status.", self.requests),
            Metric("regard_tokens_total", "counter", "Tokens read and generated.", self.tokens),
            Metric("regard_queue_full_total", "counter", "Requests answered 429.", {(): self.queue_full}),
            Metric(
                "regard_clients_gone_total", "counter", "Clients that left early.", {(): self.clients_gone}
            ),
        ]
        lines = [line for metric in (*own, *engine_metrics) for line in metric.lines()]
        return "\n".join([*lines, *self.seconds.lines(), *self.first_token.lines()]) + "\n"


class MonitoringMiddleware:
    """Gives every request an id, counts it, and with a `log` writes a line of JSON to it.

    `route_label` maps a path to a label, so that unknown paths don't create labels.
    With `pid`, a line says which process answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        route_label: Callable[[str], str],
        log: LogWriter | None,
        pid: bool = False,
    ):
        self.app, self.metrics, self.route_label, self.log, self.pid = app, metrics, route_label, log, pid

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        info = scope["request_info"] = self.start(scope["path"], Headers(scope=scope))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                info.status = message["status"]
                message["headers"].append((b"x-request-id", info.id.encode()))
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            self.record(info, scope["method"])

    def start(self, path: str, headers: Headers) -> RequestInfo:
        requested = headers.get("x-request-id", "")
        id = requested if REQUEST_ID.fullmatch(requested) else secrets.token_hex(8)
        return RequestInfo(id, self.route_label(path))

    def record_refusal(self, method: str, path: str, headers: Headers, response: Response) -> None:
        """Count and log a request that is refused before it gets to the application."""
        info = self.start(path, headers)
        info.status = response.status_code
        response.raw_headers.append((b"x-request-id", info.id.encode()))
        self.record(info, method)

    def record(self, info: RequestInfo, method: str) -> None:
        """Count and log a request, but never its text or its answer."""
        status, seconds = info.status or CLIENT_CLOSED, time.perf_counter() - info.started
        self.metrics.count(info, status, seconds)
        self.metrics.clients_gone += not info.status
        if self.log is None:
            return
        line: dict[str, str | int | float] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": info.id,
            "method": method,
            "route": info.route,
            "status": status,
            "ms": round(1000 * seconds, 1),
        }
        if self.pid:
            line["pid"] = os.getpid()
        if info.model is not None:
            line["model"] = info.model
            line["prompt_tokens"], line["completion_tokens"] = info.prompt_tokens, info.completion_tokens
        if info.first_token is not None:
            first = info.first_token - info.started
            line["first_token_ms"] = round(1000 * first, 1)
            line["tokens_per_second"] = round(info.completion_tokens / max(seconds, 1e-6), 1)
        self.log.write(json.dumps(line))


def format_labels(labels: Labels) -> str:
    def escape(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in labels) + "}" if labels else ""
