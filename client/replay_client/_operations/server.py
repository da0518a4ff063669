"""The operations of a client; see `replay_client.sync.client.ReplayClient` for their arguments, results and errors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

from google.protobuf import text_format
from google.protobuf.message import Message
from replay_proto.rate_limit import RateLimit
from replay_proto.schema import Column, Schema
from replay_proto.steps import Derived, Item, Steps
from replay_proto.v1 import replay_pb2

from replay_client._transport.call import Call, Operation
from replay_client.draws import checked_capacity, checked_count
from replay_client.errors import DeadlineExceededError, InvalidArgumentError, TableExistsError
from replay_client.results.copies import Checkpoint
from replay_client.results.description import TableDescription
from replay_client.results.inspection import Inspection
from replay_client.results.shards import ServerShards, ShardMap
from replay_client.results.stats import ShardReport, Stats

log = logging.getLogger(__name__)

_LARGEST_SEED: Final = 2**64 - 1
_MOST_LARGEST_ROWS: Final = 100

IfExists = Literal["open", "reset", "error"]
"""What `ReplayClient.create_table` does with an existing table."""


def table_config(
    name: str,
    *,
    columns: Mapping[str, Column | Derived],
    capacity: float,
    backend: str,
    steps: Item | None,
    seed: int | None,
    min_size: float | None,
    samples_per_insert: float | None,
    error_buffer: float | tuple[float, float] | None,
    **parameters: float | None,
) -> replay_pb2.TableConfig:
    """Check and build the config of a new table; ``parameters`` are those of the backend, None is the default."""
    try:
        limit = RateLimit.of(min_size, samples_per_insert, error_buffer)
        by_name = _by_name(columns)
        described = None if steps is None else Steps.of(by_name, steps)
        return replay_pb2.TableConfig(
            name=checked_text("name", name),
            columns=_stored_only(by_name) if described is None else described.columns_to_proto(),
            capacity=checked_capacity(capacity),
            backend=replay_pb2.Backend(
                name=checked_text("backend", backend),
                parameters={name: _number(name, value) for name, value in parameters.items() if value is not None},
            ),
            seed=None if seed is None else checked_count("seed", seed, least=0, most=_LARGEST_SEED),
            rate_limiter=None if limit is None else limit.to_proto(),
            steps=None if described is None else described.to_proto(),
        )
    except InvalidArgumentError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        expected = "names, whole numbers and columns"
        raise InvalidArgumentError.of_field("config", expected, str(error)) from None


def create_table(
    config: replay_pb2.TableConfig, if_exists: IfExists | None, *, shards_version: int = 0
) -> Operation[tuple[TableDescription, bool]]:
    """Create a table, or open an existing one. Returns its description, and whether it is new.

    ``shards_version`` is the version of the shard map that divides the table among servers, or 0 if none does.
    """
    if if_exists not in (None, *get_args(IfExists)):
        raise InvalidArgumentError.of_field("if_exists", "'open', 'reset' or 'error'", repr(if_exists))
    request = replay_pb2.CreateTableRequest(config=config, shards_version=shards_version)
    # A retry might find the table of the first attempt.
    try:
        answer = yield Call("CreateTable", request.SerializeToString(), repeat=if_exists != "error")
    except DeadlineExceededError as error:
        error.add_note("allocating a large table takes long; increase the client's timeout_s, and open the table again")
        raise
    response = replay_pb2.CreateTableResponse.FromString(bytes(answer))
    description = TableDescription.from_proto(response.table)
    if not response.created:
        yield from _open(description, if_exists)
    elif ignored := _ignored(config, response.table.config):
        yield from drop_table(config.name, response.table.uid)
        field, option = ignored
        expected = "an option that this server knows: it has an older version than the client; upgrade it"
        raise InvalidArgumentError.of_field(field, expected, option)
    return description, response.created


def _ignored(given: replay_pb2.TableConfig, made: replay_pb2.TableConfig) -> tuple[str, str] | None:
    """Return a field of a new table, and one of its options that the server has ignored, if any.

    Servers ignore fields of messages that their version does not have.
    """
    pairs: list[tuple[str, Message, Message]] = [
        (f"columns.{column.name}", column, stored) for column, stored in zip(given.columns, made.columns, strict=True)
    ]
    pairs.append(("steps", given.steps, made.steps))
    for field, sent, stored in pairs:
        if sent != stored:
            return field, text_format.MessageToString(sent, as_one_line=True)
    return None


def describe(name: str) -> Operation[TableDescription]:
    """Fetch the description of a table."""
    description, _ = yield from open_table(name)
    return description


def open_table(name: str) -> Operation[tuple[TableDescription, ShardMap | None]]:
    """Fetch the description of a table, and the shard map of its server, if any."""
    request = replay_pb2.DescribeTableRequest(table=checked_text("name", name))
    answer = yield Call("DescribeTable", request.SerializeToString())
    response = replay_pb2.DescribeTableResponse.FromString(bytes(answer))
    shards = ShardMap.from_proto(response.shards) if response.HasField("shards") else None
    return TableDescription.from_proto(response.table), shards


def get_shards(*, timeout_s: float) -> Operation[ServerShards]:
    """Fetch the shard map of a server."""
    answer = yield Call("GetShards", replay_pb2.GetShardsRequest().SerializeToString(), timeout_s=timeout_s)
    response = replay_pb2.GetShardsResponse.FromString(bytes(answer))
    shards = ShardMap.from_proto(response.map) if response.HasField("map") else None
    return ServerShards(shards, response.server_uid, response.version)


def set_shards(new: ShardMap, expected_version: int) -> Operation[None]:
    """Replace the shard map of a server. Fails unless the current map has the expected version."""
    request = replay_pb2.SetShardsRequest(map=new.to_proto(), expected_version=expected_version)
    yield Call("SetShards", request.SerializeToString(), repeat=False)


def report_shard(table: str, uid: bytes, shard_id: int, report: ShardReport) -> Operation[None]:
    """Tell a server the last known state of a shard on another server; ``uid`` is that of the called server's shard."""
    about = replay_pb2.ShardReport(shard_id=shard_id, **vars(report))
    request = replay_pb2.ReportShardRequest(table=table, table_uid=uid, report=about)
    yield Call("ReportShard", request.SerializeToString())


def list_tables() -> Operation[tuple[list[TableDescription], ShardMap | None]]:
    """Fetch the descriptions of all tables, sorted by name, and the shard map of the server, if any."""
    answer = yield Call("ListTables", replay_pb2.ListTablesRequest().SerializeToString())
    response = replay_pb2.ListTablesResponse.FromString(bytes(answer))
    shards = ShardMap.from_proto(response.shards) if response.HasField("shards") else None
    return [TableDescription.from_proto(table) for table in response.tables], shards


def reset_table(name: str, uid: bytes) -> Operation[int]:
    """Remove all rows of a table, and return their number. Never retried: a second reset would remove newer rows."""
    request = replay_pb2.ResetTableRequest(table=name, table_uid=uid)
    answer = yield Call("ResetTable", request.SerializeToString(), repeat=False)
    return replay_pb2.ResetTableResponse.FromString(bytes(answer)).removed


def drop_table(name: str, uid: bytes = b"") -> Operation[None]:
    """Drop a table; an empty uid matches any table with the name. Never retried: a retry might drop a newer table."""
    request = replay_pb2.DropTableRequest(table=checked_text("name", name), table_uid=uid)
    yield Call("DropTable", request.SerializeToString(), repeat=False)


def inspect_table(name: str, uid: bytes, largest: int) -> Operation[Inspection]:
    """Fetch the distribution of a table's rows, including the ``largest`` rows with the largest priorities."""
    count = checked_count("largest", largest, most=_MOST_LARGEST_ROWS)
    request = replay_pb2.InspectRequest(table=name, table_uid=uid, largest=count)
    answer = yield Call("Inspect", request.SerializeToString())
    return Inspection.from_proto(replay_pb2.InspectResponse.FromString(bytes(answer)))


def stats(table: str = "") -> Operation[Stats]:
    """Fetch statistics of a table, or of the server and all tables."""
    return Stats.from_proto((yield from stats_message(table)))


def stats_message(table: str = "") -> Operation[replay_pb2.StatsResponse]:
    """Fetch the message with these statistics."""
    answer = yield Call("Stats", replay_pb2.StatsRequest(table=table).SerializeToString())
    return replay_pb2.StatsResponse.FromString(bytes(answer))


def checkpoint(
    tables: Iterable[str],
    *,
    series: str | None,
    keep: int | None,
    timeout_s: float | None,
    number: int = 0,
    shard_id: int | None = None,
) -> Operation[Checkpoint]:
    """Have the server write a checkpoint.

    ``number`` is its number in the series; 0 stands for the next one. ``shard_id`` is the id of the server's shard.
    """
    request = replay_pb2.CheckpointRequest(
        tables=checked_names("tables", tables),
        series=checked_text("series", series or ""),
        keep=0 if keep is None else checked_count("keep", keep),
        number=number,
        shard_id=shard_id,
    )
    answer = yield Call("Checkpoint", request.SerializeToString(), repeat=False, timeout_s=timeout_s)
    return Checkpoint.from_proto(replay_pb2.CheckpointResponse.FromString(bytes(answer)).checkpoint)


def list_checkpoints() -> Operation[tuple[list[Checkpoint], ShardMap | None]]:
    """Fetch the server's checkpoints, damaged ones first, then oldest first, and its shard map, if any."""
    answer = yield Call("ListCheckpoints", replay_pb2.ListCheckpointsRequest().SerializeToString())
    response = replay_pb2.ListCheckpointsResponse.FromString(bytes(answer))
    shards = ShardMap.from_proto(response.shards) if response.HasField("shards") else None
    return [Checkpoint.from_proto(each) for each in (*response.damaged, *response.checkpoints)], shards


def verify_checkpoint(name: str, *, timeout_s: float | None) -> Operation[Checkpoint]:
    """Have the server verify a checkpoint."""
    request = replay_pb2.VerifyCheckpointRequest(name=checked_text("name", name))
    answer = yield Call("VerifyCheckpoint", request.SerializeToString(), timeout_s=timeout_s)
    return Checkpoint.from_proto(replay_pb2.VerifyCheckpointResponse.FromString(bytes(answer)).checkpoint)


def checked_names(field: str, names: Iterable[str]) -> list[str]:
    """Check that ``names`` is a list or another iterable of strings, and not a single string."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidArgumentError.of_field(field, "a list of names", repr(names))
    return [checked_text(field, name) for name in names]


def checked_text(field: str, value: str) -> str:
    """Check that a value is a string that UTF-8 can encode."""
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidArgumentError.of_field(field, "a string without surrogates", ascii(value))
    return value


def _open(table: TableDescription, if_exists: IfExists | None) -> Operation[None]:
    """Apply `if_exists` to an existing table."""
    if if_exists == "error":
        raise TableExistsError(
            f"table {table.name!r} already exists, with {table.size:,} rows",
            reason="TABLE_EXISTS",
            metadata={"table": table.name},
        )
    if if_exists == "reset":
        yield from reset_table(table.name, table.uid)
    if if_exists is None and table.size:
        log.warning(
            "opened existing table %r with %s rows; pass if_exists='open' to "
            "silence this, or if_exists='reset' to empty it",
            table.name,
            f"{table.size:,}",
        )


def _by_name(columns: Mapping[str, Column | Derived]) -> dict[str, Column | Derived]:
    try:
        return dict(columns)
    except (TypeError, ValueError):
        expected = 'a mapping of names to columns, such as {"obs": Column("float32", 4)}'
        raise InvalidArgumentError.of_field("columns", expected, repr(columns)) from None


def _number(name: str, value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError.of_field(name, "a number", repr(value)) from None


def _stored_only(columns: Mapping[str, Column | Derived]) -> list[replay_pb2.Column]:
    """Convert the columns of a table without steps to messages; refuse columns that need `steps`."""
    needed = "steps=Transitions(...) or steps=Sequences(...)"
    for name, column in columns.items():
        if isinstance(column, get_args(Derived)):
            raise InvalidArgumentError.of_field(f"columns.{name}", f"a Column, or {needed}", repr(column))
        if isinstance(column, Column) and not column.sampled:
            raise InvalidArgumentError.of_field(f"columns.{name}.sampled", f"True, or {needed}", "False")
        if isinstance(column, Column) and column.at != "step":
            raise InvalidArgumentError.of_field(
                f"columns.{name}.at", "'step', or steps=Sequences(...)", repr(column.at)
            )
    return Schema(columns).to_proto()  # type: ignore[arg-type]  # Schema refuses anything else
