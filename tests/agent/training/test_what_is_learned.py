"""Settings of what a run learns from and is judged by reach whoever acts, draws and evaluates."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from replay_agent.distributed.acting_run import run_actor
from replay_agent.reporting.progress import ProgressView
from replay_agent.settings.actor_settings import load_actor_settings
from replay_agent.training.training_loop import Ending, TrainingLoop
from replay_client import ReplayClient, Table

from tests.agent.corridor import CORRIDOR_ID, RICH_ID, STEP_REWARD, TIME_LIMIT
from tests.agent.short_runs import PATIENCE_S, Watcher
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")

RICH = {"env": RICH_ID, "table": "rich", "n_step": 1, "learning_starts": 100, "steps": 110}


def largest_reward(table: Table) -> float:
    return float(table.sample(1_000, beta=0.0)["reward"].max())


@pytest.mark.parametrize("clips", [False, True])
def test_rewards_are_clipped_where_the_trainer_acts(
    make_trainer: Callable[..., TrainingLoop], client: ReplayClient, clips: bool
) -> None:
    trainer = make_trainer(clip_rewards=clips, epsilon_end=1.0, **RICH)
    assert trainer.train(ProgressView(), None) is Ending.STEPS_DONE
    trainer.table.flush()
    assert (largest_reward(client["rich"]) == 1.0) == clips


def test_rewards_are_clipped_where_others_act(
    make_trainer: Callable[..., TrainingLoop], client: ReplayClient, server: ServerProcess
) -> None:
    trainer = make_trainer(clip_rewards=True, epsilon_end=1.0, **RICH)
    stop = threading.Event()
    settings = load_actor_settings(["--server", server.address, "--run", trainer.run.name])
    actor = threading.Thread(target=run_actor, args=(settings, stop))
    actor.start()
    wait_until(lambda: client["rich"].describe().inserted >= 100, "the actor acts", PATIENCE_S)
    stop.set()
    actor.join(PATIENCE_S)
    assert largest_reward(client["rich"]) == 1.0


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_validations_take_random_actions_now_and_then(
    make_trainer: Callable[..., TrainingLoop], epsilon: float
) -> None:
    trainer = make_trainer(env=CORRIDOR_ID, evaluation_epsilon=epsilon)
    with torch.no_grad():
        for parameter in trainer.learner.online.parameters():
            parameter.zero_()  # all actions have the same value, so the first is taken, which leads to the left
    greedy = pytest.approx(TIME_LIMIT * STEP_REWARD)
    assert (trainer.selector.validate(trainer.learner.online).mean == greedy) == (epsilon == 0.0)


def test_beta_rises_over_its_own_steps(make_trainer: Callable[..., TrainingLoop]) -> None:
    watcher = Watcher(1, lambda: None)
    trainer = make_trainer(env=CORRIDOR_ID, steps=200, beta_start=0.4, beta_steps=400)
    assert trainer.train(watcher, None) is Ending.STEPS_DONE
    assert watcher.statuses[-1].beta == pytest.approx(0.7, abs=0.01)
