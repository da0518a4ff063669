"""How an actor follows a run whose trainer is silent, restarts or ends, on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from replay_agent.distributed import published_run
from replay_agent.distributed.published_run import PublishedRun, find_run
from replay_agent.distributed.run_tables import ActorTask, Progress, RunError, RunTables
from replay_agent.settings.actor_settings import ActorSettings
from replay_client import ReplayClient, ServerUnavailableError

from tests.agent.distributed.test_actor_guide import TASK
from tests.agent.short_runs import PATIENCE_S
from tests.support.deadlines import wait_until
from tests.support.server_process import ServerProcess

SETTINGS = ActorSettings(trainer_timeout_s=1.0)
GOES_ON = Progress(TASK.start, table=1, goal=100, epsilon=0.5, weights=0, is_finished=False)


def publish(client: ReplayClient, run: str, progress: Progress = GOES_ON, task: ActorTask = TASK) -> None:
    client.publish(RunTables.of(run).task, task.to_state())
    client.publish(RunTables.of(run).progress, progress._asdict())


def follow(client: ReplayClient, settings: ActorSettings = SETTINGS) -> PublishedRun:
    return PublishedRun(client, "run", threading.Event(), settings)


def follow_for_ever(run: PublishedRun) -> None:
    while True:
        run.progress(wait_s=0.1)


def test_a_run_is_waited_for_until_it_begins(client: ReplayClient) -> None:
    settings = ActorSettings(trainer_timeout_s=PATIENCE_S)
    timer = threading.Timer(0.3, publish, (client, "run"))
    timer.start()
    assert follow(client, settings).begin() == TASK
    timer.join()


def test_a_run_that_is_over_is_waited_for_until_it_is_resumed(client: ReplayClient) -> None:
    publish(client, "run", GOES_ON._replace(is_finished=True))
    resumed = replace(TASK, start=8)
    timer = threading.Timer(0.3, publish, (client, "run", GOES_ON._replace(start=8), resumed))
    timer.start()
    run = follow(client, ActorSettings(trainer_timeout_s=PATIENCE_S))
    assert run.begin() == resumed
    assert run.progress(wait_s=0.0) == GOES_ON._replace(start=8)
    timer.join()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_trainer_that_publishes_nothing_is_given_up(client: ReplayClient, is_there: bool) -> None:
    if is_there:
        publish(client, "run")
    began = time.monotonic()
    run = follow(client)
    with pytest.raises(RunError, match=r"has published nothing at .* for 1 s; check --run, and that"):
        follow_for_ever(run)
    assert time.monotonic() - began >= 1.0


def test_a_server_that_is_away_does_not_make_its_trainer_silent(
    start_server: Callable[..., ServerProcess], tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = start_server("--data-dir", str(tmp_path_factory.mktemp("data")))
    with ReplayClient(server.address, timeout_s=0.5) as client:
        publish(client, "run")
        run = follow(client, ActorSettings(trainer_timeout_s=2.0, reconnect_timeout_s=PATIENCE_S))
        assert run.progress(wait_s=0.0) == GOES_ON
        server.kill()
        began = time.monotonic()
        while time.monotonic() - began < 3.0:
            assert run.progress(wait_s=0.1) == GOES_ON
        server.restart()
        later = GOES_ON._replace(goal=500)
        with ReplayClient(server.address) as trainer:  # has time for its first connection, as `client` has not
            trainer.publish("run.progress", later._asdict())
        wait_until(lambda: run.progress(wait_s=0.1) == later, "there is news", PATIENCE_S)


def test_a_server_that_does_not_return_is_given_up(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    with ReplayClient(server.address, timeout_s=0.2) as client:
        publish(client, "run")
        run = follow(client, ActorSettings(trainer_timeout_s=PATIENCE_S, reconnect_timeout_s=1.0))
        assert run.progress(wait_s=0.0) == GOES_ON
        server.kill()
        with pytest.raises(ServerUnavailableError):
            follow_for_ever(run)


def test_a_run_whose_tables_are_gone_for_long_is_over(client: ReplayClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_run, "GONE_S", 0.3)
    publish(client, "run")
    run = follow(client, ActorSettings(trainer_timeout_s=PATIENCE_S))
    assert run.progress(wait_s=0.0) == GOES_ON
    client.drop_table("run.progress")
    assert run.progress(wait_s=0.0) == GOES_ON  # it may come back
    wait_until(lambda: run.progress(wait_s=0.1) is None, "the run is over", PATIENCE_S)


def test_the_only_run_of_a_server_is_found(client: ReplayClient) -> None:
    stop = threading.Event()
    timer = threading.Timer(0.3, publish, (client, "pong"))
    timer.start()
    found = find_run(client, stop, ActorSettings(trainer_timeout_s=PATIENCE_S))
    assert found is not None
    assert found.name == "pong"
    timer.join()
    stop.set()
    assert find_run(client, stop, SETTINGS) is None


def test_no_run_is_said_in_time(client: ReplayClient) -> None:
    with pytest.raises(RunError, match=r"no run has begun at .* within 1 s"):
        find_run(client, threading.Event(), SETTINGS)


def test_of_several_runs_the_one_that_lives_is_found_or_a_choice_is_asked_for(
    client: ReplayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_run, "HEARTBEAT_S", 0.5)
    settings = ActorSettings(trainer_timeout_s=PATIENCE_S)
    publish(client, "killed")
    publish(client, "over", GOES_ON._replace(is_finished=True))
    alive = {"pong"}
    ended = threading.Event()

    def keep_alive() -> None:
        while not ended.wait(0.1):
            for name in sorted(alive):
                publish(client, name)

    trainers = threading.Thread(target=keep_alive)
    publish(client, "pong")
    trainers.start()
    try:
        found = find_run(client, threading.Event(), settings)
        assert found is not None
        assert found.name == "pong"
        alive.add("breakout")
        client.latest("breakout.progress", timeout_s=PATIENCE_S)
        with pytest.raises(RunError, match=r"got (breakout, pong|pong, breakout); choose one of them with --run"):
            find_run(client, threading.Event(), settings)
    finally:
        ended.set()
        trainers.join()


def test_weights_are_read_when_they_are_newer_and_not_too_often(
    client: ReplayClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(published_run, "WEIGHTS_RETRY_S", 0.0)
    run = follow(client)
    assert run.newer_weights(GOES_ON) is None  # there are none yet
    assert run.newer_weights(GOES_ON._replace(weights=1)) is None
    assert "weights of version 1 cannot be read now" in caplog.text
    for number in (1, 2):
        version = client.publish("run.weights", {"w": torch.full((3,), float(number))})
        progress = GOES_ON._replace(weights=version)
        found = run.newer_weights(progress)
        assert found is not None
        assert found["w"].tolist() == [number] * 3
        assert run.newer_weights(progress) is None
        run._weights_at = 0.0  # as if its pause was over
    monkeypatch.setattr(published_run, "WEIGHTS_SHARE", 1e-9)
    for number in (3, 4):
        version = client.publish("run.weights", {"w": torch.full((3,), float(number))})
        assert (run.newer_weights(GOES_ON._replace(weights=version)) is not None) == (number == 3)
