"""Composes the keys of a table on several servers from the shard's id and the row's key in that shard.

The id is in the upper bits of a key, and the key in the shard is in the lower bits. A shard's id is never reused, so
keys of a lost shard never refer to other rows. Shard 0 has the same keys as a table on one server.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """Convert keys in one shard, ``local`` (int64[n]), to keys in the whole table, int64[n]."""
    return local | np.int64(shard_id << _LOCAL_BITS)


def shard_ids(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the id of each key's shard, int64[n]. It is negative for a negative key, which no row has."""
    return keys >> _LOCAL_BITS


def local_keys(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each row's key in its shard, int64[n]."""
    return keys & np.int64(MOST_LOCAL)


def by_shard(
    keys: NDArray[np.int64], values: NDArray[np.float64]
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float64]]]:
    """Divide keys, int64[n], and the value of each, float64[n], among the shards, in their order.

    Yields:
        The id of a shard, its local keys, and their values. The id of a negative key, which no row has, is negative.
    """
    ids = shard_ids(keys).astype(np.int16)  # NumPy sorts integers of two bytes by radix, which is faster
    order = ids.argsort(kind="stable")
    ids, local, values = ids.take(order), local_keys(keys).take(order), values.take(order)
    ends = [*(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)] if len(ids) else []
    start = 0
    for end in ends:
        yield int(ids[start]), local[start:end], values[start:end]
        start = end


def live_keys(shard_id: int, table: TableDescription) -> range:
    """Return the keys of the rows that a shard's table has, oldest first."""
    first = shard_id << _LOCAL_BITS
    return range(first + table.inserted - table.size, first + table.inserted)
