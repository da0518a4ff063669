"""Lets an operation ask for calls to the server, without making them itself; time limits of calls.

    def reset(table: str) -> Operation[int]:
        answer = yield Call("ResetTable", request.SerializeToString(), repeat=False)
        return replay_pb2.ResetTableResponse.FromString(answer).removed

    removed = run(reset("cartpole"), connection.call)

An operation is a generator. It yields one call at a time, and receives the reply or the error of that call. So the same
operation serves clients that wait for a reply with a thread, and clients that await it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from numbers import Real
from typing import Final, TypeAlias, TypeVar

from replay_proto.frames import Content

from replay_client.errors import InvalidArgumentError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One call to the server."""

    method: str
    """Name of the RPC."""
    request: bytes
    """The serialized request."""
    repeat: bool = True
    """Whether to retry if the server is unreachable or goes away during the call."""
    timeout_s: float | None = None
    """Time limit in seconds, including retries; None: the client's default."""
    margin_s: float = 0.0
    """Additional seconds to wait for the reply, so that a reachable server times out first and reports the cause.
    If the server is gone, the call may take this much longer."""


Operation: TypeAlias = Generator[Call, Content, T]
"""A generator of calls; see the module."""


def run(operation: Operation[T], make: Callable[[Call], Content]) -> T:
    """Run an operation. ``make`` makes its calls, and returns the replies."""
    try:
        call = next(operation)
        while True:
            try:
                answer = make(call)
            except BaseException as error:
                call = operation.throw(error)
            else:
                call = operation.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


async def run_async(operation: Operation[T], make: Callable[[Call], Awaitable[Content]]) -> T:
    """Run an operation on an event loop, like `run`. If the task is canceled, so is the operation."""
    try:
        call = next(operation)
        while True:
            try:
                answer = await make(call)
            except BaseException as error:
                call = operation.throw(error)
            else:
                call = operation.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


ANSWER_MARGIN_S: Final = 2.0
"""Added to a time limit that the server also knows; see `Call.margin_s`."""
LONGEST_WAIT_S: Final = 1e9
"""30 years. Longer limits count as endless, because threads, sockets and gRPC do not support them."""


def time_limit(field: str, limit_s: object, own_s: float) -> float:
    """Check a caller's time limit ``limit_s`` and return it in seconds; ``own_s`` is the client's default.

    Time limits have the same meaning in all calls. None is the client's default, the ``timeout_s`` of `ReplayClient`;
    with 0, do not wait; with `math.inf`, wait forever; with any other number, wait for that many seconds. Inside the
    library, a deadline is a time on the clock `time.monotonic`, or `math.inf`.
    """
    if limit_s is None:
        return own_s
    # bool is a subclass of int.
    seconds = math.nan if isinstance(limit_s, bool) or not isinstance(limit_s, Real) else float(limit_s)
    if not seconds >= 0:
        raise InvalidArgumentError.of_field(
            field,
            "seconds from 0 (do not wait) to math.inf (wait forever), or None (the client's default)",
            repr(limit_s),
        )
    return math.inf if seconds > LONGEST_WAIT_S else seconds


_ends_by: ContextVar[float] = ContextVar("_ends_by", default=math.inf)


def ended_by(deadline: float, work: Callable[[], T]) -> T:
    """Do some work whose calls end by a deadline, or `ANSWER_MARGIN_S` later if the server does not reply.

    The deadline is set in a copy of the context, so Ctrl-C cannot leave it behind.
    """

    def limited_work() -> T:
        _ends_by.set(deadline)
        return work()

    return copy_context().run(limited_work)


@contextmanager
def calls_end_by(deadline: float) -> Iterator[None]:
    """End all calls that a task awaits in the block by a deadline, like `ended_by`."""
    before = _ends_by.set(deadline)
    try:
        yield
    finally:
        _ends_by.reset(before)


def limited(call: Call, own_s: float) -> tuple[float, float]:
    """Return the time limit and the margin of a call that begins now, in seconds; see `ended_by`."""
    limit_s = time_limit("timeout_s", call.timeout_s, own_s)
    ends_by = _ends_by.get()
    if ends_by == math.inf or time.monotonic() + limit_s <= ends_by:
        return limit_s, call.margin_s
    return _left(ends_by, ANSWER_MARGIN_S)


def rest_of(call: Call, deadline: float, margin_s: float) -> Call:
    """Return a call that ends when this one, with another deadline and margin, would have ended."""
    left_s, margin_s = _left(deadline, margin_s)
    return replace(call, timeout_s=left_s, margin_s=margin_s)


def _left(deadline: float, margin_s: float) -> tuple[float, float]:
    left_s = deadline - time.monotonic()
    return max(0.0, left_s), max(0.0, margin_s + min(0.0, left_s))


def left_s(deadline: float) -> float | None:
    """Return the seconds until a deadline, or None if it is `math.inf`."""
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())
