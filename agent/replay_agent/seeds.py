"""Seeds of environments: three ranges that never meet, for training, for choosing a network, and for the last word."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

# Gymnasium takes any non-negative seed; each purpose owns 2^30 of them.
RANGE_BITS = 30
# Evaluation seeds of one run lie side by side in blocks of this many.
BLOCK = 1 << 12


class SeedPurpose(IntEnum):
    """What an episode is played for."""

    TRAINING = 0
    VALIDATION = 1
    EVALUATION = 2


def training_seed(seed: int, actor_id: int) -> int:
    """Seed of one actor's environment and exploration; other actors and other runs get others."""
    state = np.random.SeedSequence([seed, actor_id]).generate_state(1, np.uint32)[0]
    return _in_range(SeedPurpose.TRAINING, int(state))


def episode_seeds(purpose: SeedPurpose, seed: int, count: int) -> list[int]:
    """Seeds of ``count`` greedy episodes, distinct from each other and from those of every other purpose."""
    if count > BLOCK:
        raise ValueError(f"at most {BLOCK} episodes, got {count}")
    blocks = 1 << (RANGE_BITS - BLOCK.bit_length() + 1)
    start = (seed % blocks) * BLOCK
    return [_in_range(purpose, start + index) for index in range(count)]


def _in_range(purpose: SeedPurpose, value: int) -> int:
    return (int(purpose) << RANGE_BITS) + value % (1 << RANGE_BITS)
