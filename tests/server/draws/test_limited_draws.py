"""Tables of any backend that limit how often each row is drawn, by their server.

The oracle of the distribution is the definition in `replay.proto`: rows are drawn one after another, and a row that had
its last draw is out of those that follow, as if it had been evicted.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_proto.rate_limit import RateLimit
from replay_proto.schema import Column, Schema
from replay_proto.v1 import replay_pb2
from replay_server.backends import BACKENDS
from replay_server.errors import RequestError
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import TableDirectory
from replay_server.table.draws import Draw, DrawMode
from replay_server.table.gates import LimiterGate
from replay_server.table.table import NewRows, Table
from scipy import stats

from tests.support import formulas
from tests.support.caller import CalledTable, LearnStream, make_draw
from tests.support.examples import examples
from tests.support.flow import rate_limiter, wait_for_waiting
from tests.support.refusals import refused

NewTable = Callable[..., CalledTable]
INDEPENDENT = replay_pb2.DRAW_MODE_INDEPENDENT
DISTINCT = replay_pb2.DRAW_MODE_WITHOUT_REPLACEMENT
LEAST_P_VALUE = 1e-3
DRAWS = 2000


def one_after_another(
    backend: str, parameters: Mapping[str, float], priorities: list[float], left: tuple[int, ...], count: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield each ordered draw of ``count`` rows, and its probability."""
    if not count:
        yield (), 1.0
        return
    rows = [row for row, times in enumerate(left) if times]
    chances = formulas.probabilities(backend, parameters, np.array([priorities[row] for row in rows]))
    for row, chance in zip(rows, chances.tolist(), strict=True):
        fewer = tuple(times - (each == row) for each, times in enumerate(left))
        for others, chance_of_others in one_after_another(backend, parameters, priorities, fewer, count - 1):
            yield (row, *others), chance * chance_of_others


@pytest.mark.parametrize(("times", "priorities"), [(1, [0.3, 2.0, 0.7, 1.1]), (2, [0.3, 20.0, 0.7]), (1, [1, 1e9, 2])])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ordered_draws_have_the_exact_distribution(
    tmp_path: Path, backend: str, times: int, priorities: list[float]
) -> None:
    """Without a server: what is drawn and not handed out can be drawn again."""
    number, count = len(priorities), 3
    schema = Schema({"value": Column("int64")})
    config = TableConfig("limited", schema, 100, backend, {"max_times_sampled": times}, seed=5)
    table = Table(TableDirectory.create(tmp_path, config))
    table.insert(NewRows({"value": np.arange(number)}, number, np.array(priorities, np.float64)), None)
    draw = Draw(count, beta=1.0, mode=DrawMode.INDEPENDENT)
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(DRAWS):
        (batch,) = table.draw_at(draw, table.draws.choose_points(draw, 1))
        found[tuple(batch.keys.tolist())] += 1
        if backend != "rank":  # by rank, other rows have other masses once one is out
            before = formulas.probabilities(backend, config.parameters, np.array(priorities))
            np.testing.assert_allclose(batch.probabilities, before[batch.keys], rtol=1e-12)
    table.close()
    chances = dict(one_after_another(backend, config.parameters, priorities, (times,) * number, count))
    assert found.keys() <= chances.keys()
    expected = np.array([DRAWS * chance for chance in chances.values()])
    observed = np.array([found[order] for order in chances])
    group = np.where(expected < 5, expected.argmax(), np.arange(len(expected)))  # rare ones count as the most frequent
    seen, due = (np.bincount(group, values, len(expected))[np.unique(group)] for values in (observed, expected))
    assert stats.chisquare(seen, due * seen.sum() / due.sum()).pvalue > LEAST_P_VALUE


@pytest.mark.parametrize(
    ("times", "mode"),
    [*((times, mode) for times in (1, 3) for mode in (replay_pb2.DRAW_MODE_STRATIFIED, INDEPENDENT)), (1, DISTINCT)],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_row_is_drawn_so_often_and_then_no_more(
    new_table: NewTable, backend: str, times: int, mode: replay_pb2.DrawMode
) -> None:
    table = new_table(backend=backend, parameters={"max_times_sampled": times}, capacity=1000)
    table.insert(np.arange(600), np.random.default_rng(0).exponential(size=600) ** 8)
    drawn: Counter[int] = Counter()
    stream = LearnStream(table)
    for _ in range(10 * times):
        for batch in stream.ask(draw=make_draw(20, draw_mode=mode), batches=3)[1]:
            drawn.update(batch.keys.tolist())
    stream.close()
    assert (set(drawn), set(drawn.values())) == (set(range(600)), {times})
    with refused("TABLE_EMPTY"):
        table.sample(1, draw_mode=mode)
    if times > 1:
        with refused("INVALID_FIELD", field="draw_mode"):
            table.sample(1, draw_mode=DISTINCT)
    described = table.describe()
    assert (described.size, described.config.backend.parameters["max_times_sampled"]) == (600, times)


def test_a_draw_waits_for_rows_with_draws_left(new_table: NewTable) -> None:
    table = new_table(parameters={"max_times_sampled": 2}, capacity=10)
    table.insert(np.arange(2))
    with refused("LIMITED", waited_for="rows", needed=5):
        table.sample(5)
    request = replay_pb2.SampleRequest(table=table.name, table_uid=table.uid, draw=make_draw(5, wait_s=60.0))
    drawing = table.stub.Sample.future(request, timeout=60)
    wait_for_waiting(table, 1)
    (wait,) = table.stats().waits
    assert (wait.waited_for, wait.have, wait.needed) == ("rows", 4, 5)
    table.insert(np.arange(1))
    assert Counter(np.frombuffer(drawing.result().batch.keys, "<i8").tolist()).most_common(1)[0][1] <= 2
    assert len(table.sample(1).keys) == 1
    with refused("TOO_LARGE", limit=20, setting="capacity * max_times_sampled of the table"):
        table.sample(21, wait_s=60.0)


def test_a_rate_limiter_and_the_limit_of_each_row_both_hold(new_table: NewTable) -> None:
    table = new_table(parameters={"max_times_sampled": 2}, rate_limiter=rate_limiter(4, 1.0, 4.0), capacity=100)
    table.insert(np.arange(4))
    assert len(table.sample(4).keys) == 4
    assert table.stats().rate_limiter.sampled == 4
    with refused("LIMITED"):
        table.sample(4)
    assert not new_table(parameters={"max_times_sampled": 2}).stats().HasField("rate_limiter")


def test_with_a_rate_limiter_a_draw_has_at_most_min_size_rows(new_table: NewTable) -> None:
    table = new_table(parameters={"max_times_sampled": 2}, rate_limiter=rate_limiter(4, 1.0, 4.0), capacity=100)
    table.insert(np.arange(5))
    stream = LearnStream(table)
    with refused("TOO_LARGE", limit=4, setting="min_size of the table's rate limiter, with max_times_sampled"):
        table.sample(5, wait_s=60.0)
    with refused("TOO_LARGE", limit=4, setting="min_size of the table's rate limiter, with max_times_sampled"):
        stream.ask(draw=make_draw(3, wait_s=60.0), batches=2)


@settings(max_examples=examples(60))
@given(
    capacity=st.integers(1, 12),
    times=st.integers(1, 3),
    ratio=st.sampled_from([0.3, 1.0, 2.5]),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=60),
    data=st.data(),
)
def test_a_draw_that_is_not_refused_never_waits_for_ever(
    tmp_path_factory: pytest.TempPathFactory,
    capacity: int,
    times: int,
    ratio: float,
    steps: list[tuple[bool, int]],
    data: st.DataObject,
) -> None:
    """Whatever was inserted and drawn before, a writer that inserts when it may lets the draw proceed."""
    least = data.draw(st.integers(1, capacity), label="min_size")
    limit = RateLimit.of(least, ratio, max(1.0, ratio))
    config = TableConfig(
        "limited", Schema({"value": Column("int64")}), capacity, "uniform", {"max_times_sampled": times}, 1, limit
    )
    table = Table(TableDirectory.create(tmp_path_factory.mktemp("limited"), config))
    gate = table.gate
    assert isinstance(gate, LimiterGate)

    def insert() -> bool:
        if allowed := gate.insert_allowed(1):
            table.insert(NewRows({"value": np.zeros(1, np.int64)}, 1, np.ones(1)), None)
        return allowed

    def draw(rows: int) -> None:
        granted = gate.grant(rows)
        while granted < rows:
            assert insert(), f"blocked with {granted} of {rows} samples granted"
            granted += gate.grant(rows - granted)
        gate.count_drawn(rows)
        wanted = Draw(rows, beta=1.0, mode=DrawMode.INDEPENDENT)
        table.hand_out(table.draw_at(wanted, table.draws.choose_points(wanted, 1)))

    for is_insert, rows in steps:
        if is_insert:
            insert()
        else:
            with contextlib.suppress(RequestError):
                gate.check_draw(rows)
                draw(rows)
    table.close()


def test_learners_at_the_same_time_share_the_draws(new_table: NewTable) -> None:
    """The rows of a draw are large, so that each is gathered in a thread while others choose theirs."""
    table = new_table(parameters={"max_times_sampled": 2}, capacity=4000)
    table.insert(np.arange(40))
    drawn: Counter[int] = Counter()
    lock = threading.Lock()

    def learn() -> None:
        stream = LearnStream(table)
        for _ in range(4):
            batches = stream.ask(draw=make_draw(5, wait_s=60.0))[1]
            with lock:
                drawn.update(batches[0].keys.tolist())
        stream.close()

    learners = [threading.Thread(target=learn) for _ in range(4)]
    for learner in learners:
        learner.start()
    for learner in learners:
        learner.join()
    assert set(drawn.values()) == {2}


def test_rows_that_are_evicted_while_a_draw_waits_for_others(new_table: NewTable) -> None:
    """A draw has been granted 8 of the 9 draws that it needs; inserts then evict all of these rows."""
    table = new_table(parameters={"max_times_sampled": 1}, capacity=9)
    table.insert(np.arange(8))
    request = replay_pb2.SampleRequest(table=table.name, table_uid=table.uid, draw=make_draw(9, wait_s=60.0))
    drawing = table.stub.Sample.future(request, timeout=60)
    wait_for_waiting(table, 1)
    table.insert(np.arange(9))
    assert len(set(np.frombuffer(drawing.result().batch.keys, "<i8").tolist())) == 9
