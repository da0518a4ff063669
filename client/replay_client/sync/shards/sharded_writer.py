"""Writes rows of actors to a distributed table: each episode to one shard, and each new one to the emptier of two.

Rows that a server has not acknowledged stay bound to it, and are sent again when it returns. Meanwhile, new episodes
go to the other shards. In a table of steps, the current episode is abandoned and continues as a new one elsewhere. In
other tables, streams also change the shard after `ROWS_PER_SHARD` rows, because such rows need not belong together.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from replay_proto.framing import Array

from replay_client._writing.writer_stream import WriterStream
from replay_client._writing.writing import WriterOptions
from replay_client.errors import ClosedError, ServerUnavailableError
from replay_client.sync.shards.member import Member
from replay_client.sync.writer import Writer

log = logging.getLogger(__name__)

ROWS_PER_SHARD: Final = 256
"""Rows after which a stream of a table without steps changes the shard, also within an episode."""
_POLL_S: Final = 0.02


class ShardedWriter(Writer):
    """See the module, and `Writer`."""

    def __init__(
        self,
        members: Sequence[Member],
        options: WriterOptions,
        *,
        reconnect_timeout_s: float,
        random: np.random.Generator,
    ) -> None:
        """Created by `ShardedTable.writer`.

        Args:
            members: the shards that get rows, at least one.
            options: the options of the writer of each shard.
            reconnect_timeout_s: seconds that calls wait if all servers are away.
            random: chooses shards.
        """
        self.steps = members[0].description.steps  # type: ignore[misc]  # final, and the base class is not initialized
        self._connection = members[0].link.connection
        self._table = members[0].description
        self._reconnect_timeout_s = reconnect_timeout_s
        self._random = random
        self._ids: list[int] = []
        self._writers: list[Writer] = []
        self._open(members, options)
        self._shard = np.zeros(options.streams, np.intp)  # the writer of each stream's current episode
        self._rows = np.zeros(options.streams, np.int64)  # rows of each stream since it changed the shard
        self._sharded = [ShardedWriterStream(self, stream) for stream in range(options.streams)]
        self._is_closed = False
        for stream in range(options.streams):
            self._choose(stream)

    @property
    def acknowledged(self) -> int:
        """Acknowledged rows."""
        return sum(writer.acknowledged for writer in self._writers)

    @property
    def in_flight(self) -> int:
        """Number of appended rows that are not yet acknowledged."""
        return sum(writer.in_flight for writer in self._writers)

    @property
    def inserted(self) -> int:
        """Rows ever inserted into the table by anyone, according to the last replies."""
        return sum(writer.inserted for writer in self._writers)

    @property
    def is_failing(self) -> bool:
        """Whether no server answers at present."""
        return all(writer.is_failing for writer in self._writers)

    @property
    def shards_away(self) -> list[int]:
        """Ids of the shards whose servers do not answer at present."""
        return [shard_id for shard_id, writer in zip(self._ids, self._writers, strict=True) if writer.is_failing]

    def __len__(self) -> int:
        """Number of streams."""
        return len(self._sharded)

    def __getitem__(self, stream: int) -> WriterStream:
        """One of its streams.

        Raises:
            IndexError: there is no such stream.
        """
        return self._sharded[stream]

    def __repr__(self) -> str:
        rows = f"{self.in_flight} rows in flight"
        return f"<ShardedWriter of table {self._table.name!r} on {len(self._writers)} servers: {rows}>"

    def append(self, row: Mapping[str, Any] | None = None, /, *, priority: float | None = None, **columns: Any) -> None:
        """Append a row to the only stream; see `WriterStream.append`."""
        self._single().append(row, priority=priority, **columns)

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
        **columns: Any,
    ) -> None:
        """Append a copy of one row to each stream; see `Writer.append_all`.

        Raises:
            InvalidArgumentError: the rows do not match the table or the streams. No row was appended.
            ReplayError: an earlier row could not be sent. Rows of the streams of other shards may have been appended.
        """
        self._check()
        values = columns if rows is None else {**rows, **columns}
        checked = self._writers[0].writing.checked_rows(values, where, priorities)
        wanted = np.zeros(len(self), bool)
        wanted[checked.which] = True
        for stream in checked.which.tolist():
            self._before_row(stream)
        for shard in np.unique(self._shard[wanted]).tolist():
            mine = wanted & (self._shard == shard)
            self._writers[shard].append_all(checked.columns, where=mine, priorities=checked.priorities)
            self._rows[mine] += 1

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
        values = columns if rows is None else {**rows, **columns}
        for end in self._writers[0].writing.checked_ends(done, values, terminated):
            self._sharded[end.stream].end_episode(end.values, terminated=end.is_terminated)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all appended rows are acknowledged, also those for a server that is away; see `Writer.flush`."""
        self._check()
        deadline = self._connection.deadline("timeout_s", timeout_s)
        for writer in self._writers:
            writer.flush(timeout_s=max(0.0, deadline - time.monotonic()))

    def close(self, *, timeout_s: float | None = None) -> None:
        """Flush and close; see `Writer.close`."""
        if self._connection.is_forked or self._is_closed:
            return
        self._is_closed = True
        deadline = self._connection.deadline("timeout_s", timeout_s)
        with ExitStack() as closing:  # closes all, even if one raises
            for writer in self._writers:
                closing.callback(lambda each: each.close(timeout_s=max(0.0, deadline - time.monotonic())), writer)

    def unacknowledged_rows(self) -> dict[str, Array]:
        """Return unacknowledged rows, shard after shard; see `Writer.unacknowledged_rows`."""
        parts = [writer.unacknowledged_rows() for writer in self._writers]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def __enter__(self) -> ShardedWriter:
        return self

    def stream_for_row(self, stream: int) -> WriterStream:
        """Return the stream of a shard that gets the next row of a stream of this writer, and count the row."""
        self._check()
        self._before_row(stream)
        self._rows[stream] += 1
        return self._writers[int(self._shard[stream])][stream]

    def current(self, stream: int) -> WriterStream:
        """Return the stream of the shard that has the current episode of a stream of this writer."""
        return self._writers[int(self._shard[stream])][stream]

    def end(self, stream: int, values: dict[str, Any], *, terminated: bool, priorities: ArrayLike | None) -> None:
        """End a stream's episode, or abandon it if its server is away; choose the shard of the next one."""
        self._check()
        if self._writers[self._shard[stream]].is_failing:
            self.abandon(stream)
            return
        self.current(stream).end_episode(values, terminated=terminated, priorities=priorities)
        self._choose(stream)

    def abandon(self, stream: int) -> None:
        """Abandon a stream's episode, and choose the shard of the next one."""
        self.current(stream).abandon_episode()
        self._choose(stream)

    def _open(self, members: Sequence[Member], options: WriterOptions) -> None:
        """Open a writer for each shard whose server can be reached.

        Raises:
            ServerUnavailableError: none can be reached.
        """
        for member in members:
            try:
                writer = member.table.writer(
                    streams=options.streams,
                    block_rows=options.block_rows,
                    max_blocks_in_flight=options.max_blocks_in_flight,
                    max_delay_s=options.max_delay_s,
                    reconnect_timeout_s=math.inf,
                )
            except ServerUnavailableError as error:
                log.warning("%s gets no rows of this writer: %s", member, error)
                if member is members[-1] and not self._writers:
                    raise
            else:
                self._ids.append(member.id)
                self._writers.append(writer)

    def _before_row(self, stream: int) -> None:
        """Change the shard of a stream if its server is away or, without steps, if it has got enough rows."""
        is_away = self._writers[self._shard[stream]].is_failing
        if is_away or (self.steps is None and self._rows[stream] >= ROWS_PER_SHARD):
            if self._rows[stream]:
                self.abandon(stream)
            else:
                self._choose(stream)

    def _choose(self, stream: int) -> None:
        """Choose the emptier of two shards for a stream's next rows.

        Raises:
            ServerUnavailableError: all servers were unreachable for `reconnect_timeout_s`.
        """
        deadline = time.monotonic() + self._reconnect_timeout_s
        while not (there := [number for number, writer in enumerate(self._writers) if not writer.is_failing]):
            if time.monotonic() >= deadline:
                raise ServerUnavailableError(f"none of the servers of table {self._table.name!r} can be reached")
            time.sleep(_POLL_S)
        two = self._random.choice(there, min(2, len(there)), replace=False).tolist()
        self._shard[stream] = min(two, key=self._fill)
        self._rows[stream] = 0

    def _fill(self, shard: int) -> int:
        writer = self._writers[shard]
        return min(self._table.capacity, writer.inserted + writer.in_flight)

    def _single(self) -> WriterStream:
        return self._sharded[0] if len(self) == 1 else self._refuse()

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
        """uint64: random number, stored with every row, of this stream in the shard of its current episode."""
        return self._writer.current(self._stream).number

    @property
    def episode(self) -> int:
        """Number of the current episode in the shard's stream, stored with every row."""
        return self._writer.current(self._stream).episode

    def append(self, row: Mapping[str, Any] | None = None, /, *, priority: float | None = None, **columns: Any) -> None:
        """Append a copy of a row to the current episode; see `WriterStream.append`."""
        self._writer.stream_for_row(self._stream).append(row, priority=priority, **columns)

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
        values = columns if row is None else {**row, **columns}
        self._writer.end(self._stream, values, terminated=terminated, priorities=priorities)
