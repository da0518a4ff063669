"""The gRPC server around the service: its options, health and reflection, its beginning and its end."""

from __future__ import annotations

import asyncio
import logging
import socket as sockets
from collections.abc import Sequence
from pathlib import Path

import grpc
from replay_proto.access.serving import defer_silent_connections, server_options

from replay_server.access.caller import Authenticator
from replay_server.catalog import Catalog
from replay_server.checkpoint.store import Checkpoints
from replay_server.service import health, reflection
from replay_server.service.frames.tcp_port import TcpPort
from replay_server.service.frames.unix_socket import UnixSocket
from replay_server.service.handlers import SERVICE, replay_methods

log = logging.getLogger(__name__)

_CUT_OFF = 2
"""A message that is so many times as long as allowed is not even received."""
_OTHER_CALLS = 32
"""Calls that are no streams need room beside these. Whoever opens calls and lets go of them again and again has others
wait for as many as a connection may have at once."""


class BindError(Exception):
    """The address cannot be listened on."""


class ReplayServer:
    """Serves the tables of a catalog at one address."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        keepalive_s: float,
        connection_s: float | None,
        offer_reflection: bool,
        offer_health: bool,
        socket: Path | None,
        frame_listeners: Sequence[sockets.socket] = (),
        authenticator: Authenticator,
        credentials: grpc.ServerCredentials | None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """Prepare; nothing listens yet.

        Args:
            catalog: the tables.
            keepalive_s: seconds of silence after which a client is asked whether it is there.
            connection_s: how long a connection lasts at most, in seconds; None: as long as the client likes.
            offer_reflection: whether to describe the contract to whoever asks.
            socket: where to listen for clients on this host; None: nowhere, and they may not copy rows out of the
                tables' files either.
            frame_listeners: listen on a port for clients on other hosts, in plain text; empty: there is none.
            offer_health: whether to tell whoever asks that it serves.
            authenticator: finds out who calls.
            credentials: for TLS; None: connections are not encrypted.
            checkpoints: where checkpoints are written; None: nowhere.
        """
        self._credentials = credentials
        self._catalog = catalog
        self._server = grpc.aio.server(
            options=server_options(
                # What is a little too long the service refuses itself, naming the setting; the rest gRPC cuts off.
                receive_bytes=_CUT_OFF * catalog.bounds.max_request_bytes,
                send_bytes=catalog.bounds.max_reply_bytes,
                calls_per_connection=catalog.bounds.max_streams_per_connection + _OTHER_CALLS,
                keepalive_s=keepalive_s,
                connection_s=connection_s,
                connections=catalog.bounds.max_connections,
            )
        )
        methods = replay_methods(
            catalog,
            catalog.bounds.max_rows_bytes,
            socket=socket,
            frame_port=frame_listeners[0].getsockname()[1] if frame_listeners else 0,
            authenticator=authenticator,
            checkpoints=checkpoints,
        )
        for_grpc = {name: method.for_grpc() for name, method in methods.items()}
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, for_grpc)])
        self._socket = socket
        self._unix_socket = UnixSocket(catalog, methods)
        self._frame_listeners = frame_listeners
        self._tcp_port = TcpPort(catalog, methods, authenticator)
        self._health = health.Health() if offer_health else None
        if self._health is not None:
            self._health.add_to(self._server)
        if offer_reflection:
            services = (SERVICE, reflection.SERVICE, *((health.SERVICE,) if offer_health else ()))
            reflection.add_reflection(self._server, services, authenticator)

    def bind(self, host: str, port: int) -> int:
        """Take the port. Who connects from now on waits until `start`.

        Returns:
            The port, which is another than asked for if that was 0.

        Raises:
            BindError: if the address cannot be listened on.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise BindError(
                f"cannot listen on {address}: is the port taken, or the address not this machine's?"
            ) from error
        defer_silent_connections(bound)
        return bound

    async def start(self) -> None:
        """Begin to serve."""
        if self._socket is not None:
            await self._unix_socket.start(self._socket)
        await self._tcp_port.start(self._frame_listeners)
        await self._server.start()

    async def stop(self, drain_s: float) -> None:
        """Refuse new calls, send away those that wait, and let the others end for so many seconds."""
        if self._health is not None:
            self._health.stop()
        self._catalog.waiters.close()
        await asyncio.gather(self._server.stop(drain_s), self._unix_socket.stop(drain_s), self._tcp_port.stop(drain_s))
