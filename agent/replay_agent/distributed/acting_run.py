"""Acts for a run: plays episodes with the weights that its trainer publishes, and records the steps in its table."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import zlib
from collections.abc import Sequence
from re import findall

from replay_client import ReplayClient, ReplayError, Table, TableNotFoundError, Tls, Writer
from replay_client.security import token_from_environment

from replay_agent.acting.actor import FinishedEpisode
from replay_agent.acting.environments import UnsupportedEnvironmentError
from replay_agent.acting.step_guard import EnvironmentFailedError
from replay_agent.distributed.published_run import PAUSE_S, RETRY_S, PublishedRun, find_run
from replay_agent.distributed.run_tables import (
    AWAY,
    CALL_S,
    ActorTask,
    Progress,
    RunError,
    episode_row,
    hello,
    table_number,
)
from replay_agent.dqn.divergence import DivergedError, require_return
from replay_agent.dqn.networks import ActingNetwork, own_or_usual_network
from replay_agent.r2d2 import build_recurrent_network
from replay_agent.replay.rows import Recorder, make_recorders
from replay_agent.replay.run_table import CLOSE_TIMEOUT_S, TABLE_LOST
from replay_agent.settings.actor_settings import ActorSettings

log = logging.getLogger("replay_agent.actor")

FAILURES = (DivergedError, EnvironmentFailedError, ReplayError, RunError, UnsupportedEnvironmentError)
"""Errors that `run_actor` raises."""


class RestartedError(Exception):
    """The trainer was restarted, or its table was: begin again."""


class ActingRun:
    """Acts for one start of a trainer."""

    def __init__(self, task: ActorTask, run: PublishedRun, client: ReplayClient, name: str) -> None:
        """Build the network, create the environments, and join under ``name``."""
        self._task = task
        self._run = run
        self._client = client
        self._number = secrets.randbits(62)
        self._epsilon = own_epsilon(task.epsilons, name)
        spec = task.network
        self._network: ActingNetwork = build_recurrent_network(spec) if spec.lstm_units else own_or_usual_network(spec)
        self._actor = task.make_actor(self._number, self._network)
        self._reports = [hello(self._number, name)]
        self._report_table: Table | None = None

    def run(self, stop: threading.Event, reconnect_timeout_s: float) -> None:
        """Act until the run is over, or ``stop`` is set.

        Raises:
            RestartedError: the trainer was restarted.
            Exception: one of `FAILURES`, as for `run_actor`.
        """
        while (table := self._find_table(stop)) is not None:
            writer = table.writer(streams=self._task.environments, reconnect_timeout_s=reconnect_timeout_s)
            try:
                self._act(table, writer, stop)
            except TABLE_LOST as error:
                log.warning("the table is gone, waiting for a new one: %s", error)
            finally:
                try:
                    writer.close(timeout_s=CLOSE_TIMEOUT_S)
                except ReplayError as error:
                    log.warning("some rows were not sent: %s", error)
        self._report()

    def close(self) -> None:
        """Close the environments."""
        self._actor.close()

    def _find_table(self, stop: threading.Event) -> Table | None:
        """Wait until the run's table exists, and open it; return None if the run is over or ``stop`` is set."""
        while not stop.is_set():
            progress = self._look()
            if progress is None:
                return None
            try:
                table = self._client.table(self._task.table)
                if table_number(table.uid) == progress.table:
                    return table
            except (TableNotFoundError, *AWAY):
                pass  # the trainer creates it, and `_look` says when the server was away for too long
            stop.wait(RETRY_S)
        return None

    def _act(self, table: Table, writer: Writer, stop: threading.Event) -> None:
        """Alternately poll the progress and act, until the run is over or has another table."""
        recorders = make_recorders(writer, self._task.n_step, self._task.gamma)
        is_ahead = False
        while not stop.is_set():
            self._report()
            progress = self._look(wait_s=PAUSE_S if is_ahead else 0.0)
            if progress is None or table_number(table.uid) != progress.table:
                return
            weights = self._run.newer_weights(progress)
            if weights is not None:
                self._network.load_state_dict(weights)
            epsilon = progress.epsilon if self._epsilon is None else self._epsilon
            for _ in range(0, self._task.check_steps, len(recorders)):
                is_ahead = writer.inserted >= progress.goal
                if is_ahead or stop.is_set():  # a step may take long
                    break
                self._step(recorders, epsilon)

    def _look(self, wait_s: float = 0.0) -> Progress | None:
        """Return the progress of the run; None: it is over."""
        progress = self._run.progress(wait_s=wait_s)
        if progress is None:
            log.info("the tables of the run are gone: it is over")
            return None
        if progress.start != self._task.start:
            raise RestartedError
        return None if progress.is_finished else progress

    def _step(self, recorders: Sequence[Recorder], epsilon: float) -> None:
        for recorder, step in zip(recorders, self._actor.step(epsilon), strict=True):
            recorder.record(step)
            if step.episode is not None:
                self._note_episode(step.episode)

    def _note_episode(self, episode: FinishedEpisode) -> None:
        require_return(episode.episode_return, "an episode; scale the environment's rewards down")
        self._reports.append(episode_row(self._number, episode))

    def _report(self) -> None:
        """Insert what is to be reported. If the table or the server is not there at present, keep it for later.

        An episode may be reported twice, if the server went away after it had received it.
        """
        if not self._reports:
            return
        rows = {name: [report[name] for report in self._reports] for name in self._reports[0]}
        try:
            if self._report_table is None:
                self._report_table = self._client.table(self._run.tables.episodes)
            self._report_table.insert(rows)
        except (*TABLE_LOST, *AWAY):
            self._report_table = None
        else:
            self._reports.clear()


def own_epsilon(epsilons: Sequence[float], name: str) -> float | None:
    """Return the constant epsilon of an actor; None: there are none.

    The actor's number is the last one in its name, so that an actor keeps its epsilon when it restarts under its name,
    and actors with consecutive numbers have different ones.
    """
    if not epsilons:
        return None
    numbers = findall(r"[0-9]+", name)
    number = int(numbers[-1]) if numbers else zlib.crc32(name.encode("utf-8"))
    return epsilons[number % len(epsilons)]


def run_actor(settings: ActorSettings, stop: threading.Event) -> None:
    """Act for a run until ``stop`` is set, and begin again after each restart of its trainer.

    Raises:
        Exception: one of `FAILURES`.
    """
    token, tls = token_from_environment(), Tls.from_environment()
    name = settings.name or f"{socket.gethostname()}:{os.getpid()}"
    with (
        ReplayClient(settings.server, token=token, tls=tls, timeout_s=CALL_S) as guide,
        ReplayClient(settings.server, token=token, tls=tls, wait_for_server_s=settings.reconnect_timeout_s) as client,
    ):
        while not stop.is_set():
            run = find_run(guide, stop, settings)
            task = run and run.begin()
            if not run or not task:
                return
            acting = ActingRun(task, run, client, name)
            log.info("%s acts for run %s: %s, table %s", name, run.name, task.env_id, task.table)
            try:
                acting.run(stop, settings.reconnect_timeout_s)
                return
            except RestartedError:
                log.info("the trainer was restarted")
            finally:
                acting.close()
