"""Fixture: local servers started quickly."""

from __future__ import annotations

import pytest
from replay_client import local_server

from tests.support.forked_modules import fork_module


@pytest.fixture(autouse=True)
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the servers that this process starts from one that is loaded."""
    monkeypatch.setattr(local_server, "start_module", fork_module)
