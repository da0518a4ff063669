"""Runs over several servers, one of which is killed in the middle."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from replay_agent.processes.signals import StopRequest
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.run import train
from replay_agent.training.training_loop import Ending
from replay_client import ReplayClient
from rich.console import Console

from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

TABLE = "cartpole"
KILLED_AT, BACK_AT = 1_500, 2_500
"""Rows in the table when a server is killed, and those in the others when it is started again."""
PATIENCE_S = 300.0


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_cartpole_is_solved_over_three_servers_of_which_one_is_killed_and_returns(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    servers = [start_server("--data-dir", str(tmp_path / f"data-{number}")) for number in range(3)]
    address, killed = ",".join(server.address for server in servers), servers[1]
    settings = TrainSettings(env="CartPole-v1", server=address, table=TABLE, runs_dir=tmp_path / "runs")
    with ThreadPoolExecutor(1) as pool, ReplayClient(address) as client:
        training = pool.submit(train, settings, StopRequest(), Console(quiet=True))

        def has(rows: int) -> bool:
            assert not training.done(), training.exception()
            tables = client.stats().tables
            return TABLE in tables and tables[TABLE].inserted >= rows

        wait_until(lambda: has(KILLED_AT), "the table is filled", PATIENCE_S)
        killed.kill()
        wait_until(lambda: has(BACK_AT), "training goes on without the server", PATIENCE_S)
        killed.restart()
        shards = client.shards.map()
        assert shards is not None
        (own,) = [shard.id for shard in shards.in_use if shard.address == killed.address]
        wait_until(lambda: own in client.stats().servers, "the client finds the server again")
        restored = client.stats().tables[TABLE].shards[own].inserted
        report = training.result()
        assert report.ending == Ending.SOLVED
        assert client.stats().tables[TABLE].shards[own].inserted > restored + 100
    print(f"{report.env_steps:,} steps, {report.training_s:.0f} s, evaluation {report.evaluation}")
