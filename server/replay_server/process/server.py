"""The gRPC server: options, health and reflection, startup and shutdown."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

import grpc
from replay_proto.access.serving import defer_silent_connections, server_options

from replay_server.auth.caller import Authenticator
from replay_server.catalog import Catalog
from replay_server.checkpoint.store import Checkpoints
from replay_server.rpc.endpoints import SERVICE, all_endpoints
from replay_server.rpc.local_socket.listener import LocalSocket
from replay_server.rpc.open_streams import OpenStreams
from replay_server.rpc.over_grpc import health, reflection
from replay_server.rpc.over_grpc.lanes import Credentials, Lanes
from replay_server.rpc.over_grpc.methods import GrpcMethods

log = logging.getLogger(__name__)

_CUT_OFF = 2
"""gRPC rejects messages that exceed the limit by this factor."""
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
        authenticator: Authenticator,
        credentials: Credentials | None,
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
            offer_health: whether to tell whoever asks that it serves.
            authenticator: finds out who calls.
            credentials: makes those for TLS; None: connections are not encrypted.
            checkpoints: the server's checkpoints; None: disabled.
        """
        self._credentials = credentials
        self._catalog = catalog
        self._lanes = Lanes(
            catalog.bounds.max_connections,
            partial(
                server_options,
                # What is a little too long the service refuses itself, naming the setting; the rest gRPC cuts off.
                receive_bytes=_CUT_OFF * catalog.bounds.max_request_bytes,
                send_bytes=catalog.bounds.max_reply_bytes,
                calls_per_connection=catalog.bounds.max_streams_per_connection + _OTHER_CALLS,
                keepalive_s=keepalive_s,
                connection_s=connection_s,
                connections=catalog.bounds.max_connections,
            ),
        )
        endpoints, streams = all_endpoints(catalog, socket=socket, checkpoints=checkpoints), OpenStreams(catalog.bounds)
        methods = GrpcMethods(authenticator, streams)
        for_grpc = {name: methods.handler(endpoint) for name, endpoint in endpoints.items()}
        self._lanes.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, for_grpc)])
        self._socket = socket
        self._local_socket = LocalSocket(catalog, endpoints, authenticator, streams)
        self._health = health.Health() if offer_health else None
        if self._health is not None:
            self._health.add_to(self._lanes)
        if offer_reflection:
            services = (SERVICE, reflection.SERVICE, *((health.SERVICE,) if offer_health else ()))
            reflection.add_reflection(self._lanes, services, authenticator)

    def bind(self, host: str, port: int) -> int:
        """Take the port. Who connects from now on waits until `start`.

        Returns:
            The port, which is another than asked for if that was 0.

        Raises:
            BindError: if the address cannot be listened on.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = self._lanes.bind(address, self._credentials)
        except RuntimeError as error:
            raise BindError(
                f"cannot listen on {address}: the port may be in use, or the address not on this machine"
            ) from error
        defer_silent_connections(bound)
        return bound

    async def start(self) -> None:
        """Begin to serve."""
        if self._socket is not None:
            await self._local_socket.start(self._socket)
        await self._lanes.start()

    async def stop(self, drain_s: float) -> None:
        """Refuse new calls, send away those that wait, and let the others end for so many seconds."""
        if self._health is not None:
            self._health.stop()
        self._catalog.waiters.close()
        await asyncio.gather(self._lanes.stop(drain_s), self._local_socket.stop(drain_s))
