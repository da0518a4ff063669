"""Atari games, if the emulator is installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from replay_agent.acting.environments import inspect_environment
from replay_agent.processes.signals import StopRequest
from replay_agent.training.trainer import Ending, Trainer
from replay_client import ReplayClient

from tests.agent.short_runs import Watcher
from tests.support.server_process import ServerProcess

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

PONG = "ALE/Pong-v5"


def test_a_game_has_stacks_of_four_gray_frames() -> None:
    info = inspect_environment(PONG)
    assert (info.observation_shape, info.observation_dtype, info.actions) == ((4, 84, 84), "uint8", 6)
    assert (info.stack, info.padding, info.frame_shape) == (4, "repeat", (84, 84))


def test_a_game_is_learned_from_frames_that_are_stored_once(
    make_trainer: Callable[..., Trainer], server: ServerProcess
) -> None:
    stop = StopRequest()
    trainer = make_trainer(stop, env=PONG, table="pong", steps=100_000, capacity=1_000, dueling=False)
    # A stop avoids the validation at the end, which would play whole games.
    assert trainer.train(Watcher(200, stop.set), None) is Ending.STOPPED
    with ReplayClient(server.address) as client:
        table = client.table("pong")
        batch = table.sample(8, beta=0.4)
        assert table.describe().row_bytes == 84 * 84 + 8 + 4
        assert batch["obs"].shape == batch["next_obs"].shape == (8, 4, 84, 84)
        assert batch["obs"].any()
        table.drop()
    assert trainer.learner.updates >= 25
