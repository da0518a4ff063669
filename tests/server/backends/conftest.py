"""Runs each test with a ``backend`` parameter once per backend."""

from __future__ import annotations

import pytest
from replay_server.backends import BACKENDS


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    """Name of a backend."""
    return str(request.param)
