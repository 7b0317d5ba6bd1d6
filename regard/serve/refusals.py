"""Refuse requests without a place by their headers alone: without h11, a task or their body.

A full server is one that gets more requests than it can answer, so a refusal has to cost little. Other
than plain requests are parsed as usual, and get the same refusal.
"""

import asyncio
import re
from collections import Counter

from starlette.datastructures import Headers
from starlette.responses import Response

from regard.serve.admission import AdmissionMiddleware
from regard.serve.errors import error_response
from regard.serve.monitoring import MonitoringMiddleware
from regard.serve.security import SecurityMiddleware, security_headers

REQUEST_LINE = re.compile(rb"(POST) (/[\w./-]*) HTTP/1\.1\r\n")
HEADERS = re.compile(rb"((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)+)\r\n")
LENGTH = re.compile(rb"[0-9]{1,9}")
NOT_PLAIN = {b"expect", b"transfer-encoding", b"upgrade"}  # the body does not simply follow


class QuickRefusals:
    """Decides about requests before their tasks begin."""

    def __init__(
        self, admission: AdmissionMiddleware, security: SecurityMiddleware, monitoring: MonitoringMiddleware
    ):
        self.admission, self.security, self.monitoring = admission, security, monitoring
        self.begun: Counter[str] = Counter()  # complete requests of each share whose tasks have not begun

    def refuse(self, data: bytes) -> tuple[Response, int] | None:
        """Return the refusal of the request that begins with this data, and the number of missing bytes of
        its body; None if the application has to decide."""
        line = REQUEST_LINE.match(data)
        if line is None:
            return None
        method, path = line[1].decode(), line[2].decode()
        share = self.admission.share(method, path)
        request = None if share is None else parse_headers(data, line.end())
        if share is None or request is None:
            return None
        headers, missing = Headers(raw=request[0]), request[1] - len(data)
        if self.security.check(path, headers) is not None:
            return None
        error = self.admission.find_refusal(share, path, self.begun[share])
        if error is None:
            if missing <= 0:
                self.count_begun(share)
            return None
        if missing < 0:  # another request follows
            return None
        response = error_response(path, error)
        response.raw_headers += security_headers(path)
        self.monitoring.record_refusal(method, path, headers, response)
        return response, missing

    def count_begun(self, share: str) -> None:
        """The event loop reads from all connections that have sent something, and only then begins the tasks
        of their requests: until then, this counts them."""
        if not self.begun:
            asyncio.get_running_loop().call_soon(self.begun.clear)  # right before those tasks
        self.begun[share] += 1


def parse_headers(data: bytes, begin: int) -> tuple[list[tuple[bytes, bytes]], int] | None:
    """Return the headers of a plain request and where its body ends; None for any other."""
    block = HEADERS.match(data, begin)
    if block is None:
        return None
    pairs = [line.partition(b":") for line in block[1].split(b"\r\n")[:-1]]
    headers = [(name.lower(), value.strip(b" \t")) for name, _, value in pairs]
    names = [name for name, _ in headers]
    values = dict(headers)
    if names.count(b"host") != 1 or names.count(b"content-length") != 1 or not NOT_PLAIN.isdisjoint(names):
        return None
    if values.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    if names.count(b"connection") > 1 or not LENGTH.fullmatch(values[b"content-length"]):
        return None
    return headers, block.end() + int(values[b"content-length"])
