"""The validated config of a table, from a request, a manifest or the config file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from replay_proto.errors import FieldError
from replay_proto.framing import Carried
from replay_proto.layout import MOST_ROWS_AT_ONCE
from replay_proto.rate_limit import RateLimit
from replay_proto.schema import Column, Schema
from replay_proto.steps import Steps
from replay_proto.v1 import replay_pb2

from replay_server.backends import BACKENDS
from replay_server.backends.index import read_parameters
from replay_server.backends.sum_tree import SumTree, SumTreeParameters
from replay_server.backends.uniform import UniformIndex
from replay_server.storage.format import UID_BYTES
from replay_server.storage.ranges import CAPACITIES, SHARD_IDS
from replay_server.storage.row_store import LINK, STEP_LINK

DEFAULT_BACKEND = "sum_tree"
QUEUE = "fifo"
"""The protocol's backend name for a queue, which draws oldest rows first."""
TIMES_SAMPLED = "max_times_sampled"
"""Name of a parameter that each backend has."""
MAX_TIMES_SAMPLED = 10_000
"""Small enough that its product with a 48-bit key fits easily into 64 bits."""
_MOST_NUMBERS = 1 << 14
"""Maximum numbers of deliveries per key: their product with a 48-bit key fits into 63 bits."""
_TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}")
_MIN_SLACK = 64
_SLACK_FRACTION = 64
_MAX_SEED = (1 << 64) - 1
_MOST_SHARDS = 1024


def is_table_name(name: str) -> bool:
    """Whether a table name is allowed. Allowed names are safe as directory names."""
    return _TABLE_NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class QueueParameters:
    """A queue has no parameters but `TIMES_SAMPLED`."""


@dataclass(frozen=True)
class TableConfig:
    """The immutable config of a table."""

    name: str
    """Unique within the server, and safe as a directory name."""
    schema: Schema
    """The table's columns."""
    capacity: int
    """Maximum number of rows kept."""
    backend: str = DEFAULT_BACKEND
    """How rows are drawn: a name in `replay_server.backends.BACKENDS`, or `QUEUE`."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """The backend's parameters; missing ones get their defaults."""
    seed: int | None = None
    """Makes draws reproducible if a table gets the same operations in the same order from its creation on."""
    rate_limit: RateLimit | None = None
    """Keeps draws and inserts in a fixed ratio; None: no limit."""
    owner: str = ""
    """Name of the token of the caller who created the table; empty if there was none. Not visible to callers."""
    steps: Steps | None = None
    """What a table of steps draws and derives; None for other tables."""
    whole_capacity: int = 0
    """If this table is a shard, the capacity that its creator specified for the whole table; otherwise 0."""
    whole_uid: bytes = b""
    """The uid of the whole table, if this table is one of its shards but not the first one; otherwise empty."""
    whole_shards: tuple[int, ...] = ()
    """Ids of the shards on which the whole table was created; only clients use them."""

    def __post_init__(self) -> None:
        """Check every field and fill in the backend's defaults."""
        if not is_table_name(self.name):
            raise FieldError(
                "name",
                "1 to 128 letters, digits, '_', '-' or '.', the first one a letter or a digit",
                repr(self.name),
            )
        if self.backend not in (*BACKENDS, QUEUE):
            raise FieldError("backend", f"one of {', '.join((*BACKENDS, QUEUE))}", repr(self.backend))
        largest = BACKENDS[self.index_backend].most_rows
        if not 1 <= self.capacity <= largest:
            raise FieldError("capacity", f"1 to {largest} rows with the backend {self.backend}", str(self.capacity))
        CAPACITIES.check("whole_capacity", self.whole_capacity)
        if len(self.whole_uid) not in (0, UID_BYTES):
            raise FieldError("whole_uid", f"{UID_BYTES} bytes, or none", f"{len(self.whole_uid)} bytes")
        if len(self.whole_shards) > _MOST_SHARDS:
            raise FieldError("whole_shards", f"at most {_MOST_SHARDS} ids", str(len(self.whole_shards)))
        for shard_id in self.whole_shards:
            SHARD_IDS.check("whole_shards", shard_id)
        if self.seed is not None and not 0 <= self.seed <= _MAX_SEED:
            raise FieldError("seed", f"0 to {_MAX_SEED}", str(self.seed))
        if self.rate_limit is not None:
            if self.is_queue:
                raise FieldError("rate_limiter", "none with the backend fifo, which limits itself", "one")
            if self.rate_limit.min_size > self.capacity:
                raise FieldError("min_size", f"at most the capacity, {self.capacity}", str(self.rate_limit.min_size))
        self._check_steps()
        kind = QueueParameters if self.is_queue else BACKENDS[self.backend].Parameters
        given = {name: value for name, value in self.parameters.items() if name != TIMES_SAMPLED}
        resolved = asdict(read_parameters(kind, self.backend, given)) | self._times_sampled()
        object.__setattr__(
            self, "parameters", {name: float(value) for name, value in resolved.items() if value is not None}
        )
        if self.numbers_per_row > _MOST_NUMBERS:
            most = _MOST_NUMBERS // (self.numbers_per_row // self.max_times)
            got = f"{self.max_times}"
            raise FieldError(TIMES_SAMPLED, f"at most {most:,} with windows of this length", got)
        if not self._draws_any_row and self.backend == SumTree.name and not self._index_settings.mass(0.0):
            expected = f"epsilon ** alpha above 0 in a table of steps, and with {TIMES_SAMPLED}"
            raise FieldError("epsilon", expected, repr(self.parameters["epsilon"]))

    def _times_sampled(self) -> dict[str, float]:
        times = self.parameters.get(TIMES_SAMPLED, 1.0 if self.is_queue else None)
        if times is None:
            return {}
        if not (1 <= times <= MAX_TIMES_SAMPLED and float(times).is_integer()):
            raise FieldError(TIMES_SAMPLED, f"a whole number of 1 to {MAX_TIMES_SAMPLED}", repr(times))
        return {TIMES_SAMPLED: times}

    def _check_steps(self) -> None:
        if self.steps is None:
            for name, column in self.schema.items():
                if not column.sampled:
                    raise FieldError(f"columns.{name}.sampled", "True, except in a table of steps", "False")
                if column.at != "step":
                    raise FieldError(f"columns.{name}.at", "'step', except in a table of sequences", repr(column.at))
            return
        if self.steps.window.rows > self.capacity:
            raise FieldError("capacity", f"at least {self.steps.window.rows}, the rows of a window", str(self.capacity))

    @property
    def slack(self) -> int:
        """Number of slots beyond the capacity. With them, rows that are being written never overlap live rows."""
        return max(_MIN_SLACK, self.capacity // _SLACK_FRACTION)

    @cached_property
    def rows_at_once(self) -> int:
        """Maximum rows per insert; the rows of an insert become live together."""
        return min(self.slack, MOST_ROWS_AT_ONCE)

    @cached_property
    def slots(self) -> int:
        """Length of the ring: row k is in slot ``k % slots``.

        In a queue of windows, it is twice as long: while a draw waits for more of them, the rows of those that were
        granted stay there, in addition to the capacity.
        """
        spare = self.capacity if self.is_queue and self.steps is not None else 0
        return self.capacity + self.slack + spare

    @property
    def is_queue(self) -> bool:
        """Whether draws remove rows, and inserts never overwrite them."""
        return self.backend == QUEUE

    @property
    def index_backend(self) -> str:
        """The backend that stores the priorities.

        A queue stores priorities, but its draws ignore them. With the uniform backend, a table uses a sum tree if only
        some of its rows can be drawn.
        """
        if self.is_queue:
            return UniformIndex.name
        return SumTree.name if self.backend == UniformIndex.name and not self._draws_any_row else self.backend

    @property
    def index_parameters(self) -> Mapping[str, float]:
        """The parameters of `index_backend`."""
        if self.is_queue:
            return {}
        if self.index_backend != self.backend:
            return {"alpha": 0.0}
        return {name: value for name, value in self.parameters.items() if name != TIMES_SAMPLED}

    @property
    def _index_settings(self) -> SumTreeParameters:
        return SumTreeParameters(**self.index_parameters)

    @property
    def _draws_any_row(self) -> bool:
        """Whether each live row can be drawn. Of a table of steps, only some are anchors of complete windows."""
        return self.steps is None and not self.most_draws

    @cached_property
    def stored(self) -> Carried:
        """All stored columns, which a reply to a read carries."""
        return Carried(self.schema)

    @cached_property
    def carried(self) -> Carried:
        """The stored columns that a reply to a draw carries."""
        return self.stored if self.steps is None else Carried(self.steps.carried)

    @property
    def link(self) -> Column:
        """The column for the rows' links; see `replay_server.storage.runs`."""
        return LINK if self.steps is None else STEP_LINK

    @property
    def max_times(self) -> int:
        """Deliveries of each row or window of a queue; 0 if the table is not a queue."""
        return int(self.parameters[TIMES_SAMPLED]) if self.is_queue else 0

    @property
    def most_draws(self) -> int:
        """How often each row or window may be drawn; 0 if that is not limited, or if the table is a queue."""
        return 0 if self.is_queue else int(self.parameters.get(TIMES_SAMPLED, 0))

    @property
    def times(self) -> int:
        """Deliveries after which a row is released; 0 unless the table is a queue of rows."""
        return self.max_times if self.steps is None else 0

    @property
    def numbers_per_row(self) -> int:
        """Numbers of deliveries for each key; 0 if the table is not a queue. See `replay_server.table.window_queue`."""
        return self.max_times if self.steps is None else self.max_times * (self.steps.window.forward + 1)

    @property
    def most_live(self) -> int:
        """Maximum number of live rows. A queue keeps rows until they are drawn; its gate ensures that they fit."""
        return self.slots if self.is_queue else self.capacity

    @property
    def whole_most_live(self) -> int:
        """Maximum number of live rows of the whole table or, if that is unknown, of any shard of it."""
        return max(self.whole_capacity, self.most_live)

    def difference(self, other: TableConfig) -> FieldError | None:
        """Return the first field that differs from another config; None if there is none.

        Ignores the name, seed, owner, ``whole_uid`` and ``whole_shards``.
        """
        ours, theirs = self._by_field(), other._by_field()
        for name in ours | theirs:
            if ours.get(name) != theirs.get(name):
                return FieldError(name, ours.get(name, "absent"), theirs.get(name, "absent"))
        if list(self.schema) != list(other.schema):
            return FieldError("columns", f"the order {list(self.schema)}", f"{list(other.schema)}")
        return None

    def _by_field(self) -> dict[str, str]:
        return {
            # A shard's share of the capacity depends on the number of servers when it was created.
            "capacity": f"{self.whole_capacity} over several servers" if self.whole_capacity else str(self.capacity),
            "backend": self.backend,
            **{f"columns.{name}": str(column) for name, column in self.schema.items()},
            **self._steps_by_field(),
            **{name: repr(value) for name, value in self.parameters.items()},
            **({name: repr(value) for name, value in asdict(self.rate_limit).items()} if self.rate_limit else {}),
        }

    def _steps_by_field(self) -> dict[str, str]:
        if self.steps is None:
            return {}
        derived = {f"columns.{name}": repr(column) for name, column in self.steps.derived.items()}
        return {"steps": repr(self.steps.item), **derived}

    @cached_property
    def message(self) -> replay_pb2.TableConfig:
        """The config as a protobuf message, which must not be changed: building it takes as long as reading figures."""
        return replay_pb2.TableConfig(
            name=self.name,
            columns=self.schema.to_proto() if self.steps is None else self.steps.columns_to_proto(),
            steps=None if self.steps is None else self.steps.to_proto(),
            capacity=self.capacity,
            backend=replay_pb2.Backend(name=self.backend, parameters=self.parameters),
            seed=self.seed,
            rate_limiter=None if self.rate_limit is None else self.rate_limit.to_proto(),
            whole_capacity=self.whole_capacity,
            whole_uid=self.whole_uid,
            whole_shards=self.whole_shards,
        )

    @classmethod
    def from_proto(cls, config: replay_pb2.TableConfig) -> TableConfig:
        """Read and check a config that a client sent."""
        steps = Steps.from_proto(config.steps, config.columns) if config.HasField("steps") else None
        read = cls(
            name=config.name,
            schema=Schema.from_proto(config.columns) if steps is None else steps.schema,
            steps=steps,
            capacity=config.capacity,
            backend=config.backend.name or DEFAULT_BACKEND,
            parameters=config.backend.parameters,
            seed=config.seed if config.HasField("seed") else None,
            rate_limit=RateLimit.from_proto(config.rate_limiter) if config.HasField("rate_limiter") else None,
            whole_capacity=config.whole_capacity,
            whole_uid=config.whole_uid,
            whole_shards=tuple(config.whole_shards),
        )
        read.check_min_size()
        return read

    def check_min_size(self) -> None:
        """Check that a new table can have ``min_size`` drawable rows. Earlier versions did not check this."""
        if self.steps is None or self.rate_limit is None:
            return
        most = self.steps.window.most_drawable(self.capacity)
        if self.rate_limit.min_size > most:
            expected = f"at most {most}, the most steps that can be drawable in {self.capacity} rows"
            raise FieldError("min_size", expected, str(self.rate_limit.min_size))

    def to_json(self) -> dict[str, Any]:
        """Convert to the manifest's JSON."""
        return {
            "name": self.name,
            "columns": {name: _column_to_json(column) for name, column in self.schema.items()},
            "capacity": self.capacity,
            "backend": self.backend,
            "parameters": dict(self.parameters),
            "seed": self.seed,
            # JSON cannot represent infinity, the value of unused bounds.
            "rate_limit": None if self.rate_limit is None else _finite_only(asdict(self.rate_limit)),
            "owner": self.owner,
            **({} if self.steps is None else {"steps": self.steps.to_json()}),
            **({"whole_capacity": self.whole_capacity} if self.whole_capacity else {}),
            **({"whole_uid": self.whole_uid.hex()} if self.whole_uid else {}),
            **({"whole_shards": list(self.whole_shards)} if self.whole_shards else {}),
        }

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> TableConfig:
        """Read and check a config from a manifest; a `KeyError` or `TypeError` means a missing or unknown field."""
        plain = dict(config)
        schema = Schema({name: Column(**column) for name, column in plain.pop("columns").items()})
        rate_limit, steps = plain.pop("rate_limit"), plain.pop("steps", None)
        whole_uid, whole_shards = plain.pop("whole_uid", ""), plain.pop("whole_shards", ())
        return cls(
            **plain,
            schema=schema,
            whole_uid=bytes.fromhex(whole_uid),
            whole_shards=tuple(whole_shards),
            rate_limit=None if rate_limit is None else RateLimit(**rate_limit),
            steps=None if steps is None else Steps.from_json(steps, schema),
        )


def _column_to_json(column: Column) -> dict[str, Any]:
    """Convert a column to JSON. Fields that few tables use are omitted if they have their defaults."""
    described: dict[str, Any] = {"dtype": column.dtype.name, "shape": list(column.shape)}
    options = {each.name: getattr(column, each.name) for each in fields(Column) if each.name not in described}
    return described | {name: value for name, value in options.items() if value != getattr(Column, name)}


def _finite_only(numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
