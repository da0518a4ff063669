"""Environments and the epsilon-greedy policy that acts in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from replay_agent.acting.environments import checked_spaces, make_environments
from replay_agent.acting.evaluation import action_values
from replay_agent.acting.seeds import environment_seed, exploration
from replay_agent.acting.step_guard import STEP_TIMEOUT_S, EnvironmentFailedError, guarded
from replay_agent.atari_options import AtariOptions
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
    """

    episode_return: float
    length: int


class Step(NamedTuple):
    """A step of one environment.

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
        episode: the episode, if this is its last step.
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
    episode: FinishedEpisode | None = None

    @property
    def is_last(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


class EpsilonGreedyPolicy:
    """Acts at random with probability epsilon, otherwise greedily, in several environments at once."""

    def __init__(
        self,
        network: ActingNetwork,
        actions: int,
        rng: np.random.Generator,
        device: torch.device,
        count: int = 1,
    ) -> None:
        """Act in ``count`` environments by the action values of ``network``. Its weights may change over time."""
        self._network = network
        self._actions = actions
        self._rng = rng
        self._device = device
        self._states = np.zeros((count, *network.state_shape), np.float32)

    @property
    def states(self) -> NDArray[np.float32]:
        """The network's states before the next step, float32[count, *state_shape]."""
        return self._states

    def after_step(self, actions: NDArray[np.int64], rewards: NDArray[np.float64], is_over: NDArray[np.bool_]) -> None:
        """Keep the states of a recurrent network for the next step, as `ActingNetwork.remember`.

        ``is_over`` bool[count] says which episodes are over.
        """
        if self._states.size:
            self._network.remember(self._states, actions, rewards)
            self._states[is_over] = 0.0

    def values(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the action values of ``obs`` any[count, *observation_shape], float32[count, actions]."""
        values, self._states = action_values(self._network, obs, self._states, self._device)
        return values

    def choose(self, obs: NDArray[Any], epsilon: float, values: NDArray[np.float32] | None = None) -> NDArray[np.int64]:
        """Choose an action in each environment.

        Args:
            obs: any[count, *observation_shape].
            epsilon: probability of a random action.
            values: the result of `values` for ``obs``; None: compute them if they are needed.

        Returns:
            The actions, int64[count].
        """
        explores = self._rng.random(len(obs)) < epsilon
        chosen: NDArray[np.int64] = self._rng.integers(self._actions, size=len(obs))
        if not explores.all() or self._states.size:  # A recurrent network must see every observation.
            values = self.values(obs) if values is None else values
            chosen = np.where(explores, chosen, values.argmax(axis=1))
        return chosen


class Actor:
    """Plays one episode after another, in one or more environments."""

    def __init__(
        self,
        env_id: str,
        seed: int,
        network: ActingNetwork,
        *,
        environments: int = 1,
        atari: AtariOptions | None = None,
        device: torch.device | None = None,
        estimates: bool = False,
        clips_rewards: bool = False,
        step_timeout_s: float = STEP_TIMEOUT_S,
    ) -> None:
        """Create the environments and start their episodes.

        Args:
            env_id: Gymnasium id of the environment.
            seed: seed of the actor, from `RunSeeds.actor`.
            network: computes the action values.
            environments: number of environments. The network computes the values of all of them together.
            atari: how Atari games are played; None: the defaults.
            device: the network's device; None: the CPU.
            estimates: whether to estimate the values of actions and next observations, for priorities. Not supported
                with a recurrent network, whose state would advance when the next observation is evaluated.
            clips_rewards: whether the rewards of steps are clipped to [-1, 1] (Mnih et al., 2015, Methods). The returns
                of finished episodes are those of the environment.
            step_timeout_s: seconds after which a step counts as hanging.

        Raises:
            UnsupportedEnvironmentError: the environment cannot be created, or its spaces are not supported.
            EnvironmentFailedError: an environment raised an error, or hangs, in its reset.
        """
        self._env_id = env_id
        self._envs = make_environments(env_id, environments, atari)
        _, actions = checked_spaces(self._envs.single_observation_space, self._envs.single_action_space, env_id)
        self._first_action = int(actions.start)
        device = device or torch.device("cpu")
        self._policy = EpsilonGreedyPolicy(network, int(actions.n), exploration(seed), device, environments)
        self._estimates = estimates
        self._clips_rewards = clips_rewards
        self._step_timeout_s = step_timeout_s
        self._ahead: NDArray[np.float32] | None = None  # action values of the next observations, if they are known
        self._returns, self._lengths = np.zeros(environments), np.zeros(environments, np.int64)
        with guarded(env_id, step_timeout_s):
            self._obs: NDArray[Any] = self._envs.reset(seed=environment_seed(seed))[0]

    def step(self, epsilon: float) -> list[Step]:
        """Take a step in each environment, any of which may raise `EnvironmentFailedError`."""
        obs, states = self._obs, self._policy.states
        values = self._policy.values(obs) if self._estimates and self._ahead is None else self._ahead
        actions = self._policy.choose(obs, epsilon, values)
        self._obs, next_obs, rewards, terminated, truncated = self._advance(actions)
        is_over = terminated | truncated
        next_values = None
        if values is not None:
            ahead = self._policy.values(next_obs)
            next_values = np.where(terminated, 0.0, ahead.max(axis=1))
            self._ahead = None if is_over.any() else ahead
        learned = np.clip(rewards, -1.0, 1.0) if self._clips_rewards else rewards
        self._policy.after_step(actions, learned, is_over)
        self._returns += rewards
        self._lengths += 1
        return [
            Step(
                obs[env],
                int(actions[env]),
                float(learned[env]),
                next_obs[env],
                bool(terminated[env]),
                bool(truncated[env]),
                states[env],
                None if values is None else float(values[env, actions[env]]),
                None if next_values is None else float(next_values[env]),
                self._end_episode(env) if is_over[env] else None,
            )
            for env in range(len(obs))
        ]

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _advance(self, actions: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
        """Step the environments.

        Returns:
            The observations to act on next, those after the step (which differ where an episode has ended), the
            rewards float64[environments], and the flags of terminated and of truncated episodes.
        """
        with guarded(self._env_id, self._step_timeout_s):
            obs, rewards, terminated, truncated, infos = self._envs.step(self._first_action + actions)
        next_obs, is_over = obs, terminated | truncated
        if is_over.any():
            next_obs = obs.copy()
            for env in is_over.nonzero()[0]:
                next_obs[env] = infos["final_obs"][env]
        rewards = np.asarray(rewards, np.float64)
        for name, numbers in (("a reward", rewards), ("an observation", next_obs)):
            if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
                which = int(np.isfinite(numbers.reshape(len(numbers), -1)).all(axis=1).argmin())
                raise EnvironmentFailedError(
                    f"the environment {self._env_id} returned {name} that is not finite, in step "
                    f"{self._lengths[which]} of an episode: {numbers[which]}"
                )
        return obs, next_obs, rewards, np.asarray(terminated, bool), np.asarray(truncated, bool)

    def _end_episode(self, env: int) -> FinishedEpisode:
        episode = FinishedEpisode(float(self._returns[env]), int(self._lengths[env]))
        self._returns[env], self._lengths[env] = 0.0, 0
        return episode
