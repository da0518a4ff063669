"""Several processes on one table: consistent counts, and only inserted rows are drawn."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from threading import Event, Thread

import numpy as np
import pytest
from replay_proto.v1 import replay_pb2

from tests.support.actors import INSERT_ROWS, VALUES_PER_WRITER, insert_for, learn_for
from tests.support.caller import DATA_PATHS, SAME_HOST, WIRE, CalledTable, Caller, new_name, table_config
from tests.support.processes import loaded_processes
from tests.support.server_process import ServerProcess

DURATION_S = 1.0
LEAST_DRAWN = 1000


# Not every data path is combined with every backend, because torn or lost rows do not depend on how rows are chosen.
# The small ring is overwritten most often, which matters most if a client copies rows during inserts.
@pytest.mark.parametrize(
    ("data_path", "backend", "capacity"),
    [(WIRE, "rank", 3000), (SAME_HOST, "sum_tree", 3000), (SAME_HOST, "uniform", 300)],
    indirect=["data_path"],
    scope="session",
)
def test_two_processes_insert_and_two_learn_at_once(
    new_table: Callable[..., CalledTable], server: ServerProcess, data_path: str, backend: str, capacity: int
) -> None:
    table = new_table(capacity=capacity, backend=backend)
    with ProcessPoolExecutor(4, mp_context=loaded_processes()) as pool:
        inserting = [
            pool.submit(insert_for, server.address, table.name, writer, DURATION_S, capacity + 1) for writer in (1, 2)
        ]
        learning = [
            pool.submit(learn_for, server.address, data_path, table.name, learner, DURATION_S, 1000)
            for learner in (1, 2)
        ]
        inserted = [future.result() for future in inserting]
        learned = [future.result() for future in learning]

    stats = table.stats()
    total = sum(each.rows for each in inserted)
    assert total > 2 * capacity, "the ring was not overwritten"
    assert stats.table.inserted == total
    assert (stats.table.size, stats.evicted) == (capacity, total - capacity)
    # If inserts overwrite a batch while a client copies it, the batch is replaced, and both count.
    assert stats.sampled >= sum(each.sampled for each in learned)
    assert stats.updated == sum(each.updated for each in learned)
    assert stats.stale == sum(each.stale for each in learned)
    assert stats.repeated_inserts == 0
    assert sum(bar.rows for bar in stats.times_sampled) == capacity

    first_keys = sorted(key for each in inserted for key in each.first_keys)
    assert first_keys == list(range(0, total, INSERT_ROWS)), "keys have gaps or overlap"
    value_of = {
        key + offset: writer * VALUES_PER_WRITER + number * INSERT_ROWS + offset
        for writer, each in enumerate(inserted, start=1)
        for number, key in enumerate(each.first_keys)
        for offset in range(INSERT_ROWS)
    }
    rows = table.read(table.live_keys())
    assert rows.values.tolist() == [value_of[key] for key in rows.keys.tolist()]
    assert set().union(*(each.values for each in learned)) <= set(value_of.values())
    exact_mass = {"sum_tree": ((rows.priorities + 1e-6) ** 0.6).sum(), "uniform": float(capacity)}
    if backend in exact_mass:
        assert stats.total_mass == pytest.approx(exact_mass[backend], rel=1e-12)
    assert stats.largest_priority == rows.priorities.max()


def test_of_callers_who_race_to_make_a_table_one_makes_it(server: ServerProcess, caller: Caller) -> None:
    request = replay_pb2.CreateTableRequest(config=table_config(new_name()))
    callers = [Caller(server.address) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: each.stub.CreateTable(request), callers))
    assert sorted(answer.created for answer in answers) == [False] * 7 + [True]
    assert len({answer.table.uid for answer in answers}) == 1
    for each in callers:
        each.close()
    caller.table(request.config.name).drop()


@pytest.mark.parametrize("data_path", DATA_PATHS, indirect=True, scope="session")
def test_inserts_without_pause_do_not_tear_rows_that_are_read(
    new_table: Callable[..., CalledTable], server: ServerProcess
) -> None:
    """Large replies are gathered while inserts overwrite the ring."""
    table = new_table(capacity=30_000)
    table.insert(np.arange(30_000))
    stop = Event()

    def insert_without_pause() -> None:
        with Caller(server.address) as caller:
            mine, first = table.through(caller), 0
            while not stop.is_set():
                mine.insert(np.arange(first, first + 10_000))
                first += 10_000

    inserting = Thread(target=insert_without_pause)
    inserting.start()
    try:
        for _ in range(15):
            assert len(table.sample(30_000).values) == 30_000
            rows = table.read(table.live_keys())
            assert len(rows.values) == len(rows.keys)
    finally:
        stop.set()
        inserting.join()
