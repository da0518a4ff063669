"""Records the steps of actors as rows of the run's table.

The table is a table of steps: it stores each step once, and each frame of a stacked observation once.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from numpy.typing import NDArray
from replay_client import Stack, Steps, Writer, WriterStream

from replay_agent.acting.actor import Step
from replay_agent.algorithms import FRAME, STATE, STEP_REWARD


def make_recorders(writer: Writer, n_step: int, gamma: float) -> list[Recorder]:
    """Create a recorder for each stream of a writer. ``n_step`` and ``gamma`` are those of the run."""
    steps = writer.steps
    assert steps is not None
    return [Recorder(writer[stream], steps, n_step, gamma) for stream in range(len(writer))]


class NStepErrors:
    """Absolute TD errors of the steps of one environment (Horgan et al., 2018, arXiv:1803.00933, algorithm 1).

    The error of a step is known after n steps. At the end of an episode, the last steps have fewer than n steps ahead.
    """

    def __init__(self, n_step: int, gamma: float) -> None:
        self._n_step = n_step
        self._gamma = gamma
        self._pending: deque[tuple[float, float]] = deque()

    def push(self, reward: float, value: float, next_value: float, *, is_last: bool) -> list[float]:
        """Add a step, and return the errors that are known now, oldest step first.

        There is at most one or, at the end of an episode, all that remain.

        Args:
            reward: its reward.
            value: estimated value of its action.
            next_value: estimated value of the observation after it; 0 in a terminal state.
            is_last: whether the episode ends.
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


class Recorder:
    """Appends the steps of one environment to a stream, each once, with the newest frame of its observation.

    The last frame of an episode is appended in the row that closes it. In a table of sequences, each row also contains
    the state of the recurrent network before the step.

    If the actor estimates values, a step's priority is known once its n-step transition is complete.
    """

    def __init__(self, stream: WriterStream, steps: Steps, n_step: int, gamma: float) -> None:
        self._stream = stream
        self._errors = NStepErrors(n_step, gamma)
        self._steps_ago = n_step - 1
        obs = steps.derived["obs"]
        self._is_stacked = isinstance(obs, Stack) and obs.count > 1
        self._has_states = STATE in steps.schema

    def record(self, step: Step) -> None:
        """Append a step and, if it is the last one of an episode, the row that closes the episode.

        Raises:
            ReplayError: an earlier row could not be sent.
        """
        row = {FRAME: self._frame(step.obs), "action": step.action, STEP_REWARD: step.reward}
        if self._has_states:
            row[STATE] = step.state
        priorities: list[float] = []
        if step.value is not None and step.next_value is not None:
            priorities = self._errors.push(step.reward, step.value, step.next_value, is_last=step.is_last)
        if step.is_last:
            self._stream.append(row)
            final = {FRAME: self._frame(step.next_obs)}
            self._stream.end_episode(final, terminated=step.terminated, priorities=priorities or None)
        else:
            priority = priorities[0] if priorities else None
            self._stream.append(row, priority=priority, steps_ago=self._steps_ago)

    def _frame(self, observation: NDArray[Any]) -> NDArray[Any]:
        newest: NDArray[Any] = observation[-1] if self._is_stacked else observation
        return newest
