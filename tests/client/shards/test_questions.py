"""Questions to all servers are answered by those that are there, soon and without an error."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from replay_client import ReplayClient

from tests.client.shards.conftest import COLUMNS, in_order
from tests.client.shards.test_sharded_draws import rows
from tests.support.server_process import ServerProcess

Reach = Callable[..., ReplayClient]
T = TypeVar("T")


@pytest.fixture
def servers(start_server: Callable[..., ServerProcess], tmp_path: Path) -> list[ServerProcess]:
    """Three servers that write checkpoints."""
    return in_order(start_server("--checkpoint-dir", str(tmp_path / f"checkpoints-{number}")) for number in range(3))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_away_or_hangs_is_left_out(
    servers: list[ServerProcess], reach: Reach, how: signal.Signals
) -> None:
    client = reach(servers)
    table = client.create_table("t", columns=COLUMNS, capacity=3000)
    table.insert(rows(np.arange(300)))
    checkpoint = client.checkpoint().name
    assert table.size() == 300
    os.kill(servers[1].pid, how)

    longest_s = 0.0

    def asked(question: Callable[[], T]) -> T:
        nonlocal longest_s
        began = time.monotonic()
        answer = question()
        longest_s = max(longest_s, time.monotonic() - began)
        return answer

    assert asked(client.stats).tables["t"].shards_away == (1,)
    assert asked(table.describe).inserted == 300  # as last known
    assert asked(table.stats).shards_away == (1,)
    assert asked(table.inspect).shards_away == (1,)
    assert [each.missing for each in asked(client.checkpoints)] == [(1,)]
    assert asked(lambda: client.verify_checkpoint(checkpoint, partial=True)).missing == (1,)
    assert asked(lambda: client.table("t")).name == "t"
    assert [each.id for each in asked(lambda: client.shards.mark(1, state="lost")).in_use] == [0, 2]
    assert longest_s < 10  # a single call would wait for 30 s
