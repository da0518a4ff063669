"""The Blind Cliffwalk and its learner, compared with a literal implementation of the paper."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from experiments.cliffwalk.q_learning import QLearner, Representation
from experiments.cliffwalk.walk import ACTIONS, Cliffwalk, Transition


def transitions_of_all_sequences(walk: Cliffwalk) -> Counter[Transition]:
    """Execute each of the 2^n sequences of actions until its episode ends."""
    seen: Counter[Transition] = Counter()
    for actions in itertools.product(range(ACTIONS), repeat=walk.states):
        state = 0
        for action in actions:
            transition = walk.step(state, action)
            seen[transition] += 1
            if transition.terminated:
                break
            state = transition.next_state
    return seen


@pytest.mark.parametrize("states", [2, 3, 7])
def test_the_memory_holds_every_transition_of_every_sequence_of_actions(states: int) -> None:
    walk = Cliffwalk(states)
    columns = walk.memory(np.random.default_rng(0))
    rows = zip(*(columns[name].tolist() for name in Transition._fields), strict=True)
    counted = Counter(Transition(*row) for row in rows)
    assert counted == transitions_of_all_sequences(walk)
    assert counted.total() == walk.memory_size == 2 ** (states + 1) - 2
    assert sum(count for transition, count in counted.items() if transition.reward) == 1


def test_the_order_of_the_memory_is_random_and_repeats_with_its_seed() -> None:
    walk = Cliffwalk(6)
    first, again, other = (walk.memory(np.random.default_rng(seed))["state"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_true_values_are_the_fixed_point_of_q_learning() -> None:
    walk = Cliffwalk(9)
    values = np.zeros((walk.states, ACTIONS))
    for _ in range(walk.states):
        for state, action, reward, next_state, terminated in walk.distinct_transitions():
            values[state, action] = reward + (0.0 if terminated else walk.gamma * values[next_state].max())
    true = [[walk.true_value(state, action) for action in range(ACTIONS)] for state in range(walk.states)]
    np.testing.assert_allclose(values, true)


def test_a_walk_of_one_state_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 states, got 1"):
        Cliffwalk(1)


def features(walk: Cliffwalk, representation: Representation, state: int, action: int) -> np.ndarray:
    """Phi(s, a): features of the state (with a constant in the linear case), in the action's part of the vector."""
    phi = np.zeros((ACTIONS, walk.states + 1))
    phi[action, state] = 1.0
    phi[action, walk.states] = float(representation is Representation.LINEAR)
    return phi.ravel()


@pytest.mark.parametrize("representation", Representation)
def test_the_learner_is_that_of_the_papers_equations(representation: Representation) -> None:
    walk = Cliffwalk(5)
    learner = QLearner(walk, representation, np.random.default_rng(3))
    random = np.random.default_rng(3)
    theta = np.concatenate(
        [random.normal(0, 0.1, (ACTIONS, walk.states)), random.normal(0, 0.1, (ACTIONS, 1))], axis=1
    ).ravel()

    def value(state: int, action: int) -> float:
        return float(theta @ features(walk, representation, state, action))

    kinds = walk.distinct_transitions()
    for choice in np.random.default_rng(4).integers(len(kinds), size=300):
        kind = kinds[choice]
        before = learner.mean_squared_error() * ACTIONS * walk.states
        growth = learner.loss_growth(kind)
        best_next = 0.0 if kind.terminated else max(value(kind.next_state, action) for action in range(ACTIONS))
        td_error = kind.reward + walk.gamma * best_next - value(kind.state, kind.action)
        assert learner.update(kind) == pytest.approx(td_error, abs=1e-12)
        theta += 0.25 * td_error * features(walk, representation, kind.state, kind.action)
        assert learner.mean_squared_error() * ACTIONS * walk.states == pytest.approx(before + growth, abs=1e-12)
        squares = [(value(s, a) - walk.true_value(s, a)) ** 2 for s in range(walk.states) for a in range(ACTIONS)]
        assert learner.mean_squared_error() == pytest.approx(np.mean(squares), abs=1e-12)
        assert learner.is_learned == (np.mean(squares) < 1e-3)
