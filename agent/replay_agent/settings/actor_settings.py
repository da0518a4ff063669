"""Settings of an actor: from flags, REPLAY_ACTOR_* variables, a TOML file and defaults, in order of priority."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from replay_proto.command_line import Address, Settings, group, read_settings

CONNECTIONS = group("connections")
PROCESS = group("process")


class ActorSettings(Settings):
    """Play episodes with the weights that a learner serves, and record the steps in its replay table.

    The task (environment, table, network, seed) comes from the learner. Every flag can also be given as an
    environment variable (--learner as REPLAY_ACTOR_LEARNER) or in a TOML file. Set REPLAY_TOKEN to the token for
    the replay server and the learner. If the learner's token differs, also set REPLAY_LEARNER_TOKEN. REPLAY_TLS_CA,
    REPLAY_TLS_CERT and REPLAY_TLS_KEY name the TLS files for the replay server; REPLAY_LEARNER_TLS_CA and so on name
    those for the learner.
    """

    server: Annotated[Address, CONNECTIONS] = "localhost:50051"
    """the replay server"""
    learner: Annotated[Address, CONNECTIONS] = "localhost:50052"
    """the learner's address, which replay-train logs"""
    learner_timeout_s: Annotated[float, CONNECTIONS] = Field(60.0, gt=0)
    """seconds to wait for an unreachable learner"""
    reconnect_timeout_s: Annotated[float, CONNECTIONS] = Field(120.0, gt=0)
    """seconds to wait for an unreachable replay server"""
    name: Annotated[str | None, PROCESS] = Field(None, min_length=1)
    """name in the learner's log; an actor that joins under the name of an earlier one takes over its epsilon (default:
    host:pid)"""
    config: Annotated[Path | None, PROCESS] = None
    """TOML file with these settings"""
    exit_with_parent: Annotated[bool, PROCESS] = False
    """stop when standard input closes, as it does when the parent process dies"""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], PROCESS] = "info"
    """minimum severity of log messages"""


def load_actor_settings(arguments: Sequence[str] | None = None) -> ActorSettings:
    """Read the actor's settings; see `read_settings`."""
    return read_settings(ActorSettings, "replay-actor", "REPLAY_ACTOR_", arguments)
