"""A short torture run; see `tests.faults.torture`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.faults.torture import Figures, Torture
from tests.support.server_process import ServerProcess

KILLS = 5


def test_kills_at_any_moment_lose_nothing_double_nothing_and_tear_nothing(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    server = start_server("--data-dir", str(tmp_path / "data"), "--checkpoint-dir", str(checkpoints))
    torture = Torture(server, checkpoints, seed=7)
    # Kills are timed, so a slow machine needs more of them to cover every case.
    while torture.figures.kills < KILLS or not was_enough(torture.figures):
        torture.round()


def was_enough(figures: Figures) -> bool:
    return (
        figures.rows > KILLS * 100
        and figures.priorities > KILLS * 10
        and figures.checkpoints > KILLS
        and figures.in_flight_applied + figures.in_flight_not_applied > KILLS
    )
