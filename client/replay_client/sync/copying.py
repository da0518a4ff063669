"""Copies tables to another service, with their priorities, streams and episodes; `replay copy` runs it.

    copies = prepared(source, destination, ["cartpole"])        # two clients; creates the tables
    for copy in copies:
        done = copy.run()

A copy needs no state of its own, because the destination knows how far it is. All requests of a copy, and the order of
their rows, follow from the range of keys that the source has. Each shard of the destination gets its rows from one
writer, whose id is computed from that range and from the uids of both tables. A copy that was interrupted computes the
same requests again, and skips those whose rows are there. The last of these must be the last insert of that writer: if
not, the source has changed since, or someone else has inserted rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._operations.table import READ_BYTES
from replay_client._rows.published_state import has_publications
from replay_client._shards.keys import live_keys, shard_ids
from replay_client._transport.request_ids import SENDER_ID_BYTES, RequestId
from replay_client._writing.links import mixed
from replay_client.batch import Rows
from replay_client.errors import (
    InvalidArgumentError,
    SequenceGapError,
    TableExistsError,
    TableNotFoundError,
    WriterError,
)
from replay_client.results.copies import Copied
from replay_client.results.description import FIFO, MOST_KEYS_AT_ONCE
from replay_client.sync.client import ReplayClient
from replay_client.sync.progress import Advance
from replay_client.sync.row_loader import check_room
from replay_client.sync.shards.sharded_table import ShardedTable
from replay_client.sync.table import Table

_TOGETHER: Final = 64
"""Consecutive rows of one shard that stay together where the rows of several shards are put into one order."""


def prepared(
    source: ReplayClient,
    destination: ReplayClient,
    names: Sequence[str],
    *,
    rows_at_once: int = MOST_KEYS_AT_ONCE,
) -> list[TableCopy]:
    """Check that tables can be copied, and create them on the destination; without ``names``, all tables.

    A copy continues only with the same ``rows_at_once``, the most rows that are read together.

    Raises:
        InvalidArgumentError: both are one service, or a table is a queue, or its rate limiter does not allow so many
            rows. Nothing was created.
        ServerUnavailableError: a server of the source is away, which may have rows. Nothing was created.
        TableNotFoundError: the source does not have a table. Nothing was created.
        TableExistsError: the destination has a table of that name with another config or with other rows.
    """
    if source._server_uids() & destination._server_uids():
        got = f"{source.address} and {destination.address}, which have a server in common"
        raise InvalidArgumentError.of_field("destination", "another service than the source", got)
    chosen = names or list(source)
    if not chosen:
        raise TableNotFoundError(f"{source.address} has no tables")
    tables = [source.table(name) for name in dict.fromkeys(chosen)]
    for table in tables:
        _check(table)
        if isinstance(table, ShardedTable):
            table._roster.open_all()
    return [TableCopy(_part_with_rows(table), _created(table, destination), rows_at_once) for table in tables]


class TableCopy:
    """The copy of one table. For use in one thread."""

    def __init__(self, source: Table, destination: Table, rows_at_once: int) -> None:
        """See `prepared`."""
        self.name = source.name
        self._source = source
        self._order = _Order(source, rows_at_once)
        plan = self._order.fingerprint(list(_shards_of(destination).values()))
        self._landings: list[_Landing] = []

        def insert_into(shard: Table) -> Callable[..., NDArray[np.int64]]:
            self._landings.append(_Landing(shard, plan))
            return self._landings[-1].insert

        self._loader = destination._copy_loader(insert_into)
        self._overtaken = 0
        self.total = self._order.total
        """Rows to copy: those that were live when the copy began."""
        self.found = sum(landing.found for landing in self._landings)
        """Rows that an earlier run has copied."""

    def run(self, advance: Advance = lambda _: None) -> Copied:
        """Copy the rows that are not there yet; ``advance`` is called with numbers of rows.

        Raises:
            TableExistsError: the destination has rows that this copy has not inserted, or the source has changed since
                the copy began.
            ReplayError: as for `Table.read` and `Table.insert`. A new copy continues from there.
        """
        for keys in self._order.parts():
            rows = self._read(keys)
            self._overtaken += len(keys) - rows.batch_size
            if rows.batch_size:
                self._loader.insert(rows)
            advance(len(keys))
        for landing in self._landings:
            landing.check_end()
        evicted = sum(landing.evicted for landing in self._landings)
        return Copied(self.name, self.total, self.found, self._overtaken, evicted)

    def _read(self, keys: NDArray[np.int64]) -> Rows:
        """Read rows; without their values, if all of them are at the destination."""
        is_there = all(landing.rows + len(keys) < landing.found for landing in self._landings)
        rows = self._source.read(keys, columns=() if is_there else None)
        if is_there:
            shape = (rows.batch_size,)
            columns = self._source.schema.items()
            blank = {name: np.broadcast_to(np.zeros((), each.dtype), shape + each.shape) for name, each in columns}
            rows = replace(rows, columns=blank)
        if rows.steps is None:
            return rows
        # Each shard has a stream's episodes in order. If they are from a copy, others may have episodes of this stream.
        return replace(rows, streams=rows.streams ^ mixed(shard_ids(rows.row_keys).astype(np.uint64)))


class _Order:
    """The keys of the rows to copy, in the order of insertion.

    The servers of a table have no common clock: their rows are interleaved in proportion to their numbers.
    """

    def __init__(self, table: Table, rows_at_once: int) -> None:
        described = {number: shard._checked_description() for number, shard in _shards_of(table).items()}
        self._uids = [each.uid for each in described.values()]
        self._ranges = [live_keys(number, each) for number, each in described.items()]
        self._chunk = max(1, min(rows_at_once, READ_BYTES // table.schema.row_bytes))
        self.total = sum(map(len, self._ranges))
        """Number of keys."""

    def parts(self) -> Iterator[NDArray[np.int64]]:
        """Yield the keys, int64[n], in parts that are read at once."""
        count = -(-self.total // self._chunk)
        for number in range(count):
            parts = [each[len(each) * number // count : len(each) * (number + 1) // count] for each in self._ranges]
            keys = np.concatenate([np.arange(each.start, each.stop) for each in parts])
            places = np.concatenate([_places(part, whole) for part, whole in zip(parts, self._ranges, strict=True)])
            yield keys[np.argsort(places, kind="stable")]

    def fingerprint(self, shards: Sequence[Table]) -> bytes:
        """Return what tells this copy into these shards from all others."""
        sizes = [(shard.uid, shard.capacity, shard.describe().rows_per_insert) for shard in shards]
        return repr((self._uids, self._ranges, self._chunk, _TOGETHER, sizes)).encode()


class _Landing:
    """What a copy inserts into one shard of the destination."""

    def __init__(self, table: Table, plan: bytes) -> None:
        self.found = table._checked_description().inserted
        """Rows inserted before this run."""
        self.rows = 0
        """Rows of this copy that are in the shard, so far in its order."""
        self._table = table
        self._id = RequestId(hashlib.blake2b(plan + table.uid, digest_size=SENDER_ID_BYTES).digest(), sequence=0)

    @property
    def evicted(self) -> int:
        """Rows that did not fit."""
        return max(0, self.rows - self._table.capacity)

    def insert(
        self, columns: Mapping[str, Array], priorities: NDArray[np.float64] | None, runs: replay_pb2.Runs
    ) -> NDArray[np.int64]:
        """Insert the next rows, unless they are there; return their keys."""
        first = self.rows
        self.rows += len(next(iter(columns.values())))
        self._id.sequence += 1
        keys = np.arange(first, self.rows)
        if self.rows < self.found:
            return keys
        if first < self.found:
            self._check_last(columns, priorities, runs)
            return keys
        try:
            given = self._table._insert_checked(columns, priorities, runs, insert_id=self._id)
        except WriterError:
            raise _foreign_rows(self._table, f"{first:,} rows") from None
        if not np.array_equal(given, keys):
            raise _foreign_rows(self._table, f"{int(given[0]):,} rows before the next ones, instead of {first:,}")
        return keys

    def _check_last(
        self, columns: Mapping[str, Array], priorities: NDArray[np.float64] | None, runs: replay_pb2.Runs
    ) -> None:
        """Check that the writer's last insert is the current one.

        The server refuses an insert that leaves out one of the writer's, and says which one is next.
        """
        after_next = RequestId(self._id.sender_id, self._id.sequence + 2)
        try:
            self._table._insert_checked(columns, priorities, runs, insert_id=after_next)
        except SequenceGapError as error:
            if error.metadata["expected"] == str(self._id.sequence + 1):
                return
        except WriterError:
            pass
        raise _foreign_rows(self._table, f"{self.found:,} rows")

    def check_end(self) -> None:
        """Check that the shard has no more rows than were copied."""
        if self.rows < self.found:
            raise _foreign_rows(self._table, f"{self.found:,} rows instead of {self.rows:,}")


def _foreign_rows(table: Table, got: str) -> TableExistsError:
    """Return the error for a table with rows that a copy has not inserted; ``got`` says what was noticed."""
    return TableExistsError(
        f"table {table.name!r} at {table.address} has {got}, not only those of this copy: others have "
        "inserted some, or the source has inserted or evicted rows since the copy began. Drop the table there, and "
        "copy it again",
        metadata={"table": table.name, "field": "rows", "expected": "only rows of this copy", "got": got},
    )


def _check(table: Table) -> None:
    """Check that a table can be copied."""
    described = table.describe()
    what = f"table {table.name!r}"
    if described.backend == FIFO:
        expected = "no queue: its readers remove the rows, so let them empty it"
        raise InvalidArgumentError.of_field("tables", expected, f"{what}, a queue; name the tables to copy")
    try:
        check_room(described.size, described.create_arguments())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{what} cannot be copied: {error.message}", metadata=error.metadata) from None


def _created(table: Table, destination: ReplayClient) -> Table:
    arguments = table.describe().create_arguments()
    if has_publications(table.schema):
        arguments["capacity"] = _part_with_rows(table).capacity * destination._server_count()
    return _part_with_rows(destination.create_table(table.name, if_exists="open", **arguments))


def _part_with_rows(table: Table) -> Table:
    """Return the shard that has all publications if the table has publications, and the table if not."""
    return table._home()[1] if has_publications(table.schema) else table


def _shards_of(table: Table) -> Mapping[int, Table]:
    return table.shards if isinstance(table, ShardedTable) else {0: table}


def _places(part: range, whole: range) -> NDArray[np.float64]:
    """Return the place of each row in its shard, float64[n], from 0 to 1; rows that stay together have the same one."""
    rows = np.arange(part.start, part.stop) - whole.start
    return (rows // _TOGETHER * _TOGETHER + 0.5) / max(1, len(whole))
