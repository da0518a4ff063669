"""Defines the columns of the replay table, records the steps of actors in them, and converts batches.

A compact table is a table of steps: it stores each step once, and each frame of a stacked observation once. Batches of
transitions have the same columns in both kinds of tables.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from numpy.typing import NDArray
from replay_client import Column, Discount, Mask, Return, Stack, Steps, Writer
from replay_client.torch import TensorBatch
from replay_proto.steps import Derived

from replay_agent.acting.actor import Step
from replay_agent.acting.environments import EnvironmentInfo
from replay_agent.dqn.double_dqn import TransitionBatch
from replay_agent.dqn.n_step import NStep, Transition
from replay_agent.r2d2 import STATE_PARTS, SequenceBatch

FRAME: Final = "frame"
"""Column of a compact table: the newest frame of the observation before the step."""
STEP_REWARD: Final = "step_reward"
"""Column of a compact table: the reward after the step."""
STATE: Final = "state"
"""Column of a compact table for sequences: the state of the recurrent network before the step."""


def transition_columns(env: EnvironmentInfo) -> dict[str, Column]:
    """Return the columns of a table for n-step transitions."""
    observation = Column(env.observation_dtype, env.observation_shape)
    return {
        "obs": observation,
        "action": Column("int64"),
        "reward": Column("float32"),
        "discount": Column("float32"),
        "next_obs": observation,
    }


def step_columns(env: EnvironmentInfo) -> dict[str, Column | Derived]:
    """Return the columns of a compact table, from which `Transitions` are drawn."""
    return {
        FRAME: Column(env.observation_dtype, env.frame_shape, sampled=False),
        "action": Column("int64"),
        STEP_REWARD: Column("float32", sampled=False),
        "obs": Stack(FRAME, env.stack, env.padding),
        "reward": Return(STEP_REWARD),
        "discount": Discount(),
        "next_obs": Stack(FRAME, env.stack, env.padding, ahead=True),
    }


def sequence_columns(env: EnvironmentInfo, lstm_units: int) -> dict[str, Column | Derived]:
    """Return the columns of a compact table, from which `Sequences` are drawn."""
    return {
        FRAME: Column(env.observation_dtype, env.frame_shape, sampled=False),
        "action": Column("int64"),
        STEP_REWARD: Column("float32"),
        STATE: Column("float16", (STATE_PARTS, lstm_units), at="start"),
        "obs": Stack(FRAME, env.stack, env.padding),
        "discount": Discount(),
        "mask": Mask(),
    }


def append_transition(writer: Writer, transition: Transition) -> None:
    """Append a transition as a row, with its priority if it is known."""
    writer.append(
        priority=transition.priority,
        obs=transition.obs,
        action=transition.action,
        reward=transition.reward,
        discount=transition.discount,
        next_obs=transition.next_obs,
    )


def transition_batch(batch: TensorBatch) -> TransitionBatch:
    """Convert a batch for the learner."""
    return TransitionBatch(
        obs=batch["obs"],
        action=batch["action"],
        reward=batch["reward"],
        discount=batch["discount"],
        next_obs=batch["next_obs"],
        weights=batch.weights,
    )


def sequence_batch(batch: TensorBatch) -> SequenceBatch:
    """Convert a batch for a recurrent learner."""
    return SequenceBatch(
        obs=batch["obs"],
        action=batch["action"],
        reward=batch[STEP_REWARD],
        discount=batch["discount"],
        mask=batch["mask"],
        state=batch[STATE].float(),
        weights=batch.weights,
    )


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
    return _StepRecorder(writer, writer.steps, n_step, gamma)


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

    If the actor estimates values, a step's priority is known once its n-step transition is complete.
    """

    def __init__(self, writer: Writer, steps: Steps, n_step: int, gamma: float) -> None:
        self._writer = writer
        self._n_step = NStep(n_step, gamma)
        self._steps_ago = n_step - 1
        obs = steps.derived["obs"]
        self._is_stacked = isinstance(obs, Stack) and obs.count > 1
        self._has_states = STATE in steps.schema

    def record(self, step: Step) -> None:
        row = {FRAME: self._frame(step.obs), "action": step.action, STEP_REWARD: step.reward}
        if self._has_states:
            row[STATE] = step.state
        priorities = [each.priority for each in _push(self._n_step, step) if each.priority is not None]
        if step.is_last:
            self._writer.append(row)
            final = {FRAME: self._frame(step.next_obs)}
            self._writer.end_episode(final, terminated=step.terminated, priorities=priorities or None)
        else:
            priority = priorities[0] if priorities else None
            self._writer.append(row, priority=priority, steps_ago=self._steps_ago)

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
