"""One table over several servers; see docs/operations/scaling.md.

Each server has a shard: a table of its own, with a share of the capacity. Keys of the whole table contain the id of
the shard.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replay_client._learning.answers import joined_rows, selected_rows
from replay_client._learning.combining import combined
from replay_client._operations.reading import CHUNK_ROWS, EpisodePlan, RowOrder, RowPlan
from replay_client._operations.server import describe, get_shards, inspect_table, stats
from replay_client._rows.buffers import Blank, ColumnBuffers
from replay_client._rows.checks import checked_keys, checked_priorities, checked_rows
from replay_client._rows.columns import BatchOrKeys, chosen_columns
from replay_client._shards.keys import global_keys, live_keys, local_keys
from replay_client._shards.merged import merged_description, merged_inspection
from replay_client._shards.rate_limits import joined_refusal
from replay_client._shards.round import PartMemory
from replay_client._transport.call import time_limit
from replay_client._transport.data_path import DataPath
from replay_client._writing.writing import WriterOptions
from replay_client.batch import Batch, Rows, UpdateResult
from replay_client.draws import DEFAULT_BETA, DrawMode, Prefetch, WeightNorm
from replay_client.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    LimitedError,
    ReplayError,
    TableNotFoundError,
    TableReplacedError,
)
from replay_client.results.copies import Loaded
from replay_client.results.description import TableDescription
from replay_client.results.inspection import Inspection
from replay_client.results.stats import TableStats
from replay_client.sync.row_loader import Insert, RowLoader
from replay_client.sync.row_reader import RowReader
from replay_client.sync.sampler import Sampler
from replay_client.sync.shards.drawing.shard_stream import ShardStream
from replay_client.sync.shards.drawing.sharded_sampler import AWAY_AFTER_S, ShardedSampler
from replay_client.sync.shards.servers.asking import ASK_S, AWAY, ask_all, ask_each
from replay_client.sync.shards.servers.members import Member
from replay_client.sync.shards.servers.removal import drop_all, reset_all
from replay_client.sync.shards.servers.reports import report_of
from replay_client.sync.shards.servers.roster import Roster, update_rows
from replay_client.sync.shards.servers.service import table_stats_of_all
from replay_client.sync.shards.sharded_loader import ShardedLoader, keys_refused
from replay_client.sync.shards.sharded_writer import ShardedWriter
from replay_client.sync.table import Table

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S: Final = 1.0
"""Minimum seconds between searches for a newer shard map, which calls start in a thread.

Samplers and writers hear of newer maps in replies.
"""
_ANSWERED_S: Final = 0.2
"""Inserts go to a server without a check if its last answer is at most this many seconds old."""
_AWAY_S: Final = (1.0, 20.0)
"""Minimum and maximum seconds for which inserts leave out a server after a failed call.

Within these limits, it is 10 times the duration of the call.
"""
_LARGEST_EVERY_S: Final = 1.0
"""Seconds between two calls to find the largest priority of each shard, while it does not rise."""
_GONE: Final = (TableNotFoundError, TableReplacedError)
"""Errors of a server that has lost its tables."""


class ShardedTable(Table):
    """See the module, and `Table`. Thread-safe."""

    def __init__(self, roster: Roster, *, created: bool = False) -> None:
        """Created by `ReplayClient`; ``roster`` has the shards."""
        description = merged_description([member.description for member in roster.members])
        super().__init__(roster.members[0].session, description, created=created, data_path=DataPath(description))
        self._roster = roster
        self._random = np.random.default_rng()  # not from the table's seed: clients would choose the same shards
        self._largest: dict[int, float] = {}  # largest priority of each shard, as last heard by `_share_largest`
        self._largest_at = -math.inf
        self._latest: dict[int, TableDescription] = {}  # of each shard
        self._away_until: dict[int, float] = {}  # until when inserts leave out shards whose servers were away

    @property
    def shards(self) -> dict[int, Table]:
        """The table of each shard by id, for operations that the whole table lacks.

        Keys of such a table do not contain the id of the shard.
        """
        return {member.id: member.table for member in self._members}

    def __repr__(self) -> str:
        servers = ", ".join(f"{member.id} at {member.session.options.address}" for member in self._members)
        return f"<ShardedTable {self.name!r}, shards {servers}: {self.backend}, {self.capacity} rows>"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ShardedTable, created=self.created), (self._roster,)

    @property
    def _followed(self) -> Roster:
        """The roster, after it was told to look for a newer map."""
        self._roster.poll(every_s=_POLL_S)
        return self._roster

    @property
    def _members(self) -> tuple[Member, ...]:
        """The shards at present."""
        return self._followed.members

    def size(self) -> int:
        """Return the number of live rows in all shards; see `describe`."""
        return self.describe().size

    def insert(
        self, rows: Mapping[str, Any], *, priorities: ArrayLike | None = None, timeout_s: float | None = None
    ) -> NDArray[np.int64]:
        """Insert rows into the emptier of two random shards; see `Table.insert`.

        A large insert is split, and a shard is chosen for each part. Servers that do not answer are not chosen. If the
        chosen server goes away during the insert, it may have inserted the rows. So the call waits for that server to
        return, as with a single server.
        """
        if self.steps is not None:
            return super().insert(rows)  # raises
        columns, row_count = checked_rows(self.schema, rows)
        given = None if priorities is None else checked_priorities(priorities, row_count)
        most = min(member.description.rows_per_insert for member in self._members)
        keys = []
        for start in range(0, max(row_count, 1), most):
            part = slice(start, start + most)
            values = {name: column[part] for name, column in columns.items()}
            try:
                member, local = self._insert_part(values, None if given is None else given[part], timeout_s)
            except ReplayError as error:
                if start:
                    error.add_note(f"{start} of {row_count} rows were inserted before this error")
                raise
            if len(local):
                self._heard(member, int(local[-1]) + 1)
                self._away_until.pop(member.id, None)
            keys.append(global_keys(member.id, local))
        return np.concatenate(keys)

    def _insert_part(
        self, columns: Mapping[str, Any], priorities: ArrayLike | None, timeout_s: float | None
    ) -> tuple[Member, NDArray[np.int64]]:
        """Insert rows into the emptier of two shards. If its rate limiter refuses, try the others before waiting."""
        limit = self._description.rate_limit
        if limit is not None and limit.samples_per_insert is not None:
            with suppress(LimitedError):
                return self._insert_there(columns, priorities, 0.0)
        try:
            return self._insert_there(columns, priorities, timeout_s)
        except (LimitedError, DeadlineExceededError) as error:
            limiter = None if error.metadata.get("waited_for") != "inserts" else self.stats().rate_limiter
            if limit is None or limiter is None:
                raise
            row_count = len(next(iter(columns.values())))
            raise joined_refusal(error, self.name, limit, limiter, row_count, len(self._members)) from None

    def _insert_there(
        self, columns: Mapping[str, Any], priorities: ArrayLike | None, timeout_s: float | None
    ) -> tuple[Member, NDArray[np.int64]]:
        """Insert rows into the first shard whose server answers and whose rate limiter allows it; see `_by_fill`."""
        order = self._by_fill()
        refusal: ReplayError | None = None
        for member in filter(self._is_there, order):
            began = time.monotonic()
            try:
                return member, member.table.insert(columns, priorities=priorities, timeout_s=timeout_s)
            except LimitedError as error:
                refusal = error
            except _GONE as error:
                self._leave_out(member, began, error)
                refusal = error
            except AWAY as error:  # the rows may have been inserted
                if "waited_for" not in error.metadata:
                    self._leave_out(member, began, error)
                raise
        if refusal is not None:
            raise refusal
        return order[0], order[0].table.insert(columns, priorities=priorities, timeout_s=timeout_s)

    def _is_there(self, member: Member) -> bool:
        """Whether a shard may get rows: its server answers, and inserts do not leave it out at present.

        A server that has answered within `_ANSWERED_S` is not asked again.
        """
        began = time.monotonic()
        if began < self._away_until.get(member.id, 0.0):
            return False
        connection = member.session.connection
        if not connection.has_answered(within_s=_ANSWERED_S):
            try:
                connection.ask(get_shards(timeout_s=ASK_S), timeout_s=ASK_S)
            except AWAY as error:
                self._leave_out(member, began, error)
                return False
        return True

    def _leave_out(self, member: Member, began: float, error: ReplayError) -> None:
        """Leave a shard out of inserts for a while, because a call failed. ``began`` is when that call started."""
        level = logging.DEBUG if member.id in self._away_until else logging.WARNING
        log.log(level, "%s gets no single inserts now: %s", member, error)
        now, (least, most) = time.monotonic(), _AWAY_S
        self._away_until[member.id] = now + min(max(least, 10 * (now - began)), most)

    def sample(
        self,
        batch_size: int,
        *,
        beta: float = DEFAULT_BETA,
        weight_norm: WeightNorm = "batch",
        draw_mode: DrawMode = "stratified",
        timeout_s: float | None = 0.0,
        columns: Collection[str] | None = None,
        row_info: bool = False,
    ) -> Batch:
        """Draw rows by priority; see `Table.sample`. Each call opens streams to all servers, so `sampler` is faster."""
        sampler = self._part_sampler(
            self._operations.chosen(columns),
            blank=None,
            prefetch=1,
            reconnect_timeout_s=None,
            batch_size=batch_size,
            beta=beta,
            weight_norm=weight_norm,
            draw_mode=draw_mode,
            row_info=row_info,
            timeout_s=timeout_s,
        )
        try:
            return next(sampler)
        finally:
            sampler.cancel()

    def update_priorities(self, batch_or_keys: BatchOrKeys, priorities: ArrayLike) -> UpdateResult:
        """Update priorities in the shards of the rows; see `Table.update_priorities`."""
        keys = checked_keys(batch_or_keys)
        values = checked_priorities(combined(batch_or_keys, priorities, self.steps), len(keys))
        updated, left = 0, len(keys)
        stale = 0
        for member, places in self._followed.owners(keys):
            result = member.table.update_priorities(local_keys(keys[places]), values[places])
            updated, stale, left = updated + result.updated, stale + result.stale, left - len(places)
        if len(values):
            self._share_largest(float(values.max()))
        return UpdateResult(updated, stale + left)

    def _share_largest(self, updated: float) -> None:
        """Tell each shard the largest priority in the others, because new rows get the largest of all shards.

        ``updated`` is the largest one of an update. If it is not larger than those that are known, at most once in
        `_LARGEST_EVERY_S`.
        """
        now = time.monotonic()
        if now < self._largest_at + _LARGEST_EVERY_S and updated <= max(self._largest.values(), default=math.inf):
            return
        self._largest_at = now
        members = {member.id: member for member in self._members}
        try:
            sessions = {id: member.session for id, member in members.items()}
            found = ask_each(sessions, {id: partial(stats, self.name) for id in sessions})
            self._largest = {id: each.tables[self.name].largest_priority for id, each in found.items()}
            for id in found:
                others = max([0.0, *(value for other, value in self._largest.items() if other != id)])
                members[id].session.connection.ask(members[id].table._operations.hear(others), timeout_s=ASK_S)
        except ReplayError as error:  # a server is away, or this client may not change the priorities of other rows
            log.debug("not all shards of table %r know the largest priority: %s", self.name, error)

    def update(self, keys: ArrayLike, columns: Mapping[str, Any]) -> UpdateResult:
        """Write new values into mutable columns, in the shards of the rows; see `Table.update`."""
        return update_rows(self._followed, self.schema, keys, columns)

    def read(self, batch_or_keys: BatchOrKeys, *, columns: Collection[str] | None = None) -> Rows:
        """Read live rows by key; see `Table.read`."""
        keys = checked_keys(batch_or_keys)
        parts: list[Rows] = []
        places: list[NDArray[np.intp]] = []
        for member, mine in self._followed.owners(keys):
            rows = member.table.read(local_keys(keys[mine]), columns=columns)
            own = replace(rows, row_keys=global_keys(member.id, rows.row_keys))
            parts.append(own)
            places.append(mine[np.isin(keys[mine], own.row_keys)])
        if not parts:
            return self._members[0].table.read(np.empty(0, np.int64), columns=columns)
        return selected_rows(joined_rows(parts), np.argsort(np.concatenate(places)))

    def rows(
        self,
        *,
        chunk: int = CHUNK_ROWS,
        order: RowOrder = "key",
        progress: bool = False,
        columns: Collection[str] | None = None,
    ) -> RowReader:
        """Read all rows that are live now, in chunks, shard by shard; see `Table.rows`.

        If a server is away, the call raises a `ServerUnavailableError` that names it.
        """
        read = partial(self.read, columns=chosen_columns(self.schema, columns, self.schema.masks))
        table, keys = self._live_keys()
        return RowReader(read, RowPlan(table, chunk=chunk, order=order, keys=keys), progress=progress)

    def episode(self, key: int, *, columns: Collection[str] | None = None) -> Rows:
        """Read the whole episode of a row from the row's shard; see `Table.episode`."""
        for member, _ in self._followed.owners(checked_keys([key])):
            rows = member.table.episode(int(local_keys(np.array([key]))[0]), columns=columns)
            return replace(rows, row_keys=global_keys(member.id, rows.row_keys))
        return self.read(np.empty(0, np.int64), columns=columns)

    def episodes(
        self,
        *,
        unfinished: bool = True,
        chunk: int = CHUNK_ROWS,
        progress: bool = False,
        columns: Collection[str] | None = None,
    ) -> RowReader:
        """Read all episodes, shard by shard; see `Table.episodes`, and `rows` for servers that are away."""
        read = partial(self.read, columns=chosen_columns(self.schema, columns, self.schema.masks))
        table, keys = self._live_keys()
        plan = EpisodePlan(table, chunk=chunk, unfinished=unfinished, keys=keys)
        return RowReader(read, plan, progress=progress)

    def _live_keys(self) -> tuple[TableDescription, list[range]]:
        """Return the description of the whole table, and the keys of its live rows, shard by shard."""
        self._roster.open_all()
        parts = self._current_parts()
        return merged_description(list(parts.values())), [
            live_keys(shard_id, table) for shard_id, table in parts.items()
        ]

    def load_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        priorities: bool = True,
        keys: bool = False,
        timeout_s: float | None = None,
        progress: bool = False,
    ) -> Loaded:
        """Insert the rows of a Parquet file; see `Table.load_parquet`. ``keys`` must be False."""
        if keys:
            raise keys_refused(f"{self.name!r}, on {len(self._members)} servers")
        return super().load_parquet(path, priorities=priorities, timeout_s=timeout_s, progress=progress)

    def loader(self, *, priorities: bool = True, timeout_s: float | None = None) -> RowLoader:
        """Create a loader; see `Table.loader`, and `ShardedLoader` for how it chooses the shards of rows."""
        loaders = [
            (member, member.table.loader(priorities=priorities, timeout_s=timeout_s))
            for member in list(filter(self._is_there, self._active())) or self._active()
        ]
        rooms = [member.description.capacity - member.table.describe().size for member, _ in loaders]
        return ShardedLoader(loaders, rooms, priorities=priorities, heard=self._heard)

    def _copy_loader(self, insert_into: Callable[[Table], Insert]) -> RowLoader:
        """Create a loader for a copy; see `Table._copy_loader`. It chooses the same shards when a copy continues."""
        loaders = [(member, member.table._copy_loader(insert_into)) for member in self._active()]
        rooms = [member.description.capacity for member, _ in loaders]
        return ShardedLoader(loaders, rooms, priorities=True, heard=self._heard)

    def writer(
        self,
        *,
        streams: int = 1,
        block_rows: int | None = None,
        max_blocks_in_flight: int | None = None,
        min_delay_s: float = 0.1,
        max_delay_s: float = 1.0,
        reconnect_timeout_s: float | None = 60.0,
    ) -> ShardedWriter:
        """Create a writer for actors; see `Table.writer` and `replay_client.sync.shards.sharded_writer`."""
        options = WriterOptions(
            streams=streams,
            block_rows=block_rows,
            max_blocks_in_flight=max_blocks_in_flight,
            min_delay_s=min_delay_s,
            max_delay_s=max_delay_s,
            reconnect_timeout_s=reconnect_timeout_s,
        )
        wait_s = time_limit("reconnect_timeout_s", reconnect_timeout_s, self._connection.timeout_s)
        self._active()
        return ShardedWriter(self._roster, options, reconnect_timeout_s=wait_s, random=np.random.default_rng())

    def _part_sampler(
        self,
        names: tuple[str, ...] | None,
        *,
        blank: Blank | None,
        kind: Callable[..., Sampler] = Sampler,
        prefetch: Prefetch,
        reconnect_timeout_s: float | None,
        **draw: Any,
    ) -> ShardedSampler:
        """Create a sampler; see `Table._part_sampler`."""
        if (mode := draw.get("draw_mode")) in ("without_replacement", "newest_first"):
            expected = "another mode for a table on several servers, which draws only by priority"
            raise InvalidArgumentError.of_field("draw_mode", expected, repr(mode))
        everywhere = self.batch_columns
        chosen = {name: column for name, column in everywhere.items() if names is None or name in names}

        buffers = ColumnBuffers(chosen)

        def open_stream(member: Member) -> ShardStream:
            memory = PartMemory(member.id, buffers.blank)
            stream = member.table._part_sampler(
                names,
                blank=memory,
                kind=partial(ShardStream, memory=memory),
                read_only=True,  # they are joined to batches
                prefetch=1,
                reconnect_timeout_s=AWAY_AFTER_S,
                **draw,
            )
            assert isinstance(stream, ShardStream)
            return stream

        return ShardedSampler(
            self._roster,
            open_stream,
            self._operations.draw(**draw, reader=self._operations.batch_reader(names)),
            buffers,
            blank,
            prefetch=prefetch,
            reconnect_timeout_s=time_limit("reconnect_timeout_s", reconnect_timeout_s, self._connection.timeout_s),
            # Not from the table's seed: a sampler for a single draw would choose the same shards in each call.
            random=np.random.default_rng(),
        )

    def describe(self) -> TableDescription:
        """Fetch the current description. Rows and capacities are sums; the uid is that of the first shard.

        A shard whose server is away counts with its last known number of rows. It is left out if its server was already
        away when the table was opened.

        Raises:
            TableNotFoundError: a server no longer has the table.
            ServerUnavailableError: no server is reachable.
        """
        members = self._members
        self._latest |= ask_all({member.id: member.session for member in members}, partial(describe, self.name))
        return merged_description([self._latest.get(member.id, member.description) for member in members])

    def stats(self) -> TableStats:
        """Fetch the statistics of the table and of its shards; see `TableStats.shards`. A cheap call.

        Shards whose servers are away are left out, and named in `TableStats.shards_away`.

        Raises:
            TableNotFoundError: the table was dropped.
            ServerUnavailableError: no server is reachable.
        """
        return table_stats_of_all(self._roster.fleet, self._followed.shards, self.name)

    def inspect(self, *, largest: int = 10) -> Inspection:
        """Fetch the distribution of the rows; see `Table.inspect`. Shards whose servers are away are left out.

        `Inspection.largest` is exact. The ranks of all other rows are estimated from selected ranks of each shard.
        """
        members = {member.id: member for member in self._members}
        sessions = {id: member.session for id, member in members.items()}
        looks = {id: partial(inspect_table, self.name, member.table.uid, largest) for id, member in members.items()}
        found = ask_each(sessions, looks)
        away = [shard.id for shard in self._roster.shards.in_use if shard.id not in found]
        return merged_inspection(found, largest, away)

    def reset(self) -> int:
        """Remove all rows of all shards, and return their number; see `Table.reset`.

        If a server is away at the beginning, no rows are removed from any shard. If only the other shards were reset,
        the missing server would return with its old rows, and a second reset would also remove the newer rows of the
        other shards.

        Raises:
            TableNotFoundError: no server has the table.
            ServerUnavailableError: a server is away, or went away during the reset; the message names it, and says
                whether rows were removed from the other shards.
        """
        return reset_all(self._roster.fleet, self._roster.newest(), self.name, self._uids)

    def drop(self) -> None:
        """Drop the tables of all shards; see `Table.drop`. Servers that are away keep theirs.

        Raises:
            TableNotFoundError: no server has the table.
            ServerUnavailableError: a server is away; the message names it. The table was dropped on the others.
        """
        drop_all(self._roster.fleet, self._roster.newest(), self.name, self._uids)

    @property
    def _uids(self) -> dict[int, bytes]:
        return {member.id: member.table.uid for member in self._members}

    def _current_parts(self) -> dict[int, TableDescription]:
        """Fetch the descriptions of all shards' tables; return them by shard id. See `Table._checked_description`."""
        return {member.id: member.table._checked_description() for member in self._members}

    def _checked_description(self) -> TableDescription:
        """See `Table._checked_description`."""
        return merged_description(list(self._current_parts().values()))

    def _home(self) -> tuple[int, Table]:
        first = self._members[0]
        return first.id, first.table

    def _active(self) -> list[Member]:
        active = [member for member in self._members if member.is_active]
        if not active:
            raise InvalidArgumentError.of_field("shards", "one that is not draining", "none")
        return active

    def _heard(self, member: Member, inserted: int) -> None:
        """Remember how many rows were ever inserted into a shard, for `_fill`, and report it to the other servers."""
        self._roster.fills.heard(member.id, inserted)
        self._roster.report_soon(member.id, report_of(member.description, inserted))

    def _by_fill(self) -> list[Member]:
        """Return the active shards in random order, except that the emptier of the first two comes first."""
        active = self._active()
        order = [active[number] for number in self._random.permutation(len(active)).tolist()]
        return [*sorted(order[:2], key=self._fill), *order[2:]]

    def _fill(self, member: Member) -> int:
        rows = max(self._roster.fills.rows(member.id), member.description.inserted)
        return min(rows, member.description.capacity)
