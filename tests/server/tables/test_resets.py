"""Resets and drops of tables with many rows: they delay no other call, and change nothing if memory is lacking."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_proto.schema import Column, Schema
from replay_proto.steps import Steps, Transitions
from replay_server.auth import Caller
from replay_server.catalog import Catalog
from replay_server.errors import RequestError
from replay_server.storage.root import Root
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.storage.table_state import TableState
from replay_server.table.draws import Draw
from replay_server.table.items.step_windows import StepWindows
from replay_server.table.table import NewRows, Table

from tests.support.drawing import draw_batch
from tests.support.examples import examples
from tests.support.invariants import check_table
from tests.support.step_oracle import plain_run, runs_of

ONE_BYTE = Schema({"x": Column("uint8")})
STEPS = Steps.of(ONE_BYTE.columns, Transitions(n_step=3))
CONFIGS: dict[str, dict[str, Any]] = {
    "rank": {"backend": "rank"},
    "sum_tree": {"backend": "sum_tree"},
    "uniform": {"backend": "uniform"},
    "steps": {"backend": "rank", "steps": STEPS},
}
SHM = Path("/dev/shm")
MOST_ON_THE_LOOP_S = 0.004
"""CPU time of the event loop. Other processes can only add to it, because they use the same caches."""
ATTEMPTS = 3
"""The least CPU time of so many counts."""


def config_of(kind: str, capacity: int, schema: Schema = ONE_BYTE) -> TableConfig:
    return TableConfig("t", schema, capacity, **CONFIGS[kind])


def full_table(root: Root, kind: str, rows: int, schema: Schema = ONE_BYTE) -> None:
    """Store a table with this many rows; in a table of steps, all of one episode."""

    def fill(directory: TableDirectory) -> None:
        directory.rows.reserve(0, rows)
        directory.priorities[:rows] = np.arange(rows) % 1009
        if kind == "steps":
            directory.rows.rings()[-1].store(0, runs_of((0, 0, 0, rows, 0)).links())
        directory.header.set(TableState(inserted=rows))

    TableDirectory.create(root.tables, config_of(kind, rows, schema), fill=fill).close()


def some_rows(kind: str, count: int) -> NewRows:
    runs = runs_of((1, 0, 0, count, 0)) if kind == "steps" else plain_run(count)
    return NewRows({"x": np.arange(count, dtype=np.uint8)}, count, None, runs)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_reset_of_many_rows_hardly_uses_the_event_loop(tmp_path: Path, kind: str) -> None:
    rows, spent_s = examples(400_000), list[float]()

    async def test(root: Root) -> None:
        catalog = Catalog(root)
        catalog.open_tables()
        table = catalog.find("t")
        assert table.size == rows
        began = time.thread_time()
        assert await catalog.reset(catalog.lease("t"), Caller()) == rows
        spent_s.append(time.thread_time() - began)
        check_table(table)
        await catalog.lease("t").admission.insert(Caller(), some_rows(kind, 20), None, None)
        assert set(draw_batch(table, Draw(64, beta=1.0)).keys.tolist()) <= set(range(rows, rows + 20))
        check_table(table)
        catalog.close()

    for attempt in range(ATTEMPTS):
        root = Root.durable(tmp_path / str(attempt))
        full_table(root, kind, rows)
        run(partial(test, root))
    assert min(spent_s) < MOST_ON_THE_LOOP_S


@pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm")
def test_a_drop_of_many_rows_hardly_uses_the_event_loop() -> None:
    root, spent_s = Root.in_memory(SHM), list[float]()

    async def test() -> None:
        catalog = Catalog(root)
        catalog.open_tables()
        began = time.thread_time()
        await catalog.drop("t", b"")
        spent_s.append(time.thread_time() - began)
        assert list(catalog.folder.iterdir()) == []
        catalog.close()

    try:
        for _ in range(ATTEMPTS):
            full_table(root, "rank", 200_000, Schema({"x": Column("uint8", (500,))}))
            run(test)
    finally:
        root.close()
    assert min(spent_s) < MOST_ON_THE_LOOP_S


@pytest.mark.parametrize("kind", CONFIGS)
def test_other_calls_see_all_rows_or_none(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw, an update and an insert come before the rows are gone, and again before their priorities are cleared."""

    async def test() -> None:
        catalog = Catalog(Root.durable(tmp_path))
        table, _ = await catalog.create(config_of(kind, 100))
        await catalog.lease("t").admission.insert(Caller(), some_rows(kind, 50), None, None)
        seen: list[tuple[int, int]] = []
        inserts: list[asyncio.Task[range]] = []

        async def in_steps(work: Callable[..., Any], *args: Any) -> Any:
            seen.append((table.drawable, table.update(np.arange(10), np.full(10, 2.0))[1]))
            if table.drawable:
                draw_batch(table, Draw(16, beta=1.0))
            assert table.largest_priority == (2.0 if table.drawable else 0.0)
            assert (table.total_mass > 0) == (table.drawable > 0)
            inserts.append(
                asyncio.create_task(catalog.lease("t").admission.insert(Caller(), late(len(inserts)), None, None))
            )
            await asyncio.sleep(0)
            return work(*args)

        def late(number: int) -> NewRows:
            runs = runs_of((7 + number, 0, 0, 5, 0)) if kind == "steps" else plain_run(5)
            return NewRows({"x": np.zeros(5, np.uint8)}, 5, None, runs)

        drawable = table.drawable
        monkeypatch.setattr(asyncio, "to_thread", in_steps)
        assert await catalog.reset(catalog.lease("t"), Caller()) == 50
        assert seen == [(drawable, 0), (0, 10)], "drawable rows and stale keys, before and after"
        assert [await each for each in inserts] == [range(50, 55), range(55, 60)]
        check_table(table)
        monkeypatch.undo()
        catalog.close()

    run(test)


def test_without_memory_for_it_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_: StepWindows) -> StepWindows:
        raise MemoryError

    async def test() -> None:
        catalog = Catalog(Root.durable(tmp_path))
        table, _ = await catalog.create(config_of("steps", 100))
        await catalog.lease("t").admission.insert(Caller(), some_rows("steps", 50), None, None)
        with monkeypatch.context() as patch:
            patch.setattr(StepWindows, "blank", no_memory)
            with pytest.raises(RequestError, match="no space left for table 't'"):
                await catalog.reset(catalog.lease("t"), Caller())
        assert (table.size, table.drawable, table.resets) == (50, 47, 0)
        draw_batch(table, Draw(64, beta=1.0))
        check_table(table)
        assert await catalog.reset(catalog.lease("t"), Caller()) == 50
        catalog.close()

    run(test)


def test_a_server_killed_before_the_priorities_are_cleared_draws_no_old_row(tmp_path: Path) -> None:
    table = Table(TableDirectory.create(tmp_path, config_of("rank", 100)))
    table.insert(some_rows("rank", 50), None)
    table.begin_anew(table.blank())
    table.close()
    again = Table(TableDirectory.open(tmp_path / "t"))
    assert (again.size, again.total_mass) == (0, 0.0)
    again.insert(some_rows("rank", 5), None)
    assert set(draw_batch(again, Draw(64, beta=1.0)).keys.tolist()) <= set(range(50, 55))
    check_table(again)
