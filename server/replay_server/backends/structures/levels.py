"""Layout of a tree with fixed fan-out in one flat array, level by level.

Level 0 has one entry per leaf. Each entry of a higher level represents ``fan_out`` neighbors of the level below, up to
a top level with a single entry. Each level is padded to a multiple of ``fan_out``, so any number of leaves works.
"""

from __future__ import annotations

import numpy as np

from replay_server.kernels.compile import Integers


def level_starts(leaves: int, fan_out: int) -> Integers:
    """Return int64[levels + 1]: where each level begins, from the leaves up, and the length of the whole array.

    There are at least two levels. The last level begins with the single entry at the top.
    """
    starts = [0]
    entries = leaves
    while True:
        groups = -(-entries // fan_out)
        starts.append(starts[-1] + groups * fan_out)
        if entries == 1 and len(starts) > 2:
            return np.array(starts, dtype=np.int64)
        entries = groups
