"""Divides the config and the counters of a table among its new shards."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from replay_proto.errors import FieldError
from replay_proto.rate_limit import divided

from replay_server.resharding.parts import OldTable, ReshardError
from replay_server.storage.ranges import SAMPLED, SHARD_IDS
from replay_server.storage.shard_map import Shard, ShardMap
from replay_server.storage.table_config import TableConfig
from replay_server.storage.table_directory import UID_BYTES
from replay_server.storage.table_state import TableState


@dataclass(frozen=True)
class NewShard:
    """A table on one of the new servers."""

    config: TableConfig
    uid: bytes


def new_map(old: ShardMap | None, addresses: Sequence[str]) -> ShardMap:
    """Return a shard map with the new servers, whose ids follow those of the old ones.

    It is the map of another service, so that clients of the old servers do not follow it: the new tables lack the rows
    that the old ones got after the checkpoint.

    Raises:
        ReshardError: an address occurs twice or is too long, or the ids are used up.
    """
    first = 1 if old is None else old.shards[-1].id + 1  # without a map, keys had the id 0
    if first + len(addresses) - 1 > SHARD_IDS.most:
        raise ReshardError(
            f"expected fewer new servers: ids of shards end at {SHARD_IDS.most}, and {first - 1} is in use"
        )
    shards = tuple(Shard(first + number, address, "active") for number, address in enumerate(addresses))
    try:
        return ShardMap(secrets.token_bytes(UID_BYTES), 1, shards, secrets.token_bytes(UID_BYTES)).checked()
    except FieldError as error:
        raise ReshardError(f"--to: {error}") from error


def new_shards(table: OldTable, ids: Sequence[int]) -> list[NewShard]:
    """Divide a table among shards with these ids. A single shard becomes a table of one server.

    Raises:
        ReshardError: the table cannot be divided among so many servers.
    """
    old = table.shards[0].manifest.config
    try:
        if old.is_queue:
            raise FieldError("backend", f"another one than {old.backend!r}: a queue has one order", repr(old.backend))
        whole = _whole(old, table.in_use)
        uids = [secrets.token_bytes(UID_BYTES) for _ in ids]
        if len(ids) == 1:
            return [NewShard(whole, uids[0])]
        of_shard = replace(
            whole,
            capacity=-(-whole.capacity // len(ids)),
            rate_limit=None if whole.rate_limit is None else divided(whole.rate_limit, len(ids)),
            whole_capacity=whole.capacity,
            whole_shards=tuple(ids),
        )
        of_shard.check_min_size()
        return [NewShard(replace(of_shard, whole_uid=b"" if uid is uids[0] else uids[0]), uid) for uid in uids]
    except FieldError as error:
        raise ReshardError(f"table {table.name!r} on {len(ids)} servers: {error}") from error


def _whole(old: TableConfig, in_use: int) -> TableConfig:
    """Return the config of the whole table, which its creator gave, from that of a shard.

    ``min_size`` may be slightly larger: it was rounded up when it was divided.
    """
    capacity = old.whole_capacity or old.capacity * in_use
    limit = old.rate_limit
    if limit is not None and old.whole_capacity:
        created_on = len(old.whole_shards) or in_use
        most = capacity if old.steps is None else old.steps.window.most_drawable(capacity)
        # Not `joined`: adding the bounds up would round more often, and they may be as narrow as possible.
        limit = replace(
            limit,
            min_size=min(limit.min_size * created_on, most),
            min_diff=limit.min_diff * created_on,
            max_diff=limit.max_diff * created_on,
        )
    return replace(old, capacity=capacity, rate_limit=limit, whole_capacity=0, whole_uid=b"", whole_shards=())


def new_states(old: Sequence[TableState], config: TableConfig, sizes: Sequence[int]) -> list[TableState]:
    """Divide the counters of a table's old shards among its new shards.

    The sums stay the same, and all rate limiters have the same difference.

    Args:
        old: the state of each old shard.
        config: the config of a new shard.
        sizes: number of rows that each new shard gets. If they exceed its capacity, the oldest ones are evicted.
    """
    shards, rows = len(sizes), sum(sizes)
    inserted = sum(state.inserted for state in old)
    counted = sum(state.inserted - state.counted_from for state in old)
    sampled = sum(state.sampled for state in old)
    ratio = 0.0 if config.rate_limit is None else config.rate_limit.samples_per_insert or 0.0
    states: list[TableState] = []
    counted_so_far = sampled_so_far = 0
    for number, size in enumerate(sizes):
        gone, counted_gone = share(inserted - rows, number, shards), share(counted - rows, number, shards)
        if shards == 1:
            # The keys could be mistaken for those of a shard 0, so they begin after all keys of the old shards.
            gone = max(gone, *(state.inserted for state in old), 0)
        counted_so_far += counted_gone + size
        # All shards get the same difference, counted * ratio - sampled, but for rounding.
        part = (number + 1) / shards
        sampled_to_here = round(ratio * (counted_so_far - counted * part) + sampled * part)
        states.append(
            TableState(
                inserted=gone + size,
                floor=gone + max(0, size - config.capacity),
                counted_from=gone - counted_gone,
                sampled=SAMPLED.nearest(sampled_to_here - sampled_so_far),
            )
        )
        sampled_so_far = sampled_to_here
    return states


def share(total: int, number: int, shards: int) -> int:
    """Return one shard's share of a count. Shares add up to the count and differ by at most 1, the first ones larger.

    So if a count is larger than another, each of its shares is at least as large.
    """
    return total // shards + (number < total % shards)
