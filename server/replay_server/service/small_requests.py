"""Health and reflection: a request above a small bound is refused before it is parsed.

gRPC bounds messages by one number per server, and ours is meant for rows. Health and reflection parse whatever comes,
on the event loop, and ask nobody for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import grpc

MOST_BYTES: Final = 1 << 16
"""Of a request; names of services are its content."""


class SmallRequests:
    """Stands for a server where services are added to it."""

    def __init__(self, server: grpc.aio.Server) -> None:
        """Add services to this server."""
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add these, with their requests bounded."""
        self._server.add_generic_rpc_handlers([_Bounded(handler) for handler in handlers])

    def add_registered_method_handlers(self, _service: str, _handlers: Mapping[str, Any]) -> None:
        """The same handlers once more, by name: newer gRPC looks them up faster, and would leave out the bound."""


class _Bounded(grpc.GenericRpcHandler):
    """Handlers of a service that do not see a long request."""

    def __init__(self, handler: grpc.GenericRpcHandler) -> None:
        self._handler = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call; None if the service has none."""
        found: Any = self._handler.service(handler_call_details)
        if found is None:
            return None
        bounded: grpc.RpcMethodHandler[Any, Any] = found._replace(
            request_deserializer=_up_to_bound(found.request_deserializer)
        )
        return bounded


def _up_to_bound(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def bounded(data: bytes) -> object:
        if len(data) > MOST_BYTES:
            raise ValueError(f"expected a request of at most {MOST_BYTES} bytes, got {len(data)}")
        return parse(data)

    return bounded
