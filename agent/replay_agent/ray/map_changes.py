"""Determines from the keepers' reports what to change in the shard map. Does not import Ray."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from typing import Any

from replay_client.results.shards import ShardMap

from replay_agent.ray.keeper import KeeperReport

log = logging.getLogger(__name__)


def update_map(
    shards: ShardMap,
    ready: Mapping[int, KeeperReport],
    empty: Set[int],
    expired: Set[int],
    *,
    keepers: Mapping[int, Any],
    operations: Any,
) -> ShardMap:
    """Make the changes that the map needs, and return the new map.

    Args:
        shards: the newest map.
        ready: reports of the keepers whose servers are ready, by number of the keeper.
        empty: numbers of those that have no shard id, and whose servers have no shard map.
        expired: ids of shards that have been unreachable for too long.
        keepers: Ray's handles of the keepers.
        operations: `ReplayClient.shards` of a client.
    """
    states = {shard.id: shard.state for shard in shards.shards}
    by_address = {shard.address: shard.id for shard in shards.in_use}
    addresses = {shard_id: address for address, shard_id in by_address.items()}
    for number, report in ready.items():
        shard_id, known = report.shard_id, by_address.get(str(report.address))
        if shard_id is not None:
            if states.get(shard_id) == "lost":
                log.info("keeper %d restarts with empty tables, because shard %d was given up", number, shard_id)
                keepers[number].renew.remote()
            elif addresses.get(shard_id, report.address) != report.address:
                log.info("shard %d is now at %s", shard_id, report.address)
                shards = operations.move(shard_id, address=report.address)
        elif known is None:
            log.info("%s becomes a new, empty shard", report.address)
            shards = operations.set([*(shard.address for shard in shards.in_use), report.address])
        elif number in empty:  # The storage is gone, but the new server has the old address.
            log.info("shard %d is given up: its storage is gone", known)
            shards = operations.mark(known, state="lost")
        else:
            keepers[number].assign.remote(known)
    for shard_id in addresses.keys() & expired:
        log.info("shard %d is given up: it was unreachable for too long", shard_id)
        shards = operations.mark(shard_id, state="lost")
    return shards
