"""One RPC of the contract, whatever it is called over: how a request is read, and who answers it.

    endpoint = Endpoint(replay_pb2.SampleRequest, on_table(Right.READ), sampling.sample, bounds)
    answer = await endpoint.answer(data, call)

A transport receives bytes, finds out who calls, asks the endpoint, and sends the answer, or the refusal that
`as_refusal` makes of an error. Requests and answers are bytes because those with rows are read and built in place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message
from replay_proto.errors import FieldError
from replay_proto.framing import Framed

from replay_server import errors
from replay_server.errors import RequestError
from replay_server.flow.bounds import Bounds
from replay_server.rpc.call import Call
from replay_server.rpc.method_figures import MethodFigures
from replay_server.rpc.requests import request_reader
from replay_server.rpc.rights import Demand

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
Handler = Callable[[Framed[M], Call], Awaitable[bytes]]


class Endpoint(Generic[M]):
    """One RPC."""

    def __init__(
        self, request: type[M], demand: Demand, handler: Handler[M], bounds: Bounds, *, is_stream: bool = False
    ) -> None:
        """Describe it.

        Args:
            request: type of its requests.
            demand: the right that each of them takes.
            handler: answers one request.
            bounds: how long a request may be.
            is_stream: whether requests come on a stream, each answered in order; else each is a call of its own.
        """
        self.figures = MethodFigures()
        """What was answered, and how long it took."""
        self.demand = demand
        """The right that each request takes."""
        self.is_stream = is_stream
        """Whether requests come on a stream."""
        self._read = request_reader(request, demand, bounds)
        self._handler = handler

    async def answer(self, data: bytes, call: Call) -> bytes:
        """Answer one request.

        Args:
            data: its wire form.
            call: what is known of it.

        Returns:
            The wire form of the answer. The transport calls `call.sent` once it was sent, or never will be.

        Raises:
            Exception: of any type; see `as_refusal`.
        """
        began = time.perf_counter()
        self.figures.active += not self.is_stream
        try:
            request = self._read(data, call.caller, call.stream_table)
            answer = await self._handler(request, call)
        finally:
            self.figures.active -= not self.is_stream
        self.figures.answered(time.perf_counter() - began)
        return answer

    def as_refusal(self, error: Exception) -> RequestError:
        """Count a request that failed. An unexpected error is logged."""
        self.figures.errors += 1
        if isinstance(error, RequestError):
            return error
        if isinstance(error, FieldError):
            return errors.invalid_field(error)
        log.error("a request failed", exc_info=error)
        return errors.internal()


AnyEndpoint = Endpoint[Any]
