"""Reads the stream of events of the live page."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.http_port import http_port
from tests.support.server_process import ServerProcess

_TIMEOUT_S = 60.0
_PREFIX = b"data: "


def basic(password: str, user: str = "anybody") -> dict[str, str]:
    """The header that a browser sends for a password."""
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class Events:
    """An open stream of events."""

    def __init__(self, reply: http.client.HTTPResponse) -> None:
        self._reply = reply

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the figures of each event."""
        for line in self._reply:
            if line.startswith(_PREFIX):
                yield json.loads(line.removeprefix(_PREFIX))

    def next(self) -> dict[str, Any]:
        """The figures of the next event."""
        return next(iter(self))

    def table(self, name: str) -> dict[str, Any]:
        """A table's figures in the next event."""
        tables: dict[str, dict[str, Any]] = {table["name"]: table for table in self.next()["tables"]}
        return tables[name]


@contextmanager
def events(
    server: ServerProcess, headers: Mapping[str, str] | None = None, context: ssl.SSLContext | None = None
) -> Iterator[Events]:
    """Open a stream."""
    port = http_port(server)
    connection = (
        http.client.HTTPConnection("localhost", port, timeout=_TIMEOUT_S)
        if context is None
        else http.client.HTTPSConnection("localhost", port, timeout=_TIMEOUT_S, context=context)
    )
    connection.request("GET", "/events", headers=dict(headers or {}))
    reply = connection.getresponse()
    try:
        assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
        yield Events(reply)
    finally:
        reply.close()
        connection.close()
