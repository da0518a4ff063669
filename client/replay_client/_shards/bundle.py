"""Divides the rows of a step among its batches, once all parts have arrived.

bundle = Bundle(step, states, columns)          # copies all rows to `columns`
bundle.take()                                   # the next batch
bundle.left                                     # number of batches that were not taken
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._rows.copying import in_long_rows
from replay_client._shards.keys import global_keys
from replay_client._shards.mass import joined_weights
from replay_client._shards.step import Step
from replay_client.batch import Batch


class Bundle:
    """See the module."""

    def __init__(self, step: Step, states: Collection[replay_pb2.TableState], columns: Mapping[str, Array]) -> None:
        """Divide the rows.

        Args:
            step: the step; all its parts have arrived.
            states: the latest states of the shards.
            columns: memory for the rows of all batches, batch after batch, by column.
        """
        self.left = step.batches
        """Number of batches that were not taken."""
        draw, places = step.draw, step.places
        for name, column in columns.items():
            # With any mode but "raise", take() writes directly to its output; all places are in range.
            rows = in_long_rows(step.columns[name])
            rows.take(places.reshape(-1), axis=0, out=in_long_rows(column), mode="clip")
        keys, probabilities = np.empty(places.size, np.int64), np.empty(places.size, np.float64)
        for part in step.parts:
            keys[part.rows] = global_keys(part.shard_id, part.batch.row_keys)
            probabilities[part.rows] = step.probabilities(part)
        self._columns, self._keys, self._probabilities = columns, keys.take(places), probabilities.take(places)
        self._least = step.smallest_probability() or float(probabilities.min())
        is_by_batch = draw.weight_norm == replay_pb2.WEIGHT_NORM_BATCH
        self._weights = joined_weights(self._probabilities, None if is_by_batch else self._least, draw.beta)
        self._beta = draw.beta
        self._size = sum([state.size for state in states])
        self._drawable = sum([state.drawable for state in states])
        self._total_mass = sum([state.total_mass for state in states])
        self._inserted = sum([state.inserted for state in states])

    def take(self) -> Batch:
        """Return the next batch."""
        number = len(self._keys) - self.left
        self.left -= 1
        keys = self._keys[number]
        rows = slice(number * len(keys), (number + 1) * len(keys))
        return Batch(
            row_keys=keys,
            columns={name: column[rows] for name, column in self._columns.items()},
            probabilities=self._probabilities[number],
            weights=self._weights[number],
            beta=self._beta,
            table_size=self._size,
            drawable=self._drawable,
            total_mass=self._total_mass,
            smallest_probability=self._least,
            inserted=self._inserted,
        )
