"""The gRPC server around the service: its options, health and reflection, its beginning and its end."""

from __future__ import annotations

import logging

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from replay_server.catalog import Catalog
from replay_server.checkpoint.store import Checkpoints
from replay_server.service.handlers import SERVICE, replay_handlers

log = logging.getLogger(__name__)

_BYTES_PER_MB = 1 << 20
_HEAD_BYTES = 1 << 20
"""What a message may carry beside its rows."""


class BindError(Exception):
    """The address cannot be listened on."""


class ReplayServer:
    """Serves the tables of a catalog at one address."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        max_message_mb: int,
        offer_reflection: bool,
        same_host: bool,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """Prepare; nothing listens yet.

        Args:
            catalog: the tables.
            max_message_mb: largest message taken or sent, in MiB.
            offer_reflection: whether to describe the contract to whoever asks.
            same_host: whether clients on this host may copy rows out of the tables' files.
            checkpoints: where checkpoints are written; None: nowhere.
        """
        limit = max_message_mb * _BYTES_PER_MB
        self._catalog = catalog
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", limit),
                # A second server on the same port would silently take half of the calls.
                ("grpc.so_reuseport", 0),
                # Actors and learners may be silent for long; their keepalive pings are welcome.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                ("grpc.http2.max_ping_strikes", 0),
            ]
        )
        self._server.add_generic_rpc_handlers(
            [replay_handlers(catalog, limit - _HEAD_BYTES, same_host=same_host, checkpoints=checkpoints)]
        )
        self._health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if offer_reflection:
            services = (SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(services, self._server)

    async def start(self, host: str, port: int) -> int:
        """Begin to serve.

        Returns:
            The port, which is another than asked for if that was 0.

        Raises:
            BindError: if the address cannot be listened on.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise BindError(
                f"cannot listen on {address}: is the port taken, or the address not this machine's?"
            ) from error
        await self._server.start()
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return bound

    async def stop(self, drain_s: float) -> None:
        """Refuse new calls, send away those that wait, and let the others end for so many seconds."""
        await self._health.enter_graceful_shutdown()
        self._catalog.waiters.close()
        await self._server.stop(drain_s)
