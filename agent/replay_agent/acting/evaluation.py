"""Plays greedy or nearly greedy episodes with given seeds, many in parallel so that the network receives batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from replay_agent.acting.environments import Environment
from replay_agent.acting.seeds import evaluated_exploration
from replay_agent.acting.step_guard import STEP_TIMEOUT_S, guarded
from replay_agent.dqn.networks import ActingNetwork, evaluating

MAX_PARALLEL_EPISODES = 20


class EvaluationStoppedError(Exception):
    """The evaluation was stopped; there is no result."""


@dataclass(frozen=True)
class EvaluationResult:
    """Returns of episodes.

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
    network: ActingNetwork,
    make_env: Callable[[], Environment],
    seeds: Sequence[int],
    *,
    first_action: int = 0,
    epsilon: float = 0.0,
    device: torch.device | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    step_timeout_s: float = STEP_TIMEOUT_S,
    parallel: int = MAX_PARALLEL_EPISODES,
) -> EvaluationResult:
    """Play one episode per seed. Equal seeds and networks give equal episodes.

    Args:
        network: computes the action values, in evaluation mode, so without the noise of noisy layers.
        make_env: creates an environment.
        seeds: one seed per episode, passed to ``reset``; random actions depend on it, too.
        first_action: the number that the environment uses for action 0.
        epsilon: probability of a random action; otherwise, actions are greedy.
        device: the network's device; None: the CPU.
        should_stop: called before every step; True stops the evaluation.
        step_timeout_s: seconds after which a step counts as hanging.
        parallel: number of episodes that are played at a time, each in its environment.

    Raises:
        EvaluationStoppedError: ``should_stop`` returned True.
        EnvironmentFailedError: an environment raised an error, or hangs.
    """
    played: list[_Episode] = []
    environments = [make_env() for _ in range(min(len(seeds), parallel))]
    try:
        for start in range(0, len(seeds), parallel):
            part = seeds[start : start + parallel]
            episodes = [
                _Episode.begin(env, seed, step_timeout_s) for env, seed in zip(environments, part, strict=False)
            ]
            with evaluating(network):
                _play(network, episodes, first_action, epsilon, device, should_stop)
            played += episodes
    finally:
        for env in environments:
            env.close()
    return EvaluationResult(
        np.array([episode.total for episode in played], np.float64),
        np.array([episode.length for episode in played], np.int64),
    )


@dataclass
class _Episode:
    env: Environment
    obs: NDArray[Any]
    random: np.random.Generator
    timeout_s: float
    total: float = 0.0
    length: int = 0
    done: bool = False

    @classmethod
    def begin(cls, env: Environment, seed: int, timeout_s: float) -> _Episode:
        with guarded(_name_of(env), timeout_s):
            obs, _ = env.reset(seed=seed)
        return cls(env, obs, evaluated_exploration(seed), timeout_s)

    def step(self, action: int) -> float:
        """Take a step, and return its reward."""
        with guarded(_name_of(self.env), self.timeout_s):
            self.obs, reward, terminated, truncated, _ = self.env.step(action)
        self.total += float(reward)
        self.length += 1
        self.done = terminated or truncated
        return float(reward)


def _name_of(env: Environment) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def _play(
    network: ActingNetwork,
    episodes: Sequence[_Episode],
    first_action: int,
    epsilon: float,
    device: torch.device | None,
    should_stop: Callable[[], bool],
) -> None:
    """Play all episodes until they end."""
    running = list(episodes)
    states = np.zeros((len(running), *network.state_shape), np.float32)
    while running:
        if should_stop():
            raise EvaluationStoppedError
        observations = np.stack([episode.obs for episode in running])
        values, states = action_values(network, observations, states, device)
        actions = values.shape[1]
        chosen = values.argmax(axis=1)
        for place, episode in enumerate(running):
            if episode.random.random() < epsilon:
                chosen[place] = episode.random.integers(actions)
        rewards = [episode.step(first_action + int(action)) for episode, action in zip(running, chosen, strict=True)]
        network.remember(states, chosen, np.array(rewards))
        states = states[[not episode.done for episode in running]]
        running = [episode for episode in running if not episode.done]


@torch.inference_mode()
def action_values(
    network: ActingNetwork, observations: NDArray[Any], states: NDArray[np.float32], device: torch.device | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute the action values of one step in each of several episodes.

    Args:
        network: computes the action values.
        observations: any[episodes, *observation_shape].
        states: float32[episodes, *state_shape], the network's states before the step.
        device: the network's device; None: the CPU.

    Returns:
        The action values, float32[episodes, actions], and the states after the step.
    """
    values, after = network.act(torch.as_tensor(observations, device=device), torch.as_tensor(states, device=device))
    return values.cpu().numpy(), after.cpu().numpy()
