"""Tuned settings of environments that are known here; whatever the user sets himself wins over them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_CARTPOLE: Mapping[str, Any] = MappingProxyType(
    {
        "steps": 60_000,
        "capacity": 50_000,
        "hidden_sizes": (128, 128),
        "learning_rate": 1e-3,
        "batch_size": 128,
        "n_step": 3,
        "gamma": 0.99,
        "target_interval": 1,
        "target_tau": 0.01,
        "replay_ratio": 1.0,
        "learning_starts": 1_000,
        "epsilon_steps": 10_000,
        "epsilon_end": 0.05,
        "validate_interval": 1_000,
        # The most an episode can bring: every one of the confirming episodes has to be perfect.
        "solved_return": 500.0,
    }
)

_ACROBOT: Mapping[str, Any] = MappingProxyType(
    {
        **_CARTPOLE,
        "steps": 100_000,
        "validate_interval": 2_500,
        # Well above the -100 at which Gymnasium calls it solved.
        "solved_return": -85.0,
    }
)

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType({"CartPole-v1": _CARTPOLE, "Acrobot-v1": _ACROBOT})
