"""Settings for known environments, by algorithm or by name; the user's settings override them."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

Preset = Mapping[str, Any]
"""Settings by name. The type is read-only."""

_CARTPOLE: Preset = {
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
    # The maximum return: every confirming episode must be perfect.
    "solved_return": 500.0,
}

# The return is well above Gymnasium's threshold of -100.
_ACROBOT: Preset = {**_CARTPOLE, "steps": 100_000, "validate_interval": 2_500, "solved_return": -85.0}

_MOUNTAIN_CAR: Preset = {
    **_CARTPOLE,
    # Velocities are 20 times smaller than positions: without scaling, networks do not learn in 60,000 steps.
    "scale_observations": True,
    "hidden_sizes": (64, 64),
    "batch_size": 64,
    # The reward is -1 per step until the flag is reached, so values must propagate over many steps.
    "n_step": 5,
    "target_interval": 250,
    "target_tau": 1.0,
    "replay_ratio": 0.5,
    "epsilon_end": 0.1,
    "validate_interval": 2_000,
    # Above Gymnasium's threshold of -110.
    "solved_return": -105.0,
}

# Networks learn to hover before they learn to land, so the first validations are long.
_LUNAR_LANDER: Preset = {
    "steps": 400_000,
    "hidden_sizes": (256, 256),
    "learning_rate": 3e-4,
    "batch_size": 128,
    "replay_ratio": 0.5,
    "learning_starts": 1_000,
    "epsilon_steps": 40_000,
    "epsilon_end": 0.02,
    "validate_interval": 10_000,
    # Gymnasium's threshold is 200. Means of 100 episodes differ by up to 20.
    "solved_return": 240.0,
}

# Mnih et al. (2015, Nature 518), with prioritized draws of n-step returns and their usual step size; not tuned.
_ATARI: Preset = {
    "steps": 10_000_000,
    "capacity": 200_000,
    "learning_rate": 1e-4,
    "adam_epsilon": 1.5e-4,
    "batch_size": 32,
    "n_step": 3,
    "gamma": 0.99,
    "clip_rewards": True,
    "target_interval": 2_000,
    "target_tau": 1.0,
    "replay_ratio": 0.25,
    "learning_starts": 20_000,
    "dueling": True,
    "epsilon_steps": 250_000,
    "epsilon_end": 0.01,
    # An episode may take up to 27,000 steps.
    "validate_interval": 250_000,
    "validation_share": 0.05,
    "validation_episodes": 5,
    "confirm_episodes": 20,
    "evaluation_episodes": 20,
    # A greedy policy may wait for ever, for example for the ball that FIRE would launch.
    "evaluation_epsilon": 0.01,
}

# An episode takes 1,000 to 5,000 steps. A perfect game has 21 points.
_PONG: Preset = {**_ATARI, "steps": 2_000_000, "validate_interval": 50_000, "solved_return": 18.0}

# Kapturowski et al. (2019, table 2), without their thousands of frames per second; not tuned. Batches are half as
# large, and beta rises to 1 instead of staying constant.
_RECURRENT_ATARI: Preset = {
    **_ATARI,
    "alpha": 0.9,
    "beta_start": 0.6,
    "adam_epsilon": 1e-3,
    "n_step": 5,
    "gamma": 0.997,
    "target_interval": 2_500,
    "clip_rewards": False,  # values are rescaled instead
    "sequence_length": 80,
    "sequence_period": 40,
    "burn_in": 40,
    "lstm_units": 512,
    # A gradient step learns from 2,560 steps.
    "replay_ratio": 0.0125,
}

# A gradient step learns from 32 sequences of 16 steps, so it is taken every eighth step.
_RECURRENT_CARTPOLE: Preset = {
    **_CARTPOLE,
    "steps": 100_000,
    "hidden_sizes": (64,),
    "batch_size": 32,
    "n_step": 5,
    "sequence_length": 16,
    "burn_in": 8,
    # With them, the T-maze is solved in two of four runs.
    "feed_last": False,
    "target_interval": 250,
    "target_tau": 1.0,
    "replay_ratio": 0.125,
    "validate_interval": 2_500,
    # Gymnasium's threshold.
    "solved_return": 475.0,
}

# A whole episode without detours has 21 steps. The largest return is 4, and 3.9 allows two mistakes in 100 episodes.
_TMAZE: Preset = {**_RECURRENT_CARTPOLE, "sequence_length": 30, "sequence_period": 15, "solved_return": 3.9}

# All parts of Rainbow, for any environment.
_RAINBOW: Preset = {"double": True, "dueling": True, "atoms": 51, "noisy": True, "alpha": 0.5, "n_step": 3}

# Returns of at most 500 rewards of 1, discounted by 0.99.
_RAINBOW_CARTPOLE: Preset = {**_CARTPOLE, **_RAINBOW, "value_min": 0.0, "value_max": 100.0}

# Hessel et al. (2018, arXiv:1710.02298, table 1). One step is 4 frames.
_RAINBOW_ATARI: Preset = {
    **_ATARI,
    **_RAINBOW,
    "steps": 50_000_000,
    "capacity": 1_000_000,
    "learning_rate": 6.25e-5,
    "value_min": -10.0,
    "value_max": 10.0,
    "noisy_sigma": 0.5,
}

# For other environments, with sequences of 20 steps.
_RECURRENT: Preset = {"batch_size": 32, "replay_ratio": 0.0625}

PRESETS: Final[Mapping[str, Mapping[str, Preset]]] = {
    "dqn": {
        "CartPole-v1": _CARTPOLE,
        "Acrobot-v1": _ACROBOT,
        "MountainCar-v0": _MOUNTAIN_CAR,
        "LunarLander-v3": _LUNAR_LANDER,
        "ALE/Pong-v5": _PONG,
        "ALE/*": _ATARI,
    },
    "r2d2": {
        "CartPole-v1": _RECURRENT_CARTPOLE,
        "replay_agent.memory_tasks:MaskedCartPole-v1": _RECURRENT_CARTPOLE,
        "replay_agent.memory_tasks:TMaze-v0": _TMAZE,
        "ALE/*": _RECURRENT_ATARI,
        "*": _RECURRENT,
    },
    "rainbow": {"CartPole-v1": _RAINBOW_CARTPOLE, "ALE/*": _RAINBOW_ATARI, "*": _RAINBOW},
}
"""Presets by name and pattern of environment ids, as for `fnmatch`; the first pattern that matches counts.

An algorithm has a preset of its name."""


def preset(env: str, name: str) -> Preset:
    """Return the settings of a preset for an environment; empty if there are none."""
    patterns = PRESETS.get(name, {})
    return next((settings for pattern, settings in patterns.items() if fnmatchcase(env, pattern)), {})
