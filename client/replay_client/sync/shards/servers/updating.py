"""Writes mutable columns of a table on several servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from replay_proto.schema import Schema

from replay_client._rows.checks import checked_update
from replay_client._shards.keys import local_keys, shard_ids
from replay_client.batch import UpdateResult
from replay_client.sync.shards.servers.members import Member


def update_rows(members: Iterable[Member], schema: Schema, keys: ArrayLike, columns: Mapping[str, Any]) -> UpdateResult:
    """Update rows in their shards; see `Table.update`. Keys of other shards are stale.

    Raises:
        InvalidArgumentError: as for `Table.update`.
        ServerUnavailableError: the server of a shard is unreachable. Rows in other shards may have been updated.
    """
    checked, values = checked_update(schema, keys, columns)
    owners = shard_ids(checked)
    updated, stale, left = 0, 0, len(checked)
    for member in members:
        mine = np.flatnonzero(owners == member.id)
        if len(mine):
            result = member.table.update(local_keys(checked[mine]), {name: all_[mine] for name, all_ in values.items()})
            updated, stale, left = updated + result.updated, stale + result.stale, left - len(mine)
    return UpdateResult(updated, stale + left)
