"""Frequencies and weights of draws through gRPC, compared with the exact distribution.

Tables have seeds and operations a fixed order, so a test that passes once always passes. A correct implementation
satisfies the bounds for all but one seed in several thousand. Draws over other transports must be identical to those
over gRPC, so the statistics also apply to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_proto.v1 import replay_pb2
from replay_server.backends import BACKENDS
from scipy import stats

from tests.support import formulas
from tests.support.caller import SAME_HOST, CalledTable, Caller, LearnStream, Sampled, make_draw, make_update
from tests.support.server_process import ServerProcess

NewTable = Callable[..., CalledTable]
STRATIFIED, INDEPENDENT = replay_pb2.DRAW_MODE_STRATIFIED, replay_pb2.DRAW_MODE_INDEPENDENT
BATCH, TABLE = replay_pb2.WEIGHT_NORM_BATCH, replay_pb2.WEIGHT_NORM_TABLE
LEAST_P_VALUE = 1e-3
"""p-value that a correct implementation falls below for one seed in a thousand."""
CAPACITY = 97
MOST_DRAWS = 1 << 15
"""Maximum rows per call: the server's default."""


@dataclass(frozen=True)
class Subject:
    """A backend with parameters."""

    backend: str
    parameters: dict[str, float]

    def __str__(self) -> str:
        return "-".join([self.backend, *(f"{name}={value:g}" for name, value in self.parameters.items())])


SUM_TREE, RANK, UNIFORM = Subject("sum_tree", {}), Subject("rank", {}), Subject("uniform", {})
OTHER_PARAMETERS = [
    Subject("sum_tree", {"alpha": 1.0, "epsilon": 0.0}),
    Subject("sum_tree", {"alpha": 0.7, "epsilon": 0.01, "max_priority": 2.0}),
    Subject("sum_tree", {"alpha": 0.0}),
    Subject("rank", {"alpha": 1.0}),
]


@dataclass
class Situation:
    """A table in a state, and the exact distribution over its live rows."""

    table: CalledTable
    keys: NDArray[np.int64]
    exact: NDArray[np.float64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, table: CalledTable) -> Situation:
        """Read the rows, and compute the exact distribution."""
        rows = table.read(table.live_keys())
        backend = table.describe().config.backend
        exact = formulas.probabilities(backend.name, backend.parameters, rows.priorities)
        return cls(table, rows.keys, exact, rows.values)

    def probability_of(self, keys: NDArray[np.int64]) -> NDArray[np.float64]:
        """Exact probabilities of these rows."""
        result: NDArray[np.float64] = self.exact[keys - self.keys[0]]
        return result

    def counts(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of times each live row is among these."""
        return np.bincount(keys - self.keys[0], minlength=len(self.keys))


def new_rows(table: CalledTable) -> None:
    """A table that is not full, with priorities over three orders of magnitude, some of them equal."""
    random = np.random.default_rng(1)
    table.insert(np.arange(60), np.round(10 ** random.uniform(-2, 1, 60), 2))


def evicted_rows(table: CalledTable) -> None:
    """A full table whose ring has wrapped several times."""
    new_rows(table)
    random = np.random.default_rng(2)
    for first in range(60, 460, 80):
        table.insert(np.arange(first, first + 80), random.exponential(size=80))


def updated_rows(table: CalledTable) -> None:
    """A full table with most priorities updated, some of them to 0."""
    evicted_rows(table)
    random = np.random.default_rng(3)
    for _ in range(3):
        keys = random.choice(table.live_keys(), 40)
        table.update(keys, random.exponential(size=40) * (random.random(40) < 0.9))


def reset_rows(table: CalledTable) -> None:
    """A reset table with new rows, not full."""
    updated_rows(table)
    table.reset()
    random = np.random.default_rng(4)
    table.insert(np.arange(50), random.exponential(size=50))


STATES = [new_rows, evicted_rows, updated_rows, reset_rows]
SITUATIONS = [
    *itertools.product([SUM_TREE, RANK], STATES),
    *itertools.product([UNIFORM, *OTHER_PARAMETERS], [updated_rows]),
]
"""Different parameters are tested on a full table of very different priorities, where they matter most."""


@pytest.fixture(params=SITUATIONS, ids=lambda made: f"{made[0]}-{made[1].__name__}")
def situation(request: pytest.FixtureRequest, new_table: NewTable) -> Situation:
    """Each backend in each state, and each set of parameters in one state."""
    subject, fill = request.param
    table = new_table(capacity=CAPACITY, backend=subject.backend, parameters=subject.parameters, seed=20)
    fill(table)
    return Situation.of(table)


def test_independent_draws_have_the_exact_distribution(situation: Situation) -> None:
    batches = [situation.table.sample(MOST_DRAWS, draw_mode=INDEPENDENT) for _ in range(2)]
    keys = np.concatenate([batch.keys for batch in batches])
    counts, expected = situation.counts(keys), len(keys) * situation.exact
    assert (counts[situation.exact == 0] == 0).all()
    # Rare rows share a cell, because the chi-square test needs an expected count of at least five in each.
    rare = expected < 5
    observed_cells = np.append(counts[~rare], counts[rare].sum() if rare.any() else [])
    expected_cells = np.append(expected[~rare], expected[rare].sum() if rare.any() else [])
    if len(expected_cells) > 1 and expected_cells[-1] == 0:
        observed_cells, expected_cells = observed_cells[:-1], expected_cells[:-1]
    assert stats.chisquare(observed_cells, expected_cells, sum_check=False).pvalue > LEAST_P_VALUE


def test_independent_draws_do_not_depend_on_each_other(situation: Situation) -> None:
    """Whether a draw falls into the more probable half of the mass is independent of the next draw."""
    batch = situation.table.sample(MOST_DRAWS, draw_mode=INDEPENDENT)
    upper = batch.keys > np.median(batch.keys)
    pairs = np.histogram2d(upper[:-1], upper[1:], bins=2)[0]
    if (pairs.sum(axis=0) > 0).all():
        assert stats.chi2_contingency(pairs).pvalue > LEAST_P_VALUE


def test_stratified_draws_keep_within_the_bounds_of_their_segments(situation: Situation) -> None:
    """A row whose mass spans x segments covers at least floor(x) - 1 completely, and touches at most ceil(x) + 1."""
    for batch_size in (1, 2, 7, 64, 500, 5000, 7, 64, 500):
        counts = situation.counts(situation.table.sample(batch_size).keys)
        spans = batch_size * situation.exact
        slack = 1e-6
        assert (counts >= np.floor(spans - slack) - 1).all()
        assert (counts <= np.ceil(spans + slack) + 1).all()
        assert (counts[situation.exact == 0] == 0).all()


def test_stratified_draws_have_the_exact_expected_counts(situation: Situation) -> None:
    """Over many batches, the mean count of row i is batch_size * P(i), with the variance of its segments.

    The count in a batch is a sum of independent draws, one per segment. Its variance is at most that of independent
    draws from the whole mass. With a z bound of 5 over fewer than a hundred rows, a correct implementation fails once
    in ten thousand times. The sum of squares is bounded similarly.
    """
    batch_size, batches = 32, 1500
    stream = LearnStream(situation.table)
    counts = np.zeros(len(situation.keys))
    for _ in range(batches // 100):
        _, drawn = stream.ask(draw=make_draw(batch_size), batches=100)
        for batch in drawn:
            counts += situation.counts(batch.keys)
    stream.close()
    expected = batches * batch_size * situation.exact
    deviation = np.sqrt(batches * _variance_of_stratified_counts(situation.exact, batch_size))
    assert (np.abs(counts - expected) <= 5 * deviation + 1e-6 * batches).all()


def _variance_of_stratified_counts(exact: NDArray[np.float64], batch_size: int) -> NDArray[np.float64]:
    """Upper bound of the variance of each row's count per batch.

    A row covers some segments completely, which always draw it, and shares at most two segments, each of which adds p *
    (1 - p). The positions of its borders depend on the backend's order of rows, so this assumes the largest possible
    variance: a remainder split into two halves, or two halves of one segment.
    """
    spans = batch_size * exact
    small = spans * (1 - spans)
    bound = np.where(spans < 0.5, np.maximum(small, 2 * (spans / 2) * (1 - spans / 2)), 0.5)
    result: NDArray[np.float64] = bound
    return result


def test_stratified_batches_come_shuffled(situation: Situation) -> None:
    """Position in the batch and key are independent: their rank correlation is no larger than by chance."""
    batch = situation.table.sample(4000)
    correlation = stats.spearmanr(np.arange(4000), batch.keys)
    assert abs(correlation.statistic) < 4 / np.sqrt(4000)


# Weights.


BETAS_AND_MODES = list(itertools.product([0.0, 0.4, 1.0, 2.5], [STRATIFIED, INDEPENDENT]))


def test_each_batch_of_a_request_has_its_own_largest_weight(situation: Situation) -> None:
    stream = LearnStream(situation.table)
    for beta, mode in BETAS_AND_MODES:
        _, batches = stream.ask(draw=make_draw(8, beta=beta, weight_norm=BATCH, draw_mode=mode), batches=5)
        for batch in batches:
            chosen = situation.probability_of(batch.keys)
            expected = formulas.weights(chosen, chosen.min(), len(situation.keys), beta)
            np.testing.assert_allclose(batch.weights, expected, rtol=1e-6)
    stream.close()


def test_weights_over_the_largest_of_the_table(situation: Situation) -> None:
    least = situation.exact[situation.exact > 0].min()
    for beta, mode in BETAS_AND_MODES:
        batch = situation.table.sample(64, beta=beta, weight_norm=TABLE, draw_mode=mode)
        expected = formulas.weights(situation.probability_of(batch.keys), least, len(situation.keys), beta)
        np.testing.assert_allclose(batch.weights, expected, rtol=1e-6)
        assert batch.weights.max() <= 1.0


def test_weights_are_over_the_batch_unless_something_else_is_asked_for(situation: Situation) -> None:
    assert situation.table.sample(4, beta=1.0).weights.max() == 1.0


# Other transports.


def drawn_in_turn(table: CalledTable) -> list[Sampled]:
    """All kinds of batches, from calls and a stream, with updates in between; the last one exceeds a megabyte."""
    updated_rows(table)
    batches = [
        table.sample(batch_size, beta=beta, weight_norm=norm, draw_mode=mode)
        for batch_size, norm in itertools.product((1, 64, 500), (BATCH, TABLE))
        for beta, mode in BETAS_AND_MODES
    ]
    stream = LearnStream(table)
    for mode, norm in itertools.product((STRATIFIED, INDEPENDENT), (BATCH, TABLE)):
        update = make_update(batches[-1].keys[:50], np.linspace(0, 3, 50))
        draw = make_draw(50, beta=1.0, draw_mode=mode, weight_norm=norm)
        batches += stream.ask(update=update, draw=draw, batches=20)[1]
    stream.close()
    return [*batches, table.sample(MOST_DRAWS, beta=0.4)]


@pytest.mark.parametrize("data_path", [SAME_HOST], indirect=True, scope="session")
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_drawn_is_the_same_whichever_way_it_comes(
    new_table: NewTable, server: ServerProcess, backend: str
) -> None:
    found = new_table(capacity=CAPACITY, backend=backend, seed=20)
    with Caller(server.address) as by_grpc:
        table = by_grpc.create(capacity=CAPACITY, backend=backend, seed=20)
        expected = drawn_in_turn(table)
        table.drop()
    for batch, same in zip(drawn_in_turn(found), expected, strict=True):
        assert batch.batch == same.batch
        assert batch.rows == same.rows
