"""Statistics of the server and its tables."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
import pytest
import replay_server
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2
from replay_server.backends import BACKENDS

from tests.support import formulas
from tests.support.caller import CalledTable, Caller, LearnStream, make_draw, make_update
from tests.support.deadlines import wait_until
from tests.support.refusals import refused
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]
StartServer = Callable[..., ServerProcess]
Call = Callable[[ServerProcess], Caller]
FRACTIONS = [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]


def test_a_new_table_has_figures_of_nothing(table: CalledTable) -> None:
    stats = table.stats()
    assert stats.table == table.describe() or stats.table.uid == table.uid
    for name in ("evicted", "sampled", "updated", "stale", "repeated_inserts", "waiting", "total_mass"):
        assert getattr(stats, name) == 0
    assert (stats.largest_priority, stats.smallest_priority) == (0.0, 0.0)
    assert [*stats.priorities, *stats.ages_s, *stats.times_sampled] == []
    assert stats.bytes > 0


def test_counters_add_up_exactly(new_table: NewTable) -> None:
    table = new_table(capacity=50)
    writer = b"0123456789abcdef"
    table.insert(range(30))
    table.insert(range(40), writer_id=writer, sequence=1)
    table.insert(range(40), writer_id=writer, sequence=1)
    table.insert(range(40), writer_id=writer, sequence=1)
    table.sample(17)
    table.sample(5, draw_mode=replay_pb2.DRAW_MODE_INDEPENDENT)
    stream = LearnStream(table)
    stream.ask(draw=make_draw(7), batches=3, update=make_update([0, 60, 60, -1], [1.0, 2.0, 3.0, 4.0]))
    stream.close()
    table.update([69, 68, 67, 19, 70], np.ones(5))
    stats = table.stats()
    assert (stats.table.inserted, stats.table.size, stats.table.config.capacity) == (70, 50, 50)
    assert stats.evicted == 20
    assert stats.sampled == 17 + 5 + 21
    assert stats.updated == 1 + 3
    assert stats.stale == 2 + 2
    assert stats.repeated_inserts == 2
    table.reset()
    after = table.stats()
    assert (after.evicted, after.table.inserted, after.sampled) == (70, 70, 43)


@pytest.mark.parametrize("size", [1, 2, 10, 4096])
def test_quantiles_of_priority_are_exact_in_small_tables(new_table: NewTable, size: int) -> None:
    table = new_table(capacity=5000)
    priorities = np.random.default_rng(size).exponential(size=size)
    table.insert(range(size), priorities)
    quantiles = table.stats().priorities
    assert [quantile.fraction for quantile in quantiles] == FRACTIONS
    np.testing.assert_allclose([each.value for each in quantiles], np.quantile(priorities, FRACTIONS), rtol=1e-12)


def test_quantiles_of_priority_are_close_in_large_tables(new_table: NewTable) -> None:
    """A quantile of 4096 random rows is within 6 standard deviations of the quantile of all rows."""
    table = new_table(capacity=50_000)
    priorities = np.random.default_rng(0).permutation(50_000) / 50_000
    table.insert(range(50_000), priorities)
    quantiles = {quantile.fraction: quantile.value for quantile in table.stats().priorities}
    assert quantiles[0.0] == 0.0
    assert quantiles[1.0] == priorities.max()
    for fraction in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert abs(quantiles[fraction] - fraction) < 6 * np.sqrt(fraction * (1 - fraction) / 4096)


def test_ages_grow_from_the_newest_row_to_the_oldest(table: CalledTable) -> None:
    began = time.monotonic()
    table.insert([1])
    wait_until(lambda: table.stats().ages_s[0].value > 0.2, "the row has aged")
    table.insert([2])
    ages = table.stats().ages_s
    assert [age.fraction for age in ages] == FRACTIONS
    values = [age.value for age in ages]
    assert values == sorted(values)
    assert 0 <= values[0] < values[-1] <= time.monotonic() - began
    assert values[-1] > 0.2


def test_rates_count_what_just_happened(new_table: NewTable) -> None:
    table = new_table(capacity=1000)
    table.insert(range(500))
    table.sample(300)
    table.update(range(100), np.ones(100))
    rates = table.stats().rates
    assert rates.window_s == 60
    assert rates.inserted_per_s >= 500 / 60
    assert rates.sampled_per_s == pytest.approx(rates.inserted_per_s * 3 / 5, rel=0.2)
    assert rates.updated_per_s == pytest.approx(rates.inserted_per_s / 5, rel=0.2)


def test_all_tables_come_in_the_order_of_their_names(caller: Caller, new_table: NewTable) -> None:
    made = [new_table() for _ in range(3)]
    tables = caller.stub.Stats(replay_pb2.StatsRequest()).tables
    names = [stats.table.config.name for stats in tables]
    assert names == caller.table_names()
    assert {table.name for table in made} <= set(names)
    assert len(caller.stub.Stats(replay_pb2.StatsRequest(table=made[0].name)).tables) == 1


@pytest.fixture
def lone(start_server: StartServer, call: Call) -> tuple[ServerProcess, Caller]:
    """A separate server without other callers."""
    server = start_server()
    return server, call(server)


def test_the_server_counts_its_calls_by_method(lone: tuple[ServerProcess, Caller]) -> None:
    _, caller = lone
    assert [method.method for method in caller.server_stats().methods] == ["Stats"]
    table = caller.create()
    table.insert(range(5))
    for _ in range(7):
        table.sample(2)
    for _ in range(3):
        with refused("INVALID_FIELD"):
            table.sample(0)
    stream = LearnStream(table)
    for _ in range(4):
        stream.ask(draw=make_draw(2))
    methods = {method.method: method for method in caller.server_stats().methods}
    assert list(methods) == sorted(methods)
    assert set(methods) == {"CreateTable", "Insert", "Learn", "Sample", "Stats"}
    assert (methods["Sample"].calls, methods["Sample"].errors, methods["Sample"].active) == (7, 3, 0)
    assert (methods["Learn"].calls, methods["Learn"].errors, methods["Learn"].active) == (4, 0, 1)
    assert methods["Stats"].active == 1
    for method in methods.values():
        if method.method != "Stats":
            assert 0 < method.p50_ms <= method.p99_ms < 1000
            assert 0 < method.mean_ms < 1000
            assert method.calls_per_s >= method.calls / 60
    stream.close()
    assert list(stream.call) == []
    assert caller.method("Learn").active == 0


def test_the_server_describes_its_process(lone: tuple[ServerProcess, Caller]) -> None:
    server, caller = lone
    first = caller.server_stats()
    assert first.version == replay_server.__version__
    assert first.uptime_s >= 0
    assert 10 << 20 < first.resident_bytes < 4 << 30
    assert 0 < first.cpu_s < 600
    second = caller.server_stats()
    assert second.uptime_s > first.uptime_s
    assert os.path.exists(f"/proc/{server.pid}")


def test_bytes_grow_with_the_rows_and_no_further_than_the_ring(new_table: NewTable) -> None:
    table = new_table(capacity=100_000, schema=Schema({"frame": Column("uint8", (256,))}))
    sizes = []
    for _ in range(4):
        for _ in range(40):
            request = replay_pb2.InsertRequest(
                table=table.name, insertion=replay_pb2.Insertion(row_count=1000), rows=bytes(1000 * 256)
            )
            table.stub.Insert(request)
        sizes.append(table.stats().bytes)
    assert sizes[0] < sizes[1] < sizes[2] == sizes[3]
    slots = table.describe().slots
    assert slots * 256 <= sizes[3] <= slots * (256 + 16 + 8) + (4 << 20)


@pytest.mark.timed
@pytest.mark.parametrize("backend", BACKENDS)
def test_figures_of_a_million_rows_take_no_time(new_table: NewTable, backend: str) -> None:
    """The fastest of several calls takes well under 20 ms; other processes may keep the machine busy."""
    table = new_table(capacity=1_000_000, backend=backend, schema=Schema({"value": Column("int8")}))
    random = np.random.default_rng(0)
    for _ in range(200):
        request = replay_pb2.InsertRequest(
            table=table.name,
            insertion=replay_pb2.Insertion(row_count=5000, priorities=random.random(5000).tobytes()),
            rows=bytes(5000),
        )
        table.stub.Insert(request)
    assert table.stats().table.size == 1_000_000
    durations = []
    for _ in range(20):
        began = time.perf_counter()
        table.stats()
        durations.append(time.perf_counter() - began)
    assert min(durations) < 0.02


def test_the_formula_of_the_total_mass_is_that_of_the_draws(new_table: NewTable) -> None:
    table = new_table(parameters={"alpha": 0.8, "epsilon": 0.1, "max_priority": 3.0})
    table.insert(range(100), np.random.default_rng(0).exponential(2.0, size=100))
    rows, stats = table.read(range(100)), table.stats()
    exact = formulas.probabilities("sum_tree", stats.table.config.backend.parameters, rows.priorities)
    mass = np.minimum(rows.priorities + 0.1, 3.0) ** 0.8
    np.testing.assert_allclose(mass / stats.total_mass, exact, rtol=1e-12)
