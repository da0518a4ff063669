"""The right that an RPC takes of its caller, on the table that a message names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from replay_proto.access.tokens import Right
from replay_proto.v1 import replay_pb2

from replay_server.access.caller import Authenticator, Caller
from replay_server.bounds import Bounds
from replay_server.catalog import Catalog
from replay_server.statistics.methods import MethodFigures

Demand = Callable[[Caller, Any, str], None]
"""Refuses a caller who may not send a message; the text is the table that its stream named before, if any.

Whether there is such a table is no concern of it: who may not touch a name does not learn what it stands for.
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


class _NamesTable(Protocol):
    table: str


def on_table(one_of: Right) -> Demand:
    """One of these rights, on the table of the message."""

    def demand(caller: Caller, message: _NamesTable, stream_table: str) -> None:
        caller.check(one_of, message.table or stream_table)

    return demand


def to_create(caller: Caller, message: replay_pb2.CreateTableRequest, _: str) -> None:
    """The right to administer the table that is to be."""
    caller.check(Right.ADMIN, message.config.name)


def to_list(caller: Caller, _message: replay_pb2.ListTablesRequest, _: str) -> None:
    """The right to read any table; the others are left out of the answer."""
    caller.check(Right.READ)


def to_see_figures(caller: Caller, message: replay_pb2.StatsRequest, _: str) -> None:
    """The right to read the table, or where none is named any; the others are left out of the answer."""
    caller.check(Right.READ, message.table or None)


def to_learn(caller: Caller, message: replay_pb2.LearnRequest, stream_table: str) -> None:
    """The right to read the table, and with an update to write to it."""
    table = message.table or stream_table
    caller.check(Right.READ, table)
    if message.HasField("update"):
        caller.check(Right.WRITE, table)


def to_copy(catalog: Catalog) -> Demand:
    """The right to administer each table that is to be copied: those named, or all that there are."""

    def demand(caller: Caller, message: replay_pb2.CheckpointRequest, _: str) -> None:
        for name in message.tables or [table.name for table in catalog]:
            caller.check(Right.ADMIN, name)

    return demand


def to_administer_all(catalog: Catalog) -> Demand:
    """The right to administer whatever tables there are, or at least some table."""

    def demand(caller: Caller, _message: Any, _: str) -> None:
        caller.check(Right.ADMIN)
        for table in catalog:
            caller.check(Right.ADMIN, table.name)

    return demand
