"""A pytest plugin with a replay server for tests.

    def test_my_agent(replay_server):
        client = replay_server.client()

pytest loads this plugin in every environment that has the client, even if no test needs a server. So the plugin imports
the client only when a test uses the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from replay_client import LocalServer


@pytest.fixture(scope="session")
def replay_server() -> Iterator[LocalServer]:
    """A `LocalServer` that all tests of a session share. With pytest-xdist, each worker has its own."""
    from replay_client import LocalServer

    with LocalServer() as server:
        yield server
