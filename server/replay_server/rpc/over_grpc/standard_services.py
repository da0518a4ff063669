"""The standard services of gRPC: health, which requires no token, and reflection, restricted to valid callers.

Anyone may ask for health, so the content of requests is never received. The reply does not depend on it.

gRPC has one limit on the size of requests for all services of a server. Our limit is large enough for rows. Without a
smaller limit here, reflection would parse requests of that size on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from replay_server.auth import Authenticator, of_peer
from replay_server.errors import RequestError
from replay_server.files.owner import Owner
from replay_server.flow.bounds import Bounds
from replay_server.flow.budgets import Budget
from replay_server.rpc.over_grpc.lanes import Lanes
from replay_server.rpc.over_grpc.methods import Context, abort

HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_Answer: Final = health_pb2.HealthCheckResponse
_SERVING: Final[bytes] = _Answer(status=_Answer.SERVING).SerializeToString()
_NOT_SERVING: Final[bytes] = _Answer(status=_Answer.NOT_SERVING).SerializeToString()
_LOOK_S: Final = 0.5
"""Seconds between looks at the server's directory, for streams of Watch."""
MOST_WATCHING: Final = 1024
"""Maximum concurrent streams of Watch; one host may have half of them."""


class Health:
    """Reports whether the server is serving: it neither stops nor has lost its directory."""

    def __init__(self, owner: Owner) -> None:
        """``owner`` knows whether the directory of the tables is lost."""
        self._owner = owner
        self._is_stopping = False
        self._told = self._status
        self._changed = asyncio.Event()  # set, and replaced, when streams of Watch shall look at the status again
        self._watching = Budget("streams of Watch", "not a setting", MOST_WATCHING, Bounds.caller_share)

    def add_to(self, server: Lanes) -> None:
        """Add the service."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(HEALTH, methods)])

    def stop(self) -> None:
        """Report from now on that the server is not serving."""
        self._is_stopping = True
        self._tell()

    async def look(self) -> None:
        """After a pause, tell streams of Watch if the status has changed. Call this again and again."""
        await asyncio.sleep(_LOOK_S)
        if self._status != self._told:
            self._tell()

    @property
    def _status(self) -> bytes:
        return _NOT_SERVING if self._is_stopping or self._owner.loss is not None else _SERVING

    def _tell(self) -> None:
        self._told = self._status
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(self, _requests: object, _context: Context) -> bytes:
        return self._status

    async def _watch(self, _requests: object, context: Context) -> None:
        host = of_peer(context.peer())
        try:
            with self._watching.held(host):
                told = None
                while told is None or not self._is_stopping or told != self._status:
                    if told == self._status:
                        await self._changed.wait()
                    else:
                        told = self._status
                        await context.write(told)
        except RequestError as refusal:
            await abort(context, refusal)


MOST_BYTES: Final = 1 << 16
"""Maximum size of a request; it contains only service names."""
REFLECTION: Final = reflection.SERVICE_NAME


def add_reflection(server: Lanes, services: Sequence[str], authenticator: Authenticator) -> None:
    """Add reflection of these services. Reflection requires a token if the server requires tokens."""
    servicer: Any = reflection.aio.ReflectionServicer(services)

    async def serve(_requests: object, context: Context) -> None:
        try:
            authenticator.caller_of(context.invocation_metadata() or ())
        except RequestError as refusal:
            await abort(context, refusal)
            return
        async for answer in servicer.ServerReflectionInfo(_requests_in(context), context):
            await context.write(answer.SerializeToString())

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(serve)
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(REFLECTION, methods)])


async def _requests_in(context: Context) -> AsyncIterator[Any]:
    while isinstance(data := await context.read(), bytes):
        if len(data) > MOST_BYTES:
            raise ValueError(f"expected a request of at most {MOST_BYTES} bytes, got {len(data)}")
        yield reflection_pb2.ServerReflectionRequest.FromString(data)
