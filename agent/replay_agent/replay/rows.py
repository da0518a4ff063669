"""Defines the columns of the replay table, and converts transitions and batches.

A compact table is a table of steps: it stores each step once, and each frame of a stacked observation once. Batches of
transitions have the same columns in both kinds of tables.
"""

from __future__ import annotations

from typing import Final

from replay_client import Column, Discount, Mask, Return, Stack, Writer
from replay_client.torch import TensorBatch
from replay_proto.steps import Derived

from replay_agent.acting.environments import EnvironmentInfo
from replay_agent.dqn.double_dqn import TransitionBatch
from replay_agent.dqn.n_step import Transition
from replay_agent.r2d2.learner import SequenceBatch
from replay_agent.r2d2.networks import STATE_PARTS

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
