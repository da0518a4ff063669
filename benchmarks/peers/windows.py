"""Code shared by the peers. They run in separate environments, so this file needs only Python.

A peer reads the workload from its command line, prepares, and prints a line. It then measures one window for each line
of input, so that contestants can take turns.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

EPISODE = 1000
"""Steps of an episode, for peers that store steps."""
STACK = 4
"""Frames of an observation, for peers that store steps."""
_US_PER_S = 1e6


@dataclass(frozen=True)
class PeerWorkload:
    """A workload like `benchmarks.workloads.Workload`, in plain numbers."""

    capacity: int
    filled: int
    batch_size: int
    obs_size: int
    obs_dtype: str
    obs_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a transition: two observations, an int64, a float32 and a bool."""
        return 2 * self.obs_bytes + 8 + 4 + 1


WORKLOADS = {
    "cartpole": PeerWorkload(1 << 20, 100_000, 256, 4, "float32", 16),
    "atari": PeerWorkload(1 << 16, 20_000, 32, 84 * 84 * 4, "uint8", 84 * 84 * 4),
}


def serve_windows(step: Callable[[], object], facts: dict[str, float] | None = None) -> None:
    """Report readiness, then answer each line ``SECONDS`` with the microseconds per step in a window of that length."""
    print(json.dumps(facts or {}), flush=True)
    for line in sys.stdin:
        steps, window_s, began = 0, float(line), time.perf_counter()
        while (elapsed := time.perf_counter() - began) < window_s:
            step()
            steps += 1
        print(json.dumps(elapsed / steps * _US_PER_S), flush=True)
