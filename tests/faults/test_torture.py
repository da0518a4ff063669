"""The torture run, short: every kill is audited, see `tests.faults.torture`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.faults.torture import Torture
from tests.support.server_process import ServerProcess

KILLS = 20


def test_kills_at_any_moment_lose_nothing_double_nothing_and_tear_nothing(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    server = start_server("--data-dir", str(tmp_path / "data"), "--checkpoint-dir", str(checkpoints))
    torture = Torture(server, checkpoints, seed=7)
    for _ in range(KILLS):
        torture.round()
    figures = torture.figures
    assert figures.kills == KILLS
    assert figures.rows > KILLS * 100
    assert figures.priorities > KILLS * 10
    assert figures.checkpoints > KILLS
    assert figures.in_flight_applied + figures.in_flight_not_applied > KILLS
