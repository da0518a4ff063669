"""The algorithms: what each one stores in the run's table, what it draws from there, and how it learns.

An algorithm is one entry of `ALGORITHMS`. Its hyperparameters for known environments are in `settings.presets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

import torch
from replay_client import Column, Discount, Mask, Return, Sequences, Stack, Transitions
from replay_client.torch import TensorBatch
from replay_proto.steps import Derived, Item

from replay_agent.acting.environments import EnvironmentInfo
from replay_agent.dqn.c51 import C51
from replay_agent.dqn.double_dqn import DoubleDQN, TransitionBatch
from replay_agent.dqn.learner import Learner
from replay_agent.dqn.networks import NetworkSpec, default_hidden_sizes, is_image
from replay_agent.own_parts import OwnPartError, find
from replay_agent.r2d2 import R2D2, SequenceBatch, state_size
from replay_agent.settings.train_settings import TrainSettings

FRAME: Final = "frame"
"""Column of the newest frame of the observation before the step."""
STEP_REWARD: Final = "step_reward"
"""Column of the reward after the step."""
STATE: Final = "state"
"""Column of the state of the recurrent network before the step, in a table for sequences."""

Columns = dict[str, Column | Derived]


def step_columns(env: EnvironmentInfo) -> Columns:
    """Return the columns of a table from which `Transitions` are drawn."""
    return {
        FRAME: Column(env.observation_dtype, env.frame_shape, sampled=False),
        "action": Column("int64"),
        STEP_REWARD: Column("float32", sampled=False),
        "obs": Stack(FRAME, env.stack, env.padding),
        "reward": Return(STEP_REWARD),
        "discount": Discount(),
        "next_obs": Stack(FRAME, env.stack, env.padding, ahead=True),
    }


def transition_batch(batch: TensorBatch) -> TransitionBatch:
    """Convert a batch for the learner."""
    columns = {name: batch[name] for name in ("obs", "action", "reward", "discount", "next_obs")}
    return TransitionBatch(**columns, weights=batch.weights)


def sequence_columns(env: EnvironmentInfo, lstm_units: int) -> Columns:
    """Return the columns of a table from which `Sequences` are drawn."""
    return {
        FRAME: Column(env.observation_dtype, env.frame_shape, sampled=False),
        "action": Column("int64"),
        STEP_REWARD: Column("float32"),
        STATE: Column("float16", state_size(lstm_units, env.actions), at="start"),
        "obs": Stack(FRAME, env.stack, env.padding),
        "discount": Discount(),
        "mask": Mask(),
    }


def sequence_batch(batch: TensorBatch) -> SequenceBatch:
    """Convert a batch for a recurrent learner."""
    columns = {name: batch[name] for name in ("obs", "action", "discount", "mask")}
    return SequenceBatch(**columns, reward=batch[STEP_REWARD], state=batch[STATE].float(), weights=batch.weights)


class Layout(NamedTuple):
    """The columns of the run's table, and what is drawn from it."""

    columns: Columns
    item: Item


def _transitions(settings: TrainSettings, env: EnvironmentInfo) -> Layout:
    return Layout(step_columns(env), Transitions(n_step=settings.n_step, gamma=settings.gamma))


def _sequences(settings: TrainSettings, env: EnvironmentInfo) -> Layout:
    sequences = Sequences(
        length=settings.sequence_length + settings.n_step,
        burn_in=settings.burn_in,
        period=settings.sequence_period or settings.sequence_length,
        gamma=settings.gamma,
    )
    return Layout(sequence_columns(env, settings.lstm_units), sequences)


class Algorithm(NamedTuple):
    """An algorithm.

    Attributes:
        learner: learns from batches; its ``Config`` is filled with the settings of the same names.
        layout: returns the layout of the run's table.
        batch_of: converts a batch of the table to one of the learner.
    """

    learner: type[Learner[Any, Any]]
    layout: Callable[[TrainSettings, EnvironmentInfo], Layout]
    batch_of: Callable[[TensorBatch], Any]


ALGORITHMS: Final[Mapping[str, Algorithm]] = {
    DoubleDQN.algorithm: Algorithm(DoubleDQN, _transitions, transition_batch),
    C51.algorithm: Algorithm(C51, _transitions, transition_batch),
    R2D2.algorithm: Algorithm(R2D2, _sequences, sequence_batch),
}
"""All algorithms by name."""


def algorithm_of(settings: TrainSettings) -> Algorithm:
    """Return the algorithm of a run."""
    return ALGORITHMS[C51.algorithm if settings.atoms else settings.algorithm]


def make_learner(settings: TrainSettings, env: EnvironmentInfo, device: torch.device) -> Learner[Any, Any]:
    """Make the learner, with random weights from torch's global generator.

    Raises:
        OwnPartError: the network or the learner of the user is not there, or does not fit.
        ValueError: the settings do not suit the environment.
    """
    usual = algorithm_of(settings).learner
    kind = usual if settings.learner is None else find(settings.learner, "the learner")
    if not (isinstance(kind, type) and issubclass(kind, usual)):
        raise OwnPartError(f"expected a subclass of {usual.__name__} as the learner {settings.learner}, got {kind!r}")
    config = usual.Config(**{field.name: getattr(settings, field.name) for field in fields(usual.Config)})
    make: Callable[..., Learner[Any, Any]] = kind
    return make(network_spec(settings, env), config, device)


def network_spec(settings: TrainSettings, env: EnvironmentInfo) -> NetworkSpec:
    """Specify a network for the settings and the environment."""
    shape, dtype = env.observation_shape, env.observation_dtype
    # Images are scaled according to their dtype instead: the bounds of all pixels would not fit into a message.
    is_scaled = settings.scale_observations and not is_image(shape, dtype)
    return NetworkSpec(
        observation_shape=shape,
        observation_dtype=dtype,
        actions=env.actions,
        hidden_sizes=settings.hidden_sizes or default_hidden_sizes(shape, dtype),
        dueling=settings.dueling,
        bounds=env.bounds if is_scaled else None,
        lstm_units=settings.lstm_units if settings.algorithm == "r2d2" else 0,
        feeds_last=settings.feed_last,
        own=settings.network or "",
        atoms=settings.atoms,
        value_range=(settings.value_min, settings.value_max),
        noisy_sigma=settings.noisy_sigma if settings.noisy else 0.0,
    )
