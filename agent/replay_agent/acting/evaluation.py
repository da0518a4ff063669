"""Plays greedy episodes with given seeds, many in parallel so that the network receives batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from replay_agent.acting.environments import Environment
from replay_agent.dqn.networks import QNetwork

MAX_PARALLEL_EPISODES = 20


class EvaluationStoppedError(Exception):
    """The evaluation was stopped; there is no result."""


@dataclass(frozen=True)
class EvaluationResult:
    """Returns of greedy episodes.

    Attributes:
        returns: float64[episodes], undiscounted, in the order of the seeds.
        lengths: int64[episodes], environment steps.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())


def evaluate(
    network: QNetwork,
    make_env: Callable[[], Environment],
    seeds: Sequence[int],
    *,
    first_action: int = 0,
    device: torch.device | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> EvaluationResult:
    """Play one greedy episode per seed.

    Args:
        network: computes the action values.
        make_env: creates an environment.
        seeds: one seed per episode, passed to ``reset``.
        first_action: the number that the environment uses for action 0.
        device: the network's device; None: the CPU.
        should_stop: called before every step; True stops the evaluation.

    Raises:
        EvaluationStoppedError: ``should_stop`` returned True.
    """
    returns: list[float] = []
    lengths: list[int] = []
    environments = [make_env() for _ in range(min(len(seeds), MAX_PARALLEL_EPISODES))]
    try:
        for start in range(0, len(seeds), MAX_PARALLEL_EPISODES):
            part = seeds[start : start + MAX_PARALLEL_EPISODES]
            episodes = [_Episode(env, env.reset(seed=seed)[0]) for env, seed in zip(environments, part, strict=False)]
            _play(network, episodes, first_action, device, should_stop)
            returns += [episode.total for episode in episodes]
            lengths += [episode.length for episode in episodes]
    finally:
        for env in environments:
            env.close()
    return EvaluationResult(np.array(returns, dtype=np.float64), np.array(lengths, dtype=np.int64))


@dataclass
class _Episode:
    env: Environment
    obs: NDArray[Any]
    total: float = 0.0
    length: int = 0
    done: bool = False

    def step(self, action: int) -> None:
        self.obs, reward, terminated, truncated, _ = self.env.step(action)
        self.total += float(reward)
        self.length += 1
        self.done = terminated or truncated


def _play(
    network: QNetwork,
    episodes: Sequence[_Episode],
    first_action: int,
    device: torch.device | None,
    should_stop: Callable[[], bool],
) -> None:
    """Play all episodes until they end."""
    running = list(episodes)
    while running:
        if should_stop():
            raise EvaluationStoppedError
        actions = greedy_actions(network, np.stack([episode.obs for episode in running]), device)
        for episode, action in zip(running, actions, strict=True):
            episode.step(first_action + int(action))
        running = [episode for episode in running if not episode.done]


@torch.inference_mode()
def greedy_actions(network: QNetwork, observations: NDArray[Any], device: torch.device | None) -> NDArray[np.int64]:
    """Return the greedy actions, int64[batch], for observations [batch, *observation_shape]."""
    values = network(torch.as_tensor(observations, device=device))
    actions: NDArray[np.int64] = values.argmax(dim=1).cpu().numpy()
    return actions
