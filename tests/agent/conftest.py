"""Fixtures: trainers for short runs with a real server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_agent.acting.environments import inspect_environment
from replay_agent.commands import replay_train
from replay_agent.distributed.run_tables import CALL_S
from replay_agent.processes import actor_pool
from replay_agent.processes.signals import StopRequest
from replay_agent.ray import keeper
from replay_agent.reporting.tensorboard import MetricsLog
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.run_directory import open_run_directory
from replay_agent.training.training_loop import TrainingLoop
from replay_client import ReplayClient, local_server

from tests.agent.short_runs import RECONNECT_TIMEOUT_S, SHORT_RUN, Trained, flags_of
from tests.support.forked_modules import fork_module
from tests.support.server_process import ServerProcess


@pytest.fixture(autouse=True)
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the servers and actors of trainers in this process from processes that have loaded them."""
    for starting in (actor_pool, keeper, local_server):
        monkeypatch.setattr(starting, "start_module", fork_module)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ReplayClient]:
    """A client, whose tables are dropped at the end."""
    with ReplayClient(server.address) as made:
        yield made
        for table in made:
            made.drop_table(table)


@pytest.fixture
def settings_of(tmp_path: Path) -> Callable[..., TrainSettings]:
    """Creates settings of a short run, with some overridden."""

    def make(**given: Any) -> TrainSettings:
        return TrainSettings(**{"runs_dir": tmp_path / "runs", **SHORT_RUN, **given})

    return make


@pytest.fixture
def make_trainer(
    server: ServerProcess, settings_of: Callable[..., TrainSettings]
) -> Iterator[Callable[..., TrainingLoop]]:
    """Creates trainers that use the shared server or a given address, and closes them at the end."""
    with ExitStack() as stack:

        def make(stop: StopRequest | None = None, metrics: MetricsLog | None = None, **given: Any) -> TrainingLoop:
            settings = settings_of(**{"server": server.address, **given})
            client = stack.enter_context(ReplayClient(settings.server or ""))
            guide_client = stack.enter_context(ReplayClient(settings.server or "", timeout_s=CALL_S))
            run = open_run_directory(settings)
            run.begin(settings)
            trainer = TrainingLoop(
                settings,
                run,
                inspect_environment(settings.env),
                client,
                stop or StopRequest(),
                metrics or MetricsLog(None),
                torch.device("cpu"),
                RECONNECT_TIMEOUT_S,
                guide_client,
            )
            stack.callback(trainer.close)
            return trainer

        yield make


@pytest.fixture
def trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Trained]:
    """Runs ``replay-train`` in this process, where torch is already loaded, with its own actor."""

    def train(variables: dict[str, str], **settings: object) -> Trained:
        for name in [name for name in os.environ if name.startswith("REPLAY_")]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        values = {**SHORT_RUN, "runs_dir": tmp_path, "name": "run", "actors": 1, **settings}
        capfd.readouterr()
        status = replay_train.main(flags_of(values))
        return Trained(status, "".join(capfd.readouterr()))

    return train
