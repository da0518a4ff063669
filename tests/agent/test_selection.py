from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from replay_agent.evaluation import EvaluationResult
from replay_agent.networks import NetworkSpec, QNetwork, build_network
from replay_agent.selection import NetworkSelector

SEEDS = list(range(10))
SCREENING = 4


class Judge:
    """Says what each seed's episode would bring, and remembers who asked for which."""

    def __init__(self) -> None:
        self.returns: list[float] = [0.0] * len(SEEDS)
        self.played: list[list[int]] = []

    def __call__(self, network: QNetwork, seeds: Sequence[int]) -> EvaluationResult:
        self.played.append(list(seeds))
        returns = np.array([self.returns[seed] for seed in seeds])
        return EvaluationResult(returns, np.ones(len(seeds), dtype=np.int64))


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def network() -> QNetwork:
    return build_network(NetworkSpec((2,), "float32", 2, (4,), dueling=False))


def select(judge: Judge) -> NetworkSelector:
    return NetworkSelector(judge, SEEDS, SCREENING, solved_return=9.0)


def test_the_first_network_is_the_best_and_plays_all_seeds(judge: Judge, network: QNetwork) -> None:
    judge.returns = [1.0] * 10
    found = select(judge).validate(network)
    assert (found.mean, found.episodes, found.is_best, found.is_solved) == (1.0, 10, True, False)
    assert judge.played == [SEEDS[:SCREENING], SEEDS[SCREENING:]]


def test_a_network_that_is_worse_in_the_first_episodes_plays_no_more(judge: Judge, network: QNetwork) -> None:
    selector = select(judge)
    judge.returns = [5.0] * 10
    selector.validate(network)
    judge.returns = [4.0] * SCREENING + [100.0] * 6
    found = selector.validate(network)
    assert (found.mean, found.episodes, found.is_best) == (4.0, SCREENING, False)
    assert selector.best_mean == 5.0


def test_luck_in_the_first_episodes_does_not_choose(judge: Judge, network: QNetwork) -> None:
    selector = select(judge)
    judge.returns = [5.0] * 10
    selector.validate(network)
    judge.returns = [9.0] * SCREENING + [0.0] * 6
    found = selector.validate(network)
    assert not found.is_best
    assert not found.is_solved
    assert selector.best_mean == 5.0


def test_solved_means_over_all_seeds(judge: Judge, network: QNetwork) -> None:
    judge.returns = [8.5, 9.5] * 5
    assert select(judge).validate(network).is_solved


def test_the_best_weights_stay_as_they_were_when_the_network_learns_on(judge: Judge, network: QNetwork) -> None:
    selector = select(judge)
    selector.validate(network)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    assert selector.best_weights is not None
    assert all(torch.equal(selector.best_weights[name], before[name]) for name in before)
