"""Attacks without a token on the HTTP port."""

from __future__ import annotations

import itertools
import socket
import ssl
from contextlib import suppress
from typing import ClassVar, Final

from tests.support.http_port import FLAGS, get, http_port
from tools.attacks.arena import Arena
from tools.attacks.attack import Attack, Setup, Target
from tools.attacks.strangers import Stranger

_HALF_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
_METRICS: Final = b"GET /metrics HTTP/1.1\r\nHost: buffer\r\n\r\n"
_CONNECT_S: Final = 1.0


class OnHttp(Stranger):
    """Base class: the server has an HTTP port, which must go on answering probes."""

    setup = Setup(flags=FLAGS)

    def prepare(self, arena: Arena) -> None:
        self.port = http_port(arena.server)

    def connect(self) -> socket.socket:
        """A new TCP connection."""
        return socket.create_connection(("127.0.0.1", self.port), _CONNECT_S)

    def connect_tls(self) -> ssl.SSLSocket:
        """A new connection over TLS."""
        return _trusting().wrap_socket(self.connect())

    def meanwhile(self, arena: Arena) -> None:
        assert get(arena.server, "/readyz", context=_trusting()).status == 200


class HeldHttpConnections(OnHttp):
    """Opens connections until it has a thousand, and replaces those that the server closes."""

    name = "1,000 connections to the HTTP port: half a ClientHello, half a request, or a reply that nobody reads"
    count: ClassVar[int] = 1000

    def act(self, target: Target) -> None:
        held: list[socket.socket] = []
        for kind in itertools.cycle(range(3)):
            if not target.goes_on():
                break
            with suppress(OSError):
                link = self.connect() if kind == 0 else self.connect_tls()
                link.sendall((_HALF_HELLO, _METRICS[:-2], _METRICS)[kind])
                held.append(link)
            if len(held) > self.count:
                held.pop(0).close()


class HttpRequests(OnHttp):
    """Requests metrics without a token, each on a new connection, as fast as possible."""

    name = "requests without a token to the HTTP port, each with a TLS handshake"
    processes = 2

    def act(self, target: Target) -> None:
        while target.goes_on():
            with suppress(OSError), self.connect_tls() as link:
                link.sendall(_METRICS)
                if not link.recv(4096).startswith(b"HTTP/1.1 401 "):
                    target.found.append("metrics without a token")


def _trusting() -> ssl.SSLContext:
    """TLS without verification of the server."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


ATTACKS: Final[tuple[type[Attack], ...]] = (HeldHttpConnections, HttpRequests)
