"""Fixtures: clients for asyncio in the place of synchronous ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from replay_client import aio

from tests.client.conftest import ways
from tests.support.blocking import Blocking, EventLoop
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="session")
def loop() -> Iterator[EventLoop]:
    """An event loop in another thread."""
    with EventLoop() as started:
        yield started


@pytest.fixture(scope="session")
def client(server: ServerProcess, loop: EventLoop, data_path: str) -> Iterator[Blocking]:
    """A client of the shared server."""
    with Blocking(aio.ReplayClient(server.address, **ways(data_path)), loop) as made:
        yield made


@pytest.fixture
def connect(loop: EventLoop, data_path: str) -> Iterator[Callable[..., Blocking]]:
    """Creates clients of separate servers."""
    made: list[Blocking] = []

    def connect_to(process: ServerProcess, **options: Any) -> Blocking:
        made.append(Blocking(aio.ReplayClient(process.address, **{**ways(data_path), **options}), loop))
        return made[-1]

    yield connect_to
    for each in made:
        each.close()
