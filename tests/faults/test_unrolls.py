"""Short runs of `tools.faults.unrolls`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess
from tools.faults.unrolls import pass_through


@pytest.mark.parametrize("kills", [0, 3])
def test_unrolls_arrive_once_whole_and_in_order(
    start_server: Callable[..., ServerProcess], tmp_path: Path, kills: int
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"))
    found = pass_through(server, 20_000, consumers=3, kills=kills, seed=kills, note=lambda step: None)
    assert found.faults() == []
    assert len(found.sent) > 900
    assert all(len(each) > 0 for each in found.received)
