"""Defaults of `python -m experiments.compare`: methods, sweep, and settings of each environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from replay_agent.settings.presets import preset


class ReplayMethod(StrEnum):
    """How batches are drawn."""

    UNIFORM = "uniform"
    PROPORTIONAL = "proportional"
    RANK = "rank"


METHODS: Final[Mapping[ReplayMethod, Mapping[str, Any]]] = MappingProxyType(
    {
        ReplayMethod.UNIFORM: {"backend": "uniform"},
        ReplayMethod.PROPORTIONAL: {"backend": "sum_tree", "alpha": 0.6, "beta_start": 0.4},
        ReplayMethod.RANK: {"backend": "rank", "alpha": 0.7, "beta_start": 0.5},
    }
)
"""Trainer settings of each method (Schaul et al. 2016, table 3, Double DQN); beta reaches 1 at the end of training."""

PAPER_FACTORS: Final[Mapping[ReplayMethod, float]] = MappingProxyType(
    {ReplayMethod.UNIFORM: 1.0, ReplayMethod.PROPORTIONAL: 0.25, ReplayMethod.RANK: 0.25}
)
"""Step size of each method, relative to uniform replay (table 3)."""

SWEEP_FACTORS: Final = (1.0, 0.5, 0.25, 0.125)
"""Step sizes of the sweep, relative to uniform replay (table 2)."""
SWEEP_SEED: Final = 1000
"""First seed of the sweep. The sweep and the comparison use different seeds, to avoid selection bias."""

COMMON: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "solved_return": None,  # every run takes all its steps
        "evaluation_episodes": 0,
        "validation_share": 1.0,  # all runs are validated at the same steps
        "checkpoint_interval_s": 300.0,
        "threads": 1,  # runs are parallel, one core each
        "tensorboard": False,
        "progress": False,
    }
)
"""Settings of the trainer in every run."""


@dataclass(frozen=True)
class EnvironmentDefaults:
    """Settings of the comparison for an environment."""

    seeds: int
    """Runs of each method."""
    sweep_seeds: int
    """Runs of each step size in the sweep; 0: no sweep."""
    train: Mapping[str, Any]
    """Settings of the trainer."""
    factors: Mapping[ReplayMethod, float] = field(default_factory=lambda: PAPER_FACTORS)
    """Step size of each method in the comparison, relative to uniform replay."""
    validation_episodes: int = 20
    """Greedy episodes of each validation."""


_ACROBOT: Final[Mapping[str, Any]] = MappingProxyType(
    {
        **preset("Acrobot-v1", "dqn"),
        # Every method learns it within half of these steps; more steps would only compare stability.
        "steps": 20_000,
        "validate_interval": 1_000,
    }
)
_MOUNTAIN_CAR: Final[Mapping[str, Any]] = MappingProxyType(
    {
        **preset("MountainCar-v0", "dqn"),
        "steps": 40_000,
        # Step size of uniform replay. Prioritized replay uses a quarter of it, which is the preset's step size.
        "learning_rate": 4e-3,
    }
)
_MINATAR: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "steps": 200_000,
        "capacity": 100_000,
        "hidden_sizes": (128,),
        "learning_rate": 2.5e-4,
        "batch_size": 32,
        "n_step": 1,
        "gamma": 0.99,
        "target_interval": 1_000,
        "target_tau": 1.0,
        "replay_ratio": 0.25,
        "learning_starts": 5_000,
        "epsilon_steps": 100_000,
        "epsilon_end": 0.1,
        "validate_interval": 25_000,
    }
)
# With a quarter of the step size, proportional replay had learned little after 300,000 steps.
_EQUAL_FACTORS: Final[Mapping[ReplayMethod, float]] = MappingProxyType(dict.fromkeys(ReplayMethod, 1.0))
_PONG: Final[Mapping[str, Any]] = MappingProxyType(
    {
        **preset("ALE/Pong-v5", "dqn"),
        "network": "experiments.compare.atari_network:small_network",
        "dueling": False,
        "steps": 500_000,  # two million frames
        "capacity": 100_000,
        "learning_rate": 4e-4,
        "target_interval": 500,
        "learning_starts": 10_000,
        "epsilon_steps": 100_000,
        "validate_interval": 25_000,
    }
)
MINATAR_PREFIX: Final = "experiments.compare.minatar_games:MinAtar/"

ENVIRONMENTS: Final[Mapping[str, EnvironmentDefaults]] = MappingProxyType(
    {
        "CartPole-v1": EnvironmentDefaults(10, 3, preset("CartPole-v1", "dqn")),
        "Acrobot-v1": EnvironmentDefaults(10, 3, _ACROBOT),
        "MountainCar-v0": EnvironmentDefaults(5, 2, _MOUNTAIN_CAR),
        f"{MINATAR_PREFIX}Breakout-v1": EnvironmentDefaults(3, 1, _MINATAR),
        "ALE/Pong-v5": EnvironmentDefaults(2, 0, _PONG, _EQUAL_FACTORS, validation_episodes=5),
    }
)
OTHERS: Final = EnvironmentDefaults(5, 2, MappingProxyType({}))
OTHER_MINATAR: Final = EnvironmentDefaults(3, 1, _MINATAR)


def defaults_of(env: str) -> EnvironmentDefaults:
    """Return the defaults of any environment, known or unknown."""
    return ENVIRONMENTS.get(env, OTHER_MINATAR if env.startswith(MINATAR_PREFIX) else OTHERS)
