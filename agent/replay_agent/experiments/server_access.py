"""The replay server of an experiment: one that runs already, or one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replay_agent.embedded_server import EmbeddedServer


@contextmanager
def replay_server(address: str | None, log_path: Path) -> Iterator[str]:
    """The address of a server.

    Args:
        address: of one that runs; None: start one, for as long as the block lasts.
        log_path: file for the log of one that is started.

    Raises:
        EmbeddedServerError: it could not be started.
    """
    if address is not None:
        yield address
        return
    server = EmbeddedServer(log_path)
    try:
        yield server.address
    finally:
        server.close()
