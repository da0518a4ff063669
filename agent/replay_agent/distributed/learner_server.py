"""Serves a learner to its actors, on an event loop in a separate thread.

Slow work, such as copying the weights from their device, runs in worker threads. The server reads the body of a call
only after it has checked the token; see `replay_proto.access.serving`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from replay_proto.access.serving import configure_listeners, only_message, server_options
from replay_proto.channels import host_and_port
from replay_proto.errors import FieldError
from replay_proto.v1 import learner_pb2

from replay_agent.distributed.actors import MAX_REPORT_BYTES
from replay_agent.distributed.learner_access import Gate, LearnerAccess, RefusedError

SERVICE: Final = learner_pb2.DESCRIPTOR.services_by_name["LearnerService"].full_name
MAX_REQUEST_BYTES: Final = MAX_REPORT_BYTES
"""Maximum size of a request. Reports are the largest requests."""
CALLS_PER_CONNECTION: Final = 16
"""Maximum concurrent calls per connection: more than enough, because an actor makes one call at a time."""
KEEPALIVE_S: Final = 30.0
STOP_GRACE_S: Final = 1.0
_THREADS: Final = 8
_ANY_LENGTH: Final = -1

T = TypeVar("T")
Context = grpc.aio.ServicerContext[bytes, bytes]


class Method(NamedTuple):
    """A method of the service."""

    request: type[Message]
    """the type of its requests"""
    answer: Callable[[Any], Message]
    """returns the reply; may raise `RefusedError` and `FieldError`"""
    in_thread: bool = False
    """whether to call ``answer`` in a worker thread instead of on the event loop, because it may take long"""


class Service(Protocol):
    """All or some methods of the learner's service."""

    @property
    def table(self) -> str:
        """Name of the table that actors write to."""

    def methods(self) -> Mapping[str, Method]:
        """Return the methods by name."""


class LearnerServer:
    """Serves methods of the learner's service on a port."""

    def __init__(self, service: Service, host: str, port: int, access: LearnerAccess | None = None) -> None:
        """Listen on an address and port; port 0 picks a free one.

        Without ``access``, anyone who can connect may join.

        Raises:
            OSError: the port cannot be bound.
            UnusableFileError: the tokens or certificates cannot be used.
        """
        access = access or LearnerAccess()
        self._gate = Gate(access.tokens, service.table)
        credentials = access.credentials()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="learner-weights")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="learner-service", daemon=True)
        self._thread.start()
        self.host = host
        try:
            self.port = self._on_loop(self._start(service, port, credentials))
        except BaseException:
            self._end()
            raise

    @property
    def address(self) -> str:
        """HOST:PORT that it listens on."""
        return host_and_port(self.host, self.port)

    @property
    def local_address(self) -> str:
        """HOST:PORT for processes on this machine."""
        return f"127.0.0.1:{self.port}" if self.host in ("0.0.0.0", "::", "[::]", "") else self.address

    def close(self) -> None:
        """Finish running calls and stop. Idempotent."""
        if not self._loop.is_closed():
            self._on_loop(self._server.stop(STOP_GRACE_S))
            self._end()

    async def _start(self, service: Service, port: int, credentials: grpc.ServerCredentials | None) -> int:
        self._server = grpc.aio.server(
            options=server_options(
                receive_bytes=MAX_REQUEST_BYTES,
                send_bytes=_ANY_LENGTH,
                calls_per_connection=CALLS_PER_CONNECTION,
                keepalive_s=KEEPALIVE_S,
            )
        )
        handlers = {name: self._unary(*method) for name, method in service.methods().items()}
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        address = host_and_port(self.host, port)
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address} for actors: {error}; choose another --learner-port") from None
        configure_listeners(bound)
        await self._server.start()
        return bound

    def _unary(
        self, message_type: type[Message], answer: Callable[[Any], Message], in_thread: bool
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Create a handler that calls ``answer`` in a worker thread if ``in_thread``, else on the event loop."""

        async def call(_requests: object, context: Context) -> bytes:
            try:
                self._gate.check(context.invocation_metadata() or ())
                request = message_type.FromString(await only_message(context))
                if in_thread:
                    return (await self._loop.run_in_executor(self._threads, answer, request)).SerializeToString()
                return answer(request).SerializeToString()
            except RefusedError as error:
                await context.abort(error.code, str(error))
            except (FieldError, DecodeError) as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

        return grpc.stream_unary_rpc_method_handler(call)

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._threads.shutdown()
