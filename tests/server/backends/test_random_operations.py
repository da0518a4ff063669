"""Random operations on every backend, checked against the oracle after each one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray
from replay_server.backends import BACKENDS

from tests.server.backends.indexed_ring import IndexedRing

SHAPES = ("random", "equal", "few values", "rising", "falling", "zero", "huge range")
PARAMETERS: dict[str, st.SearchStrategy[dict[str, float]]] = {
    "rank": st.fixed_dictionaries({}, optional={"alpha": st.sampled_from([0.0, 0.6, 1.0, 3.0, 500.0])}),
    "sum_tree": st.fixed_dictionaries(
        {},
        optional={
            "alpha": st.sampled_from([0.0, 0.5, 1.0, 2.0, 40.0]),
            "epsilon": st.sampled_from([0.0, 1e-6, 1.0]),
            "max_priority": st.sampled_from([0.5, 10.0]),
        },
    ),
    "uniform": st.just({}),
}


def priorities_of(shape: str, count: int, seed: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    match shape:
        case "random":
            made = generator.exponential(size=count)
        case "equal":
            made = np.full(count, 1.0 + seed % 3)
        case "few values":
            made = generator.integers(0, 4, size=count).astype(np.float64)
        case "rising":
            made = np.sort(generator.random(count))
        case "falling":
            made = -np.sort(-generator.random(count))
        case "zero":
            made = np.zeros(count)
        case _:
            made = 10.0 ** generator.uniform(-300, 6, size=count)
    return np.asarray(made)


shapes = st.sampled_from(SHAPES)
seeds = st.integers(0, 1000)


class Operations(RuleBasedStateMachine):
    """A ring of some capacity under random operations."""

    backend_name: ClassVar[str]

    @initialize(
        capacity=st.one_of(st.integers(1, 20), st.integers(50, 700)),
        slack=st.integers(1, 200),
        first_key=st.just(0) | st.sampled_from([1 << 31, 1 << 32, 3 << 31, 1 << 47]).map(lambda key: key - 700),
        data=st.data(),
    )
    def make(self, capacity: int, slack: int, first_key: int, data: Any) -> None:
        parameters = data.draw(PARAMETERS[self.backend_name])
        self.ring = IndexedRing(self.backend_name, capacity, slack, parameters, first_key=first_key)

    @rule(count=st.integers(1, 500), shape=shapes, seed=seeds)
    def insert(self, count: int, shape: str, seed: int) -> None:
        self.ring.insert(self.allowed(priorities_of(shape, count, seed)))

    @rule(count=st.integers(1, 10))
    def insert_with_the_largest_priority(self, count: int) -> None:
        self.ring.insert(np.full(count, self.ring.index.largest_priority))

    @precondition(lambda self: self.ring.truth)
    @rule(share=st.floats(0.0, 1.0), shape=shapes, seed=seeds)
    def update(self, share: float, shape: str, seed: int) -> None:
        count = max(1, round(share * len(self.ring.truth)))
        keys = np.random.default_rng(seed).permutation(list(self.ring.truth))[:count]
        self.ring.update(keys, self.allowed(priorities_of(shape, count, seed)))

    @precondition(lambda self: self.ring.truth)
    @rule(first=st.floats(0.0, 1.0), count=st.integers(1, 300), shape=shapes, seed=seeds)
    def update_neighbours_in_rank(self, first: float, count: int, shape: str, seed: int) -> None:
        ranked = sorted(self.ring.truth, key=lambda key: self.ring.truth[key])
        keys = ranked[round(first * (len(ranked) - 1)) :][:count]
        self.ring.update(keys, self.allowed(priorities_of(shape, len(keys), seed)))

    @precondition(lambda self: self.ring.truth)
    @rule(fractions=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), seed=seeds)
    def draw(self, fractions: list[float], seed: int) -> None:
        self.ring.draw(np.concatenate([fractions, np.random.default_rng(seed).random(50)]))

    @rule()
    def reset(self) -> None:
        self.ring.reset()

    @rule()
    def rebuild(self) -> None:
        self.ring.rebuild()

    @invariant()
    def what_it_reports_is_right(self) -> None:
        index, truth = self.ring.index, self.ring.truth
        assert index.largest_priority == max(truth.values(), default=0.0)
        assert index.smallest_priority == min(truth.values(), default=0.0)
        if not truth:
            assert index.total_mass == 0.0
            return
        expected = self.ring.expected()
        np.testing.assert_allclose(index.total_mass, expected.total_mass, rtol=1e-12)
        np.testing.assert_allclose(
            index.smallest_probability(self.ring.live), expected.smallest_probability, rtol=1e-12
        )

    def allowed(self, priorities: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.minimum(priorities, self.ring.index.priority_limit)


def test_random_operations_leave_every_answer_as_the_oracle_says(backend: str) -> None:
    class OperationsOnIt(Operations):
        backend_name = backend

    run_state_machine_as_test(OperationsOnIt, settings=settings(max_examples=60, stateful_step_count=30))


def test_every_backend_has_parameters_to_try() -> None:
    assert set(PARAMETERS) == set(BACKENDS)
