"""The rights that RPCs require."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from replay_proto.access.tokens import Right
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.auth.caller import Caller
from replay_server.checkpoint.store import DEFAULT_SERIES, PERIODIC_SERIES
from replay_server.rpc.field_rights import needing
from replay_server.rpc.names import only

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
