"""What an actor keeps for later while its server is away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from replay_agent.acting.actor import FinishedEpisode
from replay_agent.acting.environments import inspect_environment
from replay_agent.distributed.acting_run import ActingRun
from replay_agent.distributed.published_run import PublishedRun
from replay_agent.distributed.run_tables import EPISODE_COLUMNS
from replay_agent.dqn.networks import NetworkSpec
from replay_agent.settings.actor_settings import ActorSettings
from replay_client import ReplayClient

from tests.agent.corridor import CORRIDOR_ID
from tests.agent.distributed.test_actor_guide import TASK
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess


def reported(acting: ActingRun) -> bool:
    """Report, and return whether nothing is left for later."""
    acting._report()
    return not acting._reports


def test_episodes_are_reported_when_the_server_is_back(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"))
    env = inspect_environment(CORRIDOR_ID)
    spec = NetworkSpec(env.observation_shape, env.observation_dtype, env.actions, (4,), dueling=False)
    with ReplayClient(server.address) as other, ReplayClient(server.address, timeout_s=0.5) as client:
        other.create_table("run.episodes", columns=EPISODE_COLUMNS, capacity=100, backend="uniform")
        run = PublishedRun(client, "run", threading.Event(), ActorSettings())
        acting = ActingRun(replace(TASK, env_id=CORRIDOR_ID, network=spec), run, client, "a")
        wait_until(lambda: reported(acting), "it has joined")
        server.kill()
        acting._note_episode(FinishedEpisode(1.5, 3))
        assert not reported(acting)
        server.restart()
        wait_until(lambda: reported(acting), "the episode is reported")
        acting.close()
    with ReplayClient(server.address) as client:
        rows = client.table("run.episodes").read(range(100))
        # On a slow machine, a report may time out after it has arrived, and come twice.
        assert set(zip(rows["episode_return"].tolist(), rows["length"].tolist(), strict=True)) == {(0.0, 0), (1.5, 3)}
