"""The description of a table on several servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from replay_client.results.description import TableDescription


def merged_description(shards: Sequence[TableDescription]) -> TableDescription:
    """Describe the whole table: sums of rows and capacities, and the rest as in the first of its ``shards``."""
    return replace(
        shards[0],
        capacity=sum(shard.capacity for shard in shards),
        size=sum(shard.size for shard in shards),
        inserted=sum(shard.inserted for shard in shards),
        slots=sum(shard.slots for shard in shards),
        directory="",
        socket="",
    )
