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
    from tools.attacks.arena import Arena

_CONNECT_S = 10.0
_LOOK_S = 0.05
_ATTACKERS_HOST = "127.0.0.2"
"""Source address of attackers on raw connections, different from that of others. gRPC cannot choose an address."""
STRANGERS_MB = 50.0
"""Limit on the server memory that a stranger may use."""


@dataclass(frozen=True)
class Setup:
    """Extra options for the server of an attack."""

    flags: tuple[str, ...] = ()
    """Additional flags."""
    has_tables: bool = True
    """Whether others have a table on it."""
    descriptors: int | None = None
    """Maximum files and connections of its process; None: as for this process."""
    needs_certificates: bool = False
    """Whether its clients need certificates."""
    disk_mb: int | None = None
    """Size of the data directory's disk; None: tables in memory."""


@dataclass
class Target:
    """A server as an attacker sees it; picklable, for the attackers' processes."""

    port: int
    authority: bytes | None
    """Certificate of its CA, PEM; None: no TLS."""
    key_and_certificate: tuple[bytes, bytes] | None = None
    """Client certificate, PEM; None: none."""
    lasts_s: float = 0.0
    """How long the attack lasts at most."""
    until: float = 0.0
    """When the attack ends, by the monotonic clock."""
    tries: int = 0
    """Unit of the attacker's count: calls, connections or frames."""
    found: list[str] = field(default_factory=list)
    """Data that an attacker received but should not have."""

    @property
    def address(self) -> str:
        """Address of the server."""
        return f"127.0.0.1:{self.port}"

    @property
    def left_s(self) -> float:
        """Seconds until the end of the attack, at least a small minimum."""
        return max(0.05, self.until - time.monotonic())

    def goes_on(self) -> bool:
        """Count an attempt, and return whether there is time left."""
        self.tries += 1
        return time.monotonic() < self.until

    def wait(self) -> None:
        """Wait until the attack ends or is stopped."""
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
        """A new TCP connection; nothing has been sent on it."""
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
    """Name in the document."""
    setup: ClassVar[Setup] = Setup()
    """Requirements on the server."""
    processes: ClassVar[int] = 1
    """Number of attackers."""
    least_s: ClassVar[float] = 0.0
    """Minimum duration."""
    longest_look_s: ClassVar[float] = 0.0
    """Maximum time by which it is extended until `meanwhile` is done."""
    most_mb: ClassVar[float] = STRANGERS_MB
    """Limit on the growth of the server's memory."""

    most_log_bytes: ClassVar[float] = math.inf
    """Limit on the growth of the server's log."""

    def prepare(self, arena: Arena) -> None:
        """Create the tables and checkpoints of the attack. Attributes of ``self`` are passed to their processes."""

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
    """Status code."""
    details: str = ""
    """Text of a refusal."""
    message: bytes = b""
    """The reply."""
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
