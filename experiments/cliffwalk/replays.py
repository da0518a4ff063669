"""Methods of choosing the next transition, all based on tables of the replay service.

    with open_replay(Method.PROPORTIONAL, client, walk, table_name, rng) as replay:
        transition = replay.next(learner)
        replay.write_back(learner.update(transition))

If a method uses priorities, each draw reflects the preceding update, as in the paper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from replay_client import ReplayClient, Sampler, Table

from experiments.cliffwalk.q_learning import QLearner
from experiments.cliffwalk.walk import ACTIONS, COLUMNS, Cliffwalk, Transition

PROPORTIONAL_ALPHA: Final = 0.6
RANK_ALPHA: Final = 0.7
PROPORTIONAL_EPSILON: Final = 1e-6
GREEDY_ALPHA: Final = 2000.0
"""A rank exponent so large that 2 ** -alpha is 0 in a float64: the first rank has all the mass."""
ORACLE_GAIN: Final = 1e-4
"""Minimum reduction of the total squared error that counts as a gain for the oracle."""
UNIFORM_BATCH: Final = 4096
"""Batch size of uniform draws. They do not depend on priorities, so they need not be made one by one."""
UNIFORM_PREFETCH: Final = 2


class Method(StrEnum):
    """Method of choosing the next transition."""

    UNIFORM = "uniform"
    ORACLE = "oracle"
    GREEDY = "greedy"
    PROPORTIONAL = "proportional"
    RANK = "rank"


BACKENDS: Final[Mapping[Method, tuple[str, Mapping[str, float]]]] = {
    Method.UNIFORM: ("uniform", {}),
    Method.ORACLE: ("uniform", {}),
    Method.GREEDY: ("rank", {"alpha": GREEDY_ALPHA}),
    Method.PROPORTIONAL: ("sum_tree", {"alpha": PROPORTIONAL_ALPHA, "epsilon": PROPORTIONAL_EPSILON}),
    Method.RANK: ("rank", {"alpha": RANK_ALPHA}),
}
"""Backend and parameters of the table of each method."""


class Replay(Protocol):
    """Chooses transitions from a table."""

    def next(self, learner: QLearner) -> Transition:
        """Return the next transition to learn from."""
        ...

    def write_back(self, td_error: float) -> None:
        """Report the TD error of the last transition."""
        ...


@contextmanager
def open_replay(
    method: Method, client: ReplayClient, walk: Cliffwalk, name: str, rng: np.random.Generator
) -> Iterator[Replay]:
    """Create a table that contains all transitions of a walk. Drop it when the block ends.

    Args:
        method: how to choose transitions.
        client: a client of the server.
        walk: the walk.
        name: name of the table; a table with this name, left over from an interrupted run, is dropped.
        rng: shuffles the transitions, and seeds the table.

    Raises:
        ReplayError: the server refuses or is unreachable.
    """
    backend, parameters = BACKENDS[method]
    if name in {table.name for table in client.tables()}:
        client.drop_table(name)
    seed = int(rng.integers(2**31))
    table = client.create_table(
        name,
        columns=COLUMNS,
        capacity=walk.memory_size,
        backend=backend,
        seed=seed,
        if_exists="open",
        steps=None,
        **parameters,
    )
    try:
        # Without explicit priorities, all rows get the largest one, so each is drawn at least once (section 3.2).
        columns = walk.memory(rng)
        keys = table.insert(columns)
        if method is Method.ORACLE:
            yield OracleReplay(table, walk, columns, keys)
        elif method is Method.UNIFORM:
            with table.sampler(UNIFORM_BATCH, beta=0.0, draw_mode="independent", prefetch=UNIFORM_PREFETCH) as sampler:
                yield UniformReplay(sampler)
        else:
            with table.sampler(1, beta=0.0, prefetch=1) as sampler:
                yield PrioritizedReplay(sampler)
    finally:
        table.drop()


class UniformReplay:
    """Draws transitions uniformly, in batches."""

    def __init__(self, sampler: Sampler) -> None:
        """Draw with a sampler."""
        self._sampler = sampler
        self._drawn: deque[Transition] = deque()

    def next(self, learner: QLearner) -> Transition:
        """Return a transition drawn at random."""
        if not self._drawn:
            batch = next(self._sampler)
            columns = (batch[name].tolist() for name in Transition._fields)
            self._drawn.extend(map(Transition._make, zip(*columns, strict=True)))
        return self._drawn.popleft()

    def write_back(self, td_error: float) -> None:
        """Do nothing: draws do not depend on priorities."""


class PrioritizedReplay:
    """Draws one transition at a time, according to the current priorities."""

    def __init__(self, sampler: Sampler) -> None:
        """Draw with a sampler of batches of 1, without prefetching."""
        self._sampler = sampler
        self.keys: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        """int64[1]: key of the last transition."""
        self.probability = 0.0
        """Probability with which the last transition was drawn."""

    def next(self, learner: QLearner) -> Transition:
        """Return a transition drawn by priority."""
        batch = next(self._sampler)
        self.keys = batch.row_keys
        self.probability = float(batch.probabilities[0])
        return _first_row(batch)

    def write_back(self, td_error: float) -> None:
        """Set the priority of the transition. The update is sent with the next draw, and applied before it."""
        self._sampler.update_priorities(self.keys, [abs(td_error)])


class OracleReplay:
    """Picks the transition that lowers the global loss most, in hindsight (section 3.1), and reads it by key.

    The global loss is the total squared error to the true values. If values share parameters, sometimes no update
    lowers the loss noticeably. Then the oracle picks the transition with the largest TD error, until updates lower the
    loss again.
    """

    def __init__(
        self, table: Table, walk: Cliffwalk, columns: Mapping[str, NDArray[np.generic]], keys: NDArray[np.int64]
    ) -> None:
        """Find the key of one row for each kind of transition.

        Args:
            table: the filled table.
            walk: the walk.
            columns: the inserted rows, by column.
            keys: int64[n]: the keys of the rows.
        """
        self._table = table
        self._kinds = walk.distinct_transitions()
        codes = columns["state"].astype(np.int64) * ACTIONS + columns["action"].astype(np.int64)
        self._keys = keys[np.unique(codes, return_index=True)[1]]

    def next(self, learner: QLearner) -> Transition:
        """Read the best transition from the table."""
        growths = [learner.loss_growth(kind) for kind in self._kinds]
        best = int(np.argmin(growths))
        if growths[best] > -ORACLE_GAIN:
            best = int(np.argmax([abs(learner.td_error(kind)) for kind in self._kinds]))
        return _first_row(self._table.read(self._keys[best : best + 1]))

    def write_back(self, td_error: float) -> None:
        """Do nothing: the oracle inspects the learner directly."""


def _first_row(rows: Any) -> Transition:
    return Transition(*(rows[name][0].item() for name in Transition._fields))
