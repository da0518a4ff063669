"""Settings of the server from flags, environment variables and a TOML file, in order of precedence.

    replay-server --port 50051 --config server.toml
    REPLAY_SERVER_PORT=50051 replay-server

A TOML file has the same names, and tables to create at startup:

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

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from cyclopts import Parameter
from pydantic import BaseModel, ByteSize, ConfigDict, Field, model_validator
from replay_proto.access.exposure import Protection
from replay_proto.access.serving import DEFAULT_MAX_CONNECTIONS
from replay_proto.command_line import MAX_PORT, Settings, group, read_settings
from replay_proto.rate_limit import ErrorBuffer, RateLimit
from replay_proto.schema import Column, Schema

from replay_server.defaults import (
    DEFAULT_BACKEND,
    DEFAULT_CALLER_SHARE,
    DEFAULT_MAX_CHECKPOINT_SERIES,
    DEFAULT_MAX_OUTGOING_BYTES,
    DEFAULT_MAX_REPLY_BYTES,
    DEFAULT_MAX_REQUEST_BYTES,
    DEFAULT_MAX_ROWS_PER_CALL,
    DEFAULT_MAX_STREAMS,
    DEFAULT_MAX_WAITING,
    DEFAULT_SYNC_EVERY_S,
)

if TYPE_CHECKING:  # these load the kernels, which --help and a refusal do without
    from replay_server.flow.bounds import Bounds
    from replay_server.storage.table_config import TableConfig

BYTES_PER_MB = 1 << 20
MIN_KEEPALIVE_S, MAX_KEEPALIVE_S = 0.1, 86_400.0
MAX_CONNECTION_S = 7 * 86_400.0
MAX_MESSAGE_MB = 2047
"""gRPC stores message sizes in 31 bits."""

LISTENING = group("listening")
TABLES = group("tables")
ACCESS = group("access")
LIMITS = group("limits")
CHECKPOINTS = group("checkpoints")
PROCESS = group("process")


class ColumnSettings(BaseModel):
    """A column of a table in the TOML file."""

    model_config = ConfigDict(extra="forbid")

    dtype: str
    """bool, int8 to int64, uint8 to uint64 or float16 to float64."""
    shape: list[int] = []
    """Empty for a scalar."""


class TableSettings(BaseModel):
    """A table in the TOML file, created at startup unless it exists."""

    model_config = ConfigDict(extra="forbid")

    name: str
    capacity: int
    """Maximum number of rows."""
    columns: dict[str, ColumnSettings]
    """Columns by name, in order."""
    backend: str = DEFAULT_BACKEND
    """sum_tree, rank, uniform or fifo."""
    parameters: dict[str, float] = {}
    """Parameters of the backend, such as alpha."""
    seed: int | None = None
    """Makes draws reproducible."""
    min_size: int | None = None
    """Rows required before draws are allowed."""
    samples_per_insert: float | None = None
    """Average number of draws per row; draws and inserts wait for each other to maintain it."""
    error_buffer: ErrorBuffer | None = None
    """How many samples the ratio may be off; required with `samples_per_insert`."""

    def to_config(self) -> TableConfig:
        """Convert to a validated config.

        Raises:
            FieldError: names the invalid field.
        """
        from replay_server.storage.table_config import TableConfig

        columns = {name: Column(column.dtype, column.shape) for name, column in self.columns.items()}
        return TableConfig(
            self.name,
            Schema(columns),
            self.capacity,
            self.backend,
            self.parameters,
            self.seed,
            RateLimit.of(self.min_size, self.samples_per_insert, self.error_buffer),
        )


class ServerSettings(Settings):
    """Prioritized experience replay as a gRPC service.

    Every flag can also be given as an environment variable (--max-tables as REPLAY_SERVER_MAX_TABLES) or in a TOML file
    (max_tables = 10), which may also list tables to make at start.
    """

    host: Annotated[str, LISTENING] = "127.0.0.1"
    """address to listen on; the default is reached from this machine only"""
    port: Annotated[int, LISTENING] = Field(50051, ge=0, le=MAX_PORT)
    """port to listen on; 0 picks a free one"""
    data_dir: Annotated[Path | None, TABLES] = None
    """directory that keeps the tables over restarts; without it they live in memory only"""
    durability: Annotated[Literal["process", "power"], TABLES] = "process"
    """what tables in the data directory outlive: a killed server; or a loss of power too, by checksums and regular
    syncing"""
    sync_every: Annotated[float, TABLES] = Field(DEFAULT_SYNC_EVERY_S, gt=0)
    """with durability power, seconds of inserts that a loss of power may take"""
    memory_dir: Annotated[Path, TABLES] = Path("/dev/shm")
    """directory in memory for tables, where there is no data directory"""
    config: Annotated[Path | None, PROCESS] = None
    """TOML file with these settings, and tables to make at start"""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], PROCESS] = "info"
    """least severe messages logged"""
    max_request_mb: Annotated[int, LIMITS] = Field(DEFAULT_MAX_REQUEST_BYTES // BYTES_PER_MB, ge=1, le=MAX_MESSAGE_MB)
    """largest request, in MiB: a row has to fit into it; nobody else is served while gRPC receives one"""
    max_reply_mb: Annotated[int, LIMITS] = Field(DEFAULT_MAX_REPLY_BYTES // BYTES_PER_MB, ge=1, le=MAX_MESSAGE_MB)
    """largest reply, in MiB: a batch has to fit into it"""
    max_rows_per_call: Annotated[int, LIMITS] = Field(DEFAULT_MAX_ROWS_PER_CALL, ge=1)
    """most rows or keys of one request other than an insert, or of its answer: nobody else is served while they are
    looked up"""
    max_waiting_calls: Annotated[int, LIMITS] = Field(DEFAULT_MAX_WAITING, ge=0)
    """most calls that wait at once, over all tables"""
    max_waiting_mb: Annotated[int, LIMITS] = Field(1024, ge=1)
    """most MiB of rows that wait to be inserted, over all tables"""
    max_wait_s: Annotated[float, LIMITS] = Field(math.inf, gt=0, allow_inf_nan=True)
    """most seconds that a call waits, whatever it asks for; default: as long as the call lasts"""
    max_outgoing_mb: Annotated[int, LIMITS] = Field(DEFAULT_MAX_OUTGOING_BYTES // BYTES_PER_MB, ge=1)
    """most MiB of answers with rows that are built or on their way; draws and reads beyond wait"""
    caller_share: Annotated[float, LIMITS] = Field(DEFAULT_CALLER_SHARE, gt=0, le=1)
    """part of max_waiting_calls, max_waiting_mb, max_outgoing_mb and max_streams that one caller may hold: whoever has
    the same token or, without tokens, calls from the same host"""
    max_connections: Annotated[int, LIMITS] = Field(DEFAULT_MAX_CONNECTIONS, ge=1)
    """most connections of gRPC at once from one host, or from all that share one of 16 lanes with it, and at most as
    many as three quarters of the process's limit of open files; further ones are closed at once"""
    max_streams: Annotated[int, LIMITS] = Field(DEFAULT_MAX_STREAMS, ge=1)
    """most streams open at once"""
    max_streams_per_connection: Annotated[int, LIMITS] = Field(96, ge=1)
    """most streams open at once on one connection of gRPC; it may have 32 other calls beside them"""
    max_local_connections: Annotated[int, LIMITS] = Field(1024, ge=1)
    """most connections at once to the socket for clients on this host"""
    max_tables: Annotated[int, LIMITS] = Field(1024, ge=1)
    """most tables at once"""
    max_columns: Annotated[int, LIMITS] = Field(512, ge=1)
    """most columns of one table"""
    max_table_bytes: Annotated[ByteSize | None, LIMITS] = Field(None, ge=1)
    """most bytes of one table once it is full, such as 20GiB; default: what the disk has"""
    max_bytes: Annotated[ByteSize | None, LIMITS] = Field(None, ge=1)
    """most bytes of all tables once they are full; default: what the disk has"""
    drain_s: Annotated[float, PROCESS] = Field(5.0, ge=0)
    """seconds that calls at work have to end when the server stops"""
    keepalive_s: Annotated[float, LISTENING] = Field(30.0, ge=MIN_KEEPALIVE_S, le=MAX_KEEPALIVE_S)
    """seconds of silence after which a client is asked whether it is there; one that does not answer within 10 more is
    let go of"""
    same_host: Annotated[bool, LISTENING] = True
    """let clients on this host that can read the tables' files copy rows out of them"""
    reflection: Annotated[bool, LISTENING] = True
    """offer gRPC server reflection"""
    health: Annotated[bool, LISTENING] = True
    """offer gRPC's health service, which takes no token"""
    tls_cert: Annotated[Path | None, ACCESS] = None
    """certificate for TLS, PEM; read again when it changes"""
    tls_key: Annotated[Path | None, ACCESS] = None
    """private key of the certificate, PEM, without a password"""
    tls_client_ca: Annotated[Path | None, ACCESS] = None
    """authority, PEM, that has to have signed clients' certificates; without it they need none"""
    max_connection_s: Annotated[float, ACCESS] = Field(3600.0, ge=2, le=MAX_CONNECTION_S)
    """with tls_client_ca, seconds after which a connection is closed, and its client has to show its certificate
    again"""
    tokens: Annotated[Path | None, ACCESS] = None
    """TOML file of bearer tokens and their rights; read again when it changes"""
    insecure: Annotated[bool, ACCESS] = False
    """listen beyond this machine without tokens and client certificates, where everybody is trusted"""
    group: Annotated[str | None, TABLES] = None
    """group whose members may read the tables' files; without it only the server's user may"""
    trust_dirs: Annotated[bool, TABLES] = False
    """use directories that other users of the machine own or may write to, where there are none, as in a container"""
    checkpoint_dir: Annotated[Path | None, CHECKPOINTS] = None
    """directory for checkpoints; without it there are none"""
    checkpoint_every: Annotated[float | None, CHECKPOINTS] = Field(None, gt=0)
    """seconds between checkpoints of all tables; without it they are written on request only"""
    keep_checkpoints: Annotated[int, CHECKPOINTS] = Field(3, ge=1)
    """checkpoints of a series that are kept, where the request does not say how many"""
    max_checkpoint_bytes: Annotated[ByteSize | None, CHECKPOINTS] = Field(None, ge=1)
    """most bytes of all checkpoints together, such as 100GiB, beyond which none is written on request; default: what
    the disk has"""
    max_checkpoint_series: Annotated[int, CHECKPOINTS] = Field(DEFAULT_MAX_CHECKPOINT_SERIES, ge=1)
    """most series of checkpoints, likewise"""
    restore: Annotated[Path | None, CHECKPOINTS] = None
    """checkpoint whose tables are made at start"""
    exit_with_parent: Annotated[bool, PROCESS] = False
    """stop when standard input ends, as it does when the process that holds it dies"""
    tables: Annotated[tuple[TableSettings, ...], Parameter(show=False)] = ()
    """tables to make at start; from the TOML file"""

    @model_validator(mode="after")
    def _has_a_place_for_durable_tables(self) -> Self:
        if self.durability == "power" and self.data_dir is None:
            raise ValueError(
                "durability power needs a data_dir on a disk: tables in memory do not survive a power loss"
            )
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("expected tls_cert and tls_key together, got one of them")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("expected tls_cert and tls_key with tls_client_ca, got none")
        return self

    @property
    def protection(self) -> Protection:
        """How the server authenticates callers."""
        return Protection(
            tls=self.tls_cert is not None,
            client_certificates=self.tls_client_ca is not None,
            tokens=self.tokens is not None,
        )

    def bounds(self) -> Bounds:
        """Limits on requests and callers."""
        from replay_server.flow.bounds import Bounds

        return Bounds(
            max_request_bytes=self.max_request_mb * BYTES_PER_MB,
            max_reply_bytes=self.max_reply_mb * BYTES_PER_MB,
            max_rows_per_call=self.max_rows_per_call,
            max_waiting_calls=self.max_waiting_calls,
            max_waiting_bytes=self.max_waiting_mb * BYTES_PER_MB,
            max_wait_s=self.max_wait_s,
            max_outgoing_bytes=self.max_outgoing_mb * BYTES_PER_MB,
            caller_share=self.caller_share,
            max_connections=self.max_connections,
            max_streams=self.max_streams,
            max_streams_per_connection=self.max_streams_per_connection,
            max_local_connections=self.max_local_connections,
            max_tables=self.max_tables,
            max_columns=self.max_columns,
            max_table_bytes=self.max_table_bytes,
            max_bytes=self.max_bytes,
            max_checkpoint_bytes=self.max_checkpoint_bytes,
            max_checkpoint_series=self.max_checkpoint_series,
        )

    @model_validator(mode="after")
    def _has_a_place_for_checkpoints(self) -> Self:
        if self.checkpoint_every is not None and self.checkpoint_dir is None:
            raise ValueError("checkpoint_every needs a checkpoint_dir to write to; give both or neither")
        return self


def load_settings(arguments: Sequence[str]) -> ServerSettings:
    """Read the settings; see `read_settings`.

    Args:
        arguments: the command line, without the program's name.
    """
    return read_settings(ServerSettings, "replay-server", "REPLAY_SERVER_", arguments)
