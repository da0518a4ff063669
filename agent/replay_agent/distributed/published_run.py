"""What the trainer of a run publishes, as actors see it."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

import torch
from replay_client import DeadlineExceededError, ReplayClient, ServerUnavailableError, TableNotFoundError

from replay_agent.distributed.run_tables import AWAY, HEARTBEAT_S, ActorTask, Progress, RunError, RunTables
from replay_agent.settings.actor_settings import ActorSettings

log = logging.getLogger("replay_agent.actor")

PAUSE_S: Final = 0.5
"""Seconds that one call waits for news; between calls, the actor checks whether it was told to stop."""
GONE_S: Final = 10.0
"""If the tables of a run are gone for this long, the run is over. A server that restarts without its tables gets them
back from the trainer sooner."""
WEIGHTS_SHARE: Final = 0.05
"""Share of an actor's time for reading weights. If many actors or a slow network make it take longer, they read less
often."""
WEIGHTS_RETRY_S: Final = 5.0
"""Pause after weights could not be read."""
RETRY_S: Final = 0.2
"""Pause before another poll for a task or a table that is not there yet."""


class PublishedRun:
    """What the trainer of a run publishes.

    Every method may raise `RunError`, and `ReplayError` if the server refuses, or was unreachable for too long.
    """

    def __init__(self, client: ReplayClient, name: str, stop: threading.Event, settings: ActorSettings) -> None:
        """Store the arguments. ``client`` has the time limit `CALL_S`."""
        self.name = name
        self.tables = RunTables.of(name)
        self._client = client
        self._stop = stop
        self._settings = settings
        self.version: int | None = None
        """Version of the newest progress that is known."""
        self._progress: Progress | None = None
        self._weights_version = 0
        self._weights_at = 0.0
        # Seconds in which the server answered, but had no news. Other seconds say nothing about the trainer.
        self._silent_s = 0.0
        self._asked_at = time.monotonic()
        self._answered_at = time.monotonic()

    def progress(self, *, wait_s: float) -> Progress | None:
        """Return the newest progress; if it is known, wait up to ``wait_s`` for news. None: the tables are gone."""
        try:
            found = self._client.latest(self.tables.progress, wait_newer=self.version, timeout_s=wait_s)
        except DeadlineExceededError:
            pass
        except TableNotFoundError:
            self._count_silence()
            return None if self._silent_s > GONE_S else self._progress
        except ServerUnavailableError:
            if time.monotonic() - self._answered_at > self._settings.reconnect_timeout_s:
                raise
            self._asked_at = time.monotonic()
            return self._progress
        else:
            self.version, self._progress = found.version, Progress.from_state(found.values)
            self._silent_s = 0.0
        self._count_silence()
        return self._progress

    def begin(self) -> ActorTask | None:
        """Wait for a trainer that runs, and return the task; None: told to stop."""
        log.info("waiting for the trainer of run %s", self.name)
        while not self._stop.is_set():
            progress = self.progress(wait_s=PAUSE_S)
            if progress is not None and not progress.is_finished:
                try:
                    task = ActorTask.from_state(self._client.latest(self.tables.task, timeout_s=PAUSE_S).values)
                except (TableNotFoundError, *AWAY):
                    continue
                if task.start == progress.start:
                    return task
            self._stop.wait(RETRY_S)
        return None

    def newer_weights(self, progress: Progress) -> dict[str, torch.Tensor] | None:
        """Return the newest weights; None: they are known, or it is too early to read others."""
        now = time.monotonic()
        if progress.weights == self._weights_version or now < self._weights_at:
            return None
        try:
            found = self._client.latest(self.tables.weights, wait_newer=self._weights_version, timeout_s=0)
        except (TableNotFoundError, *AWAY) as error:
            self._weights_at = now + WEIGHTS_RETRY_S
            log.warning("weights of version %d cannot be read now: %s", progress.weights, error)
            return None
        self._weights_version = found.version
        self._weights_at = time.monotonic() + (time.monotonic() - now) / WEIGHTS_SHARE
        return {name: torch.from_numpy(values) for name, values in found.values.items()}

    def _count_silence(self) -> None:
        now = time.monotonic()
        self._silent_s += min(now - self._asked_at, 2 * PAUSE_S)
        self._asked_at = self._answered_at = now
        if self._silent_s > self._settings.trainer_timeout_s:
            raise RunError(
                f"the trainer of run {self.name!r} has published nothing at {self._client.address} for "
                f"{self._settings.trainer_timeout_s:g} s; check --run, and that replay-train runs with this --server"
            )


def find_run(client: ReplayClient, stop: threading.Event, settings: ActorSettings) -> PublishedRun | None:
    """Return the run of the settings or, if they name none, wait for one; None: told to stop.

    The errors are those of `PublishedRun`.
    """
    if settings.run is not None:
        return PublishedRun(client, settings.run, stop, settings)
    began = time.monotonic()
    while not stop.is_set():
        try:
            names = RunTables.runs(table.name for table in client.tables())
        except AWAY:
            if time.monotonic() - began > settings.reconnect_timeout_s:
                raise
            continue
        runs = [PublishedRun(client, name, stop, settings) for name in names]
        alive = runs if len(runs) == 1 else _alive(runs, stop)
        if len(alive) == 1:
            return alive[0]
        if alive:
            several = ", ".join(run.name for run in alive)
            raise RunError(f"expected one run at {client.address}, got {several}; choose one of them with --run")
        if time.monotonic() - began > settings.trainer_timeout_s:
            raise RunError(
                f"no run has begun at {client.address} within {settings.trainer_timeout_s:g} s; check that "
                "replay-train runs with this --server"
            )
        stop.wait(PAUSE_S)
    return None


def _alive(runs: list[PublishedRun], stop: threading.Event) -> list[PublishedRun]:
    """Return the runs that publish something within two heartbeats. Trainers that end early leave tables behind."""
    begun = [run for run in runs if (progress := run.progress(wait_s=0)) and not progress.is_finished]
    first = [run.version for run in begun]
    alive: list[PublishedRun] = []
    deadline = time.monotonic() + 2 * HEARTBEAT_S
    while len(alive) < len(begun) and time.monotonic() < deadline and not stop.wait(RETRY_S):
        for run in begun:
            run.progress(wait_s=0)
        alive = [run for run, version in zip(begun, first, strict=True) if run.version != version]
    return alive
