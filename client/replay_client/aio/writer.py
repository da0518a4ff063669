"""Writes rows for actors: collects them in blocks and sends each row exactly once; see `replay_client.sync.writer`.

    async with table.writer() as writer:
        for ...:
            await writer.append(obs=obs, action=action, reward=reward, next_obs=next_obs, terminated=terminated)
            if terminated or truncated:
                await writer.end_episode()
        await writer.flush(timeout_s=10)

If `append` is canceled, it has not appended its row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import ArrayLike
from replay_proto.framing import Array

from replay_client._rows.checks import merged
from replay_client._transport.unclosed import Lease
from replay_client._writing.handle import StreamHandle, WriterHandle
from replay_client._writing.writing import WriterOptions
from replay_client.aio._connection import Connection
from replay_client.aio._delivery import Delivery
from replay_client.aio._frames import LocalPath
from replay_client.errors import DeadlineExceededError, ReplayError
from replay_client.results.description import TableDescription
from replay_client.sync.writer import GIVE_UP_S


class WriterStream(StreamHandle):
    """One stream of experience of a writer; see `replay_client.WriterStream`."""

    def __init__(self, delivery: Delivery, stream: int, lease: Lease) -> None:
        """Created by the writer, which shares its lease on the delivery."""
        super().__init__(delivery.writing, stream)
        self._lease = lease
        self._delivery = delivery

    async def append(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        priority: float | None = None,
        steps_ago: int = 0,
        **columns: Any,
    ) -> None:
        """Append a copy of a row to the current episode; see `replay_client.WriterStream.append`."""
        values = columns if row is None else merged(row, columns)
        await self._delivery.ready()
        if not self._episodes.append(self._stream, values, priority, steps_ago):
            await self._delivery.wait_until(partial(self._episodes.append, self._stream, values, priority, steps_ago))

    async def abandon_episode(self) -> None:
        """Stop the current episode without closing it; see `replay_client.WriterStream.abandon_episode`."""
        self._episodes.begin_episode(self._stream)

    async def end_episode(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: bool = False,
        priorities: ArrayLike | None = None,
        **columns: Any,
    ) -> None:
        """End the current episode; see `replay_client.WriterStream.end_episode`."""
        values = merged(row, columns)
        await self._delivery.ready()
        if not self._episodes.end(self._stream, values, terminated, priorities):
            await self._delivery.wait_until(partial(self._episodes.end, self._stream, values, terminated, priorities))


class Writer(WriterHandle[WriterStream]):
    """See `replay_client.Writer`. Several tasks may use one writer, but all share the current episodes."""

    def __init__(
        self, connection: Connection, table: TableDescription, options: WriterOptions, path: LocalPath
    ) -> None:
        """Created by `Table.writer`; the stream to the server opens when the first block is sent.

        ``path`` has the shortcuts to the table.
        """
        self._connection = connection
        self._delivery = Delivery(connection, table, options, path)
        lease = Lease(self._delivery)
        streams = [WriterStream(self._delivery, each, lease) for each in range(options.streams)]
        super().__init__(connection, table, self._delivery.writing, streams)

    async def append(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        priority: float | None = None,
        steps_ago: int = 0,
        **columns: Any,
    ) -> None:
        """Append a row to the only stream; see `WriterStream.append`."""
        await self._only().append(row, priority=priority, steps_ago=steps_ago, **columns)

    async def end_episode(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: bool = False,
        priorities: ArrayLike | None = None,
        **columns: Any,
    ) -> None:
        """End the current episode of the only stream; see `WriterStream.end_episode`."""
        await self._only().end_episode(row, terminated=terminated, priorities=priorities, **columns)

    async def abandon_episode(self) -> None:
        """Stop the current episode of the only stream without closing it; see `WriterStream.abandon_episode`."""
        await self._only().abandon_episode()

    async def append_all(
        self,
        rows: Mapping[str, Any] | None = None,
        /,
        *,
        where: ArrayLike | None = None,
        priorities: ArrayLike | None = None,
        steps_ago: int = 0,
        **columns: Any,
    ) -> None:
        """Append a copy of one row to each stream; see `replay_client.Writer.append_all`.

        If canceled, it may have appended the rows of the first streams; a note on the `CancelledError` says how many.
        """
        checked = self._writing.checked_rows(merged(rows, columns), where, priorities, steps_ago)
        await self._delivery.ready()
        self._writing.check_steps_ago(checked)
        try:
            while checked.left:
                if not self._writing.append_all(checked):
                    await self._delivery.wait_until(partial(self._writing.append_all, checked))
        except (ReplayError, asyncio.CancelledError) as error:
            checked.note(error)
            raise

    async def end_episodes(
        self,
        done: ArrayLike,
        rows: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: ArrayLike | None = None,
        **columns: Any,
    ) -> None:
        """End the current episodes of several streams; see `replay_client.Writer.end_episodes`.

        If canceled, it may have ended those of the first streams.
        """
        ends = self._writing.checked_ends(done, merged(rows, columns), terminated)
        for end in ends:
            await self._streams[end.stream].end_episode(end.values, terminated=end.is_terminated)

    async def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all appended rows are acknowledged; see `replay_client.Writer.flush`."""
        began = time.monotonic()
        deadline = self._connection.deadline("timeout_s", timeout_s)
        await self._delivery.connected()
        try:
            await self._delivery.send(deadline)
            await self._delivery.wait_for_all(deadline)
        except DeadlineExceededError as error:
            if error.reason or deadline <= began:
                raise
            raise await self._delivery.explained(error, round(deadline - began, 3)) from None

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close. Idempotent; see `replay_client.Writer.close`."""
        if self._outbox.is_closed or self._connection.is_forked:
            return
        try:
            await self.flush(timeout_s=timeout_s)
        finally:
            await self._delivery.close()

    def unacknowledged_rows(self) -> dict[str, Array]:
        """Return unacknowledged rows, oldest first; see `replay_client.Writer.unacknowledged_rows`."""
        return self._writing.unacknowledged_rows()

    async def __aenter__(self) -> Writer:
        await self._connection.reach()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Flush and close. After an error in the block, give up after `replay_client.sync.writer.GIVE_UP_S` seconds."""
        try:
            await self.close(timeout_s=None if error is None else GIVE_UP_S)
        except BaseException as failure:
            self._left(error, failure)

    def _only(self) -> WriterStream:
        return self._streams[0] if len(self) == 1 else self._refuse()
