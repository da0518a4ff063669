"""Runs with all parts of Rainbow, from their actors to the use of the best network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from replay_agent import C51, DoubleDQN
from replay_agent.dqn.saved_agents import SavedAgentError
from replay_agent.processes.signals import StopRequest
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.playing import evaluate_run
from replay_agent.training.run import train
from replay_client import ReplayClient
from rich.console import Console

from tests.agent.corridor import BEST_RETURN, CORRIDOR_ID
from tests.support.server_process import ServerProcess

QUIET = Console(quiet=True)
RAINBOW = {"env": CORRIDOR_ID, "preset": "rainbow", "value_min": -2.0, "value_max": 1.0, "atoms": 21}

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")


def test_a_run_solves_the_corridor_by_its_noise_alone(
    server: ServerProcess, settings_of: Callable[..., TrainSettings]
) -> None:
    settings = settings_of(
        **RAINBOW, server=server.address, steps=6_000, replay_ratio=1.0, learning_rate=2e-3, solved_return=BEST_RETURN
    )
    assert (settings.epsilon_start, settings.epsilon_end) == (0.0, 0.0)
    report = train(settings, StopRequest(), QUIET)
    assert report.evaluation is not None
    assert report.evaluation.mean == pytest.approx(BEST_RETURN)


def test_actors_explore_by_noise_and_the_network_is_used_without_it(
    server: ServerProcess, settings_of: Callable[..., TrainSettings]
) -> None:
    settings = settings_of(**RAINBOW, server=server.address, name="rainbow", actors=1, table="rainbow", lead_steps=100)
    report = train(settings, StopRequest(), QUIET)
    assert report.updates > 20, "the actor waits for them, because its lead is limited"
    run = Path(report.run_dir)
    with ReplayClient(server.address) as client:
        rows = client["rainbow"].read(np.arange(300))
        client["rainbow"].drop()
    assert set(rows["action"].tolist()) == {0, 1}
    played = [evaluate_run(run, range(4)).returns.tolist() for _ in range(2)]
    assert played[0] == played[1]
    learner = C51.load(run)
    obs = torch.eye(5)
    assert torch.equal(learner.online(obs), learner.online(obs))
    with pytest.raises(SavedAgentError, match="expected a run with algorithm dqn, got c51"):
        DoubleDQN.load(run)
