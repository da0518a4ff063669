"""Serves one port with several lanes; each client host is assigned to a lane by its address.

A gRPC server accepts the calls of all connections in order of arrival. With a single server, a client that starts
thousands of calls at once would delay all other clients. So several gRPC servers, called lanes, share the port and the
event loop. The kernel selects a lane by the client's address, and the event loop serves the lanes in turn.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import grpc
from replay_proto.access.serving import configure_listeners, connections_that_fit, listeners
from replay_proto.channels import host_and_port

from replay_server.errors import FatalError

MOST_LANES: Final = 16
_ATTACH_REUSEPORT_CBPF: Final = 51
"""Linux's SO_ATTACH_REUSEPORT_CBPF, which `socket` lacks."""
_NETWORK_HEADER: Final = 0xFFF00000
"""SKF_NET_OFF: the offset of the IP header in classic BPF."""
_Options = list[tuple[str, int]]
Credentials = Callable[[], grpc.ServerCredentials]
"""Creates the credentials of one gRPC server. Several servers cannot share credentials that are reloaded."""


class Lanes:
    """gRPC servers with the same handlers at the same address."""

    def __init__(self, connections: int, options: Callable[..., _Options]) -> None:
        """Create the servers, each with ``connections`` at the most; nothing listens yet.

        If there are too few file descriptors for `MOST_LANES` such lanes, fewer are created. ``options`` creates the
        options of a gRPC server; takes the keyword argument ``shares_port``.
        """
        self.count = max(1, min(MOST_LANES, connections_that_fit() // connections))
        """Number of lanes."""
        # The first lane binds without sharing, to detect that another program or replay server uses the port.
        self._servers = [grpc.aio.server(options=options(shares_port=lane > 0)) for lane in range(self.count)]

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add handlers to each lane."""
        for server in self._servers:
            server.add_generic_rpc_handlers(handlers)

    def bind(self, host: str, port: int, credentials: Credentials | None) -> int:
        """Bind the port, and return it; 0: any free one. Clients can connect, but their calls wait until `start`.

        ``credentials`` creates TLS credentials for one lane; None: connections are not encrypted.
        """
        first, *others = self._servers
        try:
            port = _add_port(first, host_and_port(host, port), credentials)
        except RuntimeError as error:
            raise FatalError(
                f"cannot listen on {host_and_port(host, port)}: the port may be in use, or the address not on this "
                "machine"
            ) from error
        if others:
            for found in listeners(port):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            for other in others:
                _add_port(other, host_and_port(host, port), credentials)
            choose_by_host(port, len(self._servers))
        configure_listeners(port)
        return port

    async def start(self) -> None:
        """Start serving."""
        await asyncio.gather(*(server.start() for server in self._servers))

    async def stop(self, drain_s: float) -> None:
        """Refuse new calls, and let running calls finish within ``drain_s`` seconds."""
        await asyncio.gather(*(server.stop(drain_s) for server in self._servers))


def _add_port(server: grpc.aio.Server, address: str, credentials: Credentials | None) -> int:
    return server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials())


def choose_by_host(port: int, lanes: int) -> None:
    """Make the kernel select one of a port's listeners by the client's host only, instead of by its host and port."""
    code = b"".join(_program(lanes))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(code) // _INSTRUCTION.size, ctypes.addressof(buffer))
    for found in listeners(port):
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, program)


_INSTRUCTION: Final = struct.Struct("=HBBI")


def _program(lanes: int) -> Iterator[bytes]:
    """Yield classic BPF instructions that compute the client's IPv4 address, or IPv6 /64 network, modulo ``lanes``."""
    make = _INSTRUCTION.pack
    yield make(0x30, 0, 0, _NETWORK_HEADER)  # ldb [0]: version and length of the header
    yield make(0x74, 0, 0, 4)  # rsh #4
    yield make(0x15, 0, 2, 4)  # jeq #4: for IPv6 skip two
    yield make(0x20, 0, 0, _NETWORK_HEADER + 12)  # ld [12]: the IPv4 address
    yield make(0x05, 0, 0, 4)  # ja to the end
    yield make(0x20, 0, 0, _NETWORK_HEADER + 8)  # ld [8]: the first half of the network
    yield make(0x07, 0, 0, 0)  # tax
    yield make(0x20, 0, 0, _NETWORK_HEADER + 12)  # ld [12]: the second half
    yield make(0xAC, 0, 0, 0)  # xor x
    yield make(0x94, 0, 0, lanes)  # mod #lanes
    yield make(0x16, 0, 0, 0)  # ret a
