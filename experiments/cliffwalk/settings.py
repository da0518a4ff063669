"""Settings of `python -m experiments.cliffwalk`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import field_validator
from pydantic_settings import SettingsConfigDict
from replay_agent.settings.command_line import CommandSettings, check_address, option, split_list

from experiments.cliffwalk.q_learning import Representation
from experiments.cliffwalk.replays import Method
from experiments.cliffwalk.walk import MIN_STATES

WHAT = "what is run"
WHERE = "where"
MAX_STATES = 20
MANY_STATES = 14
"""From so many states on, runs are long, and fewer seeds are run."""


class CliffwalkSettings(CommandSettings):
    """Count the updates that Q-learning of the Blind Cliffwalk needs, by how transitions are chosen.

    Without --server it starts a replay server of its own. Started again, it goes on where it was broken off.
    """

    model_config = SettingsConfigDict(env_prefix="REPLAY_CLIFFWALK_", cli_prog_name="python -m experiments.cliffwalk")

    states: tuple[int, ...] = option(tuple(range(MIN_STATES, 17)), WHAT, "lengths of the walk, such as 2,4,8")
    methods: tuple[Method, ...] = option(
        tuple(Method), WHAT, "ways to choose transitions, of uniform,oracle,greedy,proportional,rank", "NAME,NAME"
    )
    representations: tuple[Representation, ...] = option(
        tuple(Representation), WHAT, "of the values: tabular,linear", "NAME,NAME"
    )
    seeds: int = option(10, WHAT, "seeds 0, 1, ... of each combination", ge=1)
    large_seeds: int = option(3, WHAT, f"seeds from {MANY_STATES} states on, if that is fewer", ge=1)
    max_run_s: float = option(
        900.0, WHAT, "seconds after which a run is given up; its updates are drawn as a lower bound", gt=0
    )
    server: str | None = option(None, WHERE, "a running replay server; starts one of its own if absent", "HOST:PORT")
    out: Path = option(Path("runs/cliffwalk"), WHERE, "directory for results and picture")
    config: Path | None = option(None, WHERE, "TOML file with these settings")

    @field_validator("states", "methods", "representations", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_list(value)

    @field_validator("states")
    @classmethod
    def _are_lengths(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or not all(MIN_STATES <= states <= MAX_STATES for states in value):
            raise ValueError(f"expected numbers from {MIN_STATES} to {MAX_STATES}")
        return value

    @field_validator("server")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        return check_address(value)

    def seeds_of(self, states: int) -> range:
        """Seeds of a walk of so many states."""
        return range(self.seeds if states < MANY_STATES else min(self.seeds, self.large_seeds))
