"""Divides the rows of a step among its batches, once all parts have arrived.

bundle = Bundle(step, states)
bundle.take(columns)                            # the next batch, in this memory
bundle.left                                     # number of batches that were not taken
"""

from __future__ import annotations

from collections.abc import Collection

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

    def __init__(self, step: Step, states: Collection[replay_pb2.TableState]) -> None:
        """Take the rows of a step, whose parts have all arrived. ``states`` are the latest states of the shards."""
        self.left = step.batches
        """Number of batches that were not taken."""
        rows = step.draw.batch_size * step.batches
        self._step = step
        self._keys, self._probabilities = np.empty(rows, np.int64), np.empty(rows, np.float64)
        for part in step.parts:
            self._keys[part.rows] = global_keys(part.shard_id, part.batch.row_keys)
            self._probabilities[part.rows] = step.probabilities(part)
        self._least = step.smallest_probability() or float(self._probabilities.min())
        self._size = sum(state.size for state in states)
        self._drawable = sum(state.drawable for state in states)
        self._total_mass = step.total_mass(states)
        self._inserted = sum(state.inserted for state in states)

    def take(self, columns: dict[str, Array]) -> Batch:
        """Return the next batch, and copy its rows to ``columns``."""
        draw, rows, places = self._step.draw, self._step.columns, self._step.places[-self.left]
        self.left -= 1
        for name, column in columns.items():
            # With any mode but "raise", take() writes directly to its output; all places are in range.
            in_long_rows(rows[name]).take(places, axis=0, out=in_long_rows(column), mode="clip")
        probabilities = self._probabilities[places]
        is_by_batch = draw.weight_norm == replay_pb2.WEIGHT_NORM_BATCH
        return Batch(
            row_keys=self._keys[places],
            columns=columns,
            probabilities=probabilities,
            weights=joined_weights(probabilities, None if is_by_batch else self._least, draw.beta),
            beta=draw.beta,
            size=self._size,
            drawable=self._drawable,
            total_mass=self._total_mass,
            smallest_probability=self._least,
            inserted=self._inserted,
        )
