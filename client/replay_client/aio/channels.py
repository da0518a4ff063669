"""State under names, such as the newest weights of a policy; see `replay_client.sync.channels`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from replay_client._operations.channel import (
    LOOK_AGAIN_S,
    Channel,
    checked_version,
    not_published,
    nothing_yet,
    too_late,
)
from replay_client._rows.published_state import PublishedState
from replay_client._transport.call import Operation, calls_end_by, time_limit
from replay_client._transport.long_waits import LongWait
from replay_client.aio.table import Table
from replay_client.batch import Published
from replay_client.errors import ServerUnavailableError, TableNotFoundError, TableReplacedError
from replay_client.sync.channels import KnownChannels

if TYPE_CHECKING:
    from replay_client.aio.client import ReplayClient

T = TypeVar("T")


class Channels(KnownChannels[Table]):
    """The names that a client for asyncio knows."""

    async def publish(self, client: ReplayClient, name: str, values: Any, timeout_s: float | None) -> int:
        """See `replay_client.ReplayClient.publish`."""
        state = PublishedState(values)
        limit_s = time_limit("timeout_s", timeout_s, client._session.options.timeout_s)
        deadline = time.monotonic() + (limit_s or math.inf)
        try:
            return await self._publish(client, name, state, limit_s, deadline)
        except (TableNotFoundError, TableReplacedError):  # it was dropped since the last call
            return await self._publish(client, name, state, limit_s, deadline)

    async def latest(
        self, client: ReplayClient, name: str, wait_newer: int | None, timeout_s: float | None
    ) -> Published:
        """See `replay_client.ReplayClient.latest`."""
        known = checked_version(wait_newer)
        limit_s = time_limit("timeout_s", timeout_s, client._session.options.timeout_s)
        deadline = time.monotonic() + limit_s
        # It is usual to wait long for another version.
        long_wait = LongWait(f"client.latest({name!r})", nothing_yet(name)) if known is None else nullcontext()
        with long_wait, calls_end_by(deadline if limit_s else math.inf):
            while True:
                left_s = max(0.0, deadline - time.monotonic())
                try:
                    found = await self._run(
                        client,
                        name,
                        None,
                        partial(Channel.latest, known=known, wait_s=left_s, shown=self._shown.get(name)),
                    )
                except (TableNotFoundError, TableReplacedError):
                    if not left_s:
                        raise not_published(name, limit_s) from None
                    await asyncio.sleep(min(left_s, LOOK_AGAIN_S))
                    continue
                if found is not None:
                    self._shown[name] = found
                    return found.published
                if not left_s:
                    raise too_late(name, known, limit_s)

    async def _publish(
        self, client: ReplayClient, name: str, state: PublishedState, limit_s: float, deadline: float
    ) -> int:
        with calls_end_by(deadline):
            await self._run(client, name, state, partial(Channel.check, state=state))
        # Each insert has this limit, because a large state takes many.
        return await self._run(client, name, state, partial(Channel.publish, state=state, timeout_s=limit_s))

    async def _run(
        self,
        client: ReplayClient,
        name: str,
        state: PublishedState | None,
        operation: Callable[[Channel], Operation[T]],
    ) -> T:
        """Run an operation of a channel; see `replay_client.sync.channels`."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = await _opened(client, name, state)
        try:
            channel = self._channels.get(name)
            if channel is None or channel.uid != table.uid:
                channel = self._channels[name] = Channel(table._description, table._operations)
            return await table._run_near(operation(channel))
        except (TableNotFoundError, TableReplacedError, ServerUnavailableError):
            self.forget(name)
            raise


async def _opened(client: ReplayClient, name: str, state: PublishedState | None) -> Table:
    """Open the table of a name. If there is none, create it for a state; see `replay_client.sync.channels`."""
    try:
        return await client.table(name)
    except TableNotFoundError:
        if state is None:
            raise
    return await client.create_table(
        name, columns=state.columns, capacity=state.capacity, backend="uniform", if_exists="open"
    )
