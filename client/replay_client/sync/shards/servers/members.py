"""The shards of a table, as a client has opened them on the servers of a map."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from replay_proto.v1 import replay_pb2

from replay_client._operations import server as operations
from replay_client._shards.divisible import check_divisible, check_table
from replay_client._transport.call import Operation
from replay_client._transport.session import Session
from replay_client.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    ReplayError,
    ShardsChangedError,
    TableNotFoundError,
)
from replay_client.results.description import TableDescription
from replay_client.results.shards import Shard, ShardMap
from replay_client.sync.shards.servers.asking import AWAY, ask_all
from replay_client.sync.shards.servers.fleet import Fleet
from replay_client.sync.table import Table


@dataclass(frozen=True)
class Member:
    """See the module."""

    id: int
    """Id of the shard: the upper bits of the keys of its rows in the whole table."""
    session: Session
    """The session to the shard's server."""
    table: Table
    """The shard's own table. Its keys do not contain the shard's id."""
    description: TableDescription
    """The description of the shard's table when it was opened."""
    is_active: bool
    """Whether the shard gets new rows."""

    def __str__(self) -> str:
        """Name the shard in messages."""
        return f"shard {self.id} at {self.session.options.address}"


log = logging.getLogger(__name__)

_SAME = ("schema", "steps", "backend", "parameters", "rate_limit", "capacity", "whole_capacity")
"""Fields of the description that are the same in all shards of a table."""


@contextmanager
def naming(shard: Shard) -> Iterator[None]:
    """Add the id of a shard and the address of its server to the message of an error in the block."""
    try:
        yield
    except ReplayError as error:
        error.message = f"shard {shard.id} at {shard.address}: {error.message}"
        error.args = (error.message,)
        raise


def described(fleet: Fleet, shards: ShardMap, name: str) -> dict[int, TableDescription | TableNotFoundError]:
    """Ask all servers for their tables of this name, and return the answers by the id of the shard.

    Servers that are away are left out. For a server without such a table, the answer is an error.

    Raises:
        ServerUnavailableError: no server is reachable.
    """
    return ask_all(fleet.sessions_of(shards), lambda: _description(name))


def described_by_each(
    fleet: Fleet, shards: ShardMap, name: str, needed: Sequence[Shard] | None = None
) -> dict[Shard, TableDescription]:
    """Ask all servers for their tables of this name, and return the tables that exist.

    Args:
        fleet: the servers.
        shards: their map.
        name: name of the table.
        needed: the shards whose servers must answer; None: all.

    Raises:
        ServerUnavailableError: a server is away that must answer; the message names it.
    """
    answers = described(fleet, shards, name)
    needed = shards.in_use if needed is None else needed
    for shard in needed:
        if shard.id not in answers:
            with naming(shard):
                answers[shard.id] = fleet.session(shard.address).connection.run(_description(name))
    found = {shard: answers[shard.id] for shard in needed}
    return {shard: answer for shard, answer in found.items() if isinstance(answer, TableDescription)}


def opened(fleet: Fleet, shards: ShardMap, name: str, known: Mapping[int, Member]) -> list[Member]:
    """Open the shards of a table that are not in ``known``, create missing ones on new servers, and return all.

    Shards of unreachable servers, and shards that this client may not create, are left out with a warning.

    Raises:
        TableNotFoundError: no server has the table.
        ServerUnavailableError: no server is reachable.
        InvalidArgumentError: the servers have different tables of this name. No shard was created.
    """
    answers = described(fleet, shards, name)
    found: dict[Shard, TableDescription] = {}
    lacking: dict[Shard, TableNotFoundError] = {}
    for shard in shards.in_use:
        answer = known[shard.id].description if shard.id in known else answers.get(shard.id)
        if answer is None:
            level = logging.DEBUG if known else logging.WARNING  # warn once, not at each later attempt
            log.log(level, "shard %d of table %r is left out: %s does not answer", shard.id, name, shard.address)
        elif isinstance(answer, TableNotFoundError):
            lacking[shard] = answer
        else:
            found[shard] = answer
    if not found:
        raise next(iter(lacking.values()))
    members = {shard: known.get(shard.id) or member_of(fleet, shard, table) for shard, table in found.items()}
    for shard, table in found.items():
        where = f"{shard.address}, one of {len(shards.in_use)} servers"
        check_table(table, f"of table {name!r} at {where}; drop it, and use one server")
        if lacking:
            check_divisible(table, shard.address)
    config = config_of_shard(list(members.values()), list(lacking))
    for shard in lacking:
        operation = operations.create_table(config, "open", shards_version=shards.version)
        try:
            description, _ = fleet.session(shard.address).connection.run(operation)
        except (PermissionDeniedError, ShardsChangedError, *AWAY) as error:
            log.warning("shard %d of table %r is left out: %s", shard.id, name, error)
        else:
            members[shard] = member_of(fleet, shard, description)
    return [members[shard] for shard in shards.in_use if shard in members]


def config_of_shard(members: Sequence[Member], lacking: Sequence[Shard]) -> replay_pb2.TableConfig:
    """Check that shards belong to one table, and return the config for creating the missing shards of this table.

    Args:
        members: the shards that exist, at least one.
        lacking: the shards whose servers have answered that they lack the table.

    Raises:
        InvalidArgumentError: ``members`` are not the shards of one table, or some of ``lacking`` were dropped.
    """
    check_alike(members)
    first = members[0].description
    config = first.to_config()
    marked = next((member.description for member in members if member.description.whole_shards), None)
    if marked is not None:
        _check_undropped(members, [shard for shard in lacking if shard.id in marked.whole_shards])
        config.whole_uid, config.whole_shards[:] = marked.whole_uid or marked.uid, marked.whole_shards
    elif len(members) == 1 and not first.whole_capacity:  # the table was created on one server
        config.whole_uid, config.whole_shards[:] = first.uid, [members[0].id]
    return config


def create_missing(fleet: Fleet, shards: ShardMap) -> None:
    """Create the missing shards of all tables.

    Afterwards, clients without the right to create tables can use new servers. Failures are only logged: a later client
    that has this right creates the missing shards when it opens the table.
    """
    names: Counter[str] = Counter()
    for tables, _ in ask_all(fleet.sessions_of(shards), operations.list_tables).values():
        names.update(table.name for table in tables)
    for name, places in names.items():
        if places < len(shards.in_use):
            try:
                opened(fleet, shards, name, {})
            except ReplayError as error:
                log.warning("table %r has no shards on new servers: %s", name, error)


def member_of(fleet: Fleet, shard: Shard, description: TableDescription) -> Member:
    """Return a shard as a `Member`, with its table."""
    session = fleet.session(shard.address)
    return Member(shard.id, session, Table(session, description), description, shard.state == "active")


def check_alike(members: Sequence[Member]) -> None:
    """Check that shards belong to one table.

    Raises:
        InvalidArgumentError: two addresses lead to one server, the configs differ, or the shards are of several tables.
    """
    by_uid: dict[bytes, Member] = {}
    for member in members:
        same = by_uid.setdefault(member.table.uid, member)
        if same is not member:
            raise InvalidArgumentError.of_field(
                "address", "different servers", f"{same} and {member}, which are one server"
            )
        for field in _SAME:
            if getattr(member.description, field) != getattr(members[0].description, field):
                raise InvalidArgumentError.of_field(
                    field,
                    f"the same in all shards of table {member.table.name!r}",
                    f"another one in {member} than in {members[0]}",
                )
    by_whole: dict[bytes, list[Member]] = {}
    for member in members:
        by_whole.setdefault(member.description.whole_uid or member.table.uid, []).append(member)
    if len(by_whole) > 1 and any(member.description.whole_shards for member in members):
        got = "; ".join(f"{_names(parts)} of table {whole.hex()}" for whole, parts in by_whole.items())
        raise _dropped(members[0].table.name, "all shards", got)


def _check_undropped(members: Sequence[Member], dropped: Sequence[Shard]) -> None:
    """Check that none of a table's shards was dropped.

    ``dropped`` are the shards that the table lacks, although it was created with them. If the table has rows, these
    shards were dropped. If it has none, they may never have been created on their servers.

    Raises:
        InvalidArgumentError: the table has rows, although it lacks such shards.
    """
    if dropped and any(member.description.size for member in members):
        on = ", ".join(f"shard {shard.id} at {shard.address}" for shard in dropped)
        raise _dropped(members[0].table.name, f"{on} and {_names(members)}", f"{_names(members)} only")


def _dropped(name: str, expected: str, got: str) -> InvalidArgumentError:
    """Return the error for a table that was dropped while a server was away."""
    expected = f"{expected} of one table {name!r}; `replay drop {name} --yes` drops what is left of one"
    return InvalidArgumentError.of_field("table", expected, f"{got}, as after a drop while a server was away")


def _names(members: Sequence[Member]) -> str:
    return ", ".join(map(str, members))


def _description(name: str) -> Operation[TableDescription | TableNotFoundError]:
    try:
        return (yield from operations.describe(name))
    except TableNotFoundError as error:
        return error
