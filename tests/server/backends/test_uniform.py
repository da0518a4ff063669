"""Guarantees of the uniform backend beyond those of all backends."""

from __future__ import annotations

import numpy as np
import pytest

from tests.server.backends.indexed_ring import IndexedRing
from tests.support.invariants import check_index


def test_priorities_change_nothing_about_the_draws() -> None:
    ring = IndexedRing("uniform", capacity=10)
    ring.insert(np.arange(10, dtype=np.float64))
    drawn = ring.draw((np.arange(10) + 0.5) / 10)
    assert drawn.keys.tolist() == list(range(10))
    np.testing.assert_array_equal(drawn.probabilities, 0.1)


def test_the_total_mass_is_the_number_of_rows() -> None:
    ring = IndexedRing("uniform", capacity=10)
    ring.insert(np.zeros(7))
    assert ring.index.total_mass == 7.0
    ring.insert(np.ones(7))
    assert ring.index.total_mass == 10.0


def test_check_names_the_invariant_that_is_broken() -> None:
    ring = IndexedRing("uniform", capacity=10)
    ring.insert(np.ones(5))
    ring.priorities[3] = 7.0
    with pytest.raises(AssertionError, match="largest priorities"):
        check_index(ring.index)
