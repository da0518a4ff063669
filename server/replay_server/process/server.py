"""The gRPC server: options, health and reflection, startup and shutdown."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import grpc
from replay_proto.access.serving import server_options

from replay_server.auth import Authenticator
from replay_server.catalog import Catalog
from replay_server.checkpoint.store import Checkpoints
from replay_server.process.settings import ServerSettings
from replay_server.rpc.call import OpenStreams
from replay_server.rpc.endpoints import SERVICE, all_endpoints
from replay_server.rpc.local_socket.listener import LocalSocket
from replay_server.rpc.over_grpc import standard_services
from replay_server.rpc.over_grpc.connections import SPARE, Connections
from replay_server.rpc.over_grpc.lanes import Lanes
from replay_server.rpc.over_grpc.methods import grpc_handler
from replay_server.rpc.over_grpc.unfinished import Unfinished

_CUT_OFF = 2
"""gRPC rejects messages that exceed the limit by this factor."""
_OTHER_CALLS = 32
"""Maximum calls per connection in addition to streams. With a higher limit, a client that keeps opening and canceling
calls could delay other clients for longer."""


class ReplayServer:
    """Serves the tables of a catalog at one address."""

    def __init__(
        self,
        catalog: Catalog,
        settings: ServerSettings,
        *,
        socket: Path | None,
        authenticator: Authenticator,
        checkpoints: Checkpoints | None,
    ) -> None:
        """Create the server without listening yet.

        ``socket`` is the path of the socket for clients on this host. Without it, they may not copy rows from the
        tables' files, either.
        """
        self._catalog = catalog
        bounds = catalog.bounds
        self.lanes = Lanes(
            bounds.max_connections,
            partial(
                server_options,
                # The service refuses messages slightly over the limit, naming the setting; gRPC rejects longer ones.
                receive_bytes=_CUT_OFF * bounds.max_request_bytes,
                send_bytes=bounds.max_reply_bytes,
                calls_per_connection=bounds.max_streams_per_connection + _OTHER_CALLS,
                keepalive_s=settings.keepalive_s,
                connection_s=settings.max_connection_s if settings.tls_client_ca is not None else None,
                connections=bounds.max_connections + SPARE,
            ),
        )
        """The gRPC servers; bind them before `start`."""
        self.endpoints = all_endpoints(catalog, socket=socket, checkpoints=checkpoints)
        """All RPCs by method name."""
        self.connections = Connections(bounds.max_connections, self.lanes.count)
        """Those that have made calls over gRPC."""
        streams = OpenStreams(bounds)
        self.unfinished = Unfinished(bounds.max_request_bytes)
        """Bounds messages that callers do not finish, while something keeps calling `Unfinished.look`."""
        for_grpc = {
            name: grpc_handler(endpoint, authenticator, streams, self.connections, self.unfinished)
            for name, endpoint in self.endpoints.items()
        }
        self.lanes.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, for_grpc)])
        self._socket = socket
        self._local_socket = LocalSocket(catalog, self.endpoints, authenticator, streams)
        self.health = standard_services.Health(catalog.owner) if settings.health else None
        """The health service. Streams of Watch hear of lost storage while something keeps calling `Health.look`."""
        if self.health is not None:
            self.health.add_to(self.lanes)
        if settings.reflection:
            services = (
                SERVICE,
                standard_services.REFLECTION,
                *((standard_services.HEALTH,) if settings.health else ()),
            )
            standard_services.add_reflection(self.lanes, services, authenticator)

    async def start(self) -> None:
        """Start serving."""
        if self._socket is not None:
            await self._local_socket.start(self._socket)
        await self.lanes.start()

    async def stop(self, drain_s: float) -> None:
        """Refuse new and waiting calls, and give running calls ``drain_s`` seconds to finish."""
        if self.health is not None:
            self.health.stop()
        self._catalog.refuse_waiting()
        await asyncio.gather(self.lanes.stop(drain_s), self._local_socket.stop(drain_s))
