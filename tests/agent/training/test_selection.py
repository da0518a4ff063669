from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from replay_agent.acting.evaluation import EvaluationResult
from replay_agent.dqn.networks import ActingNetwork, NetworkSpec, QNetwork, build_network
from replay_agent.training.selection import NetworkSelector
from torch import nn

EPISODES, SCREENING = 10, 4


def network_of(skill: float, character: int = 0) -> QNetwork:
    """A network whose weights encode its skill, and the seed of its luck."""
    network = build_network(NetworkSpec((2,), "float32", 2, (4,), dueling=False))
    assert isinstance(network.head, nn.Sequential)
    with torch.no_grad():
        cast(nn.Linear, network.head.layer).bias.copy_(torch.tensor([skill, float(character)]))
    return network


class Judge:
    """Simulates episodes. A return is the network's skill, plus luck of the seed, plus luck of network and seed."""

    def __init__(self, common_spread: float = 0.0, own_spread: float = 0.0) -> None:
        self.common_spread = common_spread
        self.own_spread = own_spread
        self.played: list[tuple[float, list[int]]] = []

    def __call__(self, network: ActingNetwork, seeds: Sequence[int]) -> EvaluationResult:
        assert isinstance(network, QNetwork)
        assert isinstance(network.head, nn.Sequential)
        skill, character = cast(nn.Linear, network.head.layer).bias.tolist()
        self.played.append((skill, list(seeds)))
        numbers = np.array(seeds, dtype=np.float64)
        returns = skill + self.common_spread * luck(numbers) + self.own_spread * luck(numbers + 1e6 * (character + 1))
        return EvaluationResult(returns, np.ones(len(seeds), dtype=np.int64))


def luck(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pseudorandom float64[n] with mean 0 and standard deviation 1; a function of the numbers."""
    scrambled = np.sin(numbers * 12.9898 + 4.1) * 43758.5453
    centered: NDArray[np.float64] = (scrambled - np.floor(scrambled) - 0.5) * np.sqrt(12)
    return centered


def select(
    judge: Judge, episodes: int = EPISODES, screening: int = SCREENING, first_seed: int = 0, solved: float = 9.0
) -> NetworkSelector:
    def seeds_of(number: int) -> list[int]:
        start = first_seed + number * episodes
        return list(range(start, start + episodes))

    return NetworkSelector(judge, seeds_of, screening, solved)


def test_the_first_network_is_the_best_and_plays_all_episodes() -> None:
    judge = Judge()
    selector = select(judge)
    found = selector.validate(network_of(1.0))
    assert (found.mean, found.episodes, found.is_best, found.is_solved) == (1.0, 10, True, False)
    assert judge.played == [(1.0, [0, 1, 2, 3]), (1.0, [4, 5, 6, 7, 8, 9])]
    assert selector.best_mean == 1.0


def test_both_networks_play_the_same_episodes_which_are_new_in_each_validation() -> None:
    judge = Judge()
    selector = select(judge)
    for skill in (1.0, 2.0, 3.0):
        assert selector.validate(network_of(skill)).is_best
    assert judge.played[2:6] == [
        (2.0, [10, 11, 12, 13]),
        (1.0, [10, 11, 12, 13]),
        (2.0, [14, 15, 16, 17, 18, 19]),
        (1.0, [14, 15, 16, 17, 18, 19]),
    ]
    assert judge.played[6:8] == [(3.0, [20, 21, 22, 23]), (2.0, [20, 21, 22, 23])]


def test_a_network_that_is_worse_in_the_first_episodes_plays_no_more() -> None:
    judge = Judge()
    selector = select(judge)
    selector.validate(network_of(5.0))
    found = selector.validate(network_of(4.0))
    assert (found.mean, found.episodes, found.is_best, found.is_solved) == (4.0, SCREENING, False, False)
    assert judge.played[2:] == [(4.0, [10, 11, 12, 13]), (5.0, [10, 11, 12, 13])]
    assert selector.best_mean == 5.0


def test_luck_in_the_first_episodes_does_not_choose() -> None:
    class LuckyAtFirst(Judge):
        def __call__(self, network: ActingNetwork, seeds: Sequence[int]) -> EvaluationResult:
            found = super().__call__(network, seeds)
            bonus = 100.0 if found.returns[0] == 9.0 else 0.0
            return EvaluationResult(found.returns + bonus * (len(seeds) == SCREENING) - bonus, found.lengths)

    selector = select(LuckyAtFirst())
    selector.validate(network_of(5.0))
    found = selector.validate(network_of(9.0))
    assert (found.episodes, found.is_best, found.is_solved) == (10, False, False)
    assert selector.best_weights is not None
    assert selector.best_weights["head.layer.bias"][0] == 5.0


def test_of_equal_networks_the_later_is_kept() -> None:
    selector = select(Judge(common_spread=3.0))
    selector.validate(network_of(5.0, character=1))
    assert selector.validate(network_of(5.0, character=2)).is_best
    assert selector.best_weights is not None
    assert selector.best_weights["head.layer.bias"][1] == 2


def test_solved_means_over_all_episodes() -> None:
    assert select(Judge()).validate(network_of(9.0)).is_solved
    assert not select(Judge()).validate(network_of(8.9)).is_solved


def test_a_network_that_is_better_by_a_little_on_every_seed_is_always_accepted() -> None:
    accepted = []
    for run in range(500):
        selector = select(Judge(common_spread=20.0), episodes=100, screening=20, first_seed=1_000 * run)
        selector.validate(network_of(100.0))
        accepted.append(selector.validate(network_of(102.0)).is_best)
    assert all(accepted)


def test_a_network_that_was_lucky_to_become_the_best_does_not_stay_it_for_good() -> None:
    for run in range(50):
        judge = Judge(own_spread=50.0)
        selector = select(judge, episodes=100, screening=20, first_seed=10_000 * run)
        for equal in range(10):
            selector.validate(network_of(100.0, character=equal))
        # An advantage of one standard error of the difference: each attempt is accepted with a probability of about
        # 1/2.
        tries = [selector.validate(network_of(107.0, character=50)).is_best for _ in range(20)]
        assert any(tries)


def test_a_network_that_is_clearly_worse_is_hardly_ever_accepted() -> None:
    accepted = 0
    for run in range(200):
        selector = select(Judge(own_spread=50.0), episodes=100, screening=20, first_seed=1_000 * run)
        selector.validate(network_of(100.0, character=1))
        accepted += selector.validate(network_of(75.0, character=2)).is_best
    assert accepted <= 2


def test_the_best_mean_is_over_all_episodes_that_the_best_network_played() -> None:
    judge = Judge(own_spread=10.0)
    selector = select(judge, solved=1e9)
    selector.validate(network_of(50.0))
    selector.validate(network_of(0.0))
    assert selector.best_mean == pytest.approx(judge(network_of(50.0), range(14)).returns.mean())


def test_a_restored_selector_goes_on_as_the_first_one() -> None:
    first_judge, second_judge = Judge(common_spread=5.0), Judge(common_spread=5.0)
    first = select(first_judge)
    for skill in (3.0, 1.0):
        first.validate(network_of(skill))
    second = select(second_judge)
    second.restore(json.loads(json.dumps(first.to_json())), first.best_weights)
    assert second.best_mean == first.best_mean
    assert first.validate(network_of(4.0)) == second.validate(network_of(4.0))
    assert second_judge.played == first_judge.played[-4:]


def test_the_best_weights_stay_as_they_were_when_the_network_learns_on() -> None:
    selector, network = select(Judge()), network_of(1.0)
    selector.validate(network)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    assert selector.best_weights is not None
    assert all(torch.equal(selector.best_weights[name], before[name]) for name in before)
