"""Creates and opens the shards of tables on several servers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from replay_proto.v1 import replay_pb2

from replay_client._operations import server as operations
from replay_client._operations.server import IfExists
from replay_client.errors import InvalidArgumentError, ServerUnavailableError, TableNotFoundError
from replay_client.results.description import TableDescription
from replay_client.results.shards import Shard, ShardMap
from replay_client.sync.shards.fleet import Fleet
from replay_client.sync.shards.member import Member
from replay_client.sync.shards.sharded_table import ShardedTable
from replay_client.sync.table import Table

log = logging.getLogger(__name__)

_BACKENDS: Final = ("sum_tree", "uniform")
"""Backends whose tables can have several shards."""


def create_sharded(
    fleet: Fleet, shards: ShardMap, config: replay_pb2.TableConfig, if_exists: IfExists | None
) -> ShardedTable:
    """Create a table on all servers, or open it; each has an equal part of the capacity.

    Raises:
        InvalidArgumentError: the config is not possible on several servers.
        ReplayError: as for `ReplayClient.create_table`.
    """
    _check(config)
    of_shard = replay_pb2.TableConfig()
    of_shard.CopyFrom(config)
    of_shard.capacity = -(-config.capacity // len(shards.in_use))
    members = []
    created = []
    for shard in shards.in_use:
        operation = operations.create_table(of_shard, if_exists, shards_version=shards.version)
        description, is_new = fleet.link(shard.address).connection.run(operation)
        members.append(_member(fleet, shard, description))
        created.append(is_new)
    return _table(members, created=all(created))


def open_sharded(fleet: Fleet, shards: ShardMap, name: str) -> ShardedTable:
    """Open a table on all servers. A server that was added later gets its shard of the table now.

    Shards of servers that cannot be reached are left out, with a warning.

    Raises:
        TableNotFoundError: no server has the table.
        ServerUnavailableError: no server is reachable.
    """
    found: dict[Shard, TableDescription] = {}
    lacking: list[Shard] = []
    failure: Exception | None = None
    for shard in shards.in_use:
        try:
            found[shard] = fleet.link(shard.address).connection.run(operations.describe(name))
        except TableNotFoundError as error:
            lacking.append(shard)
            failure = error
        except ServerUnavailableError as error:
            log.warning("shard %d of table %r is left out: %s", shard.id, name, error)
            failure = failure or error
    if not found:
        assert failure is not None
        raise failure
    config = next(iter(found.values())).to_config()
    for shard in lacking:
        operation = operations.create_table(config, "open", shards_version=shards.version)
        found[shard], _ = fleet.link(shard.address).connection.run(operation)
    members = [_member(fleet, shard, found[shard]) for shard in shards.in_use if shard in found]
    return _table(members, created=False)


def _check(config: replay_pb2.TableConfig) -> None:
    if config.backend.name not in _BACKENDS:
        expected = f"{' or '.join(map(repr, _BACKENDS))} for a table on several servers"
        raise InvalidArgumentError.of_field("backend", expected, repr(config.backend.name))
    if config.HasField("rate_limiter"):
        expected = "none for a table on several servers"
        raise InvalidArgumentError.of_field("min_size, samples_per_insert", expected, "a rate limiter")


def _member(fleet: Fleet, shard: Shard, description: TableDescription) -> Member:
    link = fleet.link(shard.address)
    return Member(shard.id, link, Table(link, description), description, shard.state == "active")


def _table(members: list[Member], *, created: bool) -> ShardedTable:
    """Join the shards of a table.

    Raises:
        InvalidArgumentError: two addresses lead to one server, or the tables differ.
    """
    by_uid: Mapping[bytes, list[Member]] = {}
    for member in members:
        by_uid = {**by_uid, member.table.uid: [*by_uid.get(member.table.uid, []), member]}
    for same in by_uid.values():
        if len(same) > 1:
            raise InvalidArgumentError.of_field(
                "address", "different servers", " and ".join(map(str, same)) + ", which are one server"
            )
    first = members[0].table
    for member in members[1:]:
        table = member.table
        for field in ("schema", "steps", "backend", "parameters"):
            if getattr(table, field) != getattr(first, field):
                raise InvalidArgumentError.of_field(
                    field,
                    f"the same in all shards of table {first.name!r}",
                    f"another one in {member} than in {members[0]}",
                )
    return ShardedTable(members, created=created)
