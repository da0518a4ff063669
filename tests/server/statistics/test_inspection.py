"""Inspections of a table, compared with all of its rows, sorted."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import replay_server.table.inspection
from numpy.typing import NDArray
from replay_client import Column, ReplayClient
from replay_proto.v1 import replay_pb2
from replay_server.backends import BACKENDS, LiveRows
from replay_server.table.inspection import LARGEST_ROWS, Rows, Seen, look, rank

from tests.support import formulas
from tests.support.caller import CALL_TIMEOUT_S, CalledTable
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]
MILLION = 1_000_000


def inspect(table: CalledTable, largest: int = 0) -> replay_pb2.InspectResponse:
    request = replay_pb2.InspectRequest(table=table.name, table_uid=table.uid, largest=largest)
    answer = table.stub.Inspect(request, timeout=CALL_TIMEOUT_S)
    assert isinstance(answer, replay_pb2.InspectResponse)
    return answer


def ints(data: bytes) -> NDArray[np.int64]:
    return np.frombuffer(data, "<i8")


def floats(data: bytes) -> NDArray[np.float64]:
    return np.frombuffer(data, "<f8")


def in_order_of_rank(keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions of rows, largest priority first, newest first if equal."""
    return np.lexsort((-keys, -priorities))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [1, 2, 9, 10, 11, 97, 300, 2500])
def test_ranks_are_those_of_all_rows_sorted(new_table: NewTable, backend: str, rows: int) -> None:
    table = new_table(capacity=1500, backend=backend)
    priorities = np.random.default_rng(rows).integers(0, 40, rows) / 8  # many are equal, some are 0
    table.insert(np.arange(rows), priorities)
    stored = table.read(table.live_keys())
    order = in_order_of_rank(stored.keys, stored.priorities)
    answer = inspect(table)
    ranks = ints(answer.by_rank.ranks)
    assert answer.looked_at == answer.table.size == len(order)
    assert (ranks[0], ranks[-1]) == (1, len(order))
    assert (np.diff(ranks) > 0).all()
    assert len(ranks) == len(order) or 500 < len(ranks) <= 1024
    np.testing.assert_array_equal(floats(answer.by_rank.priorities), stored.priorities[order][ranks - 1])
    config = table.describe().config.backend
    exact = formulas.probabilities(backend, config.parameters, stored.priorities)[order]
    np.testing.assert_allclose(floats(answer.by_rank.probabilities), exact[ranks - 1], rtol=1e-9)
    largest = order[:LARGEST_ROWS]
    assert ints(answer.largest.keys).tolist() == stored.keys[largest].tolist()
    assert floats(answer.largest.priorities).tolist() == stored.priorities[largest].tolist()
    np.testing.assert_allclose(floats(answer.largest.probabilities), exact[:LARGEST_ROWS], rtol=1e-9)


@pytest.mark.parametrize("wanted", [1, 37, 100])
def test_as_many_of_the_largest_are_returned_as_wanted(new_table: NewTable, wanted: int) -> None:
    table = new_table(capacity=1500)
    table.insert(np.arange(700), np.random.default_rng(0).integers(0, 40, 700) / 8)
    stored = table.read(table.live_keys())
    order = in_order_of_rank(stored.keys, stored.priorities)
    answer = inspect(table, wanted)
    assert ints(answer.largest.keys).tolist() == stored.keys[order[:wanted]].tolist()
    assert ints(answer.by_rank.ranks)[:wanted].tolist() == list(range(1, wanted + 1))
    assert len(ints(answer.by_rank.ranks)) <= 1024


@pytest.mark.parametrize("wanted", [-1, 101])
def test_no_more_than_a_hundred_are_returned(table: CalledTable, wanted: int) -> None:
    with refused("INVALID_FIELD", field="largest"):
        inspect(table, wanted)


@pytest.mark.parametrize("backend", [*BACKENDS, "fifo"])
def test_an_empty_table_looks_like_nothing(new_table: NewTable, backend: str) -> None:
    answer = inspect(new_table(backend=backend))
    assert (answer.looked_at, answer.total_mass, answer.table.size) == (0, 0, 0)
    assert answer.by_rank == replay_pb2.RankedRows()
    assert answer.largest == replay_pb2.LargestRows()
    assert (answer.ages_s, list(answer.times_sampled)) == (b"", [])


def test_without_mass_all_rows_are_alike(new_table: NewTable) -> None:
    table = new_table(parameters={"epsilon": 0.0})
    table.insert(range(8), np.zeros(8))
    assert floats(inspect(table).by_rank.probabilities).tolist() == [1 / 8] * 8


def test_how_often_rows_were_drawn_is_exact(new_table: NewTable) -> None:
    table = new_table(capacity=40, backend="uniform")
    table.insert(range(70), np.arange(70))
    drawn = np.concatenate([table.sample(33).keys for _ in range(5)])
    answer = inspect(table)
    counts = np.bincount(drawn - 30, minlength=40)
    assert ints(answer.largest.keys).tolist() == list(range(69, 59, -1))
    assert ints(answer.largest.times_sampled).tolist() == counts[::-1][:10].tolist()
    found = {(bar.at_least, bar.at_most): bar.rows for bar in answer.times_sampled}
    assert found == {
        span: rows
        for span in [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31)]
        if (rows := int(((counts >= span[0]) & (counts <= span[1])).sum()))
    }


def test_ages_go_from_the_newest_row_to_the_oldest(new_table: NewTable) -> None:
    table = new_table(capacity=100)
    table.insert(range(50))
    time.sleep(0.3)  # ages are tested
    table.insert(range(50, 100))
    ages = floats(inspect(table).ages_s)
    assert len(ages) == 100
    assert (np.diff(ages) >= 0).all()
    assert (ages[50:] - ages[:50] >= 0.3).all()


def test_of_a_queue_only_rows_that_are_still_there_are_seen(new_table: NewTable) -> None:
    table = new_table(backend="fifo", capacity=50)
    table.insert(range(30), np.arange(30)[::-1])
    table.sample(12)
    answer = inspect(table)
    assert answer.looked_at == 18
    assert ints(answer.largest.keys).tolist() == list(range(12, 22))
    assert set(floats(answer.by_rank.probabilities)) == {1.0}


def test_a_table_that_was_replaced_is_not_looked_into(new_table: NewTable) -> None:
    old = new_table()
    old.drop()
    new_table(old.name)
    with refused("TABLE_REPLACED"):
        inspect(old)


def test_of_a_large_table_the_largest_are_exact_and_the_rest_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_server.table.inspection, "MOST_LOOKED_AT", 20_000)
    monkeypatch.setattr(replay_server.table.inspection, "_PIECE_ROWS", 7_000)
    live = LiveRows(oldest=123_456, size=100_000, slots=101_000)
    random = np.random.default_rng(0)
    ring = np.full(live.slots, -1.0)
    keys = np.arange(live.oldest, live.oldest + live.size)
    ring[keys % live.slots] = random.exponential(size=live.size)
    priorities = ring[keys % live.slots]
    ranked = rank(look(live, ring, random))
    order = in_order_of_rank(keys, priorities)
    assert 0.99 * 20_000 < ranked.looked_at <= 20_000
    assert ranked.largest.keys.tolist() == keys[order[:10]].tolist()
    assert ranked.ranks[:10].tolist() == list(range(1, 11))
    # The rank of the i-th of n chosen rows has a standard deviation of at most sqrt(n) / 2 places.
    true_ranks = live.size - np.searchsorted(np.sort(priorities), ranked.priorities)
    assert np.abs(true_ranks - ranked.ranks).max() < 4 * live.size / (2 * np.sqrt(ranked.looked_at))


def test_rows_that_went_while_it_looked_are_left_out() -> None:
    live = LiveRows(oldest=10, size=20, slots=50)
    ring = np.zeros(50)
    ring[10:30] = np.arange(20, 0, -1)
    ranked = rank(look(live, ring, np.random.default_rng(0)).still_live(25))
    assert (ranked.looked_at, ranked.priorities.tolist()) == (5, [5.0, 4.0, 3.0, 2.0, 1.0])
    assert ranked.largest.keys.tolist() == [25, 26, 27, 28, 29]
    none = Rows(np.empty(0, np.int64), np.empty(0))
    assert rank(Seen(LiveRows(0, 0, 5), 0, none, none)).looked_at == 0


@pytest.mark.timed
def test_a_million_rows_are_looked_into_within_a_second_and_nobody_waits(server: ServerProcess) -> None:
    with ReplayClient(server.address) as client, ReplayClient(server.address) as other:
        table = client.create_table("inspected-million", columns={"x": Column("int8")}, capacity=MILLION)
        table.insert({"x": np.zeros(MILLION, np.int8)}, priorities=np.random.default_rng(0).exponential(size=MILLION))
        looking = other.table(table.name)
        began = time.perf_counter()
        found = looking.inspect()
        assert time.perf_counter() - began < 1
        assert (found.looked_at, found.is_exact) == (MILLION, True)
        assert (found.probabilities * found.rows).sum() == pytest.approx(1, abs=0.01)
        table.drop()
