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
    environment variable (--learner as REPLAY_ACTOR_LEARNER) or in a TOML file. A token for both stands in the variable
    REPLAY_TOKEN, or one for the learner alone in REPLAY_LEARNER_TOKEN; the files of TLS in REPLAY_TLS_CA,
    REPLAY_TLS_CERT and REPLAY_TLS_KEY for the server, and in REPLAY_LEARNER_TLS_CA and so on for the learner.
    """

    model_config = SettingsConfigDict(env_prefix="REPLAY_ACTOR_", cli_prog_name="replay-actor")

    server: str = option("localhost:50051", CONNECTIONS, "the replay server", "HOST:PORT")
    learner: str = option("localhost:50052", CONNECTIONS, "the learner, as replay-train shows it", "HOST:PORT")
    learner_timeout_s: float = option(60.0, CONNECTIONS, "seconds to wait for a learner that is not there", gt=0)
    reconnect_timeout_s: float = option(120.0, CONNECTIONS, "seconds to wait for a replay server that went away", gt=0)
    config: Path | None = option(None, PROCESS, "TOML file with these settings")
    exit_with_parent: bool = option(
        False, PROCESS, "stop when standard input ends, as it does when the process that holds it dies"
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("info", PROCESS, "least severe messages logged")

    @field_validator("server", "learner")
    @classmethod
    def _is_address(cls, value: str) -> str | None:
        return check_address(value)


def load_actor_settings(arguments: Sequence[str]) -> ActorSettings:
    """Read the actor's settings; see `command_line.load`."""
    return load(ActorSettings, arguments)
