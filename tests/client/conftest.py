"""Fixtures: clients of the shared server and of separate servers, and tables."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from replay_client import Column, ReplayClient, Table, TableNotFoundError
from replay_client._transport import long_waits

from tests.support.caller import SAME_HOST
from tests.support.server_process import ServerProcess

COLUMNS = {"number": Column("int64"), "obs": Column("float32", (3,)), "done": Column("bool")}
"""Columns of the tests' tables; `tests.client.numbered.rows` creates their rows."""

_numbers = itertools.count()


def ways(data_path: str) -> dict[str, Any]:
    """Options of a client that uses this data path."""
    return {"same_host": data_path == SAME_HOST}


@pytest.fixture(scope="session")
def client(server: ServerProcess, data_path: str) -> Iterator[ReplayClient]:
    """A client of the shared server."""
    with ReplayClient(server.address, **ways(data_path)) as made:
        yield made


@pytest.fixture
def connect(data_path: str) -> Iterator[Callable[..., ReplayClient]]:
    """Creates clients of separate servers."""
    made: list[ReplayClient] = []

    def connect_to(process: ServerProcess, **options: Any) -> ReplayClient:
        made.append(ReplayClient(process.address, **{**ways(data_path), **options}))
        return made[-1]

    yield connect_to
    for client in made:
        client.close()


@pytest.fixture
def new_table(client: ReplayClient) -> Iterator[Callable[..., Table]]:
    """Creates tables on the shared server, and drops them at the end."""
    made = []

    def create(**config: Any) -> Table:
        config = {"name": f"client-{next(_numbers)}", "columns": COLUMNS, "capacity": 1000, **config}
        made.append(client.create_table(**config))
        return made[-1]

    yield create
    for table in made:
        with contextlib.suppress(TableNotFoundError):
            client.drop_table(table.name)


@pytest.fixture
def table(new_table: Callable[..., Table]) -> Table:
    """An empty table of capacity 1000 on the shared server."""
    return new_table()


@pytest.fixture
def waits_are_soon_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is long after a time in which even a busy server knows of it."""
    monkeypatch.setattr(long_waits, "WARN_AFTER_S", 0.5)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines about long waits for rows or room so far; on a busy machine, other calls may take long, too."""

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name == long_waits.__name__]
        return [line for line in found if " for an answer of the server" not in line and " for the answer" not in line]

    return lines
