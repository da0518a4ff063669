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
"""Room for calls other than streams. A client that keeps opening and canceling calls delays others by as many
calls as a connection may have."""


class BindError(Exception):
    """The server cannot listen on the address."""


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
            keepalive_s: seconds of silence after which a client is pinged.
            connection_s: maximum age of a connection, in seconds; None: unlimited.
            offer_reflection: whether to offer gRPC's reflection service.
            socket: path of the socket for clients on this host; None: no socket, and clients may not copy rows from
                the tables' files.
            offer_health: whether to offer gRPC's health service.
            authenticator: identifies callers.
            credentials: creates TLS credentials; None: no encryption.
            checkpoints: the server's checkpoints; None: disabled.
        """
        self._credentials = credentials
        self._catalog = catalog
        self._lanes = Lanes(
            catalog.bounds.max_connections,
            partial(
                server_options,
                # The service refuses slightly too long requests, naming the setting; gRPC rejects longer ones.
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
        """Bind the port. Clients that connect now wait until `start`.

        Returns:
            The port; chosen by the system if 0 was requested.

        Raises:
            BindError: the server cannot listen on the address.
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
        """Refuse new and waiting calls, and give running calls this many seconds to finish."""
        if self._health is not None:
            self._health.stop()
        self._catalog.waiters.close()
        await asyncio.gather(self._lanes.stop(drain_s), self._local_socket.stop(drain_s))
