"""An RPC, independent of the transport: reads requests and calls the handler.

    endpoint = Endpoint(replay_pb2.SampleRequest, on_table(Right.READ), sampling.sample, bounds)
    answer = await endpoint.answer(data, call)

A transport receives bytes, identifies the caller, calls the endpoint, and sends the reply, or the refusal from
`as_refusal`. Requests and replies are passed as bytes, because messages with rows are read and built in place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message
from replay_proto.errors import FieldError
from replay_proto.frames import Content
from replay_proto.framing import Framed, carries_rows

from replay_server import errors
from replay_server.errors import RequestError
from replay_server.flow.bounds import Bounds
from replay_server.rpc.call import Call
from replay_server.rpc.method_figures import MethodFigures
from replay_server.rpc.requests import request_reader
from replay_server.rpc.rights import Demand
from replay_server.rpc.statuses import CODES

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
Handler = Callable[[Framed[M], Call], Awaitable[bytes]]


class Endpoint(Generic[M]):
    """One RPC."""

    def __init__(
        self, request: type[M], demand: Demand, handler: Handler[M], bounds: Bounds, *, is_stream: bool = False
    ) -> None:
        """Define an RPC: the type of its requests, the right that each requires, and what answers one.

        If ``is_stream``, requests arrive on a stream and are answered in order. If not, each request is a unary call.
        """
        self.name = request.DESCRIPTOR.name.removesuffix("Request")
        """Name of the method."""
        self.figures = MethodFigures()
        """Counts and latencies."""
        self.demand = demand
        self.is_stream = is_stream
        self.longest = bounds.longest(has_rows=carries_rows(request))
        """Maximum size of a request in bytes, and the setting that determines this maximum."""
        self._read = request_reader(request, demand, bounds)
        self._handler = handler

    async def answer(self, data: Content, call: Call) -> bytes:
        """Answer one serialized request; `as_refusal` converts any exception.

        Once the reply has been sent, or could not be sent, the transport must call `call.sent`.
        """
        began = time.perf_counter()
        self.figures.received += 1
        self.figures.active += not self.is_stream
        request, stream_table = None, call.stream_table
        try:
            request = self._read(data, call.caller, stream_table)
            # Its rights may change while it waits.
            call.caller = call.caller.requiring(partial(self.demand.check, call.caller, request.head, stream_table))
            answer = await self._handler(request, call)
        except (RequestError, FieldError):
            raise
        except OSError as error:
            refusal = errors.storage_failed(error)
            log.error("%s: %s", self.name, refusal, extra={"method": self.name, "client": call.caller.identity})
            raise refusal from error
        except Exception as error:
            table = call.stream_table or _table_of(request)
            _log_failure(error, self.name, table, call.caller.identity, time.perf_counter() - began)
            raise errors.internal() from error
        finally:
            self.figures.active -= not self.is_stream
        self.figures.answered(time.perf_counter() - began)
        return answer

    def as_refusal(self, error: Exception) -> RequestError:
        """Convert the error that ended a call or stream to a refusal; count it, and log it if it is unexpected."""
        refusal = self._refusal(error)
        self.figures.errors += 1
        self.figures.ended[CODES[refusal.reason]] += 1
        return refusal

    def _refusal(self, error: Exception) -> RequestError:
        if isinstance(error, RequestError):
            return error
        if isinstance(error, FieldError):
            return errors.invalid_field(error)
        _log_failure(error, self.name)
        return errors.internal()


def _table_of(request: Framed[Any] | None) -> str:
    """The table that a request names; empty if it names none."""
    name = "" if request is None else getattr(request.head, "table", "")
    return name if isinstance(name, str) else ""


def _log_failure(error: Exception, method: str, table: str = "", client: str = "", duration_s: float = 0.0) -> None:
    fields = {"method": method, "table": table, "client": client, "duration_s": round(duration_s, 6)}
    of_table = f" for table {table}" if table else ""
    log.error("a request failed: %s%s", method, of_table, exc_info=error, extra=fields)


AnyEndpoint = Endpoint[Any]
