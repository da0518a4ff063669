"""Oracles for the backends, with linear scans and full sorts: slow, but obviously correct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from replay_server.backends import RankParameters, SumTreeParameters, UniformParameters
from replay_server.backends.index import LEAST_PROBABILITY

FRACTION_TOLERANCE = 1e-9
"""How far beyond its interval of the total mass a row may be drawn, as a fraction of the total.

Backends and oracles add masses in different orders, so their boundaries between two rows may differ by rounding. A
fraction between the two boundaries may draw either row.
"""


class Oracle(Protocol):
    """The order of a table's rows along the total mass, and their masses."""

    def in_order(self, priorities: Mapping[int, float], slots: int) -> list[int]:
        """Return the keys of all live rows in that order."""

    def masses(self, priorities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the masses of rows with these priorities, which are in that order."""


class SumTreeOracle:
    """Rows in order of slot; mass = min(priority + epsilon, max_priority) ** alpha."""

    def __init__(self, parameters: SumTreeParameters) -> None:
        self.parameters = parameters

    def in_order(self, priorities: Mapping[int, float], slots: int) -> list[int]:
        return sorted(priorities, key=lambda key: key % slots)

    def masses(self, priorities: NDArray[np.float64]) -> NDArray[np.float64]:
        capped = np.minimum(priorities + self.parameters.epsilon, self.parameters.cap)
        return np.asarray(capped**self.parameters.alpha, dtype=np.float64)


class RankOracle:
    """Rows in order of rank, newest first if priorities are equal; mass = rank ** -alpha."""

    def __init__(self, parameters: RankParameters) -> None:
        self.parameters = parameters

    def in_order(self, priorities: Mapping[int, float], slots: int) -> list[int]:
        return sorted(priorities, key=lambda key: (-priorities[key], -key))

    def masses(self, priorities: NDArray[np.float64]) -> NDArray[np.float64]:
        ranks = np.arange(1, len(priorities) + 1, dtype=np.float64)
        return np.asarray(ranks**-self.parameters.alpha, dtype=np.float64)


class UniformOracle:
    """Rows in order of key; mass = 1."""

    def in_order(self, priorities: Mapping[int, float], slots: int) -> list[int]:
        return sorted(priorities)

    def masses(self, priorities: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.ones(len(priorities))


def oracle_for(parameters: object) -> Oracle:
    """Return the oracle of the backend with these parameters."""
    match parameters:
        case SumTreeParameters():
            return SumTreeOracle(parameters)
        case RankParameters():
            return RankOracle(parameters)
        case UniformParameters():
            return UniformOracle()
    raise TypeError(f"no oracle for {parameters!r}")


class Expected:
    """The expected answers of a backend for some rows."""

    def __init__(self, oracle: Oracle, priorities: Mapping[int, float], slots: int) -> None:
        """Arrange all rows along their total mass; if that is zero, evenly in order of key."""
        keys = oracle.in_order(priorities, slots)
        masses = oracle.masses(np.array([priorities[key] for key in keys], dtype=np.float64))
        self.total_mass = float(np.sum(masses, dtype=np.longdouble))
        if self.total_mass == 0.0:
            keys = sorted(priorities)
            masses = np.ones(len(keys))
        self.keys = np.array(keys, dtype=np.int64)
        summed = np.concatenate([[np.longdouble(0)], np.cumsum(masses, dtype=np.longdouble)])
        self.boundaries: NDArray[np.float64] = np.asarray(summed / summed[-1], dtype=np.float64)
        """float64[size + 1]: the fractions of the total mass between which each row lies."""
        self.probabilities: NDArray[np.float64] = np.maximum(
            np.asarray(masses / summed[-1], dtype=np.float64), LEAST_PROBABILITY
        )
        self.has_mass = masses > 0.0
        self.smallest_probability = float(self.probabilities[self.has_mass].min())
        self._place = {key: place for place, key in enumerate(keys)}

    def places(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of these rows in the order."""
        return np.array([self._place[int(key)] for key in keys], dtype=np.int64)

    def middles(self) -> NDArray[np.float64]:
        """Return the middle of each row's interval, as fractions float64[size]."""
        return (self.boundaries[:-1] + self.boundaries[1:]) / 2

    def require_draw(
        self, fractions: NDArray[np.float64], keys: NDArray[np.int64], probabilities: NDArray[np.float64]
    ) -> None:
        """Check that these fractions may draw these rows, and that the rows' probabilities are correct."""
        places = self.places(keys)
        assert (fractions >= self.boundaries[places] - FRACTION_TOLERANCE).all()
        assert (fractions <= self.boundaries[places + 1] + FRACTION_TOLERANCE).all()
        assert self.has_mass[places].all()
        np.testing.assert_allclose(probabilities, self.probabilities[places], rtol=1e-12)
