"""Computes the TD errors of n-step transitions while the steps are recorded, as in Ape-X."""

from __future__ import annotations

from collections import deque


class NStepErrors:
    """Absolute TD errors of the steps of one environment (Horgan et al., 2018, arXiv:1803.00933, algorithm 1).

    The error of a step is known after n steps. At the end of an episode, the last steps have fewer than n steps ahead.
    """

    def __init__(self, n_step: int, gamma: float) -> None:
        """Look ``n_step`` steps ahead, discounted by ``gamma``."""
        self._n_step = n_step
        self._gamma = gamma
        self._pending: deque[tuple[float, float]] = deque()

    def push(self, reward: float, value: float, next_value: float, *, is_last: bool) -> list[float]:
        """Add a step.

        Args:
            reward: its reward.
            value: estimated value of its action.
            next_value: estimated value of the observation after it; 0 in a terminal state.
            is_last: whether the episode ends.

        Returns:
            The errors that are known now, oldest step first: at most one, or at the end of an episode all that remain.
        """
        self._pending.append((reward, value))
        count = len(self._pending) if is_last else max(0, len(self._pending) + 1 - self._n_step)
        return [self._pop(next_value) for _ in range(count)]

    def _pop(self, next_value: float) -> float:
        """Remove the oldest step, and return its error, given the value after the newest one."""
        total = next_value
        for reward, _ in reversed(self._pending):
            total = reward + self._gamma * total
        _, value = self._pending.popleft()
        return abs(total - value)
