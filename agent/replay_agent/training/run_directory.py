"""The directory of a run: checkpoints, tables, logs, plots and results.

It may be moved while the run is stopped.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replay_agent.dqn.saved_agents import AGENT_FILE
from replay_agent.settings.train_settings import SETTINGS_FILE, TrainSettings, saved_settings
from replay_agent.settings.whole_files import replace_text

RANDOM_SUFFIX_BYTES = 2
# After a trainer is killed, its server takes a moment to notice and exit.
IN_USE_TIMEOUT_S = 20.0
LOCK_LOOK_S = 0.05
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


class RunDirectory:
    """Paths in a run directory."""

    def __init__(self, path: Path) -> None:
        """Use an existing directory."""
        self.path = path
        self.settings = path / SETTINGS_FILE
        self.checkpoints = path / "checkpoints"
        self.replay = path / "replay"
        self.access = path / "access"
        self.tensorboard = path / "tensorboard"
        self.logs = path / "logs"
        self.curve = path / "curve.png"
        self.history = path / "history.json"
        self.result = path / "result.json"
        self.agent = path / AGENT_FILE
        self.best = path / "best.safetensors"
        self._starts = path / "starts"
        self.logs.mkdir(exist_ok=True)

    @property
    def name(self) -> str:
        """Name of the run, which is the original name of the directory."""
        saved = saved_settings(self.path) if self.settings.is_file() else {}
        return str(saved.get("name") or self.path.resolve().name)

    @property
    def earlier_starts(self) -> int:
        """Number of starts of the run before the current one."""
        return max(0, self._count_starts() - 1)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Lock the run against other processes.

        Yields:
            A file descriptor; processes that inherit it share the lock.

        Raises:
            BlockingIOError: another process still had the lock after `IN_USE_TIMEOUT_S`.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._wait_for_lock(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def begin(self, settings: TrainSettings) -> None:
        """Save the settings for later starts, and count this start."""
        settings.model_copy(update={"name": self.name}).save(self.settings)
        replace_text(self._starts, f"{self._count_starts() + 1}\n")

    def _count_starts(self) -> int:
        return int(self._starts.read_text()) if self._starts.is_file() else 0

    def _wait_for_lock(self, descriptor: int) -> None:
        deadline = time.monotonic() + IN_USE_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BlockingIOError(
                        f"{self.path} is in use by another replay-train, or by the server that it started; stop it"
                    ) from None
                time.sleep(LOCK_LOOK_S)
            else:
                return


def open_run_directory(settings: TrainSettings) -> RunDirectory:
    """Create the directory of a new run, or open the one to resume.

    Raises:
        OSError: a run with this name exists, or its directory cannot be created; the message says what to do.
        ValueError: the resumed run has another name.
    """
    if settings.resume is not None:
        run = RunDirectory(settings.resume)
        if settings.name not in (None, run.name):
            raise ValueError(f"the run in {run.path} is called {run.name}, not {settings.name}: leave --name out")
        return run
    path = settings.runs_dir / (settings.name or _unique_name(settings))
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise FileExistsError(f"{path} exists: resume it with --resume {path}, or choose another --name") from None
    except OSError as error:
        expected = f"--runs-dir: expected a directory in which this user can create {path.name}"
        raise type(error)(f"{expected}, got {settings.runs_dir}: {error.strerror}") from None
    return RunDirectory(path)


def _unique_name(settings: TrainSettings) -> str:
    """Return a unique name for the run.

    The table gets the same name, so it must be unique even among machines that share a server.
    """
    env = NOT_IN_NAMES.sub("-", settings.env).strip("-._")
    moment = time.strftime("%Y%m%d-%H%M%S")
    kind = f"{env}-{settings.algorithm}-{settings.backend}-seed{settings.seed}"
    return f"{kind}-{moment}-{secrets.token_hex(RANDOM_SUFFIX_BYTES)}"
