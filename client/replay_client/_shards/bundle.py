"""Joins the parts of a step into one or more batches, once all parts have arrived.

bundle = Bundle(step, states, columns, random)  # columns: memory for all batches together
bundle.take(columns)                            # the next batch
bundle.left                                     # number of batches that were not taken
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from replay_proto.framing import Array
from replay_proto.v1 import replay_pb2

from replay_client._shards.keys import global_keys
from replay_client._shards.mass import joined_weights
from replay_client._shards.step import Step
from replay_client.batch import Batch


class Bundle:
    """See the module."""

    def __init__(
        self,
        step: Step,
        states: Collection[replay_pb2.TableState],
        columns: dict[str, Array],
        random: np.random.Generator,
    ) -> None:
        """Join the parts of a step.

        Args:
            step: the step, whose parts have all arrived.
            states: the latest states of the shards.
            columns: memory for the rows of all batches.
            random: orders the rows.
        """
        self.left = step.batches
        """Number of batches that were not taken."""
        rows = step.draw.batch_size * step.batches
        self._step = step
        self._columns = columns
        self._keys, self._probabilities = np.empty(rows, np.int64), np.empty(rows, np.float64)
        for shard_id, part, places in step.placed(random):
            self._keys[places] = global_keys(shard_id, part.row_keys)
            self._probabilities[places] = step.probabilities(shard_id, part)
            for name, column in columns.items():
                column[places] = part.columns[name]
        self._least = step.smallest_probability() or float(self._probabilities.min())
        self._size = sum(state.size for state in states)
        self._drawable = sum(state.drawable for state in states)
        self._total_mass = step.total_mass(states)
        self._inserted = sum(state.inserted for state in states)

    def take(self, columns: dict[str, Array]) -> Batch:
        """Return the next batch, and copy its rows to ``columns``.

        A single batch needs no copy: ``columns`` may then be the bundle's own columns.
        """
        draw, step = self._step.draw, self._step
        first = (step.batches - self.left) * draw.batch_size
        rows = slice(first, first + draw.batch_size)
        self.left -= 1
        if columns is not self._columns:
            for name, column in columns.items():
                column[:] = self._columns[name][rows]
        probabilities = self._probabilities[rows]
        is_by_batch = draw.weight_norm == replay_pb2.WEIGHT_NORM_BATCH
        return Batch(
            row_keys=self._keys[rows],
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
