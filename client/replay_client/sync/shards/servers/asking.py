"""Asks several servers at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from replay_client._transport.call import Operation
from replay_client._transport.server_link import ServerLink
from replay_client.errors import DeadlineExceededError, ServerUnavailableError

T = TypeVar("T")


def answers(calls: Mapping[int, Callable[[], T]]) -> dict[int, T]:
    """Call the servers of several shards at the same time; return the answers by shard, without servers that are away.

    Raises:
        ServerUnavailableError: no server is reachable.
        ReplayError: a server refused its call.
    """

    def answer(call: Callable[[], T]) -> T | Exception:
        try:
            return call()
        except (ServerUnavailableError, DeadlineExceededError) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        found = dict(zip(calls, pool.map(answer, calls.values()), strict=True))
    there = {shard_id: each for shard_id, each in found.items() if not isinstance(each, Exception)}
    failures = [each for each in found.values() if isinstance(each, Exception)]
    if not there:
        raise failures[0]
    return there


def ask_all(links: Mapping[int, ServerLink], call: Callable[[], Operation[T]]) -> dict[int, T]:
    """Make the same call to the server of each shard; see `answers`."""
    return answers({shard_id: partial(_run, link, call) for shard_id, link in links.items()})


def _run(link: ServerLink, call: Callable[[], Operation[T]]) -> T:
    return link.connection.run(call())
