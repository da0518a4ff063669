"""The workloads of the benchmarks.

A row is one transition. A learner step draws a batch by priority, then writes new priorities for exactly that batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_client import Column


@dataclass(frozen=True)
class Workload:
    """Rows of one kind, and the number of rows per draw."""

    name: str
    """Name of the workload and of its table."""
    capacity: int
    """Capacity of the table, which is full during measurements."""
    batch_size: int
    """Rows per learner step."""
    obs: Column
    """Column of an observation."""

    @property
    def columns(self) -> dict[str, Column]:
        """Columns of a transition."""
        return {
            "obs": self.obs,
            "action": Column("int64"),
            "reward": Column("float32"),
            "next_obs": self.obs,
            "terminated": Column("bool"),
        }

    @property
    def row_bytes(self) -> int:
        """Bytes of a transition."""
        return sum(column.row_bytes for column in self.columns.values())

    def rows(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Return random rows, by column."""
        shape = (count, *self.obs.shape)
        return {
            "obs": rng.integers(0, 255, shape).astype(self.obs.dtype),
            "action": rng.integers(0, 4, count),
            "reward": rng.random(count, np.float32),
            "next_obs": rng.integers(0, 255, shape).astype(self.obs.dtype),
            "terminated": rng.random(count) < 0.01,
        }


CARTPOLE = Workload("cartpole", capacity=1 << 20, batch_size=256, obs=Column("float32", (4,)))
"""Rows of 45 bytes."""
ATARI = Workload("atari", capacity=1 << 16, batch_size=32, obs=Column("uint8", (84 * 84 * 4,)))
"""Rows of 56 KB."""
WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in (CARTPOLE, ATARI)}
"""All workloads, by name."""
