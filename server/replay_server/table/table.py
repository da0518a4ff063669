"""A table: its rows, priorities and writers' records, which change together.

Methods run on the server's event loop without suspending, so each operation is atomic and needs no lock. Only
`Table.reserve` and `Table.store` may run in other threads. Callers validate requests, except for checks that depend on
the table's state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.layout import HEADER_FILE, MOST_ROWS_AT_ONCE
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.backends import LiveRows, index_bytes, make_index
from replay_server.backends.index import DEAD_PRIORITY, FIRST_PRIORITY, Drawn, PriorityIndex, live_slots
from replay_server.errors import Lack
from replay_server.files.mapped_file import NoSpaceError
from replay_server.files.memory_limit import MemoryLimit
from replay_server.kernels.compile import as_kernel_input
from replay_server.storage.delivery_log import ReaderStamp
from replay_server.storage.format import PRIORITIES_FILE
from replay_server.storage.power_loss.row_checksums import origin_word
from replay_server.storage.ranges import KEYS
from replay_server.storage.runs import Runs
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import DamagedTableError, TableDirectory
from replay_server.table.copied_batches import CopiedBatches
from replay_server.table.draws import Draw, DrawnBatch, Points, WeightNorm
from replay_server.table.gates import Gate
from replay_server.table.importance import importance_weights
from replay_server.table.items.items import Items, SingleRows, StepCounts
from replay_server.table.items.limited import LEFT_BYTES, LimitedItems
from replay_server.table.items.link_kernels import BYTES_PER_SLOT
from replay_server.table.items.step_windows import StepWindows
from replay_server.table.oldest_first import OldestFirst, Queue
from replay_server.table.priority_draws import PriorityDraws
from replay_server.table.table_figures import TableFigures
from replay_server.table.times_sampled import COUNT_BYTES, TimesSampled
from replay_server.table.updates import last_of_each, live_only, resolve_update
from replay_server.table.window_queue import WindowQueue

_NO_ORIGINS = np.zeros((MOST_ROWS_AT_ONCE, 2), np.uint64)
"""Streams and episodes of rows that were inserted without either."""


@dataclass(frozen=True)
class WriterStamp:
    """Identifies an insert by its writer and sequence number."""

    writer_id: bytes
    """Id of the writer, 16 bytes."""
    sequence: int
    """Sequence number of the insert; each writer numbers its inserts from 1."""


@dataclass(frozen=True)
class NewRows:
    """Rows to insert."""

    columns: Mapping[str, Array]
    """Values of every column of the schema, by name: ``dtype[n, *shape]``."""
    count: int
    """Number of rows, n."""
    priorities: NDArray[np.float64] | None = None
    """float64[n]; in a table of steps, one per window that the rows complete. None: `Table.new_priority` for all."""
    runs: Runs | None = None
    """Streams, episodes and steps of the rows; None: not given."""


def memory_bytes(config: TableConfig) -> int:
    """Return an upper bound on a table's memory in bytes, excluding its files.

    This covers the index, a count of draws per slot, the links of each slot in a table of steps, and the number of
    draws that each slot has left if that is limited.
    """
    links = 0 if config.steps is None else BYTES_PER_SLOT
    left = LEFT_BYTES if config.most_draws else 0
    return index_bytes(config.index_backend, config.slots) + (COUNT_BYTES + links + left) * config.slots


@dataclass(frozen=True)
class Contents:
    """What a table has in memory about its rows."""

    index: PriorityIndex
    items: Items
    times_sampled: TimesSampled


class Table:
    """A ring of rows that are drawn by priority."""

    def __init__(self, directory: TableDirectory, memory: MemoryLimit | None = None) -> None:
        """Serve the table in ``directory`` and index its priorities; ``memory`` limits it if it is in memory."""
        self.directory = directory
        self._memory = memory
        self.config: TableConfig = directory.config
        self.uid = directory.uid
        self._header = directory.header
        self._checksums = directory.rows.checksums
        self._index = make_index(self.config.index_backend, self.config.index_parameters, directory.priorities)
        steps, slots = self.config.steps, self.config.slots
        items = SingleRows() if steps is None else StepWindows(slots, steps.window)
        most_draws = self.config.most_draws
        self._items: Items = LimitedItems(items, most_draws, slots) if most_draws else items
        self._windows: WindowQueue | None = None
        if self.config.is_queue and isinstance(items, StepWindows):
            assert directory.deliveries is not None
            self._windows = WindowQueue(self.config, self._header, directory.deliveries, items)
        self._load()
        self.draws: Queue | PriorityDraws = self._windows or (
            OldestFirst(self.config, self._header, directory.deliveries)
            if directory.deliveries is not None
            else PriorityDraws(directory, self._index, self._items)
        )
        """Chooses which rows are drawn: by priority, or oldest first."""
        self.gate: Gate | None = self.draws.gate
        """Decides when rows may be drawn and inserted; None unless the table is a queue or has a rate limit."""
        self.figures = TableFigures(
            slots=self.config.slots, capacity=self.config.capacity, inserted=self.inserted, size=self.size
        )
        """Statistics since the server started."""
        self.copied_batches = CopiedBatches()
        """Batches that may be replaced without being counted again."""
        self.resets = 0
        """Number of resets since the server started."""
        self.others_largest_priority: float
        """Largest priority in the other shards of a distributed table, according to the latest update by a learner."""
        self.reports: dict[int, replay_pb2.ShardReport]
        """Clients' reports on shards whose servers they could not reach, by shard id."""
        self._forget_others()
        if self._windows is not None:
            self._keep_less(self._windows)  # an earlier server may have kept rows for readers that are forgotten

    @property
    def name(self) -> str:
        """The table's name."""
        return self.config.name

    @property
    def inserted(self) -> int:
        """Number of rows ever inserted; also the next row's key."""
        return self._header.inserted

    @property
    def write_horizon(self) -> int:
        """Key after the newest row that was written or is being written."""
        return self._header.write_horizon

    @property
    def oldest(self) -> int:
        """Key of the oldest live row."""
        return self._header.oldest

    @property
    def size(self) -> int:
        """Number of live rows."""
        return self._header.inserted - self._header.oldest

    @property
    def drawable(self) -> int:
        """Number of drawable rows: all live rows or, in a table of steps, only those with a complete window."""
        return self._items.count(self.size)

    def has_left(self, rows: int) -> bool:
        """Whether as many rows as a granted draw needs can be drawn: rows with draws left may have been evicted."""
        return self._items.draws_left >= rows

    def draw_lacks(self, rows: int, granted: int, least: int = 1) -> Lack:
        """Return what a draw of ``rows`` rows lacks.

        ``granted`` of them are granted already, and at least ``least`` must be drawable.
        """
        live = self.live
        if live.size >= self.config.capacity and self._items.count(live.size) == 0:
            rows_of_windows = self._items.rows_of_open_windows(live.oldest)
            if rows_of_windows > live.size:
                return Lack("windows", live.size, rows_of_windows)
        if self.gate is None or (granted == rows and least > 1):
            return Lack("rows", self.drawable, least)
        return self.gate.draw_lacks(rows, granted)

    @property
    def step_counts(self) -> StepCounts | None:
        """Counts of live rows of a table of steps; None for other tables."""
        return self._items.counts

    @property
    def live(self) -> LiveRows:
        """The live rows."""
        return LiveRows(self._header.oldest, self.size, self.config.slots)

    @property
    def total_mass(self) -> float:
        """Mass of all live rows."""
        return self._index.total_mass

    @property
    def largest_priority(self) -> float:
        """Largest priority of a live row; 0.0 if there is none."""
        return self._index.largest_priority

    @property
    def smallest_priority(self) -> float:
        """Smallest priority of a live row; 0.0 if there is none."""
        return self._index.smallest_priority

    @property
    def priority_limit(self) -> float:
        """Largest priority that the backend accepts."""
        return self._index.priority_limit

    def check_uid(self, uid: bytes) -> None:
        """Check that a caller means this table, and not an earlier one with the same name."""
        if uid != self.uid:
            raise errors.table_replaced(self.name)

    def is_repeat(self, stamp: WriterStamp | None) -> bool:
        """Whether an insert is a retry of one that was already applied; raises as `WriterRecords.find` does."""
        return stamp is not None and self.directory.writers.find(stamp.writer_id, stamp.sequence) is not None

    def insert(self, rows: NewRows, stamp: WriterStamp | None) -> range:
        """Insert rows synchronously. `replay_server.flow.admission` inserts many rows without blocking other calls.

        There may be at most `TableConfig.rows_at_once`. Without a ``stamp`` (writer and sequence number), retries are
        not detected and insert the rows again.

        Returns:
            The keys of the rows. For a retry, these are the keys from the original insert.

        Raises:
            RequestError: SEQUENCE_GAP, SEQUENCE_TOO_OLD, WRITER_UNKNOWN or NO_SPACE.
            FieldError: new rows of a table of steps do not continue their episodes.
        """
        repeated = self.find_repeat(rows, stamp)
        if repeated is not None:
            return repeated
        self.reserve(rows.count)
        self.store(rows, stamp)
        return self.commit(rows, stamp)

    def check_rows_at_once(self, count: int) -> None:
        """Refuse an insert of more rows than can become live at once."""
        if count > self.config.rows_at_once:
            raise errors.too_large(
                "rows of one insert",
                self.config.rows_at_once,
                count,
                f"slots - capacity of the table, and no more than {MOST_ROWS_AT_ONCE}",
            )

    def find_repeat(self, rows: NewRows, stamp: WriterStamp | None) -> range | None:
        """If an insert was already applied, return its keys; otherwise, check its runs and return None."""
        repeated = None if stamp is None else self.directory.writers.find(stamp.writer_id, stamp.sequence)
        if repeated is not None:
            self.figures.counts.repeated_inserts += 1
            return range(repeated[0], repeated[0] + repeated[1])
        self._items.check(rows.runs)
        return None

    def priorities_of(self, row_count: int, runs: Runs | None) -> int:
        """Return how many priorities an insert of these rows must have if it has any."""
        return self._items.priorities_of(row_count, runs)

    @property
    def new_priority(self) -> float:
        """Default priority of new rows."""
        return max(self.largest_priority, self.others_largest_priority) or FIRST_PRIORITY

    def reserve(self, count: int) -> None:
        """Reserve keys and space for this many more rows. May run in any thread.

        Raises:
            RequestError: NO_SPACE, or TOO_LARGE if no keys are left; nothing has changed.
        """
        inserted = self.inserted + count
        if inserted > KEYS.most:
            raise errors.too_large(
                "rows ever inserted into a table", KEYS.most, inserted, "bits of a key; use another table"
            )
        try:
            self.directory.rows.reserve(self.inserted, count, self._memory)
        except NoSpaceError as error:
            raise errors.no_space(self.name, self.directory.folder.parent, error=error) from None

    def store(self, rows: NewRows, stamp: WriterStamp | None) -> None:
        """Store the next rows in slots without live rows. Their space must be reserved. May run in any thread.

        No other insert may run until the rows are committed. If the server is killed before that, they are discarded.
        """
        assert rows.count <= self.config.rows_at_once, "live rows would be overwritten"
        first = self.inserted
        # Never decrease it: rows left over from a failed insert must not be mistaken for valid ones.
        self._header.write_horizon = max(self.write_horizon, first + rows.count)
        links = _NO_ORIGINS[: rows.count] if rows.runs is None else rows.runs.links()
        self.directory.rows.write(first, rows.columns, links)
        if self._checksums is not None:
            origin = 0 if stamp is None else origin_word(stamp.writer_id, stamp.sequence)
            self.directory.rows.seal(first, rows.count, origin)

    def commit(self, rows: NewRows, stamp: WriterStamp | None) -> range:
        """Make stored rows live and evict the rows that they replace. Return the keys of the new rows."""
        first, oldest = self.inserted, self.oldest
        keys, places = self._items.arrive(first, rows.count, rows.runs, oldest)
        given = rows.priorities
        self._index.write(keys, np.full(len(keys), self.new_priority) if given is None else given[places])
        if stamp is not None:
            self.directory.writers.store(stamp.writer_id, stamp.sequence, first, rows.count)
        self._header.store("inserted", first + rows.count)
        self.draws.arrived(keys)
        self.figures.inserted(rows.count, self.inserted)
        self._forget(oldest, self.oldest)
        return range(first, first + rows.count)

    def draw_at(self, draw: Draw, points: Points) -> list[DrawnBatch]:
        """Draw batches at these points of the current mass. The `gate` must already have granted their rows.

        The points of all batches are from ``self.draws.choose_points``. If inserts overwrite drawn rows before these
        are copied, the caller draws again at the same points. This keeps seeded draws reproducible. New points would
        also bias draws against old rows, which are overwritten first.

        Raises:
            RequestError: TABLE_EMPTY; LIMITED if a draw needs more rows.
            FieldError: the mode of the draw is not possible.
        """
        live = self.live
        drawable = self._items.count(live.size)
        if drawable == 0:
            raise errors.table_empty(self.name, self.draw_lacks(1, 0))
        if drawable < draw.least_drawable:
            raise errors.limited(self.name, Lack("rows", drawable, draw.least_drawable))
        if self._items.draws_left < len(points.fractions):
            raise errors.limited(self.name, Lack("rows", int(self._items.draws_left), len(points.fractions)))
        return self._batches(draw, self.draws.draw(draw, points, live), live, drawable)

    def draw_again(self, draw: Draw, stamp: ReaderStamp, rows: int) -> list[DrawnBatch] | None:
        """Return the batches that a repeated draw from a queue was given before; None if they are no longer stored.

        A later `hand_out` must not count them.
        """
        assert isinstance(self.draws, Queue)
        keys = self.draws.given_before(stamp, rows)
        if keys is None:
            return None
        live = self.live
        return self._batches(draw, Drawn(keys, np.ones(rows)), live, self._items.count(live.size))

    def was_given(self, stamp: ReaderStamp, rows: int) -> bool:
        """Whether a draw from a queue was handed out before, and its rows are still stored."""
        assert isinstance(self.draws, Queue)
        return self.draws.given_before(stamp, rows) is not None

    def reader_received(self, reader_id: bytes, sequence: int) -> bool:
        """Note that a reader of a queue has received its draws up to this number.

        Return whether there may now be more room for inserts.
        """
        assert isinstance(self.draws, Queue)
        makes_room = self.draws.repeats.received(reader_id, sequence)
        if makes_room:
            self._keep_less(self.draws)
        return makes_room

    def give_up_readers(self) -> None:
        """Keep rows of a queue no longer for readers that have not come back since a restart."""
        assert isinstance(self.draws, Queue)
        self.draws.repeats.forget_readers()
        self._keep_less(self.draws)

    def _keep_less(self, queue: Queue) -> None:
        oldest = self.oldest
        queue.kept_less()
        self._forget(oldest, self.oldest)

    def _batches(self, draw: Draw, drawn: Drawn, live: LiveRows, drawable: int) -> list[DrawnBatch]:
        total_mass, smallest, inserted = self.total_mass, self.draws.smallest_probability(live), self.inserted
        least = 0.0 if draw.weight_norm is WeightNorm.BATCH else smallest
        weights = importance_weights(as_kernel_input(drawn.probabilities), draw.batch_size, least, draw.beta)
        windows = self._items.windows(drawn.keys)
        windows_of = None if windows is None else windows.in_batches(draw.batch_size)  # by batch
        batches = []
        for batch in range(len(drawn.keys) // draw.batch_size):
            rows = slice(batch * draw.batch_size, (batch + 1) * draw.batch_size)
            batches.append(
                DrawnBatch(
                    keys=drawn.keys[rows],
                    probabilities=drawn.probabilities[rows],
                    weights=weights[rows],
                    beta=draw.beta,
                    size=live.size,
                    total_mass=total_mass,
                    smallest_probability=smallest,
                    inserted=inserted,
                    drawable=drawable,
                    windows=None if windows_of is None else windows_of[batch],
                )
            )
        return batches

    def hand_out(
        self, batches: Sequence[DrawnBatch], *, is_counted: bool = False, stamp: ReaderStamp | None = None
    ) -> None:
        """Count the batches of one `draw_at` as handed out, and release rows that were delivered for the last time.

        If ``is_counted``, they replace batches that were counted as handed out, each row as drawn, but could not be
        used. With a ``stamp``, the draw from a queue can be repeated.
        """
        keys = np.concatenate([batch.keys for batch in batches]) if len(batches) > 1 else batches[0].keys
        if stamp is not None:
            assert isinstance(self.draws, Queue)
            self.draws.note(stamp, len(keys))
        # Rows may have been evicted while the batches were copied in a worker thread.
        oldest = self.oldest
        are_live = batches[0].inserted - batches[0].size == oldest
        live_keys = keys if are_live else self.live_keys(keys)
        if not is_counted:
            self.figures.handed_out(len(keys))
            self.figures.drawn(live_keys)
        gone = self.draws.hand_out(len(keys), live_keys)
        if len(gone):
            self._index.clear(gone)
        self._forget(oldest, self.oldest)

    def update(self, keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> tuple[int, int]:
        """Set the priorities, float64[n], of the rows with these keys, int64[n]. For a repeated key, the last counts.

        Return the number of distinct rows updated, and of stale keys.
        """
        resolved = resolve_update(keys, priorities, self.oldest, self.inserted, self.directory.priorities)
        self._index.write(resolved.keys, resolved.priorities)
        self.figures.updated(len(resolved.keys), resolved.stale)
        return len(resolved.keys), resolved.stale

    def update_rows(self, keys: NDArray[np.int64], columns: Mapping[str, Array]) -> tuple[int, int]:
        """Write mutable columns of rows with these keys, int64[n], again. For a repeated key, the last values count.

        ``columns`` are some of them by name, ``dtype[n, *shape]``. Return the number of distinct rows updated, and of
        stale keys.
        """
        places = last_of_each(keys, self.oldest, self.inserted)
        stale = len(keys) - len(self.live_keys(keys))
        if len(places):
            self.directory.rows.update(keys[places], {name: values[places] for name, values in columns.items()})
        self.figures.rows_updated(len(places), stale)
        return len(places), stale

    def live_keys(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the live keys among these, in the same order. keys: int64[n], any numbers."""
        return live_only(keys, self.oldest, self.inserted)

    def priorities(self, keys: NDArray[np.int64], of_others: float = DEAD_PRIORITY) -> NDArray[np.float64]:
        """Return the priorities of live rows, float64[n]. keys: int64[n].

        Rows that cannot be drawn get the priority ``of_others``.
        """
        priorities = np.take(self.directory.priorities, keys % self.config.slots)
        priorities[priorities == DEAD_PRIORITY] = of_others
        return priorities

    def probabilities(self, priorities: NDArray[np.float64], ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return float64[n]: current probabilities of being drawn; see `PriorityDraws.probabilities`."""
        return self.draws.probabilities(priorities, ranks, self.live)

    def overtaken(self, keys: NDArray[np.int64]) -> bool:
        """Whether any of these formerly live rows may have been overwritten. keys: int64[n], n at least 1."""
        return int(keys.min()) + self.config.slots < self._header.write_horizon

    def reset(self) -> int:
        """Remove all rows synchronously, and return the number of live ones; keys continue.

        `replay_server.flow.resetting` does it beside other calls.

        Raises:
            RequestError: NO_SPACE; nothing has changed.
        """
        removed = self.live
        self.begin_anew(self.blank())
        self.forget(removed)
        return removed.size

    def blank(self) -> Contents:
        """Return what an empty table of this config has in memory; refuse with NO_SPACE. May run in any thread."""
        try:
            if self._memory is not None:
                self._memory.check(memory_bytes(self.config))
            return Contents(self._index.blank(), self._items.blank(), self.figures.blank_times_sampled())
        except (NoSpaceError, MemoryError) as error:
            raise errors.no_space(self.name, self.directory.folder.parent, error=error) from None

    def begin_anew(self, blank: Contents) -> Contents:
        """Remove all rows in time that does not depend on their number; nothing here can fail. Keys continue.

        The caller must `forget` the removed rows before the next insert. Return what the table had in memory; releasing
        it takes long if there were many rows.
        """
        self._header.reset()
        self.resets += 1
        before = Contents(self._index, self._items, self.figures.replace_times_sampled(blank.times_sampled))
        self._index, self._items = blank.index, blank.items
        self.draws.replace_contents(blank.index, blank.items)
        self._forget_others()
        self.copied_batches.clear()
        if self.gate is not None:
            self.gate.begin_anew(blank.items)
        return before

    def _forget_others(self) -> None:
        """Forget what clients told about the table's other shards."""
        self.others_largest_priority = 0.0
        self.reports = {}

    def forget(self, removed: LiveRows) -> None:
        """Mark rows that `begin_anew` has removed as dead in the stored priorities. May run in any thread."""
        self._index.forget(removed)

    def close(self) -> None:
        """Close the files; the table must not be used afterwards."""
        del self._index, self.draws
        self.directory.close()

    def _forget(self, first: int, end: int) -> None:
        """Remove rows that are no longer live from index and statistics: the keys ``first`` to ``end``, exclusive."""
        if first == end:
            return
        self._index.clear(self._items.leave(first, end))
        self.figures.evicted(np.arange(first, end))

    def _load(self) -> None:
        """Index the stored rows that can be drawn."""
        live = self.live
        drawable: NDArray[np.bool_] | None = None
        if self.config.steps is not None or self.config.most_draws:
            keys = np.arange(live.oldest, live.oldest + live.size, dtype=np.int64)
            is_dead = self.directory.priorities[live_slots(live)] == DEAD_PRIORITY
            drawable = self._items.rebuild(live, self.directory.rows.links(keys), is_dead)
            if self._windows is not None and drawable is not None:
                self._windows.load(live, drawable)
        _check_priorities(self.directory, live, drawable, self._index.priority_limit)
        if drawable is not None:
            self.directory.priorities[live_slots(live)[~drawable]] = DEAD_PRIORITY
        self._index.rebuild(live)


def _check_priorities(
    directory: TableDirectory, live: LiveRows, drawable: NDArray[np.bool_] | None, limit: float
) -> None:
    """Raise `DamagedTableError` if a drawable row has a priority that the index does not accept."""
    found = directory.priorities[live_slots(live)]
    # The negation catches NaN.
    bad = ~((found >= 0) & (found <= min(limit, np.finfo(np.float64).max)))
    if drawable is not None:
        bad &= drawable
    if bad.any():
        key = live.oldest + int(np.argmax(bad))
        raise DamagedTableError(
            f"{directory.folder / PRIORITIES_FILE}: row {key}, live by {HEADER_FILE}, has the priority "
            f"{found[key - live.oldest]}; one of the two files is corrupt"
        )
