"""What the server counts, in Prometheus' text format. All of it is counted in the event loop's thread."""

from collections import Counter
from collections.abc import Iterable, Mapping

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # latencies' steps
Labels = tuple[tuple[str, str], ...]
Gauge = tuple[str, str, str, Mapping[Labels, float]]  # name, kind, what it is, values


class Metrics:
    def __init__(self) -> None:
        self.requests: Counter[Labels] = Counter()
        self.tokens: Counter[Labels] = Counter()
        self.full = 0  # requests that found no place
        self.gone = 0  # clients that left before their answer was whole
        self.counts: dict[str, list[int]] = {}  # by route: how many took no longer than each of SECONDS
        self.seconds: dict[str, float] = {}

    def request(self, route: str, status: int, seconds: float) -> None:
        self.requests[("route", route), ("status", str(status))] += 1
        counts = self.counts.setdefault(route, [0] * (len(SECONDS) + 1))
        counts[next((i for i, most in enumerate(SECONDS) if seconds <= most), len(SECONDS))] += 1
        self.seconds[route] = self.seconds.get(route, 0.0) + seconds
        self.full += status == 429

    def spent(self, model: str, read: int, written: int) -> None:
        self.tokens[("model", model), ("kind", "prompt")] += read
        self.tokens[("model", model), ("kind", "completion")] += written

    def text(self, gauges: Iterable[Gauge]) -> str:
        """Everything, and what others know now."""
        own: list[Gauge] = [
            ("regard_requests_total", "counter", "Requests by route and status.", self.requests),
            ("regard_tokens_total", "counter", "Tokens read and written.", self.tokens),
            ("regard_queue_full_total", "counter", "Requests answered 429.", {(): self.full}),
            ("regard_clients_gone_total", "counter", "Clients that left early.", {(): self.gone}),
        ]
        lines = [line for gauge in (*own, *gauges) for line in self._lines(*gauge)]
        name = "regard_request_seconds"
        lines += [f"# HELP {name} From a request to the end of its answer.", f"# TYPE {name} histogram"]
        for route, counts in self.counts.items():
            total = 0
            for most, count in zip((*map(str, SECONDS), "+Inf"), counts, strict=True):
                total += count
                lines.append(f"{name}_bucket{told((('route', route), ('le', most)))} {total}")
            lines.append(f"{name}_sum{told((('route', route),))} {self.seconds[route]:.6f}")
            lines.append(f"{name}_count{told((('route', route),))} {total}")
        return "\n".join(lines) + "\n"

    @staticmethod
    def _lines(name: str, kind: str, about: str, values: Mapping[Labels, float]) -> list[str]:
        head = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        return head + [f"{name}{told(labels)} {value:g}" for labels, value in values.items()]


def told(labels: Labels) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels) + "}" if labels else ""
