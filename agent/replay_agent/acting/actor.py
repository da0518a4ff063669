"""One environment and the epsilon-greedy policy that acts in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from replay_agent.acting.environments import Environment, describe_environment, make_environment
from replay_agent.acting.evaluation import action_values, initial_states
from replay_agent.acting.seeds import ActorSeeds
from replay_agent.dqn.networks import ActingNetwork


def ape_x_epsilons(epsilon: float, alpha: float, count: int) -> tuple[float, ...]:
    """Return the constant probabilities with which ``count`` actors (2 or more) act at random, largest first.

    Actor i, numbered from 0, has the probability ``epsilon ** (1 + i / (count - 1) * alpha)`` (Horgan et al., 2018,
    arXiv:1803.00933, section 4.1).
    """
    return tuple(float(epsilon ** (1 + i / (count - 1) * alpha)) for i in range(count))


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


class Step(NamedTuple):
    """An environment step.

    Attributes:
        obs: observation in which the action was taken.
        action: the action, numbered from 0.
        reward: the resulting reward, clipped if the actor clips rewards.
        next_obs: the observation after the step, not after a reset.
        terminated: the episode reached a terminal state.
        truncated: the episode was cut off.
        state: float32[*state_shape], the recurrent network's state before the step; see `ActingNetwork`.
        value: the network's value of the action; None unless the actor estimates values.
        next_value: the largest action value of ``next_obs``, or 0 if the episode terminated; None if ``value`` is None.
    """

    obs: NDArray[Any]
    action: int
    reward: float
    next_obs: NDArray[Any]
    terminated: bool
    truncated: bool
    state: NDArray[np.float32]
    value: float | None = None
    next_value: float | None = None

    @property
    def is_last(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


class ActorStep(NamedTuple):
    """An environment step, and the episode that it finished, if any."""

    step: Step
    episode: FinishedEpisode | None


class EpsilonGreedyPolicy:
    """Acts at random with probability epsilon, otherwise greedily."""

    def __init__(self, network: ActingNetwork, actions: int, rng: np.random.Generator, device: torch.device) -> None:
        """Use the action values of ``network``. Its weights may change over time."""
        self._network = network
        self._actions = actions
        self._rng = rng
        self._device = device
        self.begin_episode()

    def begin_episode(self) -> None:
        """Reset the state of a recurrent network."""
        self._states = initial_states(self._network, episodes=1)
        self._values: NDArray[np.float32] | None = None

    @property
    def state(self) -> NDArray[np.float32]:
        """The network's state before the next step, float32[*state_shape]."""
        state: NDArray[np.float32] = self._states[0]
        return state

    def look(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the action values of ``obs``, float32[actions], and keep them for `choose`.

        Args:
            obs: any[*observation_shape], the observation to act on next.
        """
        if self._values is None:
            (self._values,), self._states = action_values(self._network, obs[np.newaxis], self._states, self._device)
        return self._values

    def choose(self, obs: NDArray[Any], epsilon: float) -> int:
        """Choose an action for one observation [*observation_shape]."""
        explores = self._rng.random() < epsilon
        if not explores or self._states.size:  # A recurrent network must see every observation.
            best = self.look(obs).argmax()
        self._values = None
        return int(self._rng.integers(self._actions) if explores else best)


class Actor:
    """Plays one episode after another."""

    def __init__(
        self,
        env_id: str,
        seeds: ActorSeeds,
        network: ActingNetwork,
        *,
        actor_id: int = 0,
        device: torch.device | None = None,
        estimates: bool = False,
        clips_rewards: bool = False,
    ) -> None:
        """Create the environment and start an episode.

        Args:
            env_id: Gymnasium id of the environment.
            seeds: seeds of the environment and of exploration.
            network: computes the action values.
            actor_id: recorded in finished episodes.
            device: the network's device; None: the CPU.
            estimates: whether to estimate the values of actions and next observations, for priorities. Not supported
                with a recurrent network, whose state would advance when the next observation is evaluated.
            clips_rewards: whether the rewards of steps are clipped to [-1, 1] (Mnih et al., 2015, Methods). The returns
                of finished episodes are those of the environment.
        """
        self._env: Environment = make_environment(env_id)
        info = describe_environment(self._env, env_id)
        self._policy = EpsilonGreedyPolicy(network, info.actions, seeds.exploration(), device or torch.device("cpu"))
        self._first_action = info.first_action
        self._actor_id = actor_id
        self._estimates = estimates
        self._clips_rewards = clips_rewards
        self._return, self._length = 0.0, 0
        self._obs: NDArray[Any] = _kept(self._env.reset(seed=seeds.environment)[0])

    def step(self, epsilon: float) -> ActorStep:
        """Take one environment step."""
        obs, state = self._obs, self._policy.state
        values = self._policy.look(obs) if self._estimates else None
        action = self._policy.choose(obs, epsilon)
        next_obs, reward, terminated, truncated, _ = self._env.step(self._first_action + action)
        self._obs = _kept(next_obs)
        learned = min(max(float(reward), -1.0), 1.0) if self._clips_rewards else float(reward)
        step = Step(obs, action, learned, self._obs, bool(terminated), bool(truncated), state)
        if values is not None:
            next_value = 0.0 if step.terminated else float(self._policy.look(self._obs).max())
            step = step._replace(value=float(values[action]), next_value=next_value)
        self._return += float(reward)
        self._length += 1
        return ActorStep(step, self._end_episode() if step.is_last else None)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _end_episode(self) -> FinishedEpisode:
        episode = FinishedEpisode(self._return, self._length, self._actor_id)
        self._return, self._length = 0.0, 0
        self._obs = _kept(self._env.reset()[0])
        self._policy.begin_episode()
        return episode


def _kept(observation: NDArray[Any]) -> NDArray[Any]:
    """Copy an observation, because some environments overwrite it before its step is recorded."""
    return np.array(observation)
