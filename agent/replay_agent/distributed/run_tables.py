"""What a trainer and its actors tell each other, in tables on the replay server.

A run NAME has:

    NAME.task           published: what actors do, from the environment to the network
    NAME.progress       published: how far actors may go, their epsilon, and which weights are the newest
    NAME.weights        published: the newest weights of the network
    NAME.episodes       rows: actors that have joined, and the episodes that they have finished

An actor needs the right to read the first three, and to write to the last one and to the table of the run's steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from replay_client import Column, DeadlineExceededError, Rows, ServerUnavailableError

from replay_agent.acting.actor import Actor, FinishedEpisode
from replay_agent.acting.seeds import RunSeeds
from replay_agent.acting.step_guard import STEP_TIMEOUT_S
from replay_agent.atari_options import AtariOptions
from replay_agent.dqn.divergence import MAX_RETURN
from replay_agent.dqn.networks import ActingNetwork, NetworkSpec

HEARTBEAT_S: Final = 2.0
"""Interval at which the progress is published even if it is the same, so that actors know that the trainer lives."""
CALL_S: Final = 10.0
"""Time limit of calls to these tables. If their server is one of several and lost, they move to another one."""
AWAY: Final = (ServerUnavailableError, DeadlineExceededError)
"""Errors of a server that is away, or too busy to answer in time."""
EPISODES_CAPACITY: Final = 10_000
"""Episodes that wait for the trainer. If there are more, the oldest are missing in the learning curve."""
MAX_LENGTH: Final = 2**53
"""Maximum environment steps of an episode: the largest integer that float64, and thus JSON, represents exactly."""
_NAME_BYTES: Final = 64
EPISODE_COLUMNS: Final = {
    "actor": Column("int64"),
    "name": Column("uint8", _NAME_BYTES),
    "episode_return": Column("float64"),
    "length": Column("int64"),
}


class RunTables(NamedTuple):
    """Names of a run's tables."""

    task: str
    progress: str
    weights: str
    episodes: str

    @classmethod
    def of(cls, run: str) -> Self:
        """Return the names for a run."""
        return cls(f"{run}.task", f"{run}.progress", f"{run}.weights", f"{run}.episodes")

    @classmethod
    def runs(cls, tables: Iterable[str]) -> list[str]:
        """Return the names of the runs that have tables on a server, given the names of all tables."""
        suffix = cls.of("").progress
        return [name.removesuffix(suffix) for name in tables if name.endswith(suffix)]


class RunError(RuntimeError):
    """There is no run to act for: the trainer is silent or has another version, or there are several runs."""


@dataclass(frozen=True, config=ConfigDict(ser_json_inf_nan="constants"))
class ActorTask:
    """What an actor does, from the start of a trainer to its end. Attributes without a comment are settings of the run.

    Attributes:
        start: random number of this start of the trainer. After a restart of the trainer, actors begin again.
        table: name of the table for steps.
        network: architecture of the network.
        starts: earlier starts of the run, for `RunSeeds`.
        epsilons: constant probabilities of a random action, one for each actor; empty: actors use that of `Progress`.
        environments: environments of an actor.
    """

    start: int
    env_id: str
    table: str
    n_step: int
    gamma: float
    network: NetworkSpec
    seed: int
    starts: int
    epsilons: tuple[float, ...] = ()
    actor_priorities: bool = False
    clip_rewards: bool = False
    check_steps: int = 50
    step_timeout_s: float = STEP_TIMEOUT_S
    environments: int = 1
    atari: AtariOptions = AtariOptions()

    def make_actor(self, number: int, network: ActingNetwork, device: torch.device | None = None) -> Actor:
        """Create an actor; its random numbers depend on its ``number``, which is 0 for the trainer."""
        return Actor(
            self.env_id,
            RunSeeds(self.seed, self.starts).actor(number),
            network,
            environments=self.environments,
            atari=self.atari,
            device=device,
            estimates=self.actor_priorities,
            clips_rewards=self.clip_rewards,
            step_timeout_s=self.step_timeout_s,
        )

    def to_state(self) -> dict[str, NDArray[np.uint8]]:
        """Return the values to publish."""
        return {"json": np.frombuffer(_TASK.dump_json(self), np.uint8)}

    @staticmethod
    def from_state(values: dict[str, Any]) -> ActorTask:
        """Return a task that was published.

        Raises:
            RunError: another version of the trainer has published it.
        """
        try:
            return _TASK.validate_json(values["json"].tobytes())
        except (KeyError, ValidationError) as error:
            raise RunError(
                f"the run was begun by another version of replay-train; use the same version here: {error}"
            ) from None


_TASK = TypeAdapter(ActorTask)


class Progress(NamedTuple):
    """How far a run is, and what its actors may do."""

    start: int
    """that of `ActorTask`"""
    table: int
    """the table of steps, from `table_number`; another one: it was created again"""
    goal: int
    """actors pause while as many rows were ever inserted into the table"""
    epsilon: float
    """probability of a random action, for actors without a constant one"""
    weights: int
    """version of the newest weights; 0: there are none yet"""
    is_finished: bool
    """whether the run is over"""

    @classmethod
    def from_state(cls, values: dict[str, Any]) -> Self:
        """Return a progress whose ``_asdict()`` was published."""
        return cls(**{name: values[name].item() for name in cls._fields})


def table_number(uid: bytes) -> int:
    """Return an int64 that distinguishes a table from earlier ones of its name."""
    return int.from_bytes(uid[:8], "little", signed=True)


def hello(actor: int, name: str) -> dict[str, Any]:
    """Return the row with which an actor joins: an episode without steps, and the actor's name."""
    return episode_row(actor, FinishedEpisode(0.0, 0), name)


def episode_row(actor: int, episode: FinishedEpisode, name: str = "") -> dict[str, Any]:
    """Return the row of a finished episode."""
    data = np.frombuffer(name.encode("utf-8")[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0"), np.uint8)
    return {"actor": actor, "name": data, "episode_return": episode.episode_return, "length": episode.length}


class Report(NamedTuple):
    """A row of an actor, for the trainer."""

    actor: int
    """the actor's random number"""
    name: str
    """its name, which may contain anything, if it has just joined"""
    episode: FinishedEpisode | None
    """None: the actor has just joined"""
    is_valid: bool
    """whether return and length can be those of an episode"""


def reports_of(rows: Rows) -> list[Report]:
    """Return the reports in rows of the table of episodes."""
    columns = (rows[name].tolist() for name in ("actor", "episode_return", "length"))
    names = [row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in rows["name"]]
    return [
        Report(
            actor,
            name,
            FinishedEpisode(episode_return, length) if length else None,
            math.fabs(episode_return) <= MAX_RETURN and 0 <= length <= MAX_LENGTH,  # false for NaN
        )
        for actor, episode_return, length, name in zip(*columns, names, strict=True)
    ]
