"""A short torture run; see `tools.faults.torture`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from replay_proto.steps import Item

from tests.support.server_process import ServerProcess
from tools.faults.shard_torture import SHARDS, ShardTorture
from tools.faults.torture import ITEM, Figures, Torture

KILLS = 3


@pytest.mark.slow
@pytest.mark.parametrize("item", [None, ITEM], ids=["rows", "steps"])
def test_kills_at_any_moment_lose_nothing_double_nothing_and_tear_nothing(
    start_server: Callable[..., ServerProcess], tmp_path: Path, item: Item | None
) -> None:
    checkpoints = tmp_path / "checkpoints"
    server = start_server("--data-dir", str(tmp_path / "data"), "--checkpoint-dir", str(checkpoints))
    torture = Torture(server, checkpoints, seed=7, item=item)
    # Kills are timed, so a slow machine needs more of them to cover every case.
    while torture.figures.kills < KILLS or not was_enough(torture.figures):
        torture.round()


def test_kills_of_servers_with_one_table_lose_nothing_and_double_nothing(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    servers = [start_server("--data-dir", str(tmp_path / f"data-{number}")) for number in range(SHARDS)]
    torture = ShardTorture(servers, seed=4)
    while torture.figures.kills < KILLS:
        torture.round()
    torture.close()
    assert torture.figures.rows > KILLS * 100
    assert torture.figures.batches > KILLS


def was_enough(figures: Figures) -> bool:
    return (
        figures.rows > KILLS * 100
        and figures.priorities > KILLS * 10
        and figures.checkpoints > KILLS
        and figures.in_flight_applied + figures.in_flight_not_applied > KILLS
    )
