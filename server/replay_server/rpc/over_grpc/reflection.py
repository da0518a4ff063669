"""gRPC's reflection service, restricted to valid callers and small requests.

gRPC has one size limit per server, and ours is meant for rows; reflection would parse such requests on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from grpc_status import rpc_status

from replay_server.auth.caller import Authenticator
from replay_server.errors import RequestError
from replay_server.rpc.over_grpc.lanes import Lanes
from replay_server.rpc.statuses import to_status

MOST_BYTES: Final = 1 << 16
"""Maximum size of a request, which contains names of services."""
SERVICE: Final = reflection.SERVICE_NAME


def add_reflection(server: Lanes, services: Sequence[str], authenticator: Authenticator) -> None:
    """Offer reflection of these services; requires a token if the server does."""
    servicer = reflection.aio.ReflectionServicer(services)
    guarded: Any = _Guarded(server, authenticator)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, guarded)


class _Guarded:
    """Wraps a server to guard the services added to it."""

    def __init__(self, server: Lanes, authenticator: Authenticator) -> None:
        self._server = server
        self._authenticator = authenticator

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add these, guarded."""
        self._server.add_generic_rpc_handlers([_Handlers(handler, self._authenticator) for handler in handlers])

    def add_registered_method_handlers(self, _service: str, _handlers: Mapping[str, Any]) -> None:
        """Ignore the same handlers by name: newer gRPC versions would call them without the guard."""


class _Handlers(grpc.GenericRpcHandler):
    """Handlers that reject unknown callers and long requests."""

    def __init__(self, handler: grpc.GenericRpcHandler, authenticator: Authenticator) -> None:
        self._handler = handler
        self._authenticator = authenticator

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call; None if the service has none."""
        found: Any = self._handler.service(handler_call_details)
        if found is None:
            return None
        try:
            self._authenticator.caller_of(handler_call_details.invocation_metadata)
        except RequestError as error:
            return _refusing(error)
        bounded: grpc.RpcMethodHandler[Any, Any] = found._replace(
            request_deserializer=_up_to_bound(found.request_deserializer)
        )
        return bounded


def _refusing(error: RequestError) -> grpc.RpcMethodHandler[Any, Any]:
    """Refuses a call before its first message."""
    status = rpc_status.to_status(to_status(error))

    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(status.code, status.details, status.trailing_metadata)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _up_to_bound(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def bounded(data: bytes) -> object:
        if len(data) > MOST_BYTES:
            raise ValueError(f"expected a request of at most {MOST_BYTES} bytes, got {len(data)}")
        return parse(data)

    return bounded
