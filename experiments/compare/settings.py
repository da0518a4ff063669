"""Settings of `python -m experiments.compare`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from replay_agent.settings.train_settings import DEFAULT_ENV, TrainSettings
from replay_proto.command_line import SPLIT, Address, Settings, group

from experiments.compare.defaults import (
    COMMON,
    METHODS,
    SWEEP_FACTORS,
    EnvironmentDefaults,
    ReplayMethod,
    defaults_of,
)

WHAT = group("what is run")
WHERE = group("where")


class CompareSettings(Settings):
    """Compare learning curves of Double DQN with uniform, proportional and rank-based replay.

    The runs use parallel processes and one server, with a table per run. Without --server it starts a replay server. If
    started again, it resumes interrupted runs and trains the missing ones.
    """

    env: Annotated[str, WHAT] = DEFAULT_ENV
    """Gymnasium environment; module:EnvId imports module"""
    methods: Annotated[tuple[ReplayMethod, ...], SPLIT, WHAT] = tuple(ReplayMethod)
    """ways to draw, from uniform,proportional,rank"""
    seeds: Annotated[int | None, WHAT] = Field(None, ge=1)
    """runs of each method, with seeds 0, 1, ...; default: by environment"""
    sweep_seeds: Annotated[int | None, WHAT] = Field(None, ge=0)
    """runs of each step size in the sweep; 0 skips it; default: by environment"""
    steps: Annotated[int | None, WHAT] = Field(None, ge=1)
    """environment steps of a run; default: by environment"""
    jobs: Annotated[int, WHERE] = Field(os.cpu_count() or 1, ge=1)
    """parallel runs"""
    server: Annotated[Address | None, WHERE] = None
    """running replay server; default: start one"""
    out: Annotated[Path | None, WHERE] = None
    """directory for results and picture; default: runs/compare-ENVIRONMENT"""
    config: Annotated[Path | None, WHERE] = None
    """TOML file with these settings"""

    @property
    def defaults(self) -> EnvironmentDefaults:
        """Defaults for the environment."""
        return defaults_of(self.env)

    @property
    def seed_count(self) -> int:
        """Runs of each method."""
        return self.defaults.seeds if self.seeds is None else self.seeds

    @property
    def sweep_seed_count(self) -> int:
        """Runs of each step size in the sweep."""
        return self.defaults.sweep_seeds if self.sweep_seeds is None else self.sweep_seeds

    @property
    def title(self) -> str:
        """The environment's id without its module."""
        return self.env.rpartition(":")[2]

    @property
    def directory(self) -> Path:
        """Directory for results and picture."""
        if self.out is not None:
            return self.out
        return Path("runs") / f"compare-{re.sub('[^A-Za-z0-9]+', '-', self.title).strip('-')}"

    @property
    def train(self) -> dict[str, Any]:
        """Trainer settings shared by all runs."""
        given = {} if self.steps is None else {"steps": self.steps}
        episodes = self.defaults.validation_episodes
        judged = {"validation_episodes": episodes, "confirm_episodes": episodes}
        return {**self.defaults.train, **COMMON, **judged, "env": self.env, **given}

    @property
    def base_learning_rate(self) -> float:
        """Step size that the factor of a contestant multiplies. Uniform replay with factor 1 uses it unchanged."""
        default = TrainSettings.model_fields["learning_rate"].default
        return float(self.train.get("learning_rate", default))

    def conditions(self) -> dict[str, Any]:
        """Return the conditions that affect results, besides method, step size and seed."""
        methods = {str(method): dict(values) for method, values in METHODS.items()}
        return {"train": self.train, "methods": methods, "sweep_factors": SWEEP_FACTORS}
