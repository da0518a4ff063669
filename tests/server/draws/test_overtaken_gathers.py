"""Batches whose rows are overwritten during a gather are drawn again and counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_proto.framing import NO_ROWS, Framed
from replay_proto.rate_limit import RateLimit
from replay_proto.steps import Discount, Steps, Transitions
from replay_proto.v1 import replay_pb2
from replay_server.auth import Caller
from replay_server.catalog import Catalog
from replay_server.errors import StoppedError
from replay_server.flow.bounds import Bounds
from replay_server.rpc.call import Call, Stream
from replay_server.rpc.handlers import gathering, sampling
from replay_server.rpc.handlers.sampling import SamplingHandlers
from replay_server.storage.root import Root
from replay_server.storage.runs import GOES_ON
from replay_server.storage.table_config import TableConfig
from replay_server.table.gates import LimiterGate
from replay_server.table.table import NewRows, Table

from tests.support.caller import batches_in, make_draw
from tests.support.inserting import insert_all
from tests.support.invariants import check_table
from tests.support.rows import MUTABLE, WHOLE, columns_of
from tests.support.step_oracle import Run, runs_of

ROWS = 30


def insert(table: Table, count: int) -> None:
    """Insert rows that have their keys as values."""
    insert_all(table, NewRows(columns_of(table.inserted + np.arange(count)), count))


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """A catalog that gathers every batch in a worker thread, however small."""
    monkeypatch.setattr(gathering, "GATHERED_ON_LOOP_BYTES", 0)
    root = Root.in_memory(tmp_path)
    made = Catalog(root)
    yield made
    made.close()
    root.close()


def make_table(catalog: Catalog, name: str) -> Table:
    """A full table with reproducible draws."""
    table, _ = asyncio.run(catalog.create(TableConfig(name, WHOLE, capacity=100, backend="uniform", seed=5)))
    insert(table, 100)
    return table


def overtake(table: Table, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwrite the whole ring during the first few gathers."""
    left, gather = times, gathering._gather

    def gather_overtaken(gathered: Table, *others: Any) -> bytes:
        nonlocal left
        if gathered is table and left:
            left -= 1
            insert(table, table.config.slots)
        return gather(gathered, *others)

    monkeypatch.setattr(gathering, "_gather", gather_overtaken)


def sample(handlers: SamplingHandlers, table: Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Draw a batch, and return the positions of its rows among the live rows."""
    request = replay_pb2.SampleRequest(table=table.name, draw=make_draw(ROWS))
    answer = replay_pb2.SampleResponse.FromString(
        asyncio.run(handlers.sample(Framed(request, NO_ROWS), Call(Caller())))
    )
    keys = np.frombuffer(answer.batch.keys, np.int64)
    assert len(table.live_keys(keys)) == ROWS
    return keys - table.oldest


def learn(handlers: SamplingHandlers, table: Table, batches: int) -> replay_pb2.LearnResponse:
    """Draw batches on a learner's stream."""
    request = replay_pb2.LearnRequest(table=table.name, draw=make_draw(ROWS), batches=batches, ahead=2)
    call = Call(Caller(), Stream(lambda _: None))
    return replay_pb2.LearnResponse.FromString(asyncio.run(handlers.learn(Framed(request, NO_ROWS), call)))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_batch_that_is_drawn_again_counts_once(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    handlers = SamplingHandlers(catalog, same_host=False)
    table = make_table(catalog, "table")
    overtake(table, times, monkeypatch)
    sample(handlers, table)
    assert table.figures.now().sampled == ROWS
    drawn = table.figures.times_sampled(np.arange(table.oldest, table.inserted))
    assert drawn.sum() == ROWS
    check_table(table)


def test_batches_that_are_drawn_again_count_once_on_a_stream(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = SamplingHandlers(catalog, same_host=False)
    table = make_table(catalog, "table")
    overtake(table, 2, monkeypatch)
    answer = learn(handlers, table, batches=3)
    assert [len(batch.values) for batch in batches_in(answer)] == [ROWS] * 3
    figures = table.figures.now()
    assert (figures.sampled, figures.batches, figures.batches_ahead) == (3 * ROWS, 3, 3 * 2 + 0 + 1 + 2)
    check_table(table)


def test_a_batch_that_is_drawn_again_moves_the_seeds_sequence_once(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated batch uses the same points of the mass, and so do all later batches."""
    handlers = SamplingHandlers(catalog, same_host=False)
    overtaken, other = make_table(catalog, "overtaken"), make_table(catalog, "other")
    overtake(overtaken, 2, monkeypatch)
    for _ in range(3):
        np.testing.assert_array_equal(sample(handlers, overtaken), sample(handlers, other))


def test_rows_that_were_evicted_while_they_were_gathered_are_not_counted_as_live(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are intact, thanks to the slack, and returned."""
    handlers = SamplingHandlers(catalog, same_host=False)
    table = make_table(catalog, "table")
    gather = gathering._gather

    def gather_amid_inserts(*arguments: Any) -> bytes:
        insert(table, table.config.slack)
        return gather(*arguments)

    monkeypatch.setattr(gathering, "_gather", gather_amid_inserts)
    answer = learn(handlers, table, batches=1)
    (batch,) = batches_in(answer)
    live = table.live_keys(batch.keys)
    assert 0 < len(live) < ROWS
    assert table.figures.now().sampled == ROWS
    assert table.figures.times_sampled(np.arange(table.oldest, table.inserted)).sum() == len(live)
    check_table(table)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_rows_that_are_updated_while_they_are_gathered_are_not_mixed(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """All rows are updated between the gather of the first column and the others."""
    config = TableConfig("mutable", MUTABLE, capacity=100, backend="uniform", seed=5)
    table, _ = asyncio.run(catalog.create(config))
    insert(table, 100)
    rows, left = table.directory.rows, times
    gather = rows.gather

    def gather_amid_updates(keys: Any, out: Any) -> None:
        nonlocal left
        gather(keys, out)
        if "value" in out and left:
            left -= 1
            table.update_rows(np.arange(100), columns_of(np.arange(100) + 1000 * (times - left)))

    monkeypatch.setattr(rows, "gather", gather_amid_updates)
    answer = learn(SamplingHandlers(catalog, same_host=False), table, batches=1)
    (batch,) = batches_in(answer)  # checks that the values of each row belong together
    assert left == 0
    np.testing.assert_array_equal(batch.values, batch.keys + 1000 * times)


def test_a_failed_draw_that_stands_in_for_a_counted_one_gives_back_no_samples(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a caller who may only read could give back the samples of others, and so hold up their inserts."""
    limit = RateLimit.of(1, 1.0, 1000.0)
    config = TableConfig("table", WHOLE, capacity=100, backend="uniform", seed=5, rate_limit=limit)
    table, _ = asyncio.run(catalog.create(config))
    insert(table, 100)
    handlers = SamplingHandlers(catalog, same_host=True)
    sample(handlers, table)
    assert isinstance(table.gate, LimiterGate)
    before = table.gate.difference

    async def fail(*_: object) -> bytes:
        raise StoppedError

    monkeypatch.setattr(sampling, "reply_with_rows", fail)
    near = replay_pb2.SameHost(owner_id=catalog.owner.id, overtaken=True)
    request = replay_pb2.SampleRequest(table="table", table_uid=table.uid, draw=make_draw(ROWS), same_host=near)
    with pytest.raises(StoppedError):
        asyncio.run(handlers.sample(Framed(request, NO_ROWS), Call(Caller())))
    assert table.gate.difference == before


def test_a_draw_that_waits_again_holds_no_bytes_meanwhile(tmp_path: Path) -> None:
    """Its rows are evicted while it waits for its turn to build a reply. A caller may hold one reply at a time here."""
    root = Root.in_memory(tmp_path)
    catalog = Catalog(root, Bounds(max_outgoing_bytes=1))
    handlers, steps = (
        SamplingHandlers(catalog, same_host=False),
        Steps.of({**WHOLE, "discount": Discount()}, Transitions(2)),
    )
    config = TableConfig(
        "table", steps.schema, capacity=10, backend="uniform", parameters={"max_times_sampled": 1}, steps=steps
    )

    async def main() -> None:
        table, _ = await catalog.create(config)
        admission = catalog.lease("table").admission

        def insert_runs(*runs: Run) -> None:
            count = sum(run[3] for run in runs)
            table.insert(NewRows(columns_of(np.arange(count)), count, None, runs_of(*runs)), None)
            admission.changed()

        async def until(holds: Callable[[], bool]) -> None:
            while not holds():
                await asyncio.sleep(0)

        insert_runs((0, 0, 0, 8, GOES_ON))
        catalog.outgoing.take("", 1)
        call = Call(Caller())
        request = replay_pb2.SampleRequest(table="table", draw=make_draw(6, wait_s=60.0))
        drawing = asyncio.create_task(handlers.sample(Framed(request, NO_ROWS), call))
        await until(lambda: catalog.waiting.total == 1)
        insert_runs(*((stream, 0, 0, 1, GOES_ON) for stream in range(1, 11)))  # no window is complete
        catalog.outgoing.give_back("", 1)
        await until(lambda: catalog.waiting.total == 1 and not catalog.outgoing.total)
        insert_runs((11, 0, 0, 8, GOES_ON))
        answer = replay_pb2.SampleResponse.FromString(await drawing)
        assert len(answer.batch.keys) == 6 * 8
        assert catalog.outgoing.total
        call.sent()
        assert not catalog.outgoing.total

    async def in_time() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(in_time())
    catalog.close()
    root.close()
