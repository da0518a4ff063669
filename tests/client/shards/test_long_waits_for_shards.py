"""Whoever waits for long for a table on several servers says for what."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from replay_client import DeadlineExceededError, ReplayClient, Table
from replay_client._transport import long_waits

from tests.client.shards.conftest import COLUMNS
from tests.support.deadlines import PATIENCE_S, wait_until
from tests.support.server_process import ServerProcess

ROWS = {"number": np.arange(8), "obs": np.zeros((8, 3), np.float32)}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is long after a time in which even a busy server knows of it."""
    monkeypatch.setattr(long_waits, "WARN_AFTER_S", 0.5)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines about long waits for rows or room so far; on a busy machine, other calls may take long, too."""

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name == long_waits.__name__]
        return [line for line in found if " for an answer of the server" not in line and " for the answer" not in line]

    return lines


@pytest.fixture
def table_of(servers: list[ServerProcess], reach: Callable[..., ReplayClient]) -> Callable[..., Table]:
    def create(**config: Any) -> Table:
        client = reach(servers[:2], wait_for_server_s=1.0)
        return client.create_table("t", columns=COLUMNS, capacity=900, **config)

    return create


def test_a_sampler_of_an_empty_table_says_so(table_of: Callable[..., Table], said: Callable[[], list[str]]) -> None:
    table = table_of()
    with table.sampler(4, beta=0.4, timeout_s=PATIENCE_S) as sampler:
        waiting = threading.Thread(target=sampler.__next__)
        waiting.start()
        wait_until(lambda: bool(said()), "the wait is logged")
        table.insert(ROWS)
        waiting.join()
    (line,) = said()
    assert re.match(r"a sampler of table 't' waits: table 't': waited \d+ s for rows: 0 of 1 rows", line)


def test_a_writer_says_what_its_rows_wait_for(table_of: Callable[..., Table], said: Callable[[], list[str]]) -> None:
    table = table_of(samples_per_insert=1.0, error_buffer=(-8.0, 8.0), min_size=1)
    with table.writer(streams=2) as writer:
        for _ in range(20):
            writer.append_all(number=np.arange(2), obs=np.zeros((2, 3)))
        wait_until(lambda: bool(table.stats().waits), "rows wait on a server")
        with pytest.raises(DeadlineExceededError, match=r"waited 1\.5 s for inserts") as refused:
            writer.flush(timeout_s=1.5)
        assert refused.value.metadata["waited_for"] == "inserts"
        assert any(line.startswith("a writer of table 't' on 2 servers waits: ") for line in said())
        table.drop()
        writer.abort()
