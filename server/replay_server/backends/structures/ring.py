"""Keys and slots of the ring: key ``k`` is in slot ``k % slots``."""

from __future__ import annotations

import numpy as np

from replay_server.backends.index import Drawn, LiveRows
from replay_server.kernels.compile import Floats, Integers, as_kernel_input, kernel


@kernel
def key_in_slot(slot: int, oldest: int, oldest_slot: int, slots: int) -> int:
    """Return the key of the live row in ``slot``; ``oldest_slot`` is the slot of the key ``oldest``."""
    distance = slot - oldest_slot
    if distance < 0:
        distance += slots
    return oldest + distance


@kernel
def _draw_evenly(fractions: Floats, oldest: int, size: int) -> tuple[Integers, Floats]:
    batch = len(fractions)
    keys = np.empty(batch, dtype=np.int64)
    probabilities = np.empty(batch, dtype=np.float64)
    for i in range(batch):
        # The product may round up to ``size``.
        keys[i] = oldest + min(int(fractions[i] * size), size - 1)
        probabilities[i] = 1.0 / size
    return keys, probabilities


def draw_evenly(fractions: Floats, live: LiveRows) -> Drawn:
    """Draw uniformly from at least one live row."""
    return Drawn(*_draw_evenly(as_kernel_input(fractions), live.oldest, live.size))
