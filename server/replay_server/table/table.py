"""A table: rows, priorities and the records of who inserted what, changed together.

Everything here runs to its end on the server's event loop, so each operation is atomic and needs no
lock; only `Table.reserve` and `Table.store` may run beside it. Requests have been checked before they come here,
except for what only the table can know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from replay_proto.framing import Array
from replay_proto.inserts import MOST_ROWS_AT_ONCE
from replay_proto.layout import HEADER_FILE

from replay_server import errors
from replay_server.backends import LiveRows, index_bytes, make_index
from replay_server.backends.index import live_slots
from replay_server.files.mapped_file import NoSpaceError
from replay_server.storage.power_loss.recovery import PRIORITIES_FILE
from replay_server.storage.power_loss.row_checksums import origin_word
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import DamagedTableError, TableDirectory
from replay_server.table.draws import Draw, DrawnBatch, WeightNorm, importance_weights
from replay_server.table.figures.table_figures import TableFigures
from replay_server.table.figures.times_sampled import COUNT_BYTES
from replay_server.table.gates import Gate
from replay_server.table.oldest_first import OldestFirst
from replay_server.table.priority_draws import PriorityDraws
from replay_server.table.turns import Turns
from replay_server.table.updates import live_only, resolve_update

FIRST_PRIORITY = 1.0
"""Priority of new rows while there is no live row of a priority above 0 (Schaul et al. 2016, algorithm 1, line 2)."""


@dataclass(frozen=True)
class WriterStamp:
    """Which insert of which writer this is."""

    writer_id: bytes
    """16 bytes."""
    sequence: int
    """From 1."""


@dataclass(frozen=True)
class NewRows:
    """Rows to insert."""

    columns: Mapping[str, Array]
    """By name, ``dtype[n, *shape]``: every column of the schema."""
    count: int
    """n."""
    priorities: NDArray[np.float64] | None = None
    """float64[n]; None: each takes the largest live priority."""
    stream: int = 0
    """Stream of experience they belong to."""
    episode: int = 0
    """Episode within the stream."""


def memory_bytes(config: TableConfig) -> int:
    """Memory that a table takes at most beside its files: its index, and how often each row was drawn."""
    return index_bytes(config.index_backend, config.slots) + COUNT_BYTES * config.slots


class Table:
    """A ring of rows that are drawn by priority."""

    def __init__(self, directory: TableDirectory) -> None:
        """Serve the table in ``directory``: its priorities are indexed, its rows stay where they are."""
        self.directory = directory
        self.config: TableConfig = directory.config
        self.uid = directory.uid
        self._header = directory.header
        self._checksums = directory.rows.checksums
        self.turns = Turns()
        """Whose turn it is to insert."""
        self._kept, self._times, self._slots = self.config.most_live, self.config.times, self.config.slots
        self._index = make_index(self.config.index_backend, self.config.index_parameters, directory.priorities)
        _check_priorities(directory, self.live, self._index.priority_limit)
        self._index.rebuild(self.live)
        self.draws: OldestFirst | PriorityDraws = (
            OldestFirst(self.config, self._header)
            if self.config.is_queue
            else PriorityDraws(self.config, self._header, self._index)
        )
        """Which rows draws take: by priority, or the oldest."""
        self.gate: Gate | None = self.draws.gate
        """The gate of draws and inserts, if any."""
        self.figures = TableFigures(
            slots=self.config.slots, capacity=self.config.capacity, inserted=self.inserted, size=self.size
        )
        """What has happened to it since the server began."""
        self.resets = 0
        """How often it was reset, since the server began."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.name

    @property
    def inserted(self) -> int:
        """Rows ever inserted: the next row's key."""
        return self._header.inserted

    @property
    def write_horizon(self) -> int:
        """Rows below this key may be being written."""
        return self._header.write_horizon

    @property
    def oldest(self) -> int:
        """Key of the oldest live row."""
        return self._header.state.oldest(self._kept, self._times)

    @property
    def size(self) -> int:
        """Live rows."""
        return self.inserted - self.oldest

    @property
    def live(self) -> LiveRows:
        """The live rows."""
        oldest = self.oldest
        return LiveRows(oldest, self.inserted - oldest, self._slots)

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
        """Largest priority that its backend takes."""
        return self._index.priority_limit

    def check_uid(self, uid: bytes) -> None:
        """Make sure that a caller means this table and not an earlier one of its name.

        Raises:
            RequestError: TABLE_REPLACED.
        """
        if uid != self.uid:
            raise errors.table_replaced(self.name)

    def is_repeat(self, stamp: WriterStamp | None) -> bool:
        """Whether an insert was applied before, and would only be answered again.

        Raises:
            RequestError: SEQUENCE_GAP, SEQUENCE_TOO_OLD or WRITER_UNKNOWN.
        """
        return stamp is not None and self.directory.writers.find(stamp.writer_id, stamp.sequence) is not None

    def insert(self, rows: NewRows, stamp: WriterStamp | None) -> range:
        """Add rows, at once. `replay_server.flow.inserting` does the same for many rows while others are served.

        Args:
            rows: what to add, at most `TableConfig.rows_at_once`.
            stamp: whose insert it is; None: nobody's, it cannot be repeated harmlessly.

        Returns:
            Their keys; for a repeat those it got the first time.

        Raises:
            RequestError: SEQUENCE_GAP, SEQUENCE_TOO_OLD, WRITER_UNKNOWN or NO_SPACE.
        """
        repeated = self.find_repeat(stamp)
        if repeated is not None:
            return repeated
        self.reserve(rows.count)
        self.store(rows, stamp)
        return self.commit(rows, stamp)

    def check_rows_at_once(self, count: int) -> None:
        """Refuse an insert of more rows than can become live at once.

        Raises:
            RequestError: TOO_LARGE.
        """
        if count > self.config.rows_at_once:
            raise errors.too_large(
                "rows of one insert",
                self.config.rows_at_once,
                count,
                f"slots - capacity of the table, and no more than {MOST_ROWS_AT_ONCE}",
            )

    def find_repeat(self, stamp: WriterStamp | None) -> range | None:
        """The keys that an insert got when it was applied; None if it is still to be applied.

        Raises:
            RequestError: SEQUENCE_GAP, SEQUENCE_TOO_OLD or WRITER_UNKNOWN.
        """
        repeated = None if stamp is None else self.directory.writers.find(stamp.writer_id, stamp.sequence)
        if repeated is not None:
            self.figures.counts.repeated_inserts += 1
            return range(repeated[0], repeated[0] + repeated[1])
        return None

    @property
    def new_priority(self) -> float:
        """Priority of new rows that come without one."""
        return self.largest_priority or FIRST_PRIORITY

    def reserve(self, count: int) -> None:
        """Make sure that so many rows more can be stored; in any thread.

        Raises:
            RequestError: NO_SPACE; nothing has changed.
        """
        try:
            self.directory.rows.reserve(self.inserted, count)
        except NoSpaceError:
            raise errors.no_space(self.name, self.directory.folder.parent) from None

    def store(self, rows: NewRows, stamp: WriterStamp | None) -> None:
        """Store the rows that come next, for which there is space, into slots without a live row; in any thread.

        Nothing else may insert until they are committed. A server that is killed before forgets them.
        """
        assert rows.count <= self.config.rows_at_once, "live rows would be overwritten"
        first = self.inserted
        # Never back: what an insert that failed has left behind is not to be taken for a whole row.
        self._header.write_horizon = max(self.write_horizon, first + rows.count)
        self.directory.rows.write(first, rows.columns, (rows.stream, rows.episode))
        if self._checksums is not None:
            origin = 0 if stamp is None else origin_word(stamp.writer_id, stamp.sequence)
            self._checksums.seal(first, rows.count, origin)

    def erase_stored(self, count: int) -> None:
        """Give up so many rows that were stored and not committed: a loss of power must not bring them back."""
        if self._checksums is not None:
            self._checksums.erase(self.inserted, count)

    def commit(self, rows: NewRows, stamp: WriterStamp | None) -> range:
        """Make the rows that were stored last live, evict those that they replace, and return their keys."""
        first, oldest = self.inserted, self.oldest
        priorities = np.full(rows.count, self.new_priority) if rows.priorities is None else rows.priorities
        self._index.write(np.arange(first, first + rows.count), priorities)
        if stamp is not None:
            self.directory.writers.store(stamp.writer_id, stamp.sequence, first, rows.count)
        self._header.store("inserted", first + rows.count)
        self.figures.inserted(rows.count, self.inserted)
        self._forget(oldest, self.oldest)
        return range(first, first + rows.count)

    def draw_at(self, draw: Draw, points: NDArray[np.float64]) -> list[DrawnBatch]:
        """Draw the batches that lie at these points of the mass as it is now; its `gate` has granted their rows.

        What is not handed out may be drawn again, at the same points. So a batch that inserts
        overtake does not move the seed's sequence twice. Nor does it bias what is drawn: were the points chosen anew,
        those of old rows, which are overtaken most, would be dropped more often than others.

        Args:
            draw: what the caller asks for.
            points: of one batch after the other, as `choose_points` of its `draws` gives them.

        Raises:
            RequestError: TABLE_EMPTY.
        """
        live = self.live
        if live.size == 0:
            raise errors.table_empty(self.name)
        drawn = self.draws.draw(points, live)
        total_mass, smallest = self.total_mass, self.draws.smallest_probability(live)
        batches = []
        for start in range(0, len(drawn.keys), draw.batch_size):
            rows = slice(start, start + draw.batch_size)
            probabilities = drawn.probabilities[rows]
            reference = float(probabilities.min()) if draw.weight_norm is WeightNorm.BATCH else smallest
            batches.append(
                DrawnBatch(
                    keys=drawn.keys[rows],
                    probabilities=probabilities,
                    weights=importance_weights(probabilities, reference, draw.beta),
                    beta=draw.beta,
                    size=live.size,
                    total_mass=total_mass,
                    smallest_probability=smallest,
                    inserted=self.inserted,
                )
            )
        return batches

    def hand_out(self, batches: Sequence[DrawnBatch]) -> None:
        """Count batches that `draw_at` has drawn at once, and let go of rows that went out for the last time."""
        keys = np.concatenate([batch.keys for batch in batches]) if len(batches) > 1 else batches[0].keys
        self.figures.handed_out(len(keys))
        # Rows may have been evicted since, while those of the batches were copied beside the loop.
        oldest = self.oldest
        are_live = batches[0].inserted - batches[0].size == oldest
        self.figures.drawn(keys if are_live else self.live_keys(keys))
        self.draws.hand_out(len(keys))
        self._forget(oldest, self.oldest)

    def update(self, keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> tuple[int, int]:
        """Set priorities, float64[n], of keys, int64[n]; of a key given more than once, the last one counts.

        Returns:
            Distinct rows updated, and stale keys.
        """
        resolved = resolve_update(keys, priorities, self.oldest, self.inserted)
        self._index.write(resolved.keys, resolved.priorities)
        self.figures.updated(len(resolved.keys), resolved.stale)
        return len(resolved.keys), resolved.stale

    def live_keys(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The keys that are live, in the order given. keys: int64[n], any numbers."""
        return live_only(keys, self.oldest, self.inserted)

    def priorities(self, keys: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[n]: priorities of live rows. keys: int64[n]."""
        return np.take(self.directory.priorities, keys % self.config.slots)

    def probabilities(self, priorities: NDArray[np.float64], ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[n]: with which rows are drawn now; see `PriorityDraws.probabilities`."""
        return self.draws.probabilities(priorities, ranks, self.live)

    def overtaken(self, keys: NDArray[np.int64]) -> bool:
        """Whether the slot of a row that was live may have been written to since. keys: int64[n], n at least 1."""
        return int(keys.min()) + self.config.slots < self._header.write_horizon

    def reset(self) -> int:
        """Make every row disappear; keys go on counting.

        Returns:
            How many live rows there were.
        """
        oldest, removed = self.oldest, self.size
        self.resets += 1
        if self.gate is not None:
            self.gate.reset()
        self._header.reset()
        self._forget(oldest, self.inserted)
        return removed

    def close(self) -> None:
        """Let go of the files; the table must not be used any more."""
        del self._index, self.draws
        self.directory.close()

    def _forget(self, first: int, end: int) -> None:
        """Rows ``first`` to ``end`` are no longer live."""
        if first == end:
            return
        keys = np.arange(first, end)
        self._index.clear(keys)
        self.figures.evicted(keys)


def _check_priorities(directory: TableDirectory, live: LiveRows, limit: float) -> None:
    """Make sure that the index can add up what is stored.

    Raises:
        DamagedTableError: if a live row has a priority that was never stored.
    """
    found = directory.priorities[live_slots(live)]
    # Written so that NaN fails it too.
    bad = ~((found >= 0) & (found <= min(limit, np.finfo(np.float64).max)))
    if bad.any():
        key = live.oldest + int(np.argmax(bad))
        raise DamagedTableError(
            f"{directory.folder / PRIORITIES_FILE}: row {key}, live by {HEADER_FILE}, has the priority "
            f"{found[key - live.oldest]}; one of the two files is corrupt"
        )
