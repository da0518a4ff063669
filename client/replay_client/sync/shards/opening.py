"""Creates and opens the shards of tables on several servers."""

from __future__ import annotations

from replay_proto.errors import FieldError
from replay_proto.rate_limit import RateLimit, divided
from replay_proto.v1 import replay_pb2

from replay_client._operations import server as operations
from replay_client._operations.server import IfExists
from replay_client._shards.divisible import NOT_DIVIDED, check_kind
from replay_client.errors import InvalidArgumentError
from replay_client.results.shards import ShardMap
from replay_client.sync.shards.servers.fleet import Fleet
from replay_client.sync.shards.servers.members import (
    check_alike,
    config_of_shard,
    described_by_each,
    member_of,
    naming,
    opened,
)
from replay_client.sync.shards.servers.roster import Roster
from replay_client.sync.shards.servers.service import map_of
from replay_client.sync.shards.sharded_table import ShardedTable


def create_sharded(fleet: Fleet, config: replay_pb2.TableConfig, if_exists: IfExists | None) -> ShardedTable:
    """Create or open a table on all servers. Each shard gets an equal share of the capacity.

    No table is created if a server is away, or has a different table of this name.

    Raises:
        InvalidArgumentError: the config is not possible on several servers, or they have different tables of this name.
        ReplayError: as for `ReplayClient.create_table`.
    """
    is_usual = config.backend.name not in NOT_DIVIDED and not config.backend.parameters
    if not is_usual or config.steps.sequences.unpadded or config.HasField("rate_limiter"):
        _check(map_of(fleet), config)  # first, so that a refused config does not create a map
    shards = fleet.find()
    of_shard = replay_pb2.TableConfig()
    of_shard.CopyFrom(config)
    of_shard.capacity = -(-config.capacity // len(shards.in_use))
    of_shard.whole_capacity = config.capacity
    if config.HasField("rate_limiter"):
        _divide(of_shard.rate_limiter, shards)
    there = described_by_each(fleet, shards, config.name)
    of_shard.whole_shards[:] = [shard.id for shard in shards.in_use]
    if there:
        lacking = [shard for shard in shards.in_use if shard not in there]
        found = config_of_shard([member_of(fleet, shard, table) for shard, table in there.items()], lacking)
        of_shard.whole_uid, of_shard.whole_shards[:] = found.whole_uid, found.whole_shards
    members = {}
    created = []
    for shard in sorted(shards.in_use, key=lambda shard: shard not in there):  # existing tables may refuse
        operation = operations.create_table(of_shard, if_exists, shards_version=shards.version)
        with naming(shard):
            description, is_new = fleet.session(shard.address).connection.run(operation)
        members[shard.id] = member_of(fleet, shard, description)
        created.append(is_new)
        of_shard.capacity = description.capacity  # a server that was added later gets as much as the others
        if of_shard.whole_shards:
            of_shard.whole_uid = description.whole_uid or description.uid
    ordered = [members[shard.id] for shard in shards.in_use]
    check_alike(ordered)
    return ShardedTable(Roster(fleet, config.name, ordered, shards), created=all(created))


def open_sharded(fleet: Fleet, shards: ShardMap, name: str) -> ShardedTable:
    """Open a table on all servers; see `opened`."""
    return ShardedTable(Roster(fleet, name, opened(fleet, shards, name, {}), shards))


def _check(shards: ShardMap, config: replay_pb2.TableConfig) -> None:
    addresses = [shard.address for shard in shards.in_use]
    what = f"on {len(addresses)} servers, {', '.join(addresses)}"
    check_kind(config.backend.name, config.backend.parameters, what, is_ragged=config.steps.sequences.unpadded)
    limiter = replay_pb2.RateLimiter()
    limiter.CopyFrom(config.rate_limiter)
    if config.HasField("rate_limiter"):
        _divide(limiter, shards)


def _divide(limiter: replay_pb2.RateLimiter, shards: ShardMap) -> None:
    """Replace the rate limits of the whole table by those of one shard."""
    try:
        limiter.CopyFrom(divided(RateLimit.from_proto(limiter), len(shards.in_use)).to_proto())
    except FieldError as error:
        expected = f"{error.expected} on each of {len(shards.in_use)} servers"
        raise InvalidArgumentError.of_field(error.field, expected, error.got) from None
