"""Reads a server's HTTP port: probes and metrics."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.support.server_process import ServerProcess

FLAGS = ("--http-port", "0")
"""Flags of a server with an HTTP port."""
_TOLD = re.compile(r"metrics at (https?)://[^ ]*:(\d+)/metrics")
_TIMEOUT_S = 60.0


def http_port(server: ServerProcess) -> int:
    """The server's HTTP port."""
    return int(_told(server)[2])


def opener(context: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """Opens addresses without the proxies of the environment."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))


@dataclass(frozen=True)
class Reply:
    """A reply."""

    status: int
    text: str
    headers: Message

    def json(self) -> Any:
        """The content of a reply in JSON."""
        return json.loads(self.text)


def get(
    server: ServerProcess,
    path: str,
    token: str = "",
    context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Request a path, with a token if one is given."""
    scheme, port = _told(server).groups()
    request = urllib.request.Request(f"{scheme}://localhost:{port}{path}", headers=dict(headers or {}))
    if token:
        request.add_header("authorization", f"Bearer {token}")
    try:
        with opener(context).open(request, timeout=_TIMEOUT_S) as reply:
            return Reply(reply.status, reply.read().decode(), reply.headers)
    except urllib.error.HTTPError as refused:
        return Reply(refused.code, refused.read().decode(), refused.headers)


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.names: set[str] = set()
        """Names of all samples."""
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self._values, f"a sample is repeated: {key}"
                self._values[key] = sample.value
                self.names.add(sample.name)

    def value(self, name: str, **labels: str) -> float:
        """The sample with exactly these labels."""
        return self._values[name, frozenset(labels.items())]

    def has(self, name: str, **labels: str) -> bool:
        """Whether there is a sample with these labels, and maybe others."""
        return any(found == name and labels.items() <= set(of) for found, of in self._values)

    def table(self, name: str, table: str, **labels: str) -> float:
        """The sample of a table."""
        return self.value(name, table=table, **labels)

    def labelled(self, label: str) -> set[str]:
        """All values of a label."""
        return {value for _, labels in self._values for name, value in labels if name == label}

    def method(self, name: str, method: str, kind: str = "unary", **labels: str) -> float:
        """The sample of an RPC; 0 if there is none."""
        found = {"grpc_method": method, "grpc_service": "replay.v1.ReplayService", "grpc_type": kind, **labels}
        return self._values.get((name, frozenset(found.items())), 0.0)


def listening_ports(server: ServerProcess) -> set[tuple[str, int]]:
    """Addresses on which a server listens."""
    connections = psutil.Process(server.pid).net_connections("tcp")
    return {
        (each.laddr.ip.removeprefix("::ffff:"), each.laddr.port)
        for each in connections
        if each.status == psutil.CONN_LISTEN
    }


def scrape(server: ServerProcess, token: str = "", context: ssl.SSLContext | None = None) -> Scrape:
    """Read the metrics."""
    reply = get(server, "/metrics", token, context)
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(reply.text)


def _told(server: ServerProcess) -> re.Match[str]:
    told = [*_TOLD.finditer(server.log())]
    assert told, "the server has no HTTP port"
    return told[-1]  # the newest, if it was restarted
