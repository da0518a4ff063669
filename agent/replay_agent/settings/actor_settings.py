"""Settings of an actor: from flags, REPLAY_ACTOR_* variables, a TOML file and defaults, in order of priority."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from replay_proto.command_line import Address, Settings, group, read_settings

from replay_agent.settings.train_settings import NAME_PATTERN

CONNECTIONS = group("connections")
PROCESS = group("process")


class ActorSettings(Settings):
    """Play episodes for a run of replay-train, and record the steps in its replay table.

    Environment, network, weights and seeds come from the replay server, where replay-train publishes them. Every flag
    can also be given as an environment variable (--run as REPLAY_ACTOR_RUN) or in a TOML file. Set REPLAY_TOKEN if the
    server requires a token, and REPLAY_TLS_CA, REPLAY_TLS_CERT and REPLAY_TLS_KEY for TLS.
    """

    server: Annotated[Address, CONNECTIONS] = "localhost:50051"
    """the replay server"""
    run: Annotated[str | None, CONNECTIONS] = Field(None, pattern=NAME_PATTERN)
    """name of the run, which replay-train logs (default: the only run on the server)"""
    trainer_timeout_s: Annotated[float, CONNECTIONS] = Field(60.0, gt=0)
    """seconds to wait for replay-train to begin, or to come back"""
    reconnect_timeout_s: Annotated[float, CONNECTIONS] = Field(120.0, gt=0)
    """seconds to wait for an unreachable replay server"""
    name: Annotated[str | None, PROCESS] = Field(None, min_length=1)
    """name in the trainer's log; with ape-x, the last number in it determines the epsilon (default: host:pid)"""
    threads: Annotated[int, PROCESS] = Field(1, ge=1)
    """CPU threads of torch and of the Atari emulator"""
    config: Annotated[Path | None, PROCESS] = None
    """TOML file with these settings"""
    exit_with_parent: Annotated[bool, PROCESS] = False
    """stop when standard input closes, as it does when the parent process dies"""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], PROCESS] = "info"
    """minimum severity of log messages"""


def load_actor_settings(arguments: Sequence[str] | None = None) -> ActorSettings:
    """Read the actor's settings; see `read_settings`."""
    return read_settings(ActorSettings, "replay-actor", "REPLAY_ACTOR_", arguments)
