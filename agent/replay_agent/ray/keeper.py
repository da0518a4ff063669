"""Keeps the server of one shard running. Does not import Ray; `service` makes it a Ray actor."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from replay_client.local_server import READY_PREFIX
from replay_proto.child_process import log_tail, start_module, stop

from replay_agent.settings.whole_files import replace_text

log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 15.0
SHORT_LIFE_S: Final = 10.0
"""A server that ends within this time counts as a failed start."""
FIRST_BACKOFF_S: Final = 0.25
MAX_BACKOFF_S: Final = 10.0
STARTS_ON_PORT: Final = 3
"""After this many failed starts in a row, the server gets another port: the old one may be taken."""


@dataclass(frozen=True)
class KeeperReport:
    """State of a keeper."""

    address: str | None
    """where clients reach the server; None: the server is not ready"""
    shard_id: int | None
    """id in the shard map; None: not in the map yet"""
    pid: int | None
    """process id of the server, if it runs"""
    failure: str | None
    """why the server last ended; None: it is ready again, or never ended"""


class ShardKeeper:
    """Runs `replay-server` as a child process. If the server ends, it is restarted on the same port.

    The server ends when this process ends. A file next to the tables stores the port and the shard's id. A keeper
    that finds this file, for example after a restart, continues the shard. Without the file, the server is a new shard
    with empty tables.
    """

    def __init__(self, folder: Path, host: str, tokens: Path, config: Path | None = None) -> None:
        """Start the server with the tables of ``folder``, but do not wait until it is ready.

        Args:
            folder: directory of the shard; created if missing.
            host: address to listen on.
            tokens: file of tokens for the server.
            config: TOML file with further settings of the server.

        Raises:
            OSError: the folder cannot be created, or the tokens cannot be read.
        """
        tokens.read_bytes()  # Other nodes may lack the file: fail now, with its name.
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._flags = [
            *("--host", host, f"--data-dir={folder / 'tables'}", f"--tokens={tokens}", "--exit-with-parent"),
            *([] if config is None else [f"--config={config}"]),
        ]
        self._log = folder / "server.log"
        self._notes = _Notes(folder / "keeper.json")
        self._address: str | None = None
        self._failure: str | None = None
        self._pid: int | None = None
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._keep, name="replay-shard-keeper", daemon=True)
        self._thread.start()

    def report(self) -> KeeperReport:
        """Return the current state."""
        with self._guard:
            return KeeperReport(self._address, self._notes.shard_id, self._pid, self._failure)

    def assign(self, shard_id: int) -> None:
        """Store the id of the shard."""
        with self._guard:
            self._notes.store(shard_id=shard_id)

    def renew(self) -> None:
        """Restart with empty tables, because the shard was given up. Its old tables are renamed within the folder."""
        self.stop()
        with self._guard:
            lost = self._folder / f"tables.lost-{self._notes.shard_id}"
            if not lost.exists():  # otherwise this process's predecessor was killed here, after renaming them
                (self._folder / "tables").rename(lost)
            log.warning("shard %s was given up; its rows remain in %s", self._notes.shard_id, lost)
            self._notes.store(shard_id=None)
        self._stopped.clear()
        self._begin()

    def stop(self) -> None:
        """Stop the server; its tables remain in the folder."""
        self._stopped.set()
        self._signal(signal.SIGTERM)
        self._thread.join(STOP_TIMEOUT_S)
        self._signal(signal.SIGKILL)
        self._thread.join()

    def _signal(self, number: signal.Signals) -> None:
        with self._guard:
            if self._pid is not None:
                os.kill(self._pid, number)

    def _keep(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self._run(0 if failures >= STARTS_ON_PORT else self._notes.port)
            except Exception as error:  # of any kind: otherwise, the server would never be started again
                log.exception("the replay server is started again")
                with self._guard:
                    self._failure = f"the replay server could not be kept running: {error!r}"
            failures = failures + 1 if time.monotonic() - began < SHORT_LIFE_S else 0
            self._stopped.wait(min(FIRST_BACKOFF_S * 2 ** min(failures, 10), MAX_BACKOFF_S) if failures > 1 else 0.0)

    def _run(self, port: int) -> None:
        """Run the server until it ends."""
        with self._guard:
            if self._stopped.is_set():
                return
            process = start_module(
                "replay_server",
                [*self._flags, f"--port={port}"],
                self._log,
                pipe_output=True,
                # Python must not import from the working directory, because Ray may have put a job's files there.
                environment={**os.environ, "PYTHONSAFEPATH": "1"},
            )
            self._pid = process.pid
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()  # empty when the server ends
            if line.startswith(READY_PREFIX):
                with self._guard:
                    self._address, self._failure = line.removeprefix(READY_PREFIX), None
                    self._notes.store(port=int(self._address.rpartition(":")[2]))
                log.info("replay server %d at %s", process.pid, self._address)
            status = process.wait()
            if not self._stopped.is_set():
                log.warning("replay server %d ended with status %d", process.pid, status)
                with self._guard:
                    self._failure = f"the replay server ended with status {status}: {log_tail(self._log)}"
        finally:
            with self._guard:
                self._address = self._pid = None
            stop(process, STOP_TIMEOUT_S)


class _Notes:
    """The port and the shard's id, stored in a file for later keepers of the shard."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        self.port: int = found.get("port", 0)
        self.shard_id: int | None = found.get("shard_id")

    def store(self, **changed: int | None) -> None:
        vars(self).update(changed)
        replace_text(self._path, json.dumps({"port": self.port, "shard_id": self.shard_id}, allow_nan=False))
