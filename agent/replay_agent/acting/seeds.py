"""Seeds for the random numbers of a run. No two generators share a seed.

Each seed comes from a `numpy.random.SeedSequence` with the seed of the run or of an actor. The spawn key is a purpose,
followed by numbers that distinguish streams with the same purpose. Different keys give independent random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

# Gymnasium accepts any non-negative seed. Training, validation and evaluation each use a range of 2^30 seeds.
RANGE_BITS = 30


class Purpose(IntEnum):
    """Purpose of a random stream. Never renumber these, or the same seed will give a different run."""

    NETWORK = 0
    """Initial weights."""
    DRAWS = 1
    """Draws of the table."""
    ACTOR = 2
    """Seed of an actor, for the two streams below."""
    EXPLORATION = 3
    """Random actions of an actor."""
    ENVIRONMENT = 4
    """An actor's environment."""
    VALIDATION = 5
    """Episodes that select a network."""
    EVALUATION = 6
    """Final episodes."""
    EVALUATED = 7
    """Random actions of an episode that is evaluated."""


# Disjoint ranges of `reset` seeds, so that no network is evaluated on episodes used for training or selection.
_RANGES = {Purpose.ENVIRONMENT: 0, Purpose.VALIDATION: 1, Purpose.EVALUATION: 2}


@dataclass(frozen=True)
class RunSeeds:
    """Seeds of all random streams of a run.

    Attributes:
        seed: seed of the run.
        start: number of earlier starts of the run. It changes the actors' seeds. With the same seeds, the actors of a
            resumed run would repeat episodes that are already in the table.
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
        """Return the seed of an actor, from 0 to 2^63 - 1. Each start of the run has its own."""
        return _integer(_spawn(self.seed, Purpose.ACTOR, self.start, actor_id))

    def validation(self, number: int, count: int) -> list[int]:
        """Return distinct seeds for the ``count`` episodes of a validation. Each ``number`` has its own seeds."""
        return _episodes(Purpose.VALIDATION, count, self.seed, number)

    def evaluation(self, count: int) -> list[int]:
        """Return distinct seeds for the ``count`` episodes of the final evaluation."""
        return _episodes(Purpose.EVALUATION, count, self.seed)


def exploration(actor: int) -> np.random.Generator:
    """Create a generator for the random actions of the actor with this seed."""
    return np.random.default_rng(_spawn(actor, Purpose.EXPLORATION))


def environment_seed(actor: int) -> int:
    """Return the seed for the first ``reset`` of the environments of the actor with this seed."""
    return _episodes(Purpose.ENVIRONMENT, 1, actor)[0]


def evaluated_exploration(seed: int) -> np.random.Generator:
    """Create a generator for the random actions of the episode whose environment is reset with ``seed``."""
    return np.random.default_rng(_spawn(seed, Purpose.EVALUATED))


def _spawn(seed: int, purpose: Purpose, *which: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(purpose, *which))


def _integer(sequence: np.random.SeedSequence) -> int:
    """Return an integer of 63 bits, for APIs that take no `SeedSequence`."""
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def _episodes(purpose: Purpose, count: int, seed: int, *which: int) -> list[int]:
    random = np.random.default_rng(_spawn(seed, purpose, *which))
    first = _RANGES[purpose] << RANGE_BITS
    return [first + int(value) for value in random.choice(1 << RANGE_BITS, count, replace=False)]
