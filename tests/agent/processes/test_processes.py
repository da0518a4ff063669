"""Processes: the embedded server, dying and slow actors, the commands."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
import pytest
from replay_agent.acting.actor import FinishedEpisode
from replay_agent.commands import replay_actor, replay_train
from replay_agent.distributed.acting_run import run_actor
from replay_agent.distributed.run_tables import RunError
from replay_agent.processes.actor_pool import ActorPool, ActorsFailError
from replay_agent.processes.signals import StopRequest
from replay_agent.reporting.progress import ProgressView
from replay_agent.reporting.tensorboard import MetricsLog
from replay_agent.settings.actor_settings import load_actor_settings
from replay_agent.training import run_directory
from replay_agent.training.checkpoint import checkpoints
from replay_agent.training.run_directory import RunDirectory
from replay_agent.training.training_loop import Ending, TrainingLoop
from replay_client import LocalServer, ReplayClient, ServerUnavailableError

from tests.agent.short_runs import PATIENCE_S, RECONNECT_TIMEOUT_S, SHORT_RUN, Watcher, flags_of
from tests.support.deadlines import wait_until
from tests.support.forked_modules import fork_module
from tests.support.server_process import ServerProcess
from tests.support.warm_program import ForkedProcess

TRAIN, ACT = "replay_agent.commands.replay_train", "replay_agent.commands.replay_actor"
_PAUSE_S = 0.01


@contextmanager
def pool_of(trainer: TrainingLoop, server: ServerProcess, folder: Path, count: int) -> Iterator[ActorPool]:
    """Run actor processes for a trainer."""
    pool = ActorPool(count, server.address, trainer.run.name, folder, RECONNECT_TIMEOUT_S)
    try:
        yield pool
    finally:
        pool.close()


def pids_of(pool: ActorPool) -> set[int]:
    """The process ids of running actors."""
    processes = [slot.process for slot in pool._slots if slot.process is not None]
    return {process.pid for process in processes if process.poll() is None}


def test_the_embedded_server_and_actors_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from replay_agent.processes.actor_pool import ActorPool\n"
        "from replay_client import LocalServer\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "server = LocalServer()\n"
        "pool = ActorPool(1, server.address, 'run', folder, 60.0)\n"
        "print(server.pid, *(slot.process.pid for slot in pool._slots), flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    assert psutil.wait_procs(children, PATIENCE_S)[1] == []


def test_a_killed_actor_is_started_again_and_training_goes_on(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess, tmp_path: Path
) -> None:
    trainer = make_trainer(actors=2, steps=6_000, validate_interval=100_000)
    with pool_of(trainer, server, tmp_path, count=2) as pool:
        first = pids_of(pool)
        watcher = Watcher(1_000, lambda: os.kill(min(first), signal.SIGKILL))
        assert trainer.train(watcher, pool) is Ending.STEPS_DONE
        pool.supervise()  # the run may end before its next supervision
        assert pool.restarts == 1
        assert len(pids_of(pool)) == 2
        assert pids_of(pool) != first
    assert trainer.learner.updates > 0
    assert len(trainer.history.episode_returns) > 10  # actors report the ends of their episodes


def test_the_learner_keeps_to_the_replay_ratio_when_actors_insert(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess, tmp_path: Path
) -> None:
    trainer = make_trainer(actors=1, steps=2_000, replay_ratio=0.5, lead_steps=200)
    with pool_of(trainer, server, tmp_path, count=1) as pool:
        trainer.train(Watcher(10**9, lambda: None), pool)
    due = (trainer.pacer.env_steps - 100) * 0.5
    # It lags by the steps that actors may be ahead, and by the rows in flight when they paused.
    assert due - 1_000 < trainer.learner.updates <= due + 1


class StopAtAnEpisode(MetricsLog):
    """Requests a stop at the end of an episode, once an actor has joined."""

    def __init__(self, stop: StopRequest, has_joined: Callable[[], object]) -> None:
        super().__init__(None)
        self._stop = stop
        self._has_joined = has_joined

    def episode(self, step: int, episode: FinishedEpisode) -> None:
        if self._has_joined():
            self._stop.set()


def joined(trainer: TrainingLoop) -> int:
    assert trainer.guide is not None
    return trainer.guide.actors_joined


def test_an_actor_joins_late_waits_while_the_run_is_stopped_and_leaves_when_it_is_over(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess, tmp_path: Path
) -> None:
    stop = StopRequest()
    values = {"name": "joined-late", "validate_interval": 10_000_000}
    trainer = make_trainer(stop, StopAtAnEpisode(stop, lambda: joined(trainer)), steps=10_000_000, **values)
    started: list[subprocess.Popen[str] | ForkedProcess] = []
    log = tmp_path / "actor.log"

    def join() -> None:
        flags = ["--server", server.address, "--run", trainer.run.name]
        started.append(fork_module(ACT, flags, log, pipe_output=False))

    assert trainer.train(Watcher(400, join), None) is Ending.STOPPED
    trainer.save()
    trainer.close()
    assert joined(trainer) == 1
    steps = trainer.pacer.env_steps + 1_000
    # The trainer does not act, so the steps are those of the actor.
    resumed = make_trainer(resume=trainer.run.path, steps=steps, act=False, **values)
    resumed.resume()
    assert resumed.train(Watcher(10**9, lambda: None), None) is Ending.STEPS_DONE
    assert started[0].poll() is None
    resumed.end()
    assert joined(resumed) == 1
    assert started[0].wait(PATIENCE_S) == 0, log.read_text()


def test_an_actor_goes_on_for_a_trainer_that_was_killed_and_resumes(
    make_trainer: Callable[..., TrainingLoop], client: ReplayClient, server: ServerProcess, tmp_path: Path
) -> None:
    values = {**SHORT_RUN, "steps": 10_000_000, "runs_dir": tmp_path, "name": "again", "server": server.address}
    killed = fork_module(TRAIN, flags_of({**values, "act": False}), tmp_path / "log", pipe_output=False)
    told_to_stop = threading.Event()
    settings = load_actor_settings(["--server", server.address, "--run", "again"])
    actor = threading.Thread(target=run_actor, args=(settings, told_to_stop))
    actor.start()
    wait_until(lambda: "again" in client and client["again"].size() > 200, "the actor acts", PATIENCE_S)
    killed.kill()
    killed.wait(PATIENCE_S)
    stop = StopRequest()
    metrics = StopAtAnEpisode(stop, lambda: joined(trainer))
    trainer = make_trainer(stop, metrics, act=False, steps=10_000_000, resume=tmp_path / "again")
    trainer.resume()
    assert trainer.train(ProgressView(), None) is Ending.STOPPED
    assert joined(trainer) == 1
    told_to_stop.set()
    actor.join(PATIENCE_S)
    assert not actor.is_alive()


def test_an_actor_goes_on_with_a_table_that_was_created_anew(
    make_trainer: Callable[..., TrainingLoop], server: ServerProcess, tmp_path: Path
) -> None:
    # The goal of the old table is soon reached, and that of the new one is lower.
    trainer = make_trainer(actors=1, steps=3_000, lead_steps=50, validate_interval=100_000)

    def drop() -> None:
        with ReplayClient(server.address) as client:
            client.drop_table(trainer.table.name)

    with pool_of(trainer, server, tmp_path, count=1) as pool:
        assert trainer.train(Watcher(1_000, drop), pool) is Ending.STEPS_DONE
        assert pool.restarts == 0


def test_an_actor_without_a_trainer_gives_up_and_says_so(server: ServerProcess) -> None:
    settings = load_actor_settings(["--server", server.address, "--run", "nobody", "--trainer-timeout-s", "0.3"])
    with pytest.raises(RunError, match=r"run 'nobody' has published nothing at .* for 0\.3 s; check --run"):
        run_actor(settings, threading.Event())


def test_an_actor_without_a_server_gives_up_and_says_so() -> None:
    settings = load_actor_settings(["--server", "127.0.0.1:1", "--run", "any", "--reconnect-timeout-s", "0.3"])
    with pytest.raises(ServerUnavailableError, match=r"127\.0\.0\.1:1"):
        run_actor(settings, threading.Event())


def supervise_until_it_raises(pool: ActorPool) -> None:
    """Supervise like the training loop, up to the test's time limit."""
    while True:
        pool.supervise()
        time.sleep(_PAUSE_S)


def test_actors_that_give_up_at_once_again_and_again_end_the_run_with_their_log(tmp_path: Path) -> None:
    pool = ActorPool(1, "no address", "run", tmp_path, RECONNECT_TIMEOUT_S)
    with pytest.raises(ActorsFailError, match=r"(?s)failed 3 times.*--server: expected HOST:PORT"):
        supervise_until_it_raises(pool)
    pool.close()


def lines_of(process: subprocess.Popen[str]) -> queue.Queue[str]:
    """The lines of a process's standard error, followed by an empty string."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_or_killed_and_moved_keeps_buffer_and_replay_ratio_when_it_is_resumed(
    tmp_path: Path, end: signal.Signals
) -> None:
    run, moved, log = (tmp_path / name for name in ("run", "moved", "log"))
    values = {**SHORT_RUN, "steps": 10_000_000, "runs_dir": tmp_path, "name": "run", "keep_table": True}
    flags = flags_of({**values, "checkpoint_interval_s": 0.2})
    process = fork_module(TRAIN, flags, log, pipe_output=True)
    wait_until(lambda: re.search("(?s)replay server at.*steps/s", log.read_text()) is not None, "it trains", PATIENCE_S)
    wait_until(lambda: steps_of(run) > 300, "the run has made 300 steps", PATIENCE_S)
    children = psutil.Process(process.pid).children()
    if end is signal.SIGINT:
        os.killpg(process.pid, end)  # like a terminal
    else:
        process.kill()
    assert process.stdout is not None
    shown = process.stdout.read()
    assert process.wait(PATIENCE_S) == (128 + end if end is signal.SIGINT else -end)
    # Do not wait: after the trainer was killed, its server may not have noticed yet.
    run.rename(moved)
    saved = steps_of(moved)
    if end is signal.SIGINT:
        assert "stopped" in shown
        assert f"--resume {run}" in shown

    # In this process, where torch is already loaded.
    assert replay_train.main(["--resume", str(moved), "--steps", str(saved + 1_000)]) == 0
    assert psutil.wait_procs(children, PATIENCE_S)[1] == []
    result = json.loads((moved / "result.json").read_text())
    steps = result["env_steps"]
    assert steps >= saved + 1_000
    assert result["updates"] == (steps - SHORT_RUN["learning_starts"] + 1) // 4
    assert result["evaluation"]["episodes"] == SHORT_RUN["evaluation_episodes"]
    with LocalServer(moved / "replay") as server, server.client() as client:
        table = client.table("run")
        rows = table.read(np.arange(table.describe().inserted))
    assert rows.ends is not None
    stored = int((rows.ends == 0).sum())
    # After a kill, it is estimated how many of the rows since the checkpoint close an episode.
    assert abs(stored - steps) <= (0 if end is signal.SIGINT else (rows.ends != 0).sum() / 2)


def steps_of(run: Path) -> int:
    """Environment steps of the newest checkpoint."""
    return max((int(path.name.removeprefix("step-")) for path in checkpoints(run / "checkpoints")), default=0)


def test_a_run_in_use_is_not_resumed_beside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "IN_USE_TIMEOUT_S", 0.2)
    run = RunDirectory(tmp_path)
    with (
        run.locked(),
        pytest.raises(BlockingIOError, match="in use by another replay-train"),
        RunDirectory(tmp_path).locked(),
    ):
        pass
    with RunDirectory(tmp_path).locked():
        pass


@pytest.mark.parametrize("command", ["replay-train", "replay-actor"])
@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_a_command_says_its_version_and_flags_without_loading_torch(command: str, flag: str) -> None:
    module = f"replay_agent.commands.{command.replace('-', '_')}"
    program = (
        f"import sys; from {module} import main; sys.argv = [{command!r}, {flag!r}]\n"
        "SLOW = {'torch', 'gymnasium', 'replay_client'}\n"
        "try: main()\n"
        "except SystemExit as end: sys.exit(end.code or bool(SLOW & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(
        f"{command} {version('replay-service')}\n" if flag == "--version" else f"Usage: {command} "
    )
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"][command] == f"{module}:main"


def test_the_version_is_in_the_help_page_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        replay_train.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"replay-train {version('replay-service')}\n"


def test_settings_that_cannot_be_used_end_a_command_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        replay_train.main(["--batch-size", "0"])
    assert "--batch-size" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        replay_actor.main(["--server", "nowhere"])
    assert "--server" in capsys.readouterr().err
