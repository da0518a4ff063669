"""Choosing transitions with a real server, compared with local computation."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
from replay_client import ReplayClient

from experiments.cliffwalk.q_learning import QLearner, Representation
from experiments.cliffwalk.replays import Method, PrioritizedReplay, open_replay
from experiments.cliffwalk.runs import WalkKey, run
from experiments.cliffwalk.walk import COLUMNS, Cliffwalk
from tests.support.server_process import ServerProcess

WALK = Cliffwalk(6)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[ReplayClient]:
    with ReplayClient(server.address) as made:
        yield made


def learner_of(representation: Representation = Representation.TABULAR) -> QLearner:
    return QLearner(WALK, representation, np.random.default_rng(1))


def test_greedy_replay_takes_the_largest_td_error_each_time_and_of_equal_ones_the_newest(client: ReplayClient) -> None:
    learner = learner_of()
    priorities = np.ones(WALK.memory_size)
    with open_replay(Method.GREEDY, client, WALK, "walk-greedy", np.random.default_rng(2)) as replay:
        assert isinstance(replay, PrioritizedReplay)
        for _ in range(3 * WALK.memory_size):
            td_error = learner.update(replay.next(learner))
            assert replay.probability == 1.0
            assert replay.keys[0] == np.flatnonzero(priorities == priorities.max())[-1]
            priorities[replay.keys[0]] = abs(td_error)
            replay.write_back(td_error)


@pytest.mark.parametrize(("method", "alpha"), [(Method.PROPORTIONAL, 0.6), (Method.RANK, 0.7)])
def test_each_draw_knows_of_the_update_before_it(client: ReplayClient, method: Method, alpha: float) -> None:
    learner = learner_of()
    priorities = np.ones(WALK.memory_size)
    keys = np.arange(WALK.memory_size)
    with open_replay(method, client, WALK, f"walk-{method}", np.random.default_rng(2)) as replay:
        assert isinstance(replay, PrioritizedReplay)
        for _ in range(300):
            td_error = learner.update(replay.next(learner))
            if method is Method.PROPORTIONAL:
                masses = (priorities + 1e-6) ** alpha
            else:
                masses = np.empty(len(keys))
                masses[np.lexsort((-keys, -priorities))] = np.arange(1.0, len(keys) + 1) ** -alpha
            assert replay.probability == pytest.approx(masses[replay.keys[0]] / masses.sum(), rel=1e-9)
            priorities[replay.keys[0]] = abs(td_error)
            replay.write_back(td_error)


@pytest.mark.parametrize("representation", Representation)
def test_the_oracle_takes_the_transition_after_which_the_error_is_least(
    client: ReplayClient, representation: Representation
) -> None:
    learner = learner_of(representation)

    def error_after(learner: QLearner, state: int, action: int) -> float:
        imagined = copy.deepcopy(learner)
        imagined.update(WALK.step(state, action))
        return imagined.mean_squared_error()

    with open_replay(Method.ORACLE, client, WALK, "walk-oracle", np.random.default_rng(2)) as replay:
        for _ in range(60):
            errors = {(kind.state, kind.action): error_after(learner, kind.state, kind.action)
                      for kind in WALK.distinct_transitions()}  # fmt: skip
            chosen = replay.next(learner)
            assert errors[chosen.state, chosen.action] == pytest.approx(min(errors.values()), abs=1e-12)
            learner.update(chosen)


def test_uniform_replay_draws_all_transitions_alike(client: ReplayClient) -> None:
    learner = learner_of()
    with open_replay(Method.UNIFORM, client, WALK, "walk-uniform", np.random.default_rng(2)) as replay:
        drawn = [replay.next(learner) for _ in range(20_000)]
    share = np.mean([transition.state == 0 for transition in drawn])
    assert share == pytest.approx(64 / WALK.memory_size, abs=0.02)
    rewards = sum(transition.reward for transition in drawn)
    assert rewards == pytest.approx(20_000 / WALK.memory_size, abs=60)


@pytest.mark.parametrize("method", Method)
def test_a_run_repeats_and_leaves_no_table_behind(client: ReplayClient, method: Method) -> None:
    key = WalkKey(Representation.TABULAR, method, 4, 0)
    first, again = run(key, client, 60.0), run(key, client, 60.0)
    assert first is not None
    assert again is not None
    assert (first.learned, first.updates) == (True, again.updates)
    assert key.table not in {table.name for table in client.tables()}


def test_a_table_that_a_broken_off_run_left_behind_is_replaced(client: ReplayClient) -> None:
    key = WalkKey(Representation.TABULAR, Method.RANK, 3, 7)
    client.create_table(key.table, columns=COLUMNS, capacity=5)
    result = run(key, client, 60.0)
    assert result is not None
    assert result.learned


def test_a_run_is_given_up_when_its_time_is_over(client: ReplayClient) -> None:
    moments = iter(range(10_000))
    result = run(
        WalkKey(Representation.TABULAR, Method.UNIFORM, 10, 0), client, 3.0, clock=lambda: float(next(moments))
    )
    assert result is not None
    assert not result.learned
    assert result.updates == 3 * 256


def test_a_run_that_is_to_stop_has_no_result(client: ReplayClient) -> None:
    assert run(WalkKey(Representation.TABULAR, Method.UNIFORM, 4, 0), client, 3.0, should_stop=lambda: True) is None
