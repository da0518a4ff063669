"""Random streams of a run: all are spawned from one `SeedSequence`, so no two generators share a seed.

A stream's spawn key is its purpose, then numbers that tell it from others of that purpose. Equal keys of equal seeds
give equal streams; different keys give independent ones, as `numpy.random.SeedSequence` promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

# Gymnasium takes any non-negative seed; training, validation and evaluation each own 2^30 of them.
RANGE_BITS = 30


class Purpose(IntEnum):
    """What a random stream is for. A number never changes its meaning, so runs can be repeated later."""

    NETWORK = 0
    """Initial weights."""
    DRAWS = 1
    """Draws of the table."""
    ACTOR = 2
    """Everything that one actor does; it spawns the two streams below."""
    EXPLORATION = 3
    """Random actions of an actor."""
    ENVIRONMENT = 4
    """An actor's environment."""
    VALIDATION = 5
    """Episodes that choose a network."""
    EVALUATION = 6
    """Episodes at the end."""


# Ranges of `reset` seeds that never meet, so no network is judged on episodes that it was trained or chosen on.
_RANGES = {Purpose.ENVIRONMENT: 0, Purpose.VALIDATION: 1, Purpose.EVALUATION: 2}


@dataclass(frozen=True)
class RunSeeds:
    """Seeds of everything random in a run.

    Attributes:
        seed: of the run.
        start: how often the run was started before. A resumed run acts with new random numbers: with the old ones its
            actors would repeat what the table holds already.
    """

    seed: int
    start: int = 0

    @property
    def network(self) -> int:
        """Seed of the initial weights."""
        return _integer(_spawn(self.seed, Purpose.NETWORK))

    @property
    def draws(self) -> int:
        """Seed of the table's draws."""
        return _integer(_spawn(self.seed, Purpose.DRAWS))

    def actor(self, actor_id: int) -> int:
        """Seed of one actor of this start, 0 to 2^63 - 1, for `ActorSeeds`."""
        return _integer(_spawn(self.seed, Purpose.ACTOR, self.start, actor_id))

    def validation(self, number: int, count: int) -> list[int]:
        """Seeds of the ``count`` episodes of a validation, each different; other validations have others."""
        return _episodes(Purpose.VALIDATION, count, self.seed, number)

    def evaluation(self, count: int) -> list[int]:
        """Seeds of the ``count`` episodes of the evaluation at the end, each different."""
        return _episodes(Purpose.EVALUATION, count, self.seed)


@dataclass(frozen=True)
class ActorSeeds:
    """Random streams of one actor, which may live on another machine.

    Attributes:
        seed: what `RunSeeds.actor` gave.
    """

    seed: int

    def exploration(self) -> np.random.Generator:
        """A new generator of random actions."""
        return np.random.default_rng(_spawn(self.seed, Purpose.EXPLORATION))

    @property
    def environment(self) -> int:
        """Seed for the environment's first ``reset``."""
        return _episodes(Purpose.ENVIRONMENT, 1, self.seed)[0]


def _spawn(seed: int, purpose: Purpose, *which: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(purpose, *which))


def _integer(sequence: np.random.SeedSequence) -> int:
    """One integer of 63 bits, for what takes nothing else."""
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def _episodes(purpose: Purpose, count: int, seed: int, *which: int) -> list[int]:
    random = np.random.default_rng(_spawn(seed, purpose, *which))
    first = _RANGES[purpose] << RANGE_BITS
    return [first + int(value) for value in random.choice(1 << RANGE_BITS, count, replace=False)]
