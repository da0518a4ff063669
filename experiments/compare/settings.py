"""Settings of `python -m experiments.compare`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pydantic import field_validator
from pydantic_settings import SettingsConfigDict
from replay_agent.settings.command_line import CommandSettings, check_address, option, split_list
from replay_agent.settings.train_settings import DEFAULT_ENV, TrainSettings

from experiments.compare.defaults import (
    COMMON,
    METHODS,
    SWEEP_FACTORS,
    EnvironmentDefaults,
    ReplayMethod,
    defaults_of,
)

WHAT = "what is run"
WHERE = "where"


class CompareSettings(CommandSettings):
    """Compare learning curves of Double DQN with uniform, proportional and rank-based replay.

    Runs go in parallel processes over one server, each with a table of its own. Without --server it starts a replay
    server of its own. Started again, it goes on with the runs that are missing.
    """

    model_config = SettingsConfigDict(env_prefix="REPLAY_COMPARE_", cli_prog_name="python -m experiments.compare")

    env: str = option(DEFAULT_ENV, WHAT, "Gymnasium environment; module:EnvId imports module")
    methods: tuple[ReplayMethod, ...] = option(
        tuple(ReplayMethod), WHAT, "ways to draw, of uniform,proportional,rank", "NAME,NAME"
    )
    seeds: int | None = option(None, WHAT, "runs of each method, with seeds 0, 1, ...; by environment if absent", ge=1)
    sweep_seeds: int | None = option(
        None, WHAT, "runs of each step size of the sweep; 0 leaves it out; by environment if absent", ge=0
    )
    steps: int | None = option(None, WHAT, "environment steps of a run; by environment if absent", ge=1)
    jobs: int = option(os.cpu_count() or 1, WHERE, "runs at the same time", ge=1)
    server: str | None = option(None, WHERE, "a running replay server; starts one of its own if absent", "HOST:PORT")
    out: Path | None = option(
        None, WHERE, "directory for results and picture; runs/compare-ENVIRONMENT if absent", "PATH"
    )
    config: Path | None = option(None, WHERE, "TOML file with these settings")

    @field_validator("methods", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_list(value)

    @field_validator("server")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        return check_address(value)

    @property
    def defaults(self) -> EnvironmentDefaults:
        """What the environment brings."""
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
        """The environment without the module that brings it."""
        return self.env.rpartition(":")[2]

    @property
    def directory(self) -> Path:
        """Where results and picture go."""
        if self.out is not None:
            return self.out
        return Path("runs") / f"compare-{re.sub('[^A-Za-z0-9]+', '-', self.title).strip('-')}"

    @property
    def train(self) -> dict[str, Any]:
        """Settings of the trainer that all runs share."""
        given = {} if self.steps is None else {"steps": self.steps}
        return {**self.defaults.train, **COMMON, "env": self.env, **given}

    @property
    def base_learning_rate(self) -> float:
        """Step size of uniform replay, of which the others' are fractions."""
        default = TrainSettings.model_fields["learning_rate"].default
        return float(self.train.get("learning_rate", default))

    def conditions(self) -> dict[str, Any]:
        """What results depend on besides their method, step size and seed."""
        methods = {str(method): dict(values) for method, values in METHODS.items()}
        return {"train": self.train, "methods": methods, "sweep_factors": SWEEP_FACTORS}
