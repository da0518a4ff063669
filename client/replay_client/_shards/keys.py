"""Keys of a table on several servers: the shard's id in the upper bits, the key in that shard in the lower bits.

A shard's id is never reused, so keys of a lost shard never refer to other rows. Shard 0 has the same keys as a table
on one server.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from replay_client.results.description import TableDescription

_LOCAL_BITS: Final = 48
MOST_ID: Final = (1 << (63 - _LOCAL_BITS)) - 1
"""Largest id of a shard."""
MOST_LOCAL: Final = (1 << _LOCAL_BITS) - 1
"""Largest key in a shard."""


def global_keys(shard_id: int, local: NDArray[np.int64]) -> NDArray[np.int64]:
    """Compose keys, int64[n], from the keys in a shard, int64[n]."""
    return local | np.int64(shard_id << _LOCAL_BITS)


def shard_ids(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids of the shards, int64[n]; negative for negative keys, which no row has."""
    return keys >> _LOCAL_BITS


def local_keys(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the keys in the shards, int64[n]."""
    return keys & np.int64(MOST_LOCAL)


def live_keys(shard_id: int, table: TableDescription) -> range:
    """Return the keys of the rows that a shard's table has, oldest first."""
    first = shard_id << _LOCAL_BITS
    return range(first + table.inserted - table.size, first + table.inserted)
