"""Makes the learner of a run: Double DQN or R2D2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

import torch
from replay_client.torch import TensorBatch

from replay_agent.acting.environments import EnvironmentInfo
from replay_agent.dqn.double_dqn import DoubleDQN
from replay_agent.dqn.learner import DoubleDQNConfig, Learner
from replay_agent.dqn.networks import NetworkKind, NetworkSpec, default_hidden_sizes, network_kind
from replay_agent.r2d2 import R2D2, R2D2Config
from replay_agent.replay.rows import sequence_batch, transition_batch
from replay_agent.settings.train_settings import TrainSettings

Config = TypeVar("Config", bound=DoubleDQNConfig)


class Algorithm(NamedTuple):
    """A learner, and the function that converts the table's batches for it."""

    learner: Learner[Any, Any]
    batch_of: Callable[[TensorBatch], Any]
    """Converts a batch of the table to one of the learner."""


def make_algorithm(settings: TrainSettings, env: EnvironmentInfo, device: torch.device) -> Algorithm:
    """Make the learner, with random weights from torch's global generator."""
    spec = network_spec(settings, env)
    if settings.algorithm == "r2d2":
        return Algorithm(R2D2(spec, _config(R2D2Config, settings), device), sequence_batch)
    return Algorithm(DoubleDQN(spec, _config(DoubleDQNConfig, settings), device), transition_batch)


def network_spec(settings: TrainSettings, env: EnvironmentInfo) -> NetworkSpec:
    """Specify a network for the settings and the environment."""
    shape, dtype = env.observation_shape, env.observation_dtype
    # Images are scaled according to their dtype instead: the bounds of all pixels would not fit into a message.
    is_scaled = settings.scale_observations and network_kind(shape, dtype) is NetworkKind.MLP
    return NetworkSpec(
        observation_shape=shape,
        observation_dtype=dtype,
        actions=env.actions,
        hidden_sizes=settings.hidden_sizes or default_hidden_sizes(shape, dtype),
        dueling=settings.dueling,
        bounds=env.bounds if is_scaled else None,
        lstm_units=settings.lstm_units if settings.algorithm == "r2d2" else 0,
    )


def _config(config: type[Config], settings: TrainSettings) -> Config:
    return config(**{field.name: getattr(settings, field.name) for field in fields(config)})
