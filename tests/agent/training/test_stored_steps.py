"""The tables of runs, which store each step once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from replay_agent.processes.signals import StopRequest
from replay_agent.reporting.progress import ProgressView
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.run import train
from replay_agent.training.training_loop import Ending, TrainingLoop
from replay_client import ReplayClient, Table
from rich.console import Console

from tests.agent.corridor import BEST_RETURN, CORRIDOR_ID, STACKED_ID
from tests.agent.processes.test_processes import pids_of, pool_of
from tests.agent.short_runs import Watcher
from tests.agent.training.test_training import CORRIDOR_RUN
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")

QUIET = Console(quiet=True)
RUN = {"env": CORRIDOR_ID, "n_step": 3}


def steps_in(table: Table) -> int:
    """Rows that are steps, in a table that has evicted none."""
    rows = table.read(np.arange(table.describe().inserted))
    assert rows.ends is not None
    return int((rows.ends == 0).sum())


@pytest.mark.parametrize("backend", ["sum_tree", "rank", "uniform"])
def test_a_run_learns_from_stacks_whose_frames_are_stored_once(
    server: ServerProcess, settings_of: Callable[..., TrainSettings], backend: str
) -> None:
    settings = settings_of(server=server.address, backend=backend, **{**CORRIDOR_RUN, "env": STACKED_ID, "n_step": 2})
    report = train(settings, StopRequest(), QUIET)
    assert report.ending == Ending.SOLVED
    assert report.evaluation is not None
    assert report.evaluation.mean == pytest.approx(BEST_RETURN)


@pytest.mark.parametrize("environments", [1, 5])
def test_the_table_has_every_step_and_closing_rows_are_no_steps_of_the_run(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess, environments: int
) -> None:
    trainer = make_trainer(
        table="every-step", replay_ratio=0.5, steps=500, learning_starts=101, envs_per_actor=environments, **RUN
    )
    assert trainer.train(ProgressView(), None) is Ending.STEPS_DONE
    trainer.table.flush()
    with ReplayClient(server.address) as client:
        table = client.table("every-step")
        assert steps_in(table) == trainer.pacer.env_steps == 500
        assert table.describe().inserted == 500 + len(trainer.history.episode_returns)
        table.drop()
    assert trainer.learner.updates == 200 - int(trainer.pacer.credit)  # the run ends with its last steps


def test_a_run_acts_until_its_first_step_can_be_drawn(make_trainer: Callable[..., TrainingLoop]) -> None:
    trainer = make_trainer(steps=40, learning_starts=4, n_step=4, replay_ratio=1.0)
    assert trainer.train(ProgressView(), None) is Ending.STEPS_DONE
    assert trainer.learner.updates == 37


def test_equal_seeds_give_equal_runs_in_lockstep(make_trainer: Callable[..., TrainingLoop]) -> None:
    networks = []
    for seed in (3, 3, 4):
        trainer = make_trainer(lockstep=True, seed=seed, steps=400, **RUN)
        trainer.train(ProgressView(), None)
        networks.append(torch.cat([tensor.flatten() for tensor in trainer.learner.online.state_dict().values()]))
    assert torch.equal(networks[0], networks[1])
    assert not torch.equal(networks[0], networks[2])


def test_a_run_whose_table_was_dropped_makes_it_anew_and_goes_on(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess
) -> None:
    trainer = make_trainer(name="dropped-steps", steps=3_000, **RUN)
    with ReplayClient(server.address) as client:
        watcher = Watcher(800, lambda: client.drop_table("dropped-steps"))
        assert trainer.train(watcher, None) is Ending.STEPS_DONE
    updates = {status.updates for status in watcher.statuses if status.env_steps > (watcher.acted_at or 0)}
    assert len(updates) > 1  # it continued to learn


def test_a_resumed_run_counts_the_steps_since_its_checkpoint(
    make_trainer: Callable[..., TrainingLoop], tmp_path: Path
) -> None:
    stop = StopRequest()
    first = make_trainer(stop, name="resumed-steps", steps=5_000, **RUN)
    assert first.train(Watcher(400, stop.set), None) is Ending.STOPPED
    first.save()
    saved_at, closed = first.pacer.env_steps, len(first.history.episode_returns)
    stop.clear()
    assert first.train(Watcher(saved_at + 400, stop.set), None) is Ending.STOPPED
    first.close()  # like a kill, this leaves the checkpoint as it was

    second = make_trainer(resume=tmp_path / "runs" / "resumed-steps", steps=first.pacer.env_steps + 300, **RUN)
    second.resume()
    closed = len(first.history.episode_returns) - closed
    assert closed > 20
    # Rows that close an episode are estimated by their share of all rows.
    assert abs(second.pacer.env_steps - first.pacer.env_steps) < closed / 2
    assert second.train(ProgressView(), None) is Ending.STEPS_DONE
    assert second.learner.updates > first.learner.updates


@pytest.mark.parametrize("environments", [1, 4])
def test_steps_of_actors_are_counted_without_closing_rows_also_if_actors_die(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess, tmp_path: Path, environments: int
) -> None:
    trainer = make_trainer(
        table="of-actors", actors=2, steps=4_000, validate_interval=100_000, envs_per_actor=environments, **RUN
    )
    with pool_of(trainer, server, tmp_path, count=2) as pool:
        watcher = Watcher(1_000, lambda: os.kill(min(pids_of(pool)), signal.SIGKILL))
        assert trainer.train(watcher, pool) is Ending.STEPS_DONE
        pool.supervise()  # the run may end before its next supervision
        assert pool.restarts == 1
    with ReplayClient(server.address) as client:
        table = client.table("of-actors")
        steps, closing = steps_in(table), table.describe().inserted - steps_in(table)
        table.drop()
    # A few episodes are reported after their rows have arrived, or never, because their actor died.
    assert trainer.pacer.env_steps - steps < closing / 4
    assert trainer.learner.updates > 0
