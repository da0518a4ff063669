"""One environment and the epsilon-greedy policy that acts in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from replay_agent.acting.environments import Environment, describe_environment, make_environment
from replay_agent.acting.evaluation import greedy_actions
from replay_agent.acting.seeds import ActorSeeds
from replay_agent.dqn.n_step import NStep, Transition
from replay_agent.dqn.networks import QNetwork


@dataclass(frozen=True)
class FinishedEpisode:
    """A finished episode.

    Attributes:
        episode_return: undiscounted sum of rewards.
        length: environment steps.
        actor_id: the actor that played it; 0 is the trainer.
    """

    episode_return: float
    length: int
    actor_id: int = 0


class ActorStep(NamedTuple):
    """Transitions completed by a step, oldest first, and the episode that it finished, if any."""

    transitions: list[Transition]
    episode: FinishedEpisode | None


class EpsilonGreedyPolicy:
    """Acts at random with probability epsilon, otherwise greedily."""

    def __init__(self, network: QNetwork, actions: int, rng: np.random.Generator, device: torch.device) -> None:
        """Use the action values of ``network``. Its weights may change over time."""
        self._network = network
        self._actions = actions
        self._rng = rng
        self._device = device

    def choose(self, obs: NDArray[Any], epsilon: float) -> int:
        """Choose an action for one observation [*observation_shape]."""
        if self._rng.random() < epsilon:
            return int(self._rng.integers(self._actions))
        return int(greedy_actions(self._network, obs[np.newaxis], self._device)[0])


class Actor:
    """Plays one episode after another."""

    def __init__(
        self,
        env_id: str,
        seeds: ActorSeeds,
        network: QNetwork,
        *,
        n_step: int,
        gamma: float,
        actor_id: int = 0,
        device: torch.device | None = None,
    ) -> None:
        """Create the environment and start an episode.

        Args:
            env_id: Gymnasium id of the environment.
            seeds: seeds of the environment and of exploration.
            network: computes the action values.
            n_step: steps per transition.
            gamma: discount per step.
            actor_id: recorded in finished episodes.
            device: the network's device; None: the CPU.
        """
        self._env: Environment = make_environment(env_id)
        info = describe_environment(self._env, env_id)
        self._policy = EpsilonGreedyPolicy(network, info.actions, seeds.exploration(), device or torch.device("cpu"))
        self._first_action = info.first_action
        self._accumulator = NStep(n_step, gamma)
        self._actor_id = actor_id
        self._return, self._length = 0.0, 0
        self._obs: NDArray[Any] = _kept(self._env.reset(seed=seeds.environment)[0])

    def step(self, epsilon: float) -> ActorStep:
        """Take one environment step."""
        obs, action = self._obs, self._policy.choose(self._obs, epsilon)
        next_obs, reward, terminated, truncated, _ = self._env.step(self._first_action + action)
        self._obs = next_obs = _kept(next_obs)
        self._return += float(reward)
        self._length += 1
        transitions = self._accumulator.push(
            obs, action, float(reward), next_obs, terminated=terminated, truncated=truncated
        )
        return ActorStep(transitions, self._end_episode() if terminated or truncated else None)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _end_episode(self) -> FinishedEpisode:
        episode = FinishedEpisode(self._return, self._length, self._actor_id)
        self._return, self._length = 0.0, 0
        self._obs = _kept(self._env.reset()[0])
        return episode


def _kept(observation: NDArray[Any]) -> NDArray[Any]:
    """Copy an observation: some environments reuse its memory, but pending transitions still need it."""
    return np.array(observation)
