"""Recovers a table with checksums after a power loss: only valid rows, in a state that once existed.

For each page that changed since the last sync point, the disk may have the old or the new content. The recovered table
is in the state of a single moment at or after that sync point, but without rows overwritten after that moment. Recovery
has three steps:

1. From the sync point on, valid rows are recovered in key order. Each row names its insert. A writer's insert is
   recovered, together with its record, if all its rows are valid and its sequence number is the writer's next. The
   first row that fails a check ends this step, because later rows would leave a gap.
2. Rows that are lost may have overwritten the oldest recovered rows. Only the newest run of consecutive valid keys
   stays live; all rows before it are dropped. No insert before the sync point is undone.
3. The number of lost rows is stored in the header. Then the result is stored as the new sync point, and after that in
   the header and the writers' records.

An interrupted recovery can be repeated with the same result.
"""

from __future__ import annotations

import logging
import math
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from replay_proto.layout import HEADER_FILE, HEADER_WORDS, WRITE_HORIZON
from replay_proto.rate_limit import RateLimit

from replay_server.backends.index import DEAD_PRIORITY, FIRST_PRIORITY, LiveRows, live_slots
from replay_server.files.durable_files import overwrite_file
from replay_server.files.long_work import LongWork
from replay_server.files.mapped_file import MappedFile
from replay_server.storage.delivery_log import DELIVERY_LOG_BYTES
from replay_server.storage.format import (
    DELIVERIES_FILE,
    PRIORITIES_FILE,
    PRIORITY_BYTES,
    SYNC_POINT_FILE,
    WRITERS_FILE,
)
from replay_server.storage.header import FIRST_STATE_WORD, LOST, state_in
from replay_server.storage.power_loss.row_checksums import RowChecksums, inserts_in, short_sequence, writer_tag
from replay_server.storage.power_loss.sync_point import SyncPoint, SyncPoints
from replay_server.storage.ranges import SAMPLED
from replay_server.storage.row_store import RowStore
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_state import TableState
from replay_server.storage.writer_records import WRITER_RECORDS_BYTES, WriterRecords, ids_in

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1 << 17


def recover(folder: Path, config: TableConfig, stopped: threading.Event | None = None) -> None:
    """Make the files of a closed table consistent; setting ``stopped`` ends this before anything has changed.

    Raises:
        ValueError: a file is corrupt in a way that a power loss cannot cause; the message names the file.
    """
    began = time.monotonic()
    rows = RowStore(folder, config.schema, config.slots, create=False, link=config.link, checked=True)
    points = SyncPoints(folder, create=False)
    try:
        assert rows.checksums is not None
        if points.newest is None:
            raise ValueError(
                f"{folder / SYNC_POINT_FILE}: expected a whole sync point, found none; the file is corrupt"
            )
        work = LongWork(f"verifying the rows of table {config.name} after a power loss", stopped)
        work.total_bytes = config.slots * (config.schema.row_bytes + config.link.row_bytes)
        found = _find(folder, config, _Verified(rows, rows.checksums, work), points.newest)
        _store_header(folder, found.header, lost=found.point.lost)
        points.store(found.point)
        _apply(folder, config, found.point)
        rows.checksums.erase(found.point.state.inserted, config.slots - len(found.live))
        for file in rows.files():
            file.sync()
    finally:
        points.close()
        rows.close()
    log.info(
        "table %s: %d rows are valid after a power loss, verified in %.1f s",
        *(config.name, len(found.live), time.monotonic() - began),
    )
    if found.lost:
        log.warning(
            "table %s: %d rows are lost, with the keys %s; new rows will reuse these keys",
            *(
                config.name,
                sum(map(len, found.lost)),
                ", ".join(f"{keys.start} to {keys.stop - 1}" for keys in found.lost),
            ),
        )


@dataclass(frozen=True)
class _Verified:
    """The rows of a table, their checksums, and the work of verifying them."""

    rows: RowStore
    checksums: RowChecksums
    work: LongWork

    def whole(self, first_key: int, count: int) -> NDArray[np.bool_]:
        """Verify rows; see `RowStore.settle`."""
        whole = self.rows.settle(first_key, count)
        self.work.advance(count * self.checksums.row_bytes)
        return whole


@dataclass(frozen=True)
class _Found:
    header: TableState
    """The state before the recovery."""
    point: SyncPoint
    """The state after the recovery."""
    live: range
    lost: list[range]


def _find(folder: Path, config: TableConfig, verified: _Verified, point: SyncPoint) -> _Found:
    header, already_lost = _read_header(folder, point, config.numbers_per_row)
    floor = header.released(config.times)
    end, writers = _roll_forward(verified, point, _read(folder / WRITERS_FILE, WRITER_RECORDS_BYTES), config.slots)
    live = _newest_run(verified, max(floor, end - config.most_live), end)
    if live.stop < end:
        # A power loss cannot cause this much damage. Drop all rows of a partial insert: its writer may retry it.
        live = _without_half_an_insert(verified.checksums, live, config.slack)
        with _records(writers, live.stop) as records:
            writers = records.used()
    inserted, committed = max(live.stop, floor), max(end, header.inserted)
    oldest = live.start if live else inserted
    lost = _outside(live, max(floor, committed - config.most_live), committed)
    state = _in_step(config, header, inserted)
    if oldest > state.oldest(config.most_live, config.times):
        state = state.without_rows_below(oldest)
    recovered = SyncPoint(state, already_lost or point.lost + sum(map(len, lost)), writers)
    return _Found(header, recovered, range(oldest, inserted), lost)


def _read_header(folder: Path, point: SyncPoint, numbers_per_row: int) -> tuple[TableState, int]:
    """Return the state to recover, and the total number of lost rows that an interrupted recovery stored, or 0.

    The state comes from the header, unless the header is inconsistent or older than the sync point. In that case, it
    comes from the sync point, and the number is 0.
    """
    words = _read(folder / HEADER_FILE, HEADER_WORDS * 8).view("<i8")
    state = state_in(words)
    try:
        state.check(numbers_per_row)
    except ValueError:
        return point.state, 0
    return (state, int(words[LOST])) if state.is_not_before(point.state) else (point.state, 0)


def _store_header(folder: Path, state: TableState, lost: int = 0) -> None:
    words = np.zeros(HEADER_WORDS, "<i8")
    words[WRITE_HORIZON], words[LOST] = state.inserted, lost
    words[FIRST_STATE_WORD:LOST] = state
    overwrite_file(folder / HEADER_FILE, words.tobytes())


def _read(path: Path, size: int) -> NDArray[np.uint8]:
    """Read a file that may be torn, but must have this size."""
    content = np.fromfile(path, np.uint8)
    if len(content) != size:
        raise ValueError(f"{path}: expected {size} bytes, found {len(content)}")
    return content


@contextmanager
def _records(used: bytes, inserted: int) -> Iterator[WriterRecords]:
    """Copy the writers' records to a temporary folder, without records of rows beyond ``inserted``."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, WRITERS_FILE).write_bytes(_whole_file(used))
        records = WriterRecords(Path(folder), inserted=inserted, create=False)
        try:
            yield records
        finally:
            records.close()


def _whole_file(used: bytes) -> bytes:
    return used.ljust(WRITER_RECORDS_BYTES, b"\0")


def _roll_forward(verified: _Verified, point: SyncPoint, stored: NDArray[np.uint8], slots: int) -> tuple[int, bytes]:
    """Recover consecutive rows after the sync point; return the next key, and the writers' records at that point.

    The writers' records are those of the sync point and of the recovered inserts. Of the ``stored`` records, only the
    writers' ids are used.
    """
    end = point.state.inserted
    with _records(point.writers, end) as records:
        ids = {writer_tag(each): each for each in (*ids_in(stored), *ids_in(records.file.bytes))}
        for insert in inserts_in(verified.checksums.origins(end, _count_whole(verified, end, slots))):
            rows = insert.stop - insert.start
            if insert.has_writer:
                writer = ids.get(insert.tag)
                if writer is None or not (insert.has_first and insert.has_last):
                    break
                sequence = records.last_sequence(writer) + 1
                if short_sequence(sequence) != insert.sequence:
                    break
                records.store(writer, sequence, end, rows)
            end += rows
        return end, records.used()


def _count_whole(verified: _Verified, first_key: int, slots: int) -> int:
    """Return the number of consecutive valid rows from this key on."""
    count = 0
    while count < slots:
        whole = verified.whole(first_key + count, min(_ROWS_AT_ONCE, slots - count))
        if not whole.all():
            return count + int(np.argmin(whole))
        count += len(whole)
    return count


def _newest_run(verified: _Verified, oldest: int, end: int) -> range:
    """Return the newest run of consecutive keys with valid rows; an empty range at ``end`` if there is none."""
    chunks = [verified.whole(first, min(_ROWS_AT_ONCE, end - first)) for first in range(oldest, end, _ROWS_AT_ONCE)]
    # Padding with invalid rows on both sides gives every run a beginning and an end.
    steps = np.diff(np.concatenate([[False], *chunks, [False]]).astype(np.int8))
    starts, stops = np.flatnonzero(steps > 0), np.flatnonzero(steps < 0)
    return range(oldest + int(starts[-1]), oldest + int(stops[-1])) if len(starts) else range(end, end)


def _without_half_an_insert(checksums: RowChecksums, live: range, slack: int) -> range:
    """Return the live rows without an incomplete insert at their end."""
    first = max(live.start, live.stop - slack)
    *_, last = inserts_in(checksums.origins(first, live.stop - first))
    return range(live.start, first + last.start) if last.has_writer and not last.has_last else live


def _outside(live: range, first: int, stop: int) -> list[range]:
    if not live:
        return [range(first, stop)] if first < stop else []
    return [keys for keys in (range(first, live.start), range(max(first, live.stop), stop)) if keys]


def _in_step(config: TableConfig, header: TableState, inserted: int) -> TableState:
    """Adjust the header's state to this number of inserted rows.

    If the header has another number, the count of samples is moved to the nearest value within the rate limiter's
    bounds. Without this, rows that were lost, or inserted after the header was written, could make calls wait.
    """
    state = header._replace(inserted=inserted, delivered=min(header.delivered, inserted * config.numbers_per_row))
    if inserted == header.inserted or config.rate_limit is None:
        return state
    return state._replace(sampled=_within(config.rate_limit, inserted - state.counted_from, state.sampled))


def _within(limit: RateLimit, inserted: int, sampled: int) -> int:
    """Return the number closest to ``sampled`` that keeps the rate limiter's difference within its bounds."""
    if limit.samples_per_insert is None:
        return sampled
    owed = inserted * limit.samples_per_insert
    least, most = math.ceil(owed - limit.max_diff), math.floor(owed - limit.min_diff)
    return SAMPLED.nearest(min(max(sampled, least), most))


def _apply(folder: Path, config: TableConfig, point: SyncPoint) -> None:
    """Set the header, writers' records, recent draws and priorities to the state of a sync point."""
    _store_header(folder, point.state)
    overwrite_file(folder / WRITERS_FILE, _whole_file(point.writers))
    if (folder / DELIVERIES_FILE).exists():
        # Rows that were delivered are not verified, and their keys may get new rows: no draw can be repeated.
        overwrite_file(folder / DELIVERIES_FILE, bytes(DELIVERY_LOG_BYTES))
    file = MappedFile(folder / PRIORITIES_FILE, config.slots * PRIORITY_BYTES, create=False)
    file.reserve(file.size)
    priorities: NDArray[np.float64] = file.view(np.dtype("<f8"), (config.slots,))  # type: ignore[assignment]
    rows = point.state.live(config.most_live, config.times)
    slots = live_slots(LiveRows(rows.start, len(rows), config.slots))
    live = priorities[slots]
    # A row that a lost insert had evicted has no priority any more. Give it the priority of new rows, unless draws are
    # limited: it may also have had its last one.
    known = np.isfinite(live) & (live >= 0)
    largest = float(live[known].max()) if known.any() else 0.0
    priorities[slots[~known]] = DEAD_PRIORITY if config.most_draws else largest or FIRST_PRIORITY
    file.sync()
    file.close()
