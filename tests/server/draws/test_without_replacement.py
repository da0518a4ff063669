"""Draws without replacement, compared with the exact distribution of successive draws.

The oracle is the definition in `replay.proto`: one row after another, each in proportion to the mass of the rows that
are not in the batch yet. By rule, rows without mass are never drawn, and rows are drawn uniformly if none has mass.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from replay_proto.v1 import replay_pb2
from replay_server.backends import BACKENDS
from scipy import stats

from tests.support import formulas
from tests.support.caller import CalledTable, LearnStream, make_draw
from tests.support.flow import rate_limiter, wait_for_waiting
from tests.support.refusals import refused

NewTable = Callable[..., CalledTable]
DISTINCT = replay_pb2.DRAW_MODE_WITHOUT_REPLACEMENT
LEAST_P_VALUE = 1e-3
BATCHES = 1500

PRIORITIES = {
    "even": [1.0, 1.0, 1.0, 1.0],
    "usual": [0.3, 2.0, 0.7, 1.1],
    "steep": [1e9, 1.0, 2.0, 1.5],
    "massless": [1.0, 0.0, 2.0, 0.0],
    "no mass": [0.0, 0.0, 0.0, 0.0],
}
PROPORTIONAL = ("sum_tree", {"alpha": 1.0, "epsilon": 0.0})
CASES = [
    *((*PROPORTIONAL, kind, count) for kind in PRIORITIES for count in (3, 4)),
    ("sum_tree", {}, "usual", 3),
    ("rank", {"alpha": 0.7}, "usual", 3),
    ("rank", {"alpha": 12.0}, "usual", 4),
    ("uniform", {}, "usual", 3),
]


def exact(masses: Sequence[float], count: int) -> dict[tuple[int, ...], float]:
    """The probability of each ordered draw of ``count`` of these rows."""
    chances = {}
    for order in itertools.permutations(range(len(masses)), count):
        chance, left = 1.0, list(range(len(masses)))
        for row in order:
            total = sum(masses[each] for each in left)
            chance *= masses[row] / total if total > 0 else 0
            left.remove(row)
        if chance:
            chances[order] = chance
    return chances


@pytest.mark.parametrize(("backend", "parameters", "kind", "count"), CASES, ids=str)
def test_ordered_draws_have_the_exact_distribution(
    new_table: NewTable, backend: str, parameters: dict[str, float], kind: str, count: int
) -> None:
    table = new_table(backend=backend, parameters=parameters, seed=5, capacity=4)
    table.insert(np.arange(4), PRIORITIES[kind])
    masses = formulas.probabilities(backend, table.describe().config.backend.parameters, np.array(PRIORITIES[kind]))
    if np.count_nonzero(masses) < count:
        with refused("INVALID_FIELD", field="batch_size"):
            table.sample(count, draw_mode=DISTINCT)
        return
    stream = LearnStream(table)
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(BATCHES // 4):
        for batch in stream.ask(draw=make_draw(count, draw_mode=DISTINCT), batches=4)[1]:
            found[tuple(batch.keys.tolist())] += 1
            np.testing.assert_allclose(batch.probabilities, masses[batch.keys], rtol=1e-12)
    stream.close()
    chances = exact(masses.tolist(), count)
    assert found.keys() <= chances.keys()
    expected = np.array([BATCHES * chance for chance in chances.values()])
    observed = np.array([found[order] for order in chances])
    rare = expected < 5
    groups = [*zip(observed[~rare], expected[~rare], strict=True), (observed[rare].sum(), expected[rare].sum())]
    seen, due = np.array([group for group in groups if group[1] > 0]).T
    if len(due) > 1:
        assert stats.chisquare(seen, due * seen.sum() / due.sum()).pvalue > LEAST_P_VALUE


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_rows_of_a_large_table_are_drawn_once(new_table: NewTable, backend: str) -> None:
    table = new_table(backend=backend, capacity=5000)
    table.insert(np.arange(5000), np.random.default_rng(0).exponential(size=5000) ** 4)
    batch = table.sample(5000, draw_mode=DISTINCT)
    assert sorted(batch.keys.tolist()) == list(range(5000))
    assert len(set(table.sample(4999, draw_mode=DISTINCT).keys.tolist())) == 4999


def test_the_same_seed_draws_the_same_rows(new_table: NewTable) -> None:
    drawn = []
    for _ in range(2):
        table = new_table(seed=3)
        table.insert(np.arange(100), np.random.default_rng(0).exponential(size=100))
        drawn.append([table.sample(60, draw_mode=DISTINCT).keys.tolist() for _ in range(5)])
    assert drawn[0] == drawn[1]
    assert len({tuple(keys) for keys in drawn[0]}) == 5


def test_a_draw_waits_until_there_are_as_many_rows(table: CalledTable) -> None:
    with refused("TABLE_EMPTY"):
        table.sample(8, draw_mode=DISTINCT)
    table.insert(np.arange(5))
    with refused("LIMITED", waited_for="rows", have=5, needed=8):
        table.sample(8, draw_mode=DISTINCT)
    request = replay_pb2.SampleRequest(
        table=table.name, table_uid=table.uid, draw=make_draw(8, draw_mode=DISTINCT, wait_s=60.0)
    )
    drawing = table.stub.Sample.future(request, timeout=60)
    wait_for_waiting(table, 1)
    (wait,) = table.stats().waits
    assert (wait.waited_for, wait.have, wait.needed) == ("rows", 5, 8)
    table.insert(np.arange(2))
    assert not drawing.done()
    table.insert(np.arange(1))
    assert sorted(np.frombuffer(drawing.result().batch.keys, "<i8").tolist()) == list(range(8))


def test_a_limiter_lets_a_draw_wait_for_no_more_rows_than_it_does_itself(new_table: NewTable) -> None:
    """If a draw waited for more, it would wait for inserts, and they for the draw."""
    table = new_table(rate_limiter=rate_limiter(8, 4.0, 20.0))
    table.insert(np.arange(7))
    with refused("LIMITED", waited_for="rows", have=7, needed=8):
        table.sample(8, draw_mode=DISTINCT)
    table.insert(np.arange(1))
    assert sorted(table.sample(8, draw_mode=DISTINCT).keys.tolist()) == list(range(8))
    assert table.stats().rate_limiter.sampled == 8
    with refused("INVALID_FIELD", field="batch_size"):
        table.sample(9, draw_mode=DISTINCT, wait_s=60.0)
    without_ratio = new_table(rate_limiter=rate_limiter(4))
    without_ratio.insert(np.arange(8))
    assert sorted(without_ratio.sample(8, draw_mode=DISTINCT).keys.tolist()) == list(range(8))


def test_what_can_never_be_drawn_is_refused(new_table: NewTable) -> None:
    table = new_table(capacity=10)
    with refused("TOO_LARGE", limit=10, setting="capacity of the table"):
        table.sample(11, draw_mode=DISTINCT, wait_s=60.0)
    queue = new_table(backend="fifo", parameters={"max_times_sampled": 2.0})
    queue.insert(np.arange(10))
    with refused("INVALID_FIELD", field="draw_mode"):
        queue.sample(4, draw_mode=DISTINCT)
    with refused("INVALID_FIELD", field="batches"):
        LearnStream(table).ask(draw=make_draw(1, draw_mode=DISTINCT, wait_s=60.0), batches=5)
    once = new_table(backend="fifo")
    once.insert(np.arange(10))
    assert once.sample(4, draw_mode=DISTINCT).keys.tolist() == [0, 1, 2, 3]


def test_too_many_rows_with_too_little_mass_are_refused(new_table: NewTable) -> None:
    count = 40_000
    table = new_table(parameters={"alpha": 1.0, "epsilon": 0.0}, capacity=count)
    for first in range(0, count, 2_000):
        table.insert(np.arange(first, first + 2_000), np.full(2_000, 1e-30))
    table.update([7, 8], [1.0, 2.0])
    assert set(table.sample(2, draw_mode=DISTINCT).keys.tolist()) == {7, 8}
    with refused("INVALID_FIELD", field="draw_mode"):
        table.sample(3, draw_mode=DISTINCT)
    table.update([9], [1.0])
    assert set(table.sample(3, draw_mode=DISTINCT).keys.tolist()) == {7, 8, 9}


@pytest.mark.parametrize("limiter", [rate_limiter(100, 4.0, 400.0), rate_limiter(100)])
def test_a_draw_that_is_refused_takes_nothing_from_the_limiter(
    new_table: NewTable, limiter: replay_pb2.RateLimiter
) -> None:
    table = new_table(rate_limiter=limiter, parameters={"alpha": 1.0, "epsilon": 0.0})
    table.insert(np.arange(120), np.repeat([1.0, 0.0], 60))
    for _ in range(10):
        with refused("INVALID_FIELD", field="batch_size"):
            table.sample(64, draw_mode=DISTINCT)
    assert table.stats().rate_limiter.sampled == 0
    table.sample(64)
