"""Estimated and actual memory of indexes agree."""

from __future__ import annotations

import numpy as np
import pytest
from replay_server.backends import BACKENDS, index_bytes, make_index
from replay_server.backends.index import DEAD_PRIORITY

from tests.support.invariants import nbytes


@pytest.mark.parametrize("slots", [1, 65, 1000, 4096, 5001, 65_537, 300_001])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_index_takes_no_more_than_it_is_counted_as(backend: str, slots: int) -> None:
    index = make_index(backend, {}, np.full(slots, DEAD_PRIORITY))
    assert nbytes(index) <= index_bytes(backend, slots)
    if slots > 300_000:
        assert nbytes(index) >= index_bytes(backend, slots) - (1 << 16) - 0.02 * nbytes(index)
