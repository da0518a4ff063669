"""Records the steps of an actor: as n-step transitions or, in a compact table, as one row per step."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray
from replay_client import Stack, Steps, Writer

from replay_agent.acting.actor import Step
from replay_agent.dqn.n_step import NStep, Transition
from replay_agent.replay.rows import FRAME, STATE, STEP_REWARD, append_transition


class Recorder(Protocol):
    """Appends rows to a writer."""

    def record(self, step: Step) -> None:
        """Append the rows that a step completes. After the last step of an episode, have the writer send its rows.

        Raises:
            ReplayError: an earlier row could not be sent.
        """


def make_recorder(writer: Writer, n_step: int, gamma: float) -> Recorder:
    """Create the recorder for the writer's table. ``n_step`` and ``gamma`` are those of the run."""
    if writer.steps is None:
        return _TransitionRecorder(writer, NStep(n_step, gamma))
    return _StepRecorder(writer, writer.steps, NStep(n_step, gamma))


class _TransitionRecorder:
    """Appends n-step transitions."""

    def __init__(self, writer: Writer, n_step: NStep) -> None:
        self._writer = writer
        self._n_step = n_step

    def record(self, step: Step) -> None:
        for transition in _push(self._n_step, step):
            append_transition(self._writer, transition)
        if step.is_last:
            self._writer.end_episode()


class _StepRecorder:
    """Appends each step once, with the newest frame of its observation.

    The last frame of an episode is appended in the row that closes it. In a table of sequences, each row also contains
    the state of the recurrent network before the step.

    If the actor estimates values, a step's priority is known only once its n-step transition is complete. The priority
    is then sent with the next row, which completes the step's window.
    """

    def __init__(self, writer: Writer, steps: Steps, n_step: NStep) -> None:
        self._writer = writer
        self._n_step = n_step
        self._priority: float | None = None
        obs = steps.derived["obs"]
        self._is_stacked = isinstance(obs, Stack) and obs.count > 1
        self._has_states = STATE in steps.schema

    def record(self, step: Step) -> None:
        row = {FRAME: self._frame(step.obs), "action": step.action, STEP_REWARD: step.reward}
        if self._has_states:
            row[STATE] = step.state
        self._writer.append(row, priority=self._priority)
        self._priority = None
        priorities = [each.priority for each in _push(self._n_step, step) if each.priority is not None]
        if step.is_last:
            final = {FRAME: self._frame(step.next_obs)}
            self._writer.end_episode(final, terminated=step.terminated, priorities=priorities or None)
        elif priorities:
            (self._priority,) = priorities

    def _frame(self, observation: NDArray[Any]) -> NDArray[Any]:
        newest: NDArray[Any] = observation[-1] if self._is_stacked else observation
        return newest


def _push(n_step: NStep, step: Step) -> list[Transition]:
    return n_step.push(
        step.obs,
        step.action,
        step.reward,
        step.next_obs,
        terminated=step.terminated,
        truncated=step.truncated,
        value=step.value,
        next_value=step.next_value,
    )
