"""The description of a table on several servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from replay_proto.rate_limit import joined

from replay_client.results.description import TableDescription


def merged_description(shards: Sequence[TableDescription]) -> TableDescription:
    """Describe the whole table.

    Numbers of rows, slots and capacities are summed, and rate limits are joined. Directory and socket are empty. All
    other properties are those of the first of the ``shards``.
    """
    limits = [shard.rate_limit for shard in shards if shard.rate_limit is not None]
    return replace(
        shards[0],
        rate_limit=joined(limits) if limits else None,
        capacity=sum(shard.capacity for shard in shards),
        size=sum(shard.size for shard in shards),
        inserted=sum(shard.inserted for shard in shards),
        slots=sum(shard.slots for shard in shards),
        directory="",
        socket="",
    )
