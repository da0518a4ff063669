"""The description of a table: its config, and how full it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from replay_proto.errors import FieldError
from replay_proto.layout import INSERT_BYTES, MOST_ROWS_AT_ONCE
from replay_proto.rate_limit import RateLimit
from replay_proto.schema import Schema
from replay_proto.steps import Steps
from replay_proto.v1 import replay_pb2

from replay_client.errors import InternalServerError
from replay_client.results import mirrored

RANK: Final = "rank"
"""The backend that draws by rank."""
FIFO: Final = "fifo"
"""The backend whose tables are queues."""
MOST_KEYS_AT_ONCE: Final = 1 << 13
"""Maximum keys per call. The server handles this many in 5 ms, during which other callers wait."""


@dataclass(frozen=True)
class TableDescription:
    """A table's config and state at the time of the request."""

    name: str
    """Name of the table, unique on the server."""
    uid: bytes
    """16 random bytes that distinguish this table from earlier tables with the same name."""
    schema: Schema
    """Stored columns in storage order."""
    capacity: int
    """Maximum number of rows."""
    backend: str
    """``sum_tree``, ``rank``, ``uniform`` or ``fifo``."""
    parameters: Mapping[str, float]
    """Parameters of the backend, including defaults."""
    seed: int | None
    """Makes draws reproducible; None: random."""
    size: int
    """Live rows."""
    inserted: int
    """Rows ever inserted; also the key of the next row."""
    slots: int
    """Size of the ring in rows, slightly more than the capacity."""
    row_bytes: int
    """Bytes of one row, all columns together."""
    directory: str = ""
    """Path of the table's files on the server's host; empty if not disclosed."""
    socket: str = ""
    """Path of a socket on the server's host for calls without gRPC; empty: none."""
    owner_id: bytes = b""
    """16 random bytes that the server drew at its start; empty if `directory` is."""
    max_rows_per_call: int = 0
    """The server's limit on rows or keys per call, except inserts. 0: unknown, as in statistics."""
    steps: Steps | None = None
    """The items and derived columns of a table of steps; None if this is not a table of steps."""
    rate_limit: RateLimit | None = None
    """Keeps draws and inserts in a fixed ratio; None: no limit."""
    whole_capacity: int = 0
    """If this is a shard, the capacity with which the whole table was created; otherwise 0."""
    whole_uid: bytes = b""
    """If this is a shard, the uid of the whole table's first shard. Empty in that shard itself, and if not a shard."""
    whole_shards: tuple[int, ...] = ()
    """If this is a shard, the ids of the shards on which the whole table was created. Empty if it is not a shard, or
    if an older version created the table."""

    @property
    def may_lack_priorities(self) -> bool:
        """Whether some live rows have no priority, because they cannot be drawn."""
        return self.steps is not None or "max_times_sampled" in self.parameters

    @property
    def may_delay_inserts(self) -> bool:
        """Whether inserts wait for draws: those into queues, and those that a rate limiter keeps in a ratio."""
        return self.backend == FIFO or (self.rate_limit is not None and self.rate_limit.samples_per_insert is not None)

    @property
    def keys_per_call(self) -> int:
        """Maximum keys per call: calls with more are split."""
        return self.limited(MOST_KEYS_AT_ONCE)

    def limited(self, rows: int) -> int:
        """Reduce a number of rows or keys per call to what the server accepts."""
        return min(rows, self.max_rows_per_call or rows)

    @property
    def rows_per_insert(self) -> int:
        """Maximum rows per insert request.

        Larger requests would delay other calls, and the rate limiter or queue might never allow them.
        """
        # The ring of a queue of windows also has room for windows that a draw waits with.
        spare = self.slots - self.capacity * (2 if self.backend == FIFO and self.steps is not None else 1)
        fitting = min(spare, MOST_ROWS_AT_ONCE, max(1, INSERT_BYTES // self.row_bytes))
        if self.backend == FIFO:
            fitting = min(fitting, self.capacity)
        if self.rate_limit is not None and self.rate_limit.largest_insert is not None:
            fitting = min(fitting, self.rate_limit.largest_insert)
        return fitting

    def to_config(self) -> replay_pb2.TableConfig:
        """Convert the config to a message that creates a table like this one."""
        return replay_pb2.TableConfig(
            name=self.name,
            columns=self.schema.to_proto() if self.steps is None else self.steps.columns_to_proto(),
            capacity=self.capacity,
            backend=replay_pb2.Backend(name=self.backend, parameters=self.parameters),
            seed=self.seed,
            rate_limiter=None if self.rate_limit is None else self.rate_limit.to_proto(),
            steps=None if self.steps is None else self.steps.to_proto(),
            whole_capacity=self.whole_capacity,
        )

    def create_arguments(self, *, keep_parameters: bool = True) -> dict[str, Any]:
        """Return the arguments, without the name, for `ReplayClient.create_table` to create a table like this one.

        If ``keep_parameters``, they include the parameters of the backend.
        """
        steps, limit = self.steps, self.rate_limit
        has_ratio = limit is not None and limit.samples_per_insert is not None
        return {
            "columns": self.schema if steps is None else {**steps.schema, **steps.derived},
            "capacity": self.whole_capacity or self.capacity,
            "backend": self.backend,
            "steps": None if steps is None else steps.item,
            "seed": self.seed,
            "min_size": None if limit is None else limit.min_size,
            "samples_per_insert": None if limit is None else limit.samples_per_insert,
            "error_buffer": (limit.min_diff, limit.max_diff) if limit is not None and has_ratio else None,
            **(self.parameters if keep_parameters else {}),
        }

    @classmethod
    def from_proto(cls, message: replay_pb2.TableDescription) -> TableDescription:
        """Convert a message.

        Raises:
            InternalServerError: this version of the client does not support the table's columns, steps or rate limiter.
        """
        config = message.config
        try:
            steps = Steps.from_proto(config.steps, config.columns) if config.HasField("steps") else None
            schema = Schema.from_proto(config.columns) if steps is None else steps.schema
            rate_limit = RateLimit.from_proto(config.rate_limiter) if config.HasField("rate_limiter") else None
        except FieldError as error:
            raise InternalServerError(f"table {config.name!r} is of a type unknown to this client: {error}") from None
        return mirrored(
            cls,
            message,
            name=config.name,
            schema=schema,
            steps=steps,
            capacity=config.capacity,
            backend=config.backend.name,
            parameters=dict(sorted(config.backend.parameters.items())),
            seed=config.seed if config.HasField("seed") else None,
            rate_limit=rate_limit,
            whole_capacity=config.whole_capacity,
            whole_uid=config.whole_uid,
            whole_shards=tuple(config.whole_shards),
        )
