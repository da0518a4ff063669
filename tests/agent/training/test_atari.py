"""Atari games, if the emulator is installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from replay_agent.acting import environments
from replay_agent.acting.environments import inspect_environment, make_environment
from replay_agent.processes.signals import StopRequest
from replay_agent.settings.train_settings import load_train_settings
from replay_agent.training.training_loop import Ending, TrainingLoop
from replay_client import ReplayClient

from tests.agent.short_runs import Watcher
from tests.support.server_process import ServerProcess

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

PONG = "ALE/Pong-v5"


def test_a_game_has_stacks_of_four_gray_frames() -> None:
    info = inspect_environment(PONG)
    assert (info.observation_shape, info.observation_dtype, info.actions) == ((4, 84, 84), "uint8", 6)
    assert (info.stack, info.padding, info.frame_shape) == (4, "zero", (84, 84))


def test_the_ball_of_breakout_is_in_play_without_the_player_pressing_fire() -> None:
    env = make_environment("ALE/Breakout-v5")
    _, info = env.reset(seed=0)
    assert info["lives"] == 5
    for _ in range(100):
        *_, info = env.step(0)
    assert info["lives"] == 4  # without FIRE, the ball would never be launched
    env.close()


def test_a_game_without_fire_begins() -> None:
    env = make_environment("ALE/Freeway-v5")
    env.reset(seed=0)
    env.close()


def test_a_game_that_is_never_lost_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environments.ATARI_FRAMES == 30 * 60 * 60
    monkeypatch.setattr(environments, "ATARI_FRAMES", 400)
    env = make_environment(PONG)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(100)]
    assert ends[-1] == (False, True)
    env.close()


@pytest.mark.parametrize("game", ["ALE/Pong-v5", "ALE/Breakout-v5", "ALE/Seaquest-v5"])
def test_every_game_has_a_preset_of_the_field(game: str) -> None:
    settings = load_train_settings(["--env", game])
    assert (settings.learning_rate, settings.target_tau, settings.batch_size) == (1e-4, 1.0, 32)
    assert (settings.clip_rewards, settings.evaluation_epsilon, settings.evaluation_episodes) == (True, 0.01, 20)
    assert settings.validation_share == 0.05
    recurrent = load_train_settings(["--env", game, "--algorithm", "r2d2"])
    assert (recurrent.sequence_length, recurrent.burn_in, recurrent.clip_rewards) == (80, 40, False)


def test_a_game_is_learned_from_frames_that_are_stored_once(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess
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
