"""A TCP port for learners on other hosts: who may call over gRPC may make a learner's calls there, in plain text."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

from replay_proto.access.tokens import Right
from replay_proto.errors import FieldError
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.access.caller import Authenticator
from replay_server.catalog import Catalog
from replay_server.service.frames.serving import FrameListener, Handlers, metadata_of


class TcpPort(FrameListener):
    """Listens where gRPC does, on a port of its own."""

    def __init__(self, catalog: Catalog, handlers: Handlers, authenticator: Authenticator) -> None:
        """See `FrameListener`; the ``authenticator`` finds out who calls."""
        super().__init__(catalog, handlers)
        self._authenticator = authenticator
        self._servers: list[asyncio.Server] = []

    async def start(self, listeners: Iterable[socket.socket]) -> None:
        """Serve who comes to these sockets."""
        loop = asyncio.get_running_loop()
        for listener in listeners:
            self._servers.append(await loop.create_server(self._connection, sock=listener))

    def _close_listeners(self) -> None:
        for server in self._servers:
            server.close()

    def _admit(self, hello: replay_pb2.FrameHello) -> None:
        caller = self._authenticator.caller_of(metadata_of(hello))
        # Who may not touch a name does not learn what it stands for.
        caller.check(Right.any(), hello.table)
        # Behind an address that stands for several servers this may be the wrong one: the uid tells.
        if not hello.table_uid:
            raise errors.invalid_field(FieldError("table_uid", "the table's", "none"))
        self._catalog.find(hello.table, hello.table_uid)


def listen_on(host: str, port: int) -> list[socket.socket]:
    """Take a port, the same at each address that a host's name stands for.

    Args:
        host: address or name.
        port: 0: any that is free.

    Raises:
        OSError: if it cannot be had.
    """
    listeners: list[socket.socket] = []
    try:
        for family, address in _addresses(host):
            both = address == "::" and socket.has_dualstack_ipv6()
            listeners.append(socket.create_server((address, port), family=family, dualstack_ipv6=both))
            port = listeners[-1].getsockname()[1]
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise OSError(
            f"cannot listen on {host}, port {port}, for frames: is the port taken, or the address not this machine's?"
        ) from error
    return listeners


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """What a name stands for."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))
