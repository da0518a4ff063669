"""Defines the columns of the replay table, and converts transitions and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_client import Column, Writer
from replay_client.torch import TensorBatch

from replay_agent.acting.environments import EnvironmentInfo
from replay_agent.dqn.double_dqn import TransitionBatch
from replay_agent.dqn.n_step import Transition


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


def append_transition(writer: Writer, transition: Transition) -> None:
    """Append a transition as a row."""
    writer.append(
        obs=transition.obs,
        action=transition.action,
        reward=transition.reward,
        discount=transition.discount,
        next_obs=transition.next_obs,
    )


def stack_transitions(transitions: Sequence[Transition]) -> dict[str, NDArray[Any]]:
    """Stack transitions into columns ``[n, *shape]``."""
    return {
        "obs": np.stack([row.obs for row in transitions]),
        "action": np.array([row.action for row in transitions], dtype=np.int64),
        "reward": np.array([row.reward for row in transitions], dtype=np.float32),
        "discount": np.array([row.discount for row in transitions], dtype=np.float32),
        "next_obs": np.stack([row.next_obs for row in transitions]),
    }


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
