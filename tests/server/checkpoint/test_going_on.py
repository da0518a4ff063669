"""A table continues its state after a restore, a restart or a power loss."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_proto.rate_limit import RateLimit
from replay_server.checkpoint.reading import restore
from replay_server.checkpoint.snapshot import take_snapshots
from replay_server.checkpoint.writing import write_checkpoint
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.draws import Draw
from replay_server.table.gates import LimiterGate
from replay_server.table.table import NewRows, Table, WriterStamp

from tests.support.drawing import draw_batch
from tests.support.examples import examples
from tests.support.invariants import check_table
from tests.support.rows import WHOLE, columns_of, values_in

CAPACITY = 20
WRITERS = [bytes([number + 1]) * 16 for number in range(2)]
SYNC_AFTER = 30
"""Capacity. A power loss loses nothing as long as all rows since the last sync fit into the ring."""
LIMITS = {
    "none": None,
    "min_size": RateLimit.of(5, None, None),
    "buffer": RateLimit.of(5, 2.0, 12.0),
    "bounds": RateLimit.of(5, 2.0, (-3.0, 60.0)),
}
RINGS = {"sum_tree": ("none", "bounds"), "rank": ("none", "buffer"), "uniform": ("none", "min_size")}
"""Backends and their limits. A limiter counts rows, whatever the backend, so not every combination is needed."""
CONFIGS = {
    **{
        f"{backend}-{name}": TableConfig("table", WHOLE, CAPACITY, backend, rate_limit=LIMITS[name])
        for backend, names in RINGS.items()
        for name in names
    },
    **{
        f"fifo-{times}": TableConfig("table", WHOLE, CAPACITY, "fifo", {"max_times_sampled": times}) for times in (1, 3)
    },
}

Operation = tuple[str, int, int]
"""An operation: name, number of rows, and another number."""
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "insert", "draw", "draw", "repeat", "update", "reset"]),
        st.integers(1, 12),
        st.integers(0, 5),
    ),
    max_size=25,
)


class Lived:
    """A table and its callers."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def apply(self, operation: Operation) -> object:
        """Apply an operation if it is allowed, and return the result that a caller sees."""
        name, count, number = operation
        return getattr(self, f"_{name}")(count, number)

    def _insert(self, count: int, number: int) -> object:
        table = self.table
        if table.gate is not None and not table.gate.insert_allowed(count):
            return "not allowed"
        stamp = None
        if number < len(WRITERS):
            stamp = WriterStamp(WRITERS[number], table.directory.writers.last_sequence(WRITERS[number]) + 1)
        priorities = None if number % 2 else np.full(count, 2.0)
        keys = table.insert(NewRows(columns_of(table.inserted + np.arange(count)), count, priorities), stamp)
        if table.directory.unsynced >= SYNC_AFTER:
            table.directory.sync(table.directory.sync_point())
        return keys

    def _repeat(self, count: int, number: int) -> object:
        """Retry a writer's last insert."""
        writer = WRITERS[number % len(WRITERS)]
        sequence = self.table.directory.writers.last_sequence(writer)
        if not sequence:
            return "unknown"
        return sequence, self.table.insert(NewRows(columns_of(np.arange(count)), count), WriterStamp(writer, sequence))

    def _draw(self, count: int, number: int) -> object:
        table = self.table
        if table.gate is not None:
            granted = table.gate.grant(count)
            if granted < count:
                table.gate.give_back(granted)
                return "not allowed", granted
            table.gate.count_drawn(count)
        elif not table.size:
            return "empty"
        batch = draw_batch(table, Draw(count, beta=number / 5))
        assert len(table.live_keys(batch.keys)) == count or table.config.is_queue
        return (
            (batch.keys.tolist() if table.config.is_queue else ""),
            batch.size,
            batch.total_mass,
            batch.smallest_probability,
        )

    def _update(self, count: int, number: int) -> object:
        keys = self.table.oldest - 2 + np.arange(count)
        return self.table.update(keys, np.full(count, float(number)))

    def _reset(self, _count: int, number: int) -> object:
        return self.table.reset() if number == 0 else None

    def state(self) -> object:
        """All state that must be recovered."""
        table = self.table
        check_table(table)
        keys = np.arange(table.oldest, table.inserted)
        out = columns_of(np.zeros(len(keys), np.int64))
        table.directory.rows.gather(keys, out)
        return (
            (table.oldest, table.inserted, table.total_mass, table.largest_priority, table.smallest_priority),
            values_in(b"".join(column.tobytes() for column in out.values())).tolist(),
            table.priorities(keys).tolist(),
            (table.gate.counters, table.gate.difference) if isinstance(table.gate, LimiterGate) else (),
            [table.directory.writers.last_sequence(writer) for writer in WRITERS],
        )


def restored(table: Table, folder: Path) -> Table:
    (folder / "checkpoint").mkdir()
    (folder / "tables").mkdir()
    write_checkpoint(folder / "checkpoint", asyncio.run(take_snapshots([table])), 0.0, threading.Event())
    restore(folder / "checkpoint", folder / "tables", checked=table.directory.is_checked)
    return Table(TableDirectory.open(folder / "tables" / "table"))


def restarted(table: Table, folder: Path) -> Table:
    shutil.copytree(table.directory.folder, folder / "table")
    return Table(TableDirectory.open(folder / "table"))


def recovered(table: Table, folder: Path) -> Table:
    shutil.copytree(table.directory.folder, folder / "table")
    return Table(TableDirectory.open(folder / "table", may_be_torn=True))


WAYS_BACK: dict[str, Callable[[Table, Path], Table]] = {
    "checkpoint": restored,
    "restart": restarted,
    "loss of power": recovered,
}


@pytest.mark.parametrize("way", WAYS_BACK)
@pytest.mark.parametrize("config", CONFIGS)
@settings(max_examples=examples(5))
@given(before=OPERATIONS, waiting=st.integers(0, 30), while_waiting=OPERATIONS, after=OPERATIONS)
def test_a_table_that_comes_back_goes_on_as_if_nothing_had_happened(
    config: str, way: str, before: list[Operation], waiting: int, while_waiting: list[Operation], after: list[Operation]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "made").mkdir()
        directory = TableDirectory.create(folder / "made", CONFIGS[config], checked=way == "loss of power")
        original = Lived(Table(directory))
        for operation in before:
            original.apply(operation)
        # A waiting draw, and operations meanwhile, except a reset, which would end the wait.
        gate = original.table.gate
        granted = 0 if gate is None else gate.grant(waiting)
        for operation in while_waiting:
            if operation[0] != "reset":
                original.apply(operation)
        again = Lived(WAYS_BACK[way](original.table, folder))
        if gate is not None:
            gate.give_back(granted)  # the waiting caller is gone in both tables
        try:
            assert again.state() == original.state()
            for operation in after:
                assert again.apply(operation) == original.apply(operation)
                assert again.state() == original.state()
        finally:
            again.table.close()
            original.table.close()
