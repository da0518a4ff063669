"""The rights that RPCs and fields of their requests require, and the few fields that a check of rights reads.

Every field of every message in a request is listed (see `replay.proto`), so that nobody adds one without deciding who
may send it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from replay_proto.access.tokens import Right
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.auth import Caller
from replay_server.checkpoint.store import DEFAULT_SERIES, PERIODIC_SERIES


class Needed(NamedTuple):
    """What a request that sets a field requires."""

    right: Right
    on: Literal["table", "series"] = "table"
    """On what: the table that the request names, or a table with the name of the checkpoint's series."""


def _no_more(names: str) -> dict[str, Needed | None]:
    """Fields that a caller may set who may call the RPC, or send the message that they are in."""
    return dict.fromkeys(names.split())


_WRITE: Final = Needed(Right.WRITE)
_SERIES: Final = Needed(Right.ADMIN, "series")

FIELDS: Final[Mapping[str, Mapping[str, Needed | None]]] = {
    "CreateTableRequest": _no_more("config shards_version"),
    "TableConfig": _no_more(
        "name columns capacity backend seed rate_limiter steps whole_capacity whole_uid whole_shards"
    ),
    "Column": _no_more("name stored derived step presence"),
    "StoredColumn": _no_more("data_type shape mutable"),
    "StepColumn": _no_more("values unsampled at_start"),
    "Presence": _no_more("of"),
    "DerivedColumn": _no_more("stack n_step_return discount mask"),
    "Stack": _no_more("of count repeats ahead"),
    "Return": _no_more("of"),
    "Discount": {},
    "Mask": {},
    "Backend": _no_more("name parameters"),
    "ParametersEntry": _no_more("key value"),
    "RateLimiter": _no_more("min_size samples_per_insert min_diff max_diff"),
    "Steps": _no_more("gamma transitions sequences"),
    "Transitions": _no_more("n_step"),
    "Sequences": _no_more("length burn_in period eta unpadded"),
    "DropTableRequest": _no_more("table table_uid"),
    "ListTablesRequest": {},
    "DescribeTableRequest": _no_more("table"),
    "ResetTableRequest": _no_more("table table_uid"),
    "InsertRequest": _no_more("table table_uid writer_id insertion rows"),
    "WriteRequest": _no_more("table table_uid writer_id insertion rows"),
    "Insertion": _no_more("row_count priorities sequence runs wait_s"),
    "Runs": _no_more("row_counts streams episodes first_steps ends"),
    "SampleRequest": _no_more("table table_uid draw same_host reader"),
    # In a table with samples_per_insert, charged_apart requires the right to write; the handler checks this.
    "Draw": _no_more("batch_size beta weight_norm draw_mode wait_s columns charged_apart row_info"),
    "ColumnNames": _no_more("names"),
    "SameHost": _no_more("owner_id overtaken"),
    "ReaderStamp": _no_more("reader_id sequence received"),
    "ReadRequest": _no_more("table table_uid keys columns wait_s same_host"),
    "UpdatePrioritiesRequest": _no_more("table table_uid update"),
    "PriorityUpdate": {
        **_no_more("keys priorities"),
        "others_largest": _WRITE,  # the priority of rows that others insert
    },
    "UpdateRowsRequest": _no_more("table table_uid update rows"),
    "RowUpdate": _no_more("keys columns"),
    "LearnRequest": {
        **_no_more("table table_uid draw batches same_host ahead wants_state reader"),
        "update": _WRITE,
        "row_update": _WRITE,
        "rows": _WRITE,  # only in a row_update
        "charge": _WRITE,  # when others may insert
        "refund": _WRITE,
    },
    "StatsRequest": {"table": Needed(Right.READ)},
    "CheckpointRequest": {
        **_no_more("shard_id"),
        "tables": Needed(Right.ADMIN),
        # Names a series, and says which of its checkpoints are removed, and which numbers are left.
        "series": _SERIES,
        "keep": _SERIES,
        "number": _SERIES,
    },
    "ListCheckpointsRequest": {},
    "VerifyCheckpointRequest": _no_more("name"),
    "GetShardsRequest": {},
    "SetShardsRequest": _no_more("map expected_version"),
    "ShardMap": _no_more("uid version shards id ancestors"),
    "Shard": _no_more("id address state lost_rows"),
    "LostRows": _no_more("table table_uids size inserted"),
    "ReportShardRequest": {
        **_no_more("table table_uid"),
        "report": _WRITE,  # statistics that others see
    },
    "ShardReport": _no_more("shard_id inserted size total_mass"),
    "InspectRequest": _no_more("table table_uid largest"),
}
"""By message and field; None: no more rights."""


def needing(message: str, right: Right) -> tuple[str, ...]:
    """Return the fields of a message that require this right."""
    return tuple(name for name, needed in FIELDS[message].items() if needed is not None and needed.right is right)


_PACKAGE = "replay.names"


def only(message_type: type[Message], *paths: str) -> type[Message]:
    """Create a message type that has only some of the fields of ``message_type``, and skips the rest without parsing.

    If a field occurs twice, the last value wins, and nested messages are merged. Protobuf applies the same rules when
    it parses the whole request later, so the check and the handler always see the same name.

    Args:
        message_type: the original type.
        *paths: the fields to keep, which must not be repeated: for example "table", or "config.name" for a field of a
            nested message. If a path names a whole nested message, the content of that message is skipped, and only
            `HasField` works.
    """
    described = message_type.DESCRIPTOR
    file = FileDescriptorProto(name=f"{described.full_name}.names", package=_PACKAGE, syntax="proto3")
    _describe(file.message_type.add(), described, paths, f".{_PACKAGE}")
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{described.name}"))


def _describe(made: DescriptorProto, described: Any, paths: Iterable[str], scope: str) -> None:
    made.name = described.name
    scope = f"{scope}.{made.name}"
    for path in paths:
        name, _, rest = path.partition(".")
        field = described.fields_by_name[name]
        copy = made.field.add(
            name=name, number=field.number, type=field.type, label=FieldDescriptorProto.LABEL_OPTIONAL
        )
        if rest:
            _describe(made.nested_type.add(), field.message_type, [rest], scope)
            copy.type_name = f"{scope}.{field.message_type.name}"
        elif field.message_type is not None:
            # Bytes have the same wire format as messages. Each optional field needs its own oneof.
            copy.type, copy.proto3_optional, copy.oneof_index = copy.TYPE_BYTES, True, len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{name}")


_TABLE_NAME = only(replay_pb2.DescribeTableRequest, "table")
"""Reads the table's name from any request about one table; its field has the same number in all such requests."""


@dataclass(frozen=True)
class Demand:
    """The right that a call requires, checked before the message is parsed."""

    names: type[Message] | None
    """A message type with only the names that ``check`` needs; None if it needs no names."""
    check: Callable[[Caller, Any, str], None]
    """Refuses callers without the right.

    Takes the caller, a message of the type ``names``, and the table named earlier on the stream. It does not check
    whether the table exists, so that callers without rights cannot find out.
    """


def on_table(one_of: Right) -> Demand:
    """Require one of these rights on the table that the message names, or that was named earlier on the stream."""
    return Demand(_TABLE_NAME, lambda caller, named, stream_table: caller.check(one_of, named.table or stream_table))


TO_CREATE = Demand(
    only(replay_pb2.CreateTableRequest, "config.name"),
    lambda caller, named, _: caller.check(Right.ADMIN, named.config.name),
)
"""The right to administer the table to be created."""
TO_LIST = Demand(None, lambda caller, _named, _: caller.check(Right.READ))
"""The right to read at least one table; the reply omits tables that the caller may not read."""
FOR_ANY = Demand(None, lambda caller, _named, _: caller.check(Right.any()))
"""Any right to any table."""
TO_SEE_FIGURES = Demand(_TABLE_NAME, lambda caller, named, _: caller.check(Right.READ, named.table or None))
"""The right to read the table that the request names.

If it names none, the right to read at least one table; the reply omits tables that the caller may not read.
"""
TO_ADMINISTER_ALL = Demand(None, lambda caller, _named, _: caller.check_on_all(Right.ADMIN))
"""The right to administer all tables, even if there are none."""


def _check_learn(caller: Caller, named: Any, stream_table: str) -> None:
    table = named.table or stream_table
    caller.check(Right.READ, table)
    if any(map(named.HasField, _LEARN_MESSAGES)) or any(getattr(named, name) for name in _LEARN_NUMBERS):
        caller.check(Right.WRITE, table)


_LEARN_WRITES = needing("LearnRequest", Right.WRITE)
_OF_LEARN = replay_pb2.LearnRequest.DESCRIPTOR.fields_by_name
_LEARN_MESSAGES = tuple(name for name in _LEARN_WRITES if _OF_LEARN[name].message_type is not None)
_LEARN_NUMBERS = tuple(name for name in _LEARN_WRITES if _OF_LEARN[name].message_type is None)
TO_LEARN = Demand(only(replay_pb2.LearnRequest, "table", *_LEARN_WRITES), _check_learn)
"""The right to read the table; if the request has an update, a charge or a refund, also the right to write to it."""


def to_copy(most: int) -> Demand:
    """Require the right to administer the series and the tables of a checkpoint; refuse more than ``most`` tables.

    If the request names no tables, it requires the right to administer all tables.
    """

    def check(caller: Caller, request: replay_pb2.CheckpointRequest, _: str) -> None:
        if len(request.tables) > most:
            raise errors.too_large("tables of a checkpoint", most, len(request.tables), "max_tables of the server")
        if not request.tables:
            caller.check_on_all(Right.ADMIN)
        for name in request.tables:
            caller.check(Right.ADMIN, name)
        check_series(caller, series_of(request, caller))

    return Demand(replay_pb2.CheckpointRequest, check)


def series_of(request: replay_pb2.CheckpointRequest, caller: Caller) -> str:
    """Return the series of a new checkpoint: the one that the request names, or a default that the caller may use.

    The default is `DEFAULT_SERIES` if the checkpoint is of all tables or the caller may administer all tables.
    Otherwise, it is the name of the first table.
    """
    if request.series:
        return request.series
    return DEFAULT_SERIES if not request.tables or caller.may_on_all(Right.ADMIN) else request.tables[0]


def check_series(caller: Caller, series: str, tables: Iterable[str] = ()) -> None:
    """Refuse a series of checkpoints unless the caller may administer all ``tables`` in it.

    The caller must also have the right to administer a table with the same name as the series, so that callers cannot
    use each other's names. `PERIODIC_SERIES` requires the right to administer all tables.
    """
    what = f"series {series!r}, which takes it on a table of that name, and on all tables in the series"
    if series == PERIODIC_SERIES:
        caller.check_on_all(Right.ADMIN, what)
    caller.check_each(Right.ADMIN, [series, *tables], what)
