"""Layout of the levels of a tree with fixed fan-out in one flat array.

Level 0 has one entry per leaf. Each entry of a higher level represents ``fan_out`` neighbors of the level below, up to
a top level with a single entry. Levels are padded to whole groups, so any number of leaves works.
"""

from __future__ import annotations

import numpy as np

from replay_server.kernels.compile import Integers


def level_starts(leaves: int, fan_out: int) -> Integers:
    """Return int64[levels + 1]: where each level begins, leaves first, then the length of the whole array.

    There are at least two levels; entry ``starts[-2]`` is the top.
    """
    starts = [0]
    entries = leaves
    while True:
        groups = -(-entries // fan_out)
        starts.append(starts[-1] + groups * fan_out)
        if entries == 1 and len(starts) > 2:
            return np.array(starts, dtype=np.int64)
        entries = groups
