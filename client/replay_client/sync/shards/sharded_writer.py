"""Writes rows of actors to a distributed table. Each episode goes to the emptier of two random shards.

If a server goes away, the writer keeps the rows that the server has not acknowledged, and sends them again when it
returns. Meanwhile, new episodes go to the other shards. In a table of steps, a stream whose server goes away abandons
its episode there, and stores the following steps in another shard as a new episode. In other tables, rows of an episode
need not be together. There, a stream switches shards after every `ROWS_PER_SHARD` rows, even if no server is away.
If an operator gives up the server, its unacknowledged rows are inserted into another shard.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.framing import Array

from replay_client._rows.checks import merged
from replay_client._writing.writer_stream import WriterStream
from replay_client._writing.writing import VectorRows, WriterOptions, Writing
from replay_client.errors import ClosedError, ServerUnavailableError
from replay_client.sync.shards.servers.roster import Roster
from replay_client.sync.shards.shard_writers import ShardWriters
from replay_client.sync.writer import Writer

_FOLLOW_S: Final = 0.1
"""Seconds after which a writer notices that a reply had a newer shard map."""
ROWS_PER_SHARD: Final = 256
"""Rows after which a stream switches shards, even within an episode; only in tables without steps."""


class ShardedWriter(Writer):
    """See the module, and `Writer`."""

    def __init__(
        self,
        roster: Roster,
        options: WriterOptions,
        *,
        reconnect_timeout_s: float,
        random: np.random.Generator,
    ) -> None:
        """Created by `ShardedTable.writer`.

        Args:
            roster: the shards.
            options: the options of the writer of each shard.
            reconnect_timeout_s: seconds that calls wait if all servers are away.
            random: chooses shards.
        """
        first = roster.members[0]
        self.steps = first.description.steps  # type: ignore[misc]  # final, and the base class is not initialized
        self._connection = first.session.connection
        self._table = first.description
        self._writers = ShardWriters(roster, options, reconnect_timeout_s=reconnect_timeout_s, random=random)
        self._shard = np.zeros(options.streams, np.int64)  # the shard of each stream's current episode
        self._rows = np.zeros(options.streams, np.int64)  # rows of each stream since it switched shards
        self._is_moved = np.zeros(options.streams, bool)  # whether it switched shards within its current episode
        self._is_closed = False
        self._follow_at = 0.0  # when to look for a newer shard map in the servers' replies
        for stream in range(options.streams):
            self._shard[stream] = self._writers.choose()

    @property
    def acknowledged(self) -> int:
        """Acknowledged rows."""
        return self._writers.acknowledged

    @property
    def in_flight(self) -> int:
        """Number of appended rows that are not yet acknowledged."""
        return self._writers.in_flight

    @property
    def inserted(self) -> int:
        """Rows ever inserted into the table by anyone, according to the last replies."""
        return sum(writer.inserted for writer in self._writers)

    @property
    def is_failing(self) -> bool:
        """Whether no server answers at present."""
        return len(self.shards_away) == len(self._writers)

    @property
    def is_table_gone(self) -> bool:
        """Whether no server has the table any more, so that no more rows are sent."""
        return all(writer.is_table_gone for writer in self._writers)

    @property
    def shards_version(self) -> int:
        """Version of the servers' shard map, according to the last replies."""
        return max(writer.shards_version for writer in self._writers)

    @property
    def writing(self) -> Writing:
        """Checks the arguments of methods; internal."""
        return self._any().writing

    @property
    def shards_away(self) -> list[int]:
        """Ids of the shards whose servers do not answer at present, or no longer have the table."""
        return self._writers.away

    def __len__(self) -> int:
        """Number of streams."""
        return len(self._shard)

    def __getitem__(self, stream: int) -> WriterStream:
        """Return one of the writer's streams, by number.

        Raises:
            IndexError: there is no such stream.
        """
        return ShardedWriterStream(self, range(len(self))[stream])  # not kept: the writer would refer to itself

    def __repr__(self) -> str:
        rows = f"{self.in_flight} rows in flight"
        return f"<ShardedWriter of table {self._table.name!r} on {len(self._writers)} servers: {rows}>"

    def append(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        priority: float | None = None,
        steps_ago: int = 0,
        **columns: Any,
    ) -> None:
        """Append a row to the only stream; see `WriterStream.append`."""
        self._single().append(row, priority=priority, steps_ago=steps_ago, **columns)

    def end_episode(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: bool = False,
        priorities: ArrayLike | None = None,
        **columns: Any,
    ) -> None:
        """End the current episode of the only stream; see `WriterStream.end_episode`."""
        self._single().end_episode(row, terminated=terminated, priorities=priorities, **columns)

    def abandon_episode(self) -> None:
        """Stop the current episode of the only stream without closing it; see `WriterStream.abandon_episode`."""
        self._single().abandon_episode()

    def append_all(
        self,
        rows: Mapping[str, Any] | None = None,
        /,
        *,
        where: ArrayLike | None = None,
        priorities: ArrayLike | None = None,
        steps_ago: int = 0,
        **columns: Any,
    ) -> None:
        """Append one row to each stream; see `Writer.append_all`.

        Raises:
            InvalidArgumentError: the rows do not match the table or the streams. No row was appended.
            ReplayError: an earlier row could not be sent. The rows of some streams may have been appended.
        """
        self._check()
        values = merged(rows, columns)
        checked = self._any().writing.checked_rows(values, where, priorities, steps_ago)
        while checked.left:
            for stream in checked.which.tolist():
                self._before_row(stream)
            shard_ids = np.unique(self._shard[checked.which]).tolist()
            if not all(shard_id in self._writers for shard_id in shard_ids):
                continue  # the shard map has changed meanwhile
            parts = {shard_id: self._part(shard_id, checked) for shard_id in shard_ids}
            for shard_id, part in parts.items():
                self._writers[shard_id].writing.check_steps_ago(part)
            left = [self._append_part(shard_id, part) for shard_id, part in parts.items()]
            checked = replace(checked, which=np.sort(np.concatenate(left)))

    def _part(self, shard_id: int, rows: VectorRows) -> VectorRows:
        """Return the rows of streams whose shard is ``shard_id``."""
        part = replace(rows, which=rows.which[self._shard[rows.which] == shard_id])
        if part.priorities is not None and part.steps_ago:
            is_elsewhere = self._is_moved & (self._rows < part.steps_ago)  # as in `append_row`
            part = replace(part, priorities=np.where(is_elsewhere, np.nan, part.priorities))
        return part

    def _append_part(self, shard_id: int, part: VectorRows) -> NDArray[np.intp]:
        """Append the rows of a shard's streams; return the streams whose rows were not appended."""
        with suppress(ServerUnavailableError):  # the server went away just now, with too many blocks in flight
            self._writers[shard_id]._append_checked(part)
        done, left = part.which[: part.appended], part.which[part.appended :]
        self._rows[done] += 1
        return left

    def end_episodes(
        self,
        done: ArrayLike,
        rows: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: ArrayLike | None = None,
        **columns: Any,
    ) -> None:
        """End the current episodes of several streams; see `Writer.end_episodes`.

        Raises:
            InvalidArgumentError: the values do not match the table or the streams. No episode was ended.
            ReplayError: an earlier row could not be sent. Some episodes may have ended; calling again ends the others.
        """
        self._check()
        values = merged(rows, columns)
        for end in self._any().writing.checked_ends(done, values, terminated):
            self.end(end.stream, end.values, terminated=end.is_terminated, priorities=None)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all appended rows are acknowledged, also those for servers that are away; see `Writer.flush`."""
        self._check()
        self._writers.flush(self._connection.deadline("timeout_s", timeout_s))

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close; see `Writer.close`."""
        if self._connection.is_forked or self._is_closed:
            return
        deadline = self._connection.deadline("timeout_s", timeout_s)
        self._is_closed = True
        try:
            self._writers.flush(deadline)
        finally:
            self.abort()

    def abort(self) -> None:
        """Close without a flush; internal."""
        self._is_closed = True
        self._writers.abort()

    def unacknowledged_rows(self) -> dict[str, Array]:
        """Return unacknowledged rows, shard by shard; see `Writer.unacknowledged_rows`."""
        return self._writers.unacknowledged_rows()

    def __enter__(self) -> ShardedWriter:
        return self

    def current(self, stream: int) -> WriterStream:
        """Return the stream that gets a stream's rows at present: the one of the same number in its shard's writer."""
        return self._writers[int(self._shard[stream])][stream]

    def append_row(self, stream: int, values: Mapping[str, Any], priority: float | None, steps_ago: int) -> None:
        """Append a row to a stream. If the server goes away, switch the stream to another shard first."""
        self._check()
        while True:
            self._before_row(stream)
            if priority is not None and self._is_moved[stream] and steps_ago > self._rows[stream]:
                priority = None  # its step is in another shard
            writer = self._writers.find(int(self._shard[stream]))
            if writer is None:
                continue  # the shard map has changed just now
            try:
                writer[stream].append(values, priority=priority, steps_ago=steps_ago)
            except ServerUnavailableError:
                continue  # the server went away just now, with too many blocks in flight
            self._rows[stream] += 1
            return

    def end(self, stream: int, values: Mapping[str, Any], *, terminated: bool, priorities: ArrayLike | None) -> None:
        """End a stream's episode, or abandon it if its server is away. Then choose the shard of the next episode."""
        self._check()
        self._follow()
        shard_id = int(self._shard[stream])
        if shard_id in self._writers and not self._writers.is_away(shard_id):
            if priorities is not None and self._is_moved[stream]:
                given = np.asarray(priorities)
                priorities = given[max(0, len(given) - int(self._rows[stream])) :]
            try:
                self.current(stream).end_episode(values, terminated=terminated, priorities=priorities)
            except ServerUnavailableError:
                self.current(stream).abandon_episode()
        elif shard_id in self._writers:
            self.current(stream).abandon_episode()
        self._is_moved[stream] = False
        self._choose(stream)

    def abandon(self, stream: int) -> None:
        """Abandon a stream's episode, and choose the shard of the next episode."""
        self._check()
        self._leave(stream)
        self._is_moved[stream] = False

    def _before_row(self, stream: int) -> None:
        """Switch a stream to another shard if the server of its shard is away or was given up.

        In a table without steps, also switch after `ROWS_PER_SHARD` rows.
        """
        self._follow()
        shard_id = int(self._shard[stream])
        is_away = shard_id not in self._writers or self._writers.is_away(shard_id)
        if is_away or (self.steps is None and self._rows[stream] >= ROWS_PER_SHARD):
            self._is_moved[stream] |= self._rows[stream] > 0
            self._leave(stream)

    def _follow(self) -> None:
        now = time.monotonic()
        if self._writers.has_changed or now >= self._follow_at:
            self._follow_at = now + _FOLLOW_S
            self._writers.follow()

    def _leave(self, stream: int) -> None:
        if self._rows[stream] and self._shard[stream] in self._writers:
            self.current(stream).abandon_episode()
        self._choose(stream)

    def _choose(self, stream: int) -> None:
        """Choose the shard of a stream's next rows; raises like `ShardWriters.choose`."""
        self._shard[stream] = self._writers.choose(int(self._shard[stream]), int(self._rows[stream]))
        self._rows[stream] = 0

    def _any(self) -> Writer:
        return next(iter(self._writers))

    def _single(self) -> WriterStream:
        return self[0] if len(self) == 1 else self._refuse()

    def _check(self) -> None:
        self._connection.check_not_forked()
        if self._is_closed:
            raise ClosedError("this writer is closed")


class ShardedWriterStream(WriterStream):
    """One stream of experience of a `ShardedWriter`."""

    def __init__(self, writer: ShardedWriter, stream: int) -> None:
        """Created by the writer."""
        self._writer = writer
        self._stream = stream

    @property
    def number(self) -> int:
        """uint64: random number of this stream in its current shard, stored with every row."""
        return self._writer.current(self._stream).number

    @property
    def episode(self) -> int:
        """Number of the current episode in the shard's stream, stored with every row."""
        return self._writer.current(self._stream).episode

    def append(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        priority: float | None = None,
        steps_ago: int = 0,
        **columns: Any,
    ) -> None:
        """Append a copy of a row to the current episode; see `WriterStream.append`."""
        self._writer.append_row(self._stream, columns if row is None else merged(row, columns), priority, steps_ago)

    def abandon_episode(self) -> None:
        """Stop the current episode without closing it; see `WriterStream.abandon_episode`."""
        self._writer.abandon(self._stream)

    def end_episode(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: bool = False,
        priorities: ArrayLike | None = None,
        **columns: Any,
    ) -> None:
        """End the current episode; see `WriterStream.end_episode`."""
        values = merged(row, columns)
        self._writer.end(self._stream, values, terminated=terminated, priorities=priorities)
