"""Starts, supervises and restarts actor processes on this machine."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from replay_proto.child_process import log_tail, start_module, stop

log = logging.getLogger(__name__)

# If an actor fails within this time, it counts as a failed start.
SHORT_LIFE_S = 10.0
# After this many failed starts in a row, another restart would not help.
MAX_FAILED_STARTS = 3
FIRST_BACKOFF_S = 0.25
STOP_TIMEOUT_S = 10.0


class ActorsFailError(RuntimeError):
    """Actors cannot start, or repeatedly fail right after they start."""


class Pool(Protocol):
    """Actors of a run, wherever they run."""

    def supervise(self) -> None:
        """Restart dead actors; the trainer calls this periodically.

        Raises:
            ActorsFailError: an actor repeatedly failed to start, or Ray cannot place it.
        """

    def close(self) -> None:
        """Stop all actors."""


@dataclass
class _Slot:
    """A slot of the pool and its process."""

    number: int
    process: subprocess.Popen[str] | None = None
    started_at: float = 0.0
    failed_starts: int = 0
    start_at: float = 0.0


class ActorPool:
    """Keeps ``count`` actor processes running for as long as this process lives."""

    def __init__(
        self,
        count: int,
        server: str | Callable[[], str],
        run: str,
        log_dir: Path,
        reconnect_timeout_s: float,
        environment: Mapping[str, str] | None = None,
        *,
        threads: int = 1,
        first: int = 0,
    ) -> None:
        """Start the actors.

        Args:
            count: number of actors.
            server: addresses of the replay servers, or a function that returns those at present.
            run: name of the run.
            log_dir: directory for the actors' logs.
            reconnect_timeout_s: as in `ActorSettings`.
            environment: environment variables for actors, including a token (default: those of this process).
            threads: CPU threads of torch in each actor.
            first: number of the first actor.
        """
        self._server = server
        self._arguments = [
            *("--run", run),
            *("--reconnect-timeout-s", str(reconnect_timeout_s)),
            *("--threads", str(threads)),
            "--exit-with-parent",
        ]
        self._log_dir = log_dir
        self._environment = environment
        self._slots = [_Slot(first + number) for number in range(count)]
        self.restarts = 0
        """Restarts of dead actors so far."""
        for slot in self._slots:
            self._start(slot)

    def supervise(self) -> None:
        """See `Pool.supervise`; the message of an error ends with the last lines of the actor's log."""
        for slot in self._slots:
            if slot.process is not None and slot.process.poll() is not None:
                self._note_death(slot, slot.process)
            if slot.process is None and time.monotonic() >= slot.start_at:
                self.restarts += 1
                self._start(slot)

    def close(self) -> None:
        """See `Pool.close`."""
        running = [slot.process for slot in self._slots if slot.process is not None]
        for process in running:
            if process.poll() is None:
                process.terminate()
        for process in running:
            stop(process, STOP_TIMEOUT_S)

    def _start(self, slot: _Slot) -> None:
        server = self._server if isinstance(self._server, str) else self._server()
        slot.started_at = time.monotonic()
        slot.process = start_module(
            "replay_agent.commands.replay_actor",
            [*self._arguments, "--server", server, "--name", f"actor-{slot.number}"],
            self._log_path(slot),
            pipe_output=False,
            environment=self._environment,
        )

    def _note_death(self, slot: _Slot, process: subprocess.Popen[str]) -> None:
        lived_s = time.monotonic() - slot.started_at
        # An actor killed by a signal did not fail to start.
        failed_to_start = process.returncode > 0 and lived_s < SHORT_LIFE_S
        slot.failed_starts = slot.failed_starts + 1 if failed_to_start else 0
        log.warning("actor process %d ended with status %s after %.0f s", process.pid, process.returncode, lived_s)
        stop(process, STOP_TIMEOUT_S)
        slot.process = None
        if slot.failed_starts >= MAX_FAILED_STARTS:
            raise ActorsFailError(
                f"an actor failed {slot.failed_starts} times within {SHORT_LIFE_S:.0f} s of its start; "
                f"the end of {self._log_path(slot)}:\n{log_tail(self._log_path(slot))}"
            )
        slot.start_at = time.monotonic() + (FIRST_BACKOFF_S * 2**slot.failed_starts if failed_to_start else 0.0)

    def _log_path(self, slot: _Slot) -> Path:
        return self._log_dir / f"actor-{slot.number}.log"
