"""Settings of the server from flags, environment variables and a TOML file, in order of precedence.

    replay-server --port 50051 --config server.toml
    REPLAY_SERVER_PORT=50051 replay-server

A TOML file uses the same names, and can list tables to create at startup:

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

import logging
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from cyclopts import Parameter
from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, model_validator
from replay_proto.access.exposure import ExposedError, Protection, check_exposure
from replay_proto.command_line import EXIT_USAGE, MAX_PORT, Settings, group, read_settings
from replay_proto.rate_limit import ErrorBuffer, RateLimit
from replay_proto.schema import Column, Schema

from replay_server.flow.bounds import Bounds
from replay_server.process.logs import LogFormat, set_up_logging
from replay_server.storage.root import TABLES_FOLDER

if TYPE_CHECKING:  # importing these loads the kernels, which --help and invalid settings do not need
    from replay_server.storage.table_config import TableConfig

log = logging.getLogger(__name__)

BYTES_PER_MB = 1 << 20
MIN_KEEPALIVE_S, MAX_KEEPALIVE_S = 0.1, 86_400.0
MAX_CONNECTION_S = 7 * 86_400.0
MAX_MESSAGE_MB = 2047
"""gRPC stores message sizes in 31 bits."""
MAX_STREAMS_PER_CONNECTION = 1_000_000_000
"""gRPC stores the number of calls per connection, which are more, in 31 bits."""

LISTENING = group("listening")
TABLES = group("tables")
ACCESS = group("access")
LIMITS = group("limits")
CHECKPOINTS = group("checkpoints")
PROCESS = group("process")


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"expected a whole number, got {str(value).lower()}")
    return value


Whole = Annotated[int, BeforeValidator(_refuse_bool)]
"""A whole number; pydantic would take true for 1."""


class ColumnSettings(BaseModel):
    """A column of a table in the TOML file."""

    model_config = ConfigDict(extra="forbid")

    dtype: str
    """bool, int8 to int64, uint8 to uint64 or float16 to float64."""
    shape: list[Whole] = []
    """Empty for a scalar."""
    optional: bool = False
    """Whether rows may leave it out."""
    mutable: bool = False
    """Whether its values may be written again."""


class TableSettings(BaseModel):
    """A table in the TOML file, created at startup unless it exists."""

    model_config = ConfigDict(extra="forbid")

    name: str
    capacity: Whole
    """Maximum number of rows."""
    columns: dict[str, ColumnSettings]
    """Columns by name, in order."""
    backend: str = ""
    """sum_tree, rank, uniform or fifo; empty: sum_tree."""
    parameters: dict[str, float] = {}
    """Parameters of the backend, such as alpha."""
    seed: Whole | None = None
    """Makes draws reproducible."""
    min_size: Whole | None = None
    """Rows required before draws are allowed."""
    samples_per_insert: float | None = None
    """Average number of draws per row; draws and inserts wait for each other to maintain it."""
    error_buffer: ErrorBuffer | None = None
    """How many samples the ratio may be off; required with `samples_per_insert`."""

    def to_config(self) -> TableConfig:
        """Convert to a validated config."""
        from replay_server.storage.table_config import DEFAULT_BACKEND, TableConfig

        columns = {name: Column(**column.model_dump()) for name, column in self.columns.items()}
        return TableConfig(
            self.name,
            Schema(columns),
            self.capacity,
            self.backend or DEFAULT_BACKEND,
            self.parameters,
            self.seed,
            RateLimit.of(self.min_size, self.samples_per_insert, self.error_buffer),
        )


class ServerSettings(Settings):
    """Prioritized experience replay as a gRPC service.

    Every flag can also be given as an environment variable (--max-tables as REPLAY_SERVER_MAX_TABLES) or in a TOML file
    (max_tables = 10), which may also list tables to create at startup.
    """

    host: Annotated[str, LISTENING] = "127.0.0.1"
    """address to listen on; the default is reachable from this machine only"""
    port: Annotated[int, LISTENING] = Field(50051, ge=0, le=MAX_PORT)
    """port to listen on; 0 picks a free one"""
    http_port: Annotated[int | None, LISTENING] = Field(None, ge=0, le=MAX_PORT)
    """port for a live page, metrics and probes over HTTP, with the same tokens and TLS; 0 picks a free one; default:
    none"""
    http_host: Annotated[str, LISTENING] = "127.0.0.1"
    """address for HTTP; the default is reachable from this machine only"""
    data_dir: Annotated[Path | None, TABLES] = None
    """directory that keeps tables across restarts; without it, tables live in memory"""
    durability: Annotated[Literal["process", "power"], TABLES] = "process"
    """what tables in the data directory survive: a killed server, or also a power loss, through checksums and
    regular syncing"""
    sync_every: Annotated[float, TABLES] = Field(1.0, gt=0)
    """with durability power: seconds of inserts that a power loss may lose"""
    memory_dir: Annotated[Path, TABLES] = Path("/dev/shm")
    """directory for tables in memory, used without a data directory"""
    config: Annotated[Path | None, PROCESS] = None
    """TOML file with these settings, and tables to create at startup"""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], PROCESS] = "info"
    """minimum severity of log messages"""
    log_format: Annotated[LogFormat, PROCESS] = "text"
    """text for people, or one line of JSON per event, with its table, client and duration"""
    max_request_mb: Annotated[int, LIMITS] = Field(Bounds.max_request_bytes // BYTES_PER_MB, ge=1, le=MAX_MESSAGE_MB)
    """largest request in MiB; a row must fit; the server handles no other call while gRPC receives a request"""
    max_reply_mb: Annotated[int, LIMITS] = Field(Bounds.max_reply_bytes // BYTES_PER_MB, ge=1, le=MAX_MESSAGE_MB)
    """largest reply in MiB; a batch must fit"""
    max_rows_per_call: Annotated[int, LIMITS] = Field(Bounds.max_rows_per_call, ge=1)
    """maximum rows or keys in a request (except inserts) or its reply; the server handles no other call while it
    looks them up"""
    max_waiting_calls: Annotated[int, LIMITS] = Field(Bounds.max_waiting_calls, ge=0)
    """maximum waiting calls, all tables together"""
    max_waiting_mb: Annotated[int, LIMITS] = Field(Bounds.max_waiting_bytes // BYTES_PER_MB, ge=1)
    """maximum MiB of rows waiting to be inserted, all tables together"""
    max_wait_s: Annotated[float, LIMITS] = Field(math.inf, gt=0, allow_inf_nan=True)
    """maximum seconds that any call may wait; default: as long as the call lasts"""
    max_outgoing_mb: Annotated[int, LIMITS] = Field(Bounds.max_outgoing_bytes // BYTES_PER_MB, ge=1)
    """maximum MiB of replies with rows that are being built or sent; further draws and reads wait"""
    caller_share: Annotated[float, LIMITS] = Field(Bounds.caller_share, gt=0, le=1)
    """fraction of max_waiting_calls, max_waiting_mb, max_outgoing_mb and max_streams that one caller may use;
    callers with the same token or, without tokens, from the same host count as one"""
    max_connections: Annotated[int, LIMITS] = Field(Bounds.max_connections, ge=1)
    """maximum gRPC connections per lane, one of 16 that hosts are spread over; also limited to three quarters of the
    process's limit of open files; further ones are closed"""
    max_streams: Annotated[int, LIMITS] = Field(Bounds.max_streams, ge=1)
    """maximum open streams"""
    max_streams_per_connection: Annotated[int, LIMITS] = Field(
        Bounds.max_streams_per_connection, ge=1, le=MAX_STREAMS_PER_CONNECTION
    )
    """maximum open streams per gRPC connection; it may have 32 other calls as well"""
    max_local_connections: Annotated[int, LIMITS] = Field(Bounds.max_local_connections, ge=1)
    """maximum connections to the socket for clients on this host"""
    max_tables: Annotated[int, LIMITS] = Field(Bounds.max_tables, ge=1)
    """maximum number of tables"""
    max_columns: Annotated[int, LIMITS] = Field(Bounds.max_columns, ge=1)
    """maximum columns per table"""
    max_table_bytes: Annotated[ByteSize | None, LIMITS] = Field(None, ge=1)
    """maximum bytes of a table when full, such as 20GiB; default: disk space"""
    max_bytes: Annotated[ByteSize | None, LIMITS] = Field(None, ge=1)
    """maximum bytes of all tables when full; default: disk space"""
    drain_s: Annotated[float, PROCESS] = Field(5.0, ge=0)
    """grace period for running calls at shutdown, in seconds"""
    keepalive_s: Annotated[float, LISTENING] = Field(30.0, ge=MIN_KEEPALIVE_S, le=MAX_KEEPALIVE_S)
    """seconds of silence before the server pings a client; if it does not answer within 10 s, its calls end"""
    same_host: Annotated[bool, LISTENING] = True
    """let clients on this host copy rows directly from the tables' files, if they can read them"""
    reflection: Annotated[bool, LISTENING] = True
    """offer gRPC server reflection"""
    health: Annotated[bool, LISTENING] = True
    """offer gRPC's health service, which takes no token"""
    tls_cert: Annotated[Path | None, ACCESS] = None
    """TLS certificate, PEM; read again when it changes"""
    tls_key: Annotated[Path | None, ACCESS] = None
    """private key of the certificate, PEM, unencrypted"""
    tls_client_ca: Annotated[Path | None, ACCESS] = None
    """CA that must have signed clients' certificates, PEM; without it, clients need none"""
    max_connection_s: Annotated[float, ACCESS] = Field(3600.0, ge=2, le=MAX_CONNECTION_S)
    """with tls_client_ca: seconds until a connection is closed and its client must show its certificate again"""
    tokens: Annotated[Path | None, ACCESS] = None
    """TOML file of bearer tokens and their rights; read again when it changes"""
    insecure: Annotated[bool, ACCESS] = False
    """listen on other interfaces than loopback without tokens or client certificates; for trusted networks"""
    group: Annotated[str | None, TABLES] = None
    """group whose members may read the tables' files; default: only the server's user"""
    trust_dirs: Annotated[bool, TABLES] = False
    """accept directories that other users own or may write to, for example in a container without other users"""
    checkpoint_dir: Annotated[Path | None, CHECKPOINTS] = None
    """directory for checkpoints; without it, checkpoints are off"""
    checkpoint_every: Annotated[float | None, CHECKPOINTS] = Field(None, gt=0)
    """seconds between checkpoints of all tables; default: only on request"""
    keep_checkpoints: Annotated[int, CHECKPOINTS] = Field(3, ge=1)
    """checkpoints kept per series, unless the request says otherwise"""
    max_checkpoint_bytes: Annotated[ByteSize | None, CHECKPOINTS] = Field(None, ge=1)
    """maximum bytes of all checkpoints together, such as 100GiB; requests beyond it are refused; default: disk
    space"""
    max_checkpoint_series: Annotated[int, CHECKPOINTS] = Field(Bounds.max_checkpoint_series, ge=1)
    """maximum series of checkpoints; requests beyond it are refused"""
    restore: Annotated[Path | None, CHECKPOINTS] = None
    """checkpoint to restore at startup"""
    exit_with_parent: Annotated[bool, PROCESS] = False
    """stop when the parent process dies, or closes standard input"""
    tables: Annotated[tuple[TableSettings, ...], Parameter(show=False)] = ()
    """tables to create at startup; from the TOML file"""

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
        same = {field.name: getattr(self, field.name) for field in fields(Bounds) if hasattr(self, field.name)}
        return Bounds(
            max_request_bytes=self.max_request_mb * BYTES_PER_MB,
            max_reply_bytes=self.max_reply_mb * BYTES_PER_MB,
            max_waiting_bytes=self.max_waiting_mb * BYTES_PER_MB,
            max_outgoing_bytes=self.max_outgoing_mb * BYTES_PER_MB,
            **same,
        )

    @model_validator(mode="after")
    def _has_a_place_for_checkpoints(self) -> Self:
        if self.checkpoint_every is not None and self.checkpoint_dir is None:
            raise ValueError("checkpoint_every needs a checkpoint_dir to write to; give both or neither")
        if self.checkpoint_dir is not None and self.data_dir is not None:
            data, checkpoints = self.data_dir.resolve(), self.checkpoint_dir.resolve()
            tables = data / TABLES_FOLDER
            # Each directory has its own lock, and a start opens everything in the folder of tables as a table.
            if checkpoints == data or checkpoints.is_relative_to(tables):
                expected = f"a directory other than data_dir, outside of {str(tables)!r}"
                raise ValueError(f"checkpoint_dir: expected {expected}, got {str(self.checkpoint_dir)!r}")
        return self


def load_settings(arguments: Sequence[str]) -> ServerSettings:
    """Read the settings as `read_settings` does; ``arguments`` do not include the program's name."""
    return read_settings(ServerSettings, "replay-server", "REPLAY_SERVER_", arguments)


def read_command_line(arguments: Sequence[str]) -> ServerSettings:
    """Read the settings, and configure logging accordingly.

    Exits with status 0 after ``--help`` and ``--version``, and with status 2 if the settings are invalid.
    """
    settings = load_settings(arguments)
    set_up_logging(settings.log_level, settings.log_format)
    settings.log_remarks(log)
    _ensure_temporary_directory([settings.memory_dir, settings.data_dir])
    try:
        check_exposure(settings.host, settings.protection, insecure=settings.insecure)
        if settings.http_port is not None and settings.http_host != settings.host:
            check_exposure(
                settings.http_host,
                settings.protection,
                insecure=settings.insecure,
                host_flag="--http-host",
                risk="read the names and figures of all tables",
            )
    except ExposedError as error:
        print(f"replay-server: {settings.explained(error)}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    return settings


def _ensure_temporary_directory(others: Iterable[Path | None]) -> None:
    """If the usual directories for temporary files are missing or read-only, use the first of the ``others`` instead.

    That is so in a container with a read-only root. Does nothing if none of them is writable; what needs one says so.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        for folder in others:
            if folder is not None and _is_writable(folder):
                tempfile.tempdir = str(folder)
                log.info("temporary files are in %s, because no usual directory for them is writable", folder)
                return


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
