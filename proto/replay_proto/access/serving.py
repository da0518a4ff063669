"""Limits on unauthenticated connections and calls, shared by all servers of this project.

gRPC receives a unary call's whole message before a handler can check its token. So unary RPCs are registered as
client-streaming: the handler sees the metadata first, checks the token, and then requests the only message:

    async def call(_requests, context):
        caller = who_calls(context.invocation_metadata())
        request = await only_message(context)

    grpc.stream_unary_rpc_method_handler(call)

On the wire, the call is the same.
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
"""Time limit for receiving the body of a call, in seconds: enough for 4 MiB at 3.4 Mbit/s."""
HANDSHAKE_S: Final = 10.0
"""Time limit for the TLS handshake and HTTP/2's connection preface."""
_MS_PER_S: Final = 1000
_KEEPALIVE_TIMEOUT_MS: Final = 10_000
"""Time limit for the reply to a keepalive ping."""
_NO_COMPRESSION: Final = 1
"""Bit set of accepted algorithms: only `identity`. Otherwise, a megabyte of gzip could expand to a gigabyte."""
DEFAULT_MAX_CONNECTIONS: Final = 200
"""Maximum connections of one gRPC server. Each takes 46 KiB for TLS buffers even before its handshake is complete."""
_METADATA_BYTES: Final = 4096
"""Maximum metadata of a call: it arrives before the token is checked, and stays in memory while the call waits."""
_LOOKAHEAD_BYTES: Final = 1 << 16
"""Bytes of a message that a client may send before the server reads it."""
_BACKLOG: Final = 64
"""Maximum connections that wait to be accepted; their clients retry within a second. Without this limit, clients that
connect thousands of times per second keep gRPC's threads busy with handshakes, and all other clients wait."""
SEND_BUFFER_BYTES: Final = 1 << 19
"""Send buffer of a connection; Linux doubles it. By default, it grows to 4 MiB, more than a core's cache: batches of
1.8 MB then take 15 % more CPU time of the server. A connection sends at most 1 MiB per round trip: 50 MB/s between
hosts that are 20 ms apart."""
_READ_BUFFER_BYTES: Final = 1 << 17
"""Maximum bytes that gRPC reads from a connection before it processes them. A higher limit does not make large inserts
faster, and 200 connections could reach it at the same time."""
_CONNECTIONS_SHARE: Final = 0.75
"""Fraction of file descriptors for connections; the rest is for tables and for rereading tokens."""
_SILENT_S: Final = 600
"""Minimum time in seconds that the kernel keeps a connection whose client has sent nothing."""
_LESS_JITTER: Final = 0.9
"""Factor for the maximum age of connections. gRPC changes the age at random by up to a tenth, so that clients do not
reconnect all at once."""
_MOST_PENDING: Final = 500
"""Maximum calls of one gRPC server that are received but not started. gRPC cancels further calls, and clients retry.
A pending call takes up to 20 KiB, before its token is checked."""
_LONGEST_BYTES: Final = (1 << 31) - 1
"""gRPC stores message sizes in 31 bits."""


class Reads(Protocol):
    """The method of a call's context that is used here."""

    async def read(self) -> Any:
        """Return the next message. At the end of the stream, gRPC returns a marker, which is not bytes."""


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
    """Return the options of a gRPC server.

    Args:
        receive_bytes: longer messages are rejected without being received.
        send_bytes: maximum length of sent messages; -1: unlimited.
        calls_per_connection: maximum number of concurrent calls and streams per connection. gRPC clients hold back
            further calls until some have ended.
        keepalive_s: seconds of silence after which a client is pinged.
        connection_s: maximum age of a connection, in seconds; None: unlimited. New calls may start in the first half of
            this time, and running calls may finish in the second half.
        connections: maximum number of connections; further ones are closed immediately.
        shares_port: whether to share the port with another listener of this process.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_tells_of_more_than_an_ended_call)
    return [
        ("grpc.max_receive_message_length", min(receive_bytes, _LONGEST_BYTES)),
        ("grpc.max_send_message_length", send_bytes),
        ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
        ("grpc.max_concurrent_streams", calls_per_connection),
        # Otherwise, gRPC would let clients send megabytes of each message before anybody wants to read it. A message
        # that is read arrives as fast as without this limit.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
        # Between the two limits, gRPC would refuse calls at random.
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        # Without a limit, gRPC doubles the size of a read as long as more has arrived: a client that floods a busy
        # server could make it read hundreds of megabytes at once.
        ("grpc.experimental.tcp_max_read_buffer_size", _READ_BUFFER_BYTES),
        # Between the two limits, gRPC would cancel calls at random.
        ("grpc.server.max_pending_requests", _MOST_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MOST_PENDING),
        # Further connections are closed immediately. Without a free descriptor, they would wait to be accepted.
        ("grpc.max_allowed_incoming_connections", min(connections, connections_that_fit())),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * _MS_PER_S)),
        # A second server on the same port would silently take half of the calls.
        ("grpc.so_reuseport", int(shares_port)),
        # Clients may be silent for a long time: allow their keepalive pings.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ("grpc.http2.max_ping_strikes", 0),
        # Ping silent clients: otherwise the streams and waiting calls of vanished clients would remain.
        ("grpc.keepalive_time_ms", int(keepalive_s * _MS_PER_S)),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        *([] if connection_s is None else _limits_of_age(connection_s)),
    ]


def connections_that_fit() -> int:
    """Return the number of connections that this process's limit of file descriptors allows."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int(_CONNECTIONS_SHARE * descriptors)


def configure_listeners(port: int) -> None:
    """Set socket options that gRPC does not expose.

    Where supported, the kernel delays handing a new connection to this process until the client sends data, which gRPC
    clients do immediately. At most `_BACKLOG` connections wait to be accepted. Until it is accepted, a connection uses
    no memory or descriptor of this process, and does not count towards the ``connections`` of `server_options`.
    Accepted connections get a send buffer of `SEND_BUFFER_BYTES`.
    """
    for found in listeners(port):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        hold_back_silent(found)
        found.listen(_BACKLOG)


def hold_back_silent(listener: socket.socket) -> None:
    """Make the kernel hold back each new connection until its client sends data, where supported."""
    option = getattr(socket, "TCP_DEFER_ACCEPT", None)
    if option is not None:
        listener.setsockopt(socket.IPPROTO_TCP, option, _SILENT_S)


def listeners(port: int) -> Iterator[socket.socket]:
    """Yield a duplicate of each socket of this process that listens on a TCP port, including gRPC's sockets.

    Each duplicate is closed after use.
    """
    for number in _open_sockets():
        with suppress(OSError), socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as found:
            is_internet = found.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) in (socket.AF_INET, socket.AF_INET6)
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if is_internet and listens and found.getsockname()[1] == port:
                yield found


def _open_sockets() -> list[int]:
    """Return this process's socket descriptors. Given any other descriptor, `socket.fromfd` would leak a duplicate."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                found.append(number)
    return found


def _tells_of_more_than_an_ended_call(record: logging.LogRecord) -> bool:
    """Reject tracebacks of calls that ended early. Unauthenticated clients could fill a disk with them."""
    return record.exc_info is None or getattr(record.exc_info[0], "__name__", "") != "ExecuteBatchError"


def _limits_of_age(connection_s: float) -> list[tuple[str, int]]:
    half_ms = connection_s * _MS_PER_S / 2
    return [
        ("grpc.max_connection_age_ms", int(half_ms * _LESS_JITTER)),
        ("grpc.max_connection_age_grace_ms", int(half_ms)),
    ]


async def only_message(context: Reads, within_s: float = BODY_S) -> bytes:
    """Receive the message of a unary call, and nothing after it.

    Raises:
        FieldError: the message did not arrive within ``within_s`` seconds.
        asyncio.CancelledError: no message comes, because the caller hung up or gRPC rejected it as too long.
    """
    task, is_late = asyncio.current_task(), False

    def give_up() -> None:
        nonlocal is_late
        is_late = True
        if task is not None:
            task.cancel()

    late = asyncio.get_running_loop().call_later(within_s, give_up)  # costs half as much as asyncio.timeout
    try:
        message = await context.read()
    except asyncio.CancelledError:
        if is_late:
            raise FieldError("request", f"the whole message within {within_s:g} s", "less") from None
        raise
    finally:
        late.cancel()
    if not isinstance(message, bytes):
        raise asyncio.CancelledError
    return message
