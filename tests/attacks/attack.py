"""Base classes of attacks, and an attacker's knowledge of its target."""

from __future__ import annotations

import math
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import grpc
from google.protobuf.message import Message
from grpc_status import rpc_status

from tests.support.refusals import Refusal, refusal_in

if TYPE_CHECKING:
    from tests.attacks.arena import Arena

_CONNECT_S = 10.0
_LOOK_S = 0.05
_ATTACKERS_HOST = "127.0.0.2"
"""Attackers do not call from the host of others, so far as they speak for themselves: gRPC cannot choose an address."""
STRANGERS_MB = 50.0
"""Memory that a stranger may cost the server."""


@dataclass(frozen=True)
class Setup:
    """Extra options for the server of an attack."""

    flags: tuple[str, ...] = ()
    """Further flags."""
    has_tables: bool = True
    """Whether others have a table there."""
    has_learner: bool = False
    """Whether the attack targets a learner."""
    descriptors: int | None = None
    """Files and connections that its process may have; None: as many as ours."""
    needs_certificates: bool = False
    """Whether its clients need certificates."""
    disk_mb: int | None = None
    """Size of the data directory's disk; None: tables in memory."""


@dataclass
class Target:
    """A server as an attacker sees it; picklable, for the attackers' processes."""

    port: int
    authority: bytes | None
    """Certificate of the authority that signed its own, PEM; None: it has no TLS."""
    key_and_certificate: tuple[bytes, bytes] | None = None
    """Client certificate, PEM; None: none."""
    lasts_s: float = 0.0
    """How long the attack lasts at most."""
    until: float = 0.0
    """When the attack ends, by the monotonic clock."""
    tries: int = 0
    """Unit of the attacker's count: calls, connections or frames."""
    found: list[str] = field(default_factory=list)
    """Data that an attacker must not have received."""

    @property
    def address(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    @property
    def left_s(self) -> float:
        """Seconds until the end, at least a small minimum."""
        return max(0.05, self.until - time.monotonic())

    def goes_on(self) -> bool:
        """Count an attempt, and return whether there is time left."""
        self.tries += 1
        return time.monotonic() < self.until

    def wait(self) -> None:
        """Do nothing until the end, which may come early."""
        while (left_s := self.until - time.monotonic()) > 0.0:
            time.sleep(min(_LOOK_S, left_s))

    @contextmanager
    def channel(self, **options: int) -> Iterator[grpc.Channel]:
        """A new channel for gRPC calls."""
        with self.open_channel(**options) as channel:
            yield channel

    def open_channel(self, **options: int) -> grpc.Channel:
        """Like `channel`, but the caller closes it."""
        given = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            *((f"grpc.{name}", value) for name, value in options.items()),
        ]
        if self.authority is None:
            return grpc.insecure_channel(self.address, given)
        shown = self.key_and_certificate or (None, None)
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(self.authority, *shown), given)

    def connect(self) -> socket.socket:
        """A TCP connection on which nothing was sent."""
        return socket.create_connection(("127.0.0.1", self.port), _CONNECT_S, (_ATTACKERS_HOST, 0))

    def connect_tls(self) -> socket.socket:
        """A connection ready for HTTP/2, over TLS if the server uses it."""
        plain = self.connect()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.authority is None:
            return plain
        try:
            return tls_context().wrap_socket(plain, server_hostname="localhost")
        except OSError:
            plain.close()
            raise


class Attack:
    """An attack; see the docstring of each subclass."""

    name: ClassVar[str]
    """As the page calls it."""
    setup: ClassVar[Setup] = Setup()
    """The server it requires."""
    processes: ClassVar[int] = 1
    """Attackers at work."""
    least_s: ClassVar[float] = 0.0
    """It takes so long at least."""
    longest_look_s: ClassVar[float] = 0.0
    """It goes on for so long at most, beyond its time, until `meanwhile` has seen enough."""
    most_mb: ClassVar[float] = STRANGERS_MB
    """Limit on the growth of the server's memory."""

    most_log_bytes: ClassVar[float] = math.inf
    """By how much the server's log may grow."""

    def prepare(self, arena: Arena) -> None:
        """Create what the attacker is entitled to; attributes of ``self`` are passed to the attackers' processes."""

    def act(self, target: Target) -> None:
        """Attack until the time is up, in a separate process."""

    def meanwhile(self, arena: Arena) -> None:
        """Check for forbidden effects during the attack."""

    def check(self, arena: Arena) -> None:
        """Check for forbidden effects afterwards."""


def tls_context() -> ssl.SSLContext:
    """TLS context for HTTP/2 clients, without verification of the server."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Metadata with a token."""
    return (("authorization", f"Bearer {token}"),)


@dataclass(frozen=True)
class Answer:
    """Outcome of a call."""

    code: grpc.StatusCode
    """How it ended."""
    details: str = ""
    """Content of a refusal."""
    message: bytes = b""
    """The answer."""
    refusal: Refusal | None = None
    """Machine-readable part of our refusals."""

    @property
    def is_ok(self) -> bool:
        """Whether the call succeeded."""
        return self.code is grpc.StatusCode.OK


def call(
    channel: grpc.Channel, path: str, message: Message | bytes, token: str | None = None, timeout_s: float = 60.0
) -> Answer:
    """Call a unary RPC."""
    unary: Any = channel.unary_unary(path)
    content = message if isinstance(message, bytes) else message.SerializeToString()
    try:
        answer = unary(content, timeout=timeout_s, metadata=bearer(token) if token else None)
    except grpc.RpcError as error:
        refused: Any = error
        has_details = rpc_status.from_call(error) is not None
        return Answer(refused.code(), refused.details(), b"", refusal_in(error) if has_details else None)
    return Answer(grpc.StatusCode.OK, message=answer)
