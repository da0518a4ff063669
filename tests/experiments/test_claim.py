"""The paper's claim: with rare rewards, prioritized replay learns from far fewer updates.

This is the Blind Cliffwalk of Schaul et al. (2016, section 3.1) with 8 states, a tabular learner, epsilon 1e-6, and
alpha 0.6 (proportional) or 0.7 (rank-based).
"""

from __future__ import annotations

import statistics

import pytest
from replay_client import ReplayClient

from experiments.cliffwalk.q_learning import Representation
from experiments.cliffwalk.replays import BACKENDS, Method
from experiments.cliffwalk.runs import WalkKey, run
from tests.support.server_process import ServerProcess

STATES = 8
SEEDS = 7
FEWER = 3
MAX_RUN_S = 20.0


def median_updates(client: ReplayClient, method: Method) -> float:
    results = [run(WalkKey(Representation.TABULAR, method, STATES, seed), client, MAX_RUN_S) for seed in range(SEEDS)]
    assert all(result is not None and result.learned for result in results)
    return statistics.median(result.updates for result in results if result is not None)


@pytest.fixture(scope="module")
def uniform_updates(server: ServerProcess) -> float:
    with ReplayClient(server.address) as client:
        return median_updates(client, Method.UNIFORM)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (Method.PROPORTIONAL, ("sum_tree", {"alpha": 0.6, "epsilon": 1e-6})),
        (Method.RANK, ("rank", {"alpha": 0.7})),
    ],
)
def test_prioritized_replay_needs_at_most_a_third_of_the_updates_of_uniform_replay(
    server: ServerProcess, uniform_updates: float, method: Method, parameters: object
) -> None:
    assert BACKENDS[method] == parameters
    with ReplayClient(server.address) as client:
        assert FEWER * median_updates(client, method) <= uniform_updates
