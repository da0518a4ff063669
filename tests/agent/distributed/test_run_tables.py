"""What a trainer and its actors tell each other survives the way through arrays."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from replay_agent.acting.actor import FinishedEpisode
from replay_agent.distributed.run_tables import (
    EPISODE_COLUMNS,
    MAX_LENGTH,
    ActorTask,
    Progress,
    Report,
    RunError,
    RunTables,
    episode_row,
    hello,
    reports_of,
    table_number,
)
from replay_agent.dqn.divergence import MAX_RETURN
from replay_agent.dqn.networks import Bounds, NetworkSpec
from replay_client import ReplayClient

from tests.agent.distributed.test_actor_guide import TASK

BOUNDED = replace(TASK.network, bounds=Bounds((-math.inf, -0.1), (4.8, math.inf)))
IMAGES = NetworkSpec((4, 84, 84), "uint8", actions=18, hidden_sizes=(512, 256), dueling=True, lstm_units=64)


@pytest.mark.parametrize(
    "task",
    [
        TASK,
        replace(TASK, network=BOUNDED, epsilons=(0.4, 0.4**8), gamma=0.997, seed=2**63 - 1),
        replace(TASK, network=IMAGES, actor_priorities=True, clip_rewards=True, env_id="Söme/Env-v0"),
    ],
)
def test_a_task_comes_out_as_it_went_in(task: ActorTask) -> None:
    assert ActorTask.from_state(task.to_state()) == task


def test_a_task_of_another_version_is_refused_with_advice() -> None:
    values = TASK.to_state()
    other = values["json"].tobytes().replace(b'"env_id"', b'"environment"')
    for wrong in ({"json": np.frombuffer(other, np.uint8)}, {"message": values["json"]}):
        with pytest.raises(RunError, match="another version of replay-train"):
            ActorTask.from_state(wrong)


def test_progress_comes_out_as_it_went_in(client: ReplayClient) -> None:
    progress = Progress(2**62 - 1, table_number(b"\xff" * 16), -(2**40), 0.125, 3, is_finished=True)
    client.publish("p", progress._asdict())
    found = Progress.from_state(client.latest("p").values)
    assert found == progress
    assert [type(value) for value in found] == [int, int, int, float, int, bool]


def reported(client: ReplayClient, *rows: dict[str, object]) -> list[Report]:
    table = client.create_table("e", columns=EPISODE_COLUMNS, capacity=100, backend="uniform", if_exists="open")
    keys = table.insert({name: [row[name] for row in rows] for name in rows[0]})
    return reports_of(table.read(keys))


def test_reports_come_out_as_they_went_in(client: ReplayClient) -> None:
    episode = FinishedEpisode(-0.1, 27_000)
    found = reported(client, hello(5, "näme\n"), episode_row(5, episode))
    assert found == [Report(5, "näme\n", None, True), Report(5, "", episode, True)]


def test_a_long_name_is_cut_even_within_a_character(client: ReplayClient) -> None:
    (found,) = reported(client, hello(1, "x" * 63 + "ä"))
    assert found.name == "x" * 63 + "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("episode_return", "length", "is_valid"),
    [
        (MAX_RETURN, 1, True),
        (-MAX_RETURN, MAX_LENGTH, True),
        (2 * MAX_RETURN, 1, False),
        (math.nan, 1, False),
        (-math.inf, 1, False),
        (0.0, -1, False),
        (0.0, MAX_LENGTH + 1, False),
    ],
)
def test_impossible_episodes_are_told_apart(
    client: ReplayClient, episode_return: float, length: int, is_valid: bool
) -> None:
    (found,) = reported(client, episode_row(1, FinishedEpisode(episode_return, length)))
    assert found.is_valid == is_valid


def test_runs_are_found_by_their_tables() -> None:
    names = [*RunTables.of("pong"), "pong", *RunTables.of("a.progress"), "other.weights"]
    assert RunTables.runs(names) == ["pong", "a.progress"]
