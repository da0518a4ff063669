"""The right that an RPC takes of its caller, on the table that a message names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from replay_proto.access.tokens import Right
from replay_proto.v1 import replay_pb2

from replay_server import errors
from replay_server.access.caller import Authenticator, Caller
from replay_server.bounds import Bounds
from replay_server.catalog import Catalog
from replay_server.service.names import only
from replay_server.statistics.methods import MethodFigures

_TABLE_NAME = only(replay_pb2.DescribeTableRequest, "table")
"""Every request that is about one table has its name in the same field."""


@dataclass(frozen=True)
class Demand:
    """The right that a call needs. It is checked before the message is parsed."""

    names: type[Message] | None
    """A message type with little more than the names that the check needs: the message is read as this type first.
    None: the check needs no names."""
    check: Callable[[Caller, Any, str], None]
    """Refuses a caller who may not send a message; the text is the table that its stream named before, if any.

    Whether there is such a table does not matter: who may not touch a name does not learn what it stands for.
    """


@dataclass(frozen=True)
class Rpc:
    """What every RPC has beside its handler."""

    figures: MethodFigures
    """Where to count."""
    authenticator: Authenticator
    """Finds out who calls."""
    demand: Demand
    """What the caller has to be allowed."""
    bounds: Bounds
    """How long a request may be."""


def on_table(one_of: Right) -> Demand:
    """One of these rights, on the table of the message."""

    def check(caller: Caller, named: Any, stream_table: str) -> None:
        caller.check(one_of, named.table or stream_table)

    return Demand(_TABLE_NAME, check)


def to_create() -> Demand:
    """The right to administer the table that is to be."""

    def check(caller: Caller, named: Any, _: str) -> None:
        caller.check(Right.ADMIN, named.config.name)

    return Demand(only(replay_pb2.CreateTableRequest, "config.name"), check)


def to_list() -> Demand:
    """The right to read any table; the others are left out of the answer."""

    def check(caller: Caller, _named: None, _: str) -> None:
        caller.check(Right.READ)

    return Demand(None, check)


def to_see_figures() -> Demand:
    """The right to read the table, or where none is named any; the others are left out of the answer."""

    def check(caller: Caller, named: Any, _: str) -> None:
        caller.check(Right.READ, named.table or None)

    return Demand(_TABLE_NAME, check)


def to_learn() -> Demand:
    """The right to read the table, and with an update to write to it."""

    def check(caller: Caller, named: Any, stream_table: str) -> None:
        table = named.table or stream_table
        caller.check(Right.READ, table)
        if named.HasField("update"):
            caller.check(Right.WRITE, table)

    return Demand(only(replay_pb2.LearnRequest, "table", "update"), check)


def to_copy(catalog: Catalog) -> Demand:
    """The right to administer each table that is to be copied: those named, or all that there are."""
    most = catalog.bounds.max_tables

    def check(caller: Caller, request: replay_pb2.CheckpointRequest, _: str) -> None:
        if len(request.tables) > most:
            raise errors.too_large("tables of a checkpoint", most, len(request.tables), "max_tables of the server")
        for name in request.tables or [table.name for table in catalog]:
            caller.check(Right.ADMIN, name)

    return Demand(replay_pb2.CheckpointRequest, check)


def to_administer_all(catalog: Catalog) -> Demand:
    """The right to administer whatever tables there are, or at least some table."""

    def check(caller: Caller, _named: None, _: str) -> None:
        caller.check(Right.ADMIN)
        for table in catalog:
            caller.check(Right.ADMIN, table.name)

    return Demand(None, check)
