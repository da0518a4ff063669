"""Makes n-step transitions, which are shorter at the end of an episode."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

Observation = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the replay table.

    Attributes:
        obs: observation in which the action was taken.
        action: the action.
        reward: discounted sum of the next k rewards; k is n, or less at the end of an episode.
        discount: factor for the value of ``next_obs``: ``gamma**k``, or 0 if the episode terminated.
        next_obs: the observation k steps later.
        priority: the absolute TD error; None if the actor does not estimate values.
    """

    obs: Observation
    action: int
    reward: float
    discount: float
    next_obs: Observation
    priority: float | None = None


class NStep:
    """Turns the steps of one environment into n-step transitions.

    Every step yields exactly one transition. The last transitions of an episode span fewer than n steps. They bootstrap
    from the last observation if the episode was truncated, but not if it terminated.

    If the actor estimates values, the transitions include their priorities, as in Ape-X (Horgan et al., 2018,
    arXiv:1803.00933, algorithm 1).
    """

    def __init__(self, n_step: int, gamma: float) -> None:
        """Make transitions of ``n_step`` steps (1 or more), discounted by ``gamma``."""
        if n_step < 1:
            raise ValueError(f"n_step must be 1 or more, got {n_step}")
        self._n_step = n_step
        self._gamma = gamma
        self._pending: deque[_Pending] = deque()

    def push(
        self,
        obs: Observation,
        action: int,
        reward: float,
        next_obs: Observation,
        *,
        terminated: bool,
        truncated: bool,
        value: float | None = None,
        next_value: float | None = None,
    ) -> list[Transition]:
        """Add one environment step and return the transitions that it completes, oldest first.

        Args:
            obs: the observation before the step.
            action: the action taken.
            reward: the resulting reward.
            next_obs: the observation after the step, not after a reset.
            terminated: the episode reached a terminal state.
            truncated: the episode was cut off.
            value: estimated value of the action, for priorities.
            next_value: estimated value of ``next_obs``, for priorities.
        """
        self._pending.append(_Pending(obs, action, float(reward), value))
        if terminated or truncated:
            return [self._pop(next_obs, next_value, terminated=terminated) for _ in range(len(self._pending))]
        if len(self._pending) == self._n_step:
            return [self._pop(next_obs, next_value, terminated=False)]
        return []

    def _pop(self, next_obs: Observation, next_value: float | None, *, terminated: bool) -> Transition:
        """Remove the oldest pending step, and return its transition, which spans all pending steps."""
        total = 0.0
        for step in reversed(self._pending):
            total = step.reward + self._gamma * total
        discount = 0.0 if terminated else self._gamma ** len(self._pending)
        first = self._pending.popleft()
        priority = None
        if first.value is not None and next_value is not None:
            priority = abs(total + discount * next_value - first.value)
        return Transition(first.obs, first.action, total, discount, next_obs, priority)


class _Pending(NamedTuple):
    """A step whose transition is incomplete."""

    obs: Observation
    action: int
    reward: float
    value: float | None
