"""gRPC's reflection service, restricted to valid callers and small requests.

gRPC has one limit on the size of requests for all services of a server. Our limit is large enough for rows. Without a
smaller limit here, reflection would parse requests of that size on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from replay_server.auth.caller import Authenticator
from replay_server.errors import RequestError
from replay_server.rpc.over_grpc.lanes import Lanes
from replay_server.rpc.over_grpc.methods import Context, abort

MOST_BYTES: Final = 1 << 16
"""Maximum size of a request; it contains only service names."""
SERVICE: Final = reflection.SERVICE_NAME


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
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])


async def _requests_in(context: Context) -> AsyncIterator[Any]:
    while isinstance(data := await context.read(), bytes):
        if len(data) > MOST_BYTES:
            raise ValueError(f"expected a request of at most {MOST_BYTES} bytes, got {len(data)}")
        yield reflection_pb2.ServerReflectionRequest.FromString(data)
