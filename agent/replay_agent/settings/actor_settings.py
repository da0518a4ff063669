"""Settings of an actor process: flags, then REPLAY_ACTOR_* variables, then a TOML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import field_validator
from pydantic_settings import SettingsConfigDict

from replay_agent.settings.command_line import CommandSettings, check_address, load, option

CONNECTIONS = "connections"
PROCESS = "process"


class ActorSettings(CommandSettings):
    """Act for a learner: insert transitions into its replay table, with weights that it serves.

    The task (environment, table, network, seed) comes from the learner. Every flag can also be given as an
    environment variable (--learner as REPLAY_ACTOR_LEARNER) or in a TOML file. REPLAY_TOKEN holds the token for
    both, REPLAY_LEARNER_TOKEN another one for the learner. REPLAY_TLS_CA, REPLAY_TLS_CERT and REPLAY_TLS_KEY name the
    TLS files for the server, REPLAY_LEARNER_TLS_CA and so on those for the learner.
    """

    model_config = SettingsConfigDict(env_prefix="REPLAY_ACTOR_", cli_prog_name="replay-actor")

    server: str = option("localhost:50051", CONNECTIONS, "the replay server", "HOST:PORT")
    learner: str = option("localhost:50052", CONNECTIONS, "the learner's address, which replay-train logs", "HOST:PORT")
    learner_timeout_s: float = option(60.0, CONNECTIONS, "seconds to wait for an unreachable learner", gt=0)
    reconnect_timeout_s: float = option(120.0, CONNECTIONS, "seconds to wait for an unreachable replay server", gt=0)
    config: Path | None = option(None, PROCESS, "TOML file with these settings")
    exit_with_parent: bool = option(
        False, PROCESS, "stop when standard input closes, as it does when the parent process dies"
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", PROCESS, "minimum severity of log messages"
    )

    @field_validator("server", "learner")
    @classmethod
    def _is_address(cls, value: str) -> str | None:
        return check_address(value)


def load_actor_settings(arguments: Sequence[str]) -> ActorSettings:
    """Read the actor's settings; see `command_line.load`."""
    return load(ActorSettings, arguments)
