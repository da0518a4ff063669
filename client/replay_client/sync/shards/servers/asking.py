"""Asks several servers at the same time.

    ask_all(fleet.sessions_of(shards), operations.list_tables)     # {0: ..., 2: ...}: shard 1 is away

A server that is away or hangs delays the result by at most `ASK_S`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Final, TypeVar

from replay_client._transport.call import Operation
from replay_client._transport.session import Session
from replay_client.errors import DeadlineExceededError, ServerUnavailableError

T = TypeVar("T")

ASK_S: Final = 2.0
"""Time limit for each server, in seconds. It is short, because the other servers provide most of the result."""
AWAY: Final = (ServerUnavailableError, DeadlineExceededError)
"""Errors of calls to a server that is down, unreachable or hanging."""


def answers(calls: Mapping[int, Callable[[], T]]) -> dict[int, T]:
    """Call the servers of several shards at the same time, and return the answers by shard.

    Servers that are away are left out.

    Raises:
        ServerUnavailableError: no server is reachable.
        ReplayError: a server refused its call.
    """
    with ThreadPoolExecutor(len(calls)) as pool:
        running = {shard_id: pool.submit(copy_context().run, call) for shard_id, call in calls.items()}
    found: dict[int, T] = {}
    failure: Exception | None = None
    for shard_id, answer in running.items():
        try:
            found[shard_id] = answer.result()
        except AWAY as error:
            failure = error
    if failure is not None and not found:
        raise failure
    return found


def ask_all(sessions: Mapping[int, Session], operation: Callable[[], Operation[T]]) -> dict[int, T]:
    """Run the same operation on the server of each shard; see `ask_each`."""
    return ask_each(sessions, dict.fromkeys(sessions, operation))


def ask_each(sessions: Mapping[int, Session], operations: Mapping[int, Callable[[], Operation[T]]]) -> dict[int, T]:
    """Run an operation on the server of each shard, and return the results by shard.

    Servers that are away are left out.

    Args:
        sessions: sessions to the servers, by shard.
        operations: functions that create the operation of each shard. The calls of an operation must be idempotent.

    Raises:
        ServerUnavailableError: no server is reachable, even after retries. If any server answers, no call is retried.
        ReplayError: a server refused its call.
    """
    try:
        return answers({id: partial(_ask, sessions[id], operation) for id, operation in operations.items()})
    except AWAY:
        return answers({id: partial(_run, sessions[id], operation) for id, operation in operations.items()})


def _ask(session: Session, operation: Callable[[], Operation[T]]) -> T:
    return session.connection.ask(operation(), timeout_s=ASK_S)


def _run(session: Session, operation: Callable[[], Operation[T]]) -> T:
    return session.connection.run(operation())
