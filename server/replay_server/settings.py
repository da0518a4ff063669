"""Settings of the server: from flags, environment variables and a TOML file, in this order of precedence.

    replay-server --port 50051 --config server.toml
    REPLAY_SERVER_PORT=50051 replay-server

A TOML file has the same names, and tables to make at start:

    port = 50051

    [[tables]]
    name = "cartpole"
    capacity = 1_000_000
    backend = "sum_tree"
    parameters = { alpha = 0.6 }
    [tables.columns]
    obs = { dtype = "float32", shape = [4] }
    action = { dtype = "int64" }
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSuppress,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)
from replay_proto.schema import Column, Schema

from replay_server.table_config import DEFAULT_BACKEND, TableConfig

ENV_PREFIX = "REPLAY_SERVER_"
MAX_PORT = 65535
MAX_MESSAGE_MB = 2047
"""gRPC counts the bytes of a message in 31 bits."""


class ColumnSettings(BaseModel):
    """A column of a table in the TOML file."""

    model_config = ConfigDict(extra="forbid")

    dtype: str
    """bool, int8 to int64, uint8 to uint64 or float16 to float64."""
    shape: list[int] = []
    """Sizes of its dimensions; empty for a scalar."""


class TableSettings(BaseModel):
    """A table in the TOML file, made at start unless it is there."""

    model_config = ConfigDict(extra="forbid")

    name: str
    """Its name."""
    capacity: int
    """Rows kept."""
    columns: dict[str, ColumnSettings]
    """By name, in order."""
    backend: str = DEFAULT_BACKEND
    """sum_tree, rank or uniform."""
    parameters: dict[str, float] = {}
    """Of the backend, such as alpha."""
    seed: int | None = None
    """Makes draws repeat."""

    def to_config(self) -> TableConfig:
        """The table's config, checked.

        Raises:
            FieldError: names the field that cannot be used.
        """
        columns = {name: Column(column.dtype, column.shape) for name, column in self.columns.items()}
        return TableConfig(self.name, Schema(columns), self.capacity, self.backend, self.parameters, self.seed)


class ServerSettings(BaseSettings):
    """Prioritized experience replay as a gRPC service."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        extra="forbid",
        cli_prog_name="replay-server",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    host: str = Field("127.0.0.1", description="address to listen on; the default is reached from this machine only")
    port: int = Field(50051, ge=0, le=MAX_PORT, description="port to listen on; 0 picks a free one")
    data_dir: Path | None = Field(
        None, description="directory that keeps the tables over restarts; without it they live in memory only"
    )
    memory_dir: Path = Field(
        Path("/dev/shm"), description="directory in memory for tables, where there is no data directory"
    )
    config: Path | None = Field(None, description="TOML file with these settings, and tables to make at start")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe messages logged")
    max_message_mb: int = Field(
        512, ge=1, le=MAX_MESSAGE_MB, description="largest message taken or sent, in MiB; a batch has to fit into it"
    )
    drain_s: float = Field(5.0, ge=0, description="seconds that calls at work have to end when the server stops")
    same_host: bool = Field(
        True, description="let clients on this host that can read the tables' files copy rows out of them"
    )
    reflection: bool = Field(True, description="offer gRPC server reflection")
    checkpoint_dir: Path | None = Field(None, description="directory for checkpoints; without it there are none")
    checkpoint_every: float | None = Field(
        None, gt=0, description="seconds between checkpoints of all tables; without it they are written on request only"
    )
    keep_checkpoints: int = Field(
        3, ge=1, description="checkpoints of a series that are kept, where the request does not say how many"
    )
    restore: Path | None = Field(None, description="checkpoint whose tables are made at start")
    exit_with_parent: bool = Field(
        False, description="stop when standard input ends, as it does when the process that holds it dies"
    )
    tables: CliSuppress[list[TableSettings]] = Field([], description="tables to make at start; from the TOML file")

    @model_validator(mode="after")
    def _has_a_place_for_checkpoints(self) -> Self:
        if self.checkpoint_every is not None and self.checkpoint_dir is None:
            raise ValueError("checkpoint_every needs a checkpoint_dir to write to; give both or neither")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags (which come first of all), then the environment, then the TOML file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(arguments: Sequence[str]) -> ServerSettings:
    """Read the settings from flags, the environment and the TOML file that one of these names.

    Args:
        arguments: the command line, without the program's name.

    Raises:
        pydantic.ValidationError: names each setting that cannot be used.
        SettingsError: if the TOML file cannot be read.
        SystemExit: after ``--help``, or for an unknown flag.
    """

    class FromFile(ServerSettings):
        __doc__ = ServerSettings.__doc__
        model_config = SettingsConfigDict(toml_file=_config_file(arguments))

    return CliApp.run(FromFile, cli_args=list(arguments))


def _config_file(arguments: Sequence[str]) -> Path | None:
    """The TOML file: it has to be known before all the settings are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path, default=os.environ.get(f"{ENV_PREFIX}CONFIG"))
    found: Path | str | None = parser.parse_known_args(arguments)[0].config
    if found is None:
        return None
    path = Path(found)
    if not path.is_file():
        raise SettingsError(f"config: expected a TOML file, got {str(path)!r}, which is not there")
    try:
        tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"config: expected a TOML file, got {str(path)!r}: {error}") from error
    return path
