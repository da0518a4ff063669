"""Implements a writer's methods, without I/O or threads: checks their arguments, and adds rows to the outbox.

writing = Writing(table, options, timeout_s=30.0, wake=wake)
rows = writing.checked_rows(columns, where, priorities)
while rows.left:
    if not writing.append_all(rows):
        ...                                 # wait until fewer blocks are in flight
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replay_proto.framing import Array
from replay_proto.schema import Column

from replay_client._rows.block import RowBlock
from replay_client._rows.checks import checked_array, checked_flags, checked_priorities, checked_rows, described
from replay_client._transport.call import time_limit
from replay_client._transport.pending import PendingRequests
from replay_client._writing.episodes import Episodes, Streams, check_not_terminated
from replay_client._writing.outbox import Outbox, SentBlock
from replay_client.draws import checked_count
from replay_client.errors import InvalidArgumentError
from replay_client.results.description import TableDescription

MAX_BLOCKS_IN_FLIGHT: Final = 16
"""Maximum unacknowledged blocks. The server recognizes retries of only this many inserts per writer."""
BLOCK_ROWS: Final = 1024
"""Default limit of rows per block. With more streams, the default is one row for each stream."""
DELAYED_BLOCKS_IN_FLIGHT: Final = 2
"""Default of unacknowledged blocks in a table that delays inserts. Rows that wait there are steps of an old policy."""
DELAYED_BLOCK_ROWS: Final = 64
"""Default limit of rows per block in such a table."""
BLOCK_BYTES: Final = 1 << 20
"""Default limit of bytes per block, unless one row for each stream takes more."""
_PRIORITY: Final = Column("float64")


@dataclass(frozen=True, kw_only=True)
class WriterOptions:
    """The options of `Table.writer`, which describes them."""

    streams: int
    block_rows: int | None
    max_blocks_in_flight: int | None
    min_delay_s: float
    max_delay_s: float
    reconnect_timeout_s: float | None
    waits_while_away: bool = True
    """Whether calls wait while the server is away; otherwise, they raise `ServerUnavailableError`."""


@dataclass
class VectorRows:
    """One row for each of several streams. Some rows may have been appended already."""

    columns: dict[str, Array]
    """``[streams, *shape]`` by column."""
    which: NDArray[np.intp]
    """int64[n]: the streams whose rows are appended."""
    priorities: Array | None
    """float64[streams]."""
    steps_ago: int = 0
    """How many steps before these rows the steps with the priorities are."""
    appended: int = 0
    """Number of streams in `which` whose rows were appended, in order."""

    @property
    def left(self) -> int:
        """Number of rows that were not appended yet."""
        return len(self.which) - self.appended

    def note(self, error: BaseException) -> None:
        """Add to an error how many rows were appended before it."""
        if self.appended:
            error.add_note(f"the rows of the first {self.appended} of {len(self.which)} streams were appended")


@dataclass(frozen=True)
class EpisodeEnd:
    """The end of the current episode of one stream."""

    stream: int
    values: dict[str, Any]
    """Final values by column."""
    is_terminated: bool


class Writing:
    """See the module."""

    def __init__(
        self, table: TableDescription, options: WriterOptions, *, timeout_s: float, wake: Callable[[], None]
    ) -> None:
        """Begin without rows; ``timeout_s`` is the client's default time limit, and ``wake`` is as for `Outbox`.

        Blocks never exceed the largest insert that the server allows; see `TableDescription.rows_per_insert`.
        """
        default = DELAYED_BLOCKS_IN_FLIGHT if table.may_delay_inserts else MAX_BLOCKS_IN_FLIGHT
        given = default if options.max_blocks_in_flight is None else options.max_blocks_in_flight
        most = checked_count("max_blocks_in_flight", given, most=MAX_BLOCKS_IN_FLIGHT)
        rows = None if options.block_rows is None else checked_count("block_rows", options.block_rows)
        streams = checked_count("streams", options.streams)
        self._table = table
        self._streams = Streams(streams, None if table.steps is None else table.steps.window)
        block = RowBlock(
            table.schema,
            _block_rows(table, rows, streams),
            self._streams.numbers,
            of_steps=table.steps is not None,
        )
        self.pending: PendingRequests[SentBlock] = PendingRequests(
            reconnect_timeout_s=time_limit("reconnect_timeout_s", options.reconnect_timeout_s, timeout_s),
            keep_refused=True,
        )
        """Blocks in flight."""
        self.outbox = Outbox(
            table,
            block,
            self.pending,
            max_blocks_in_flight=most,
            min_delay_s=time_limit("min_delay_s", options.min_delay_s, timeout_s),
            max_delay_s=time_limit("max_delay_s", options.max_delay_s, timeout_s),
            clock=time.monotonic,
            wake=wake,
        )
        """Queues blocks for sending, and processes the replies."""
        self.episodes = Episodes(table, self._streams, self.outbox)
        """Adds rows to the outbox."""

    def __len__(self) -> int:
        """Number of streams."""
        return len(self._streams)

    def checked_rows(
        self, columns: Mapping[str, Any], where: ArrayLike | None, priorities: ArrayLike | None, steps_ago: int
    ) -> VectorRows:
        """Check the arguments of `Writer.append_all`."""
        checked = self._checked(columns, is_partial=False)
        given = None if priorities is None else checked_array("priorities", _PRIORITY, priorities)
        if given is not None and given.shape != (len(self),):
            raise InvalidArgumentError.of_field("priorities", f"float64[{len(self)}]", described(given))
        which = np.arange(len(self)) if where is None else self._flags("where", where).nonzero()[0]
        if given is not None:
            known = given[which][~np.isnan(given[which])]  # others may be anything
            checked_priorities(known, len(known))
        return VectorRows(checked, which, given, steps_ago)

    def check_steps_ago(self, rows: VectorRows) -> None:
        """Check that the steps to which the priorities belong are there; `append_all` does so for some of the rows."""
        if rows.priorities is not None:
            known_of = rows.which[~np.isnan(rows.priorities[rows.which])]
            self.episodes.check_steps_ago(known_of.tolist(), rows.steps_ago)

    def append_all(self, rows: VectorRows) -> bool:
        """Append as many rows as fit into a block. Return False if none fits because too many blocks are in flight."""
        added = self.episodes.append_all(rows.columns, rows.which[rows.appended :], rows.priorities, rows.steps_ago)
        rows.appended += added
        return added > 0

    def checked_ends(
        self, done: ArrayLike, columns: Mapping[str, Any], terminated: ArrayLike | None
    ) -> Iterator[EpisodeEnd]:
        """Check the arguments of `Writer.end_episodes`. Return an iterator with one element per episode to end."""
        which = self._flags("done", done).nonzero()[0]
        is_terminated = self._flags("terminated", np.zeros(len(self), bool) if terminated is None else terminated)
        if self._table.steps is None:
            check_not_terminated(bool(is_terminated.any()))
        checked = self._checked(columns, is_partial=True) if columns else {}
        final = {name: np.asarray(values, self._table.schema[name].dtype) for name, values in checked.items()}
        return (
            EpisodeEnd(stream, {name: column[stream] for name, column in final.items()}, bool(is_terminated[stream]))
            for stream in which.tolist()
        )

    def unacknowledged_rows(self) -> dict[str, Array]:
        """Return unacknowledged rows; see `Writer.unacknowledged_rows`."""
        parts = self.outbox.unacknowledged()
        return {name: np.concatenate([part[name] for part in parts]) for name in self._table.schema}

    def _checked(self, values: Mapping[str, Any], *, is_partial: bool) -> dict[str, Array]:
        """Check values with one row for each stream."""
        checked, row_count = checked_rows(self._table.schema, values, is_partial=is_partial)
        if row_count != len(self):
            raise InvalidArgumentError.of_field("columns", f"{len(self)} rows, one for each stream", f"{row_count}")
        return checked

    def _flags(self, field: str, given: ArrayLike) -> Array:
        return checked_flags(field, given, (len(self),), meaning=", one for each stream")


def _block_rows(table: TableDescription, wanted: int | None, streams: int) -> int:
    most = DELAYED_BLOCK_ROWS if table.may_delay_inserts else BLOCK_ROWS
    fitting = wanted or max(streams, min(most, BLOCK_BYTES // table.row_bytes))
    return min(fitting, table.rows_per_insert)
