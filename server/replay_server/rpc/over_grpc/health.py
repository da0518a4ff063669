"""gRPC's health service, which requires no token.

Anyone may send requests, so their content is never received. The reply does not depend on it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2

from replay_server.auth.identity import of_peer
from replay_server.errors import RequestError
from replay_server.flow.bounds import Bounds
from replay_server.flow.budgets import Budget
from replay_server.rpc.over_grpc.lanes import Lanes
from replay_server.rpc.over_grpc.methods import Context, abort

SERVICE: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_Answer: Final = health_pb2.HealthCheckResponse
_SERVING: Final[bytes] = _Answer(status=_Answer.SERVING).SerializeToString()
_NOT_SERVING: Final[bytes] = _Answer(status=_Answer.NOT_SERVING).SerializeToString()
MOST_WATCHING: Final = 1024
"""Maximum concurrent streams of Watch; one host may have half of them."""


class Health:
    """Reports whether the server is serving."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._watching = Budget("streams of Watch", "not a setting", MOST_WATCHING, Bounds.caller_share)

    def add_to(self, server: Lanes) -> None:
        """Add the service."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])

    def stop(self) -> None:
        """Report from now on that the server is not serving."""
        self._stopping.set()

    async def _check(self, _requests: object, _context: Context) -> bytes:
        return _NOT_SERVING if self._stopping.is_set() else _SERVING

    async def _watch(self, _requests: object, context: Context) -> None:
        host = of_peer(context.peer())
        try:
            with self._watching.held(host):
                if not self._stopping.is_set():
                    await context.write(_SERVING)
                    await self._stopping.wait()
                await context.write(_NOT_SERVING)
        except RequestError as refusal:
            await abort(context, refusal)
