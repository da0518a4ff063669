"""Makes the learner of a run: Double DQN, C51 or R2D2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

import torch
from replay_client.torch import TensorBatch

from replay_agent.acting.environments import EnvironmentInfo
from replay_agent.dqn.c51 import C51
from replay_agent.dqn.double_dqn import DoubleDQN
from replay_agent.dqn.learner import DoubleDQNConfig, Learner
from replay_agent.dqn.networks import NetworkKind, NetworkSpec, default_hidden_sizes, network_kind
from replay_agent.own_parts import OwnPartError, find
from replay_agent.r2d2 import R2D2, R2D2Config
from replay_agent.replay.rows import sequence_batch, transition_batch
from replay_agent.settings.train_settings import TrainSettings

Config = TypeVar("Config", bound=DoubleDQNConfig)
L = TypeVar("L", bound=Learner[Any, Any])


class Algorithm(NamedTuple):
    """A learner, and the function that converts the table's batches for it."""

    learner: Learner[Any, Any]
    batch_of: Callable[[TensorBatch], Any]
    """Converts a batch of the table to one of the learner."""


def make_algorithm(settings: TrainSettings, env: EnvironmentInfo, device: torch.device) -> Algorithm:
    """Make the learner, with random weights from torch's global generator.

    Raises:
        OwnPartError: the network or the learner of the user is not there, or does not fit.
        ValueError: the settings do not suit the environment.
    """
    spec = network_spec(settings, env)
    if settings.algorithm == "r2d2":
        return Algorithm(_learner(R2D2, settings)(spec, _config(R2D2Config, settings), device), sequence_batch)
    usual = C51 if settings.atoms else DoubleDQN
    return Algorithm(_learner(usual, settings)(spec, _config(DoubleDQNConfig, settings), device), transition_batch)


def _learner(usual: type[L], settings: TrainSettings) -> type[L]:
    """Return the class of the learner: the usual one of the algorithm, or a subclass of the user."""
    if settings.learner is None:
        return usual
    found = find(settings.learner, "the learner")
    if not (isinstance(found, type) and issubclass(found, usual)):
        raise OwnPartError(f"expected a subclass of {usual.__name__} as the learner {settings.learner}, got {found!r}")
    return found


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
        feeds_last=settings.feed_last,
        own=settings.network or "",
        atoms=settings.atoms,
        value_range=(settings.value_min, settings.value_max),
        noisy_sigma=settings.noisy_sigma if settings.noisy else 0.0,
    )


def _config(config: type[Config], settings: TrainSettings) -> Config:
    return config(**{field.name: getattr(settings, field.name) for field in fields(config)})
