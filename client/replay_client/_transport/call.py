"""Lets an operation ask for calls to the server, without making them itself.

    def reset(table: str) -> Operation[int]:
        answer = yield Call("ResetTable", request.SerializeToString(), repeat=False)
        return replay_pb2.ResetTableResponse.FromString(answer).removed

    removed = run(reset("cartpole"), connection.call)

An operation is a generator. It yields one call at a time, and receives the reply or the error of that call. So the same
operation serves clients that wait for a reply with a thread, and clients that await it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from replay_proto.frames import Content

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
