"""Limits on unauthenticated connections and calls, shared by all servers of this project.

gRPC receives a unary call's whole message before a handler can check its token. So unary RPCs are registered as
client-streaming: the handler sees the metadata first, checks the token, and then requests the only message:

    async def call(_requests, context):
        caller = who_calls(context.invocation_metadata())
        request = await only_message(context)

    grpc.stream_unary_rpc_method_handler(call)

On the wire this is the same call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, Protocol

from replay_proto.errors import FieldError

BODY_S: Final = 10.0
"""How long the body of a call may take to arrive, in seconds: 4 MiB at 3.4 Mbit/s."""
HANDSHAKE_S: Final = 10.0
"""How long a connection may take to become one: TLS, and the first words of HTTP/2."""
_MS_PER_S: Final = 1000
_KEEPALIVE_TIMEOUT_MS: Final = 10_000
"""How long a client may take to say that it is there."""
_NO_COMPRESSION: Final = 1
"""A set of algorithms, as bits: `identity` alone. A megabyte of gzip could otherwise become a gigabyte."""
DEFAULT_MAX_CONNECTIONS: Final = 500
"""Connections at once, of one server of gRPC. One that has not even finished its TLS handshake takes 46 KiB: the
buffers of its encryption."""
_CONNECTIONS_SHARE: Final = 0.75
"""Part of the descriptors that connections may take. The others are for tables, and for reading tokens again."""
_SILENT_S: Final = 600
"""Minimum time that the kernel holds a connection whose client has sent nothing."""
_LESS_JITTER: Final = 0.9
"""gRPC varies the age of connections by a tenth, so that not all clients come again at once."""
_MOST_PENDING: Final = (1 << 31) - 1
"""Calls that have come and are not begun: no bound of its own, connections and their calls are bounded."""
_LONGEST_BYTES: Final = (1 << 31) - 1
"""gRPC counts the bytes of a message in 31 bits."""


class Reads(Protocol):
    """What is used of a call's context."""

    async def read(self) -> Any:
        """The next message; something else than bytes at the end."""


def server_options(
    *,
    receive_bytes: int,
    send_bytes: int,
    calls_per_connection: int,
    keepalive_s: float,
    connection_s: float | None = None,
    connections: int = DEFAULT_MAX_CONNECTIONS,
    shares_port: bool = False,
) -> list[tuple[str, int]]:
    """Options of gRPC for a server.

    Args:
        receive_bytes: a longer message is cut off without being received.
        send_bytes: longest message sent; -1: of any length.
        calls_per_connection: calls and streams open at once on one connection. A client of gRPC waits with further
            ones until some have ended.
        keepalive_s: seconds of silence after which a client is asked whether it is there.
        connection_s: how long a connection lasts at most, in seconds: in the first half new calls begin on it, in the
            second those at work may end. None: as long as the client likes.
        connections: connections at once; further ones are closed at once.
        shares_port: whether to listen on a port that another listener of this process has already.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_tells_of_more_than_an_ended_call)
    return [
        ("grpc.max_receive_message_length", min(receive_bytes, _LONGEST_BYTES)),
        ("grpc.max_send_message_length", send_bytes),
        ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
        ("grpc.max_concurrent_streams", calls_per_connection),
        # Of calls that come faster than they are begun, gRPC would cancel some by chance, whosever they are.
        ("grpc.server.max_pending_requests", _MOST_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MOST_PENDING),
        # What comes above that is closed at once. Without descriptors it would wait to be accepted.
        ("grpc.max_allowed_incoming_connections", min(connections, connections_that_fit())),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * _MS_PER_S)),
        # A second server on the same port would silently take half of the calls.
        ("grpc.so_reuseport", int(shares_port)),
        # Clients may be silent for long; their keepalive pings are welcome.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ("grpc.http2.max_ping_strikes", 0),
        # Clients that vanished without a word are asked, too: their streams and waiting calls would stay.
        ("grpc.keepalive_time_ms", int(keepalive_s * _MS_PER_S)),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        *([] if connection_s is None else _limits_of_age(connection_s)),
    ]


def connections_that_fit() -> int:
    """How many connections the descriptors of this process allow."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int(_CONNECTIONS_SHARE * descriptors)


def defer_silent_connections(port: int) -> None:
    """Have the kernel hand over connections to a port once their client has said something, as all clients of gRPC do.

    Until then they take no memory and no descriptor of this process, and none of its `connections`. gRPC has no option
    for it. Does nothing where the kernel cannot.
    """
    option = getattr(socket, "TCP_DEFER_ACCEPT", None)
    if option is None:
        return
    for found in listeners(port):
        found.setsockopt(socket.IPPROTO_TCP, option, _SILENT_S)


def listeners(port: int) -> Iterator[socket.socket]:
    """The sockets of this process that listen on a TCP port, gRPC's among them; each is closed after its turn."""
    for number in _open_sockets():
        with suppress(OSError), socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as found:
            is_internet = found.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) in (socket.AF_INET, socket.AF_INET6)
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if is_internet and listens and found.getsockname()[1] == port:
                yield found


def _open_sockets() -> list[int]:
    """Descriptors of this process that are sockets: of others, `socket.fromfd` would leave a duplicate open."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                found.append(number)
    return found


def _tells_of_more_than_an_ended_call(record: logging.LogRecord) -> bool:
    """Leave out tracebacks of calls that end before their answer: strangers could fill a disk with them."""
    return record.exc_info is None or getattr(record.exc_info[0], "__name__", "") != "ExecuteBatchError"


def _limits_of_age(connection_s: float) -> list[tuple[str, int]]:
    half_ms = connection_s * _MS_PER_S / 2
    return [
        ("grpc.max_connection_age_ms", int(half_ms * _LESS_JITTER)),
        ("grpc.max_connection_age_grace_ms", int(half_ms)),
    ]


async def only_message(context: Reads, within_s: float = BODY_S) -> bytes:
    """The message of a unary call; what may come behind it is not received.

    Raises:
        FieldError: it did not arrive within ``within_s`` seconds.
        asyncio.CancelledError: there is none: the caller has hung up, or gRPC has refused it as too long.
    """
    try:
        async with asyncio.timeout(within_s):
            message = await context.read()
    except TimeoutError:
        raise FieldError("request", f"the whole message within {within_s:g} s", "less") from None
    if not isinstance(message, bytes):
        raise asyncio.CancelledError
    return message
