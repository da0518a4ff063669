"""The plain Python buffers from the benchmarks as oracles: same draw frequencies as the service.

Tables have seeds and draws a fixed order, so a test that passes once always passes. A correct implementation satisfies
the bound for all but one seed in several thousand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from replay_proto.v1 import replay_pb2
from scipy import stats

from benchmarks.notebook_buffers import BUFFERS, DequeChoice, NotebookBuffer, RecursiveSumTree, SortedList
from tests.support import formulas
from tests.support.caller import CalledTable

NewTable = Callable[..., CalledTable]
LEAST_P_VALUE = 1e-3
ROWS = 61
DRAWS = 32_000
ALPHA = 0.7
SERVED_BY = {
    RecursiveSumTree: ("sum_tree", {"alpha": ALPHA, "epsilon": 0.0}),
    DequeChoice: ("sum_tree", {"alpha": ALPHA, "epsilon": 0.0}),
    SortedList: ("rank", {"alpha": ALPHA}),
}
"""The backend with the same draws as each buffer."""


def priorities_of_rows() -> NDArray[np.float64]:
    """Priorities over almost three orders of magnitude, many of them equal."""
    return np.random.default_rng(5).choice([0.01, 0.1, 0.5, 1.0, 2.0, 7.0], ROWS)


def updates() -> tuple[list[int], list[float]]:
    """New priorities of distinct rows."""
    random = np.random.default_rng(6)
    return random.permutation(ROWS)[:30].tolist(), (random.exponential(size=30) + 0.01).tolist()


def filled(kind: type[NotebookBuffer]) -> NotebookBuffer:
    """A buffer whose rows contain their positions."""
    buffer = kind(
        [(place, np.full(3, place, np.float32)) for place in range(ROWS)], priorities_of_rows().tolist(), ALPHA
    )
    buffer.update(*updates())
    return buffer


@pytest.mark.parametrize("kind", BUFFERS, ids=lambda kind: kind.__name__)
def test_the_service_draws_rows_as_often_as_a_notebook_buffer(kind: type[NotebookBuffer], new_table: NewTable) -> None:
    backend, parameters = SERVED_BY[kind]
    table = new_table(capacity=ROWS, backend=backend, parameters=parameters, seed=7)
    table.insert(np.arange(ROWS), priorities_of_rows())
    table.update(*updates())
    drawn = table.sample(DRAWS, draw_mode=replay_pb2.DRAW_MODE_INDEPENDENT)
    buffer, random = filled(kind), np.random.default_rng(8)
    # Draw one row at a time, because some buffers stratify larger batches.
    places = [buffer.sample(1, random).places[0] for _ in range(DRAWS)]
    counts = np.stack([np.bincount(drawn.keys, minlength=ROWS), np.bincount(places, minlength=ROWS)])
    enough = counts.sum(axis=0) >= 10
    pooled = np.column_stack([counts[:, enough], counts[:, ~enough].sum(axis=1)]) if not enough.all() else counts
    assert stats.chi2_contingency(pooled[:, pooled.sum(axis=0) > 0]).pvalue > LEAST_P_VALUE


@pytest.mark.parametrize("kind", BUFFERS, ids=lambda kind: kind.__name__)
def test_a_notebook_buffer_reports_the_probabilities_of_the_paper(kind: type[NotebookBuffer]) -> None:
    places, changed = updates()
    priorities = priorities_of_rows()
    priorities[places] = changed
    backend, parameters = SERVED_BY[kind]
    exact = formulas.probabilities(backend, parameters, priorities)
    batch = filled(kind).sample(5000, np.random.default_rng(9))
    np.testing.assert_allclose(batch.probabilities, exact[batch.places], rtol=1e-9)
    assert batch.columns[0].tolist() == batch.places
    np.testing.assert_array_equal(batch.columns[1], np.repeat(np.array(batch.places)[:, None], 3, axis=1))
    counts = np.bincount(batch.places, minlength=ROWS)
    assert stats.chisquare(counts, 5000 * exact, sum_check=False).pvalue > LEAST_P_VALUE
