"""The directory of a run: where its checkpoints, logs, picture and result lie."""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path

from replay_agent.settings import SETTINGS_FILE, TrainSettings

RANDOM_SUFFIX_BYTES = 2
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


class RunDirectoryError(RuntimeError):
    """The directory cannot be used."""


class RunDirectory:
    """Names of everything in it."""

    def __init__(self, path: Path) -> None:
        """Use a directory that exists."""
        self.path = path
        self.settings = path / SETTINGS_FILE
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.logs = path / "logs"
        self.curve = path / "curve.png"
        self.history = path / "history.json"
        self.result = path / "result.json"
        self.best = path / "best.safetensors"
        self._starts = path / "starts"
        self.logs.mkdir(exist_ok=True)

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.resolve().name

    def count_start(self) -> int:
        """Note that the run is started once more; returns how often it was started before."""
        earlier = int(self._starts.read_text()) if self._starts.is_file() else 0
        written = self._starts.with_suffix(".new")
        written.write_text(f"{earlier + 1}\n")
        written.replace(self._starts)
        return earlier


def open_run_directory(settings: TrainSettings) -> RunDirectory:
    """Make the directory of a new run, or open that of the one to resume, and write the settings into it.

    Raises:
        RunDirectoryError: a run of this name exists already.
    """
    if settings.resume is not None:
        run = RunDirectory(settings.resume)
    else:
        path = settings.runs_dir / (settings.name or _unique_name(settings))
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunDirectoryError(
                f"{path} exists: go on with it by --resume {path}, or choose another --name"
            ) from None
        run = RunDirectory(path)
    settings.save(run.settings)
    return run


def _unique_name(settings: TrainSettings) -> str:
    """Also unique among runs on other machines that share a server, for the table is named after the run."""
    env = NOT_IN_NAMES.sub("-", settings.env).strip("-.")
    moment = time.strftime("%Y%m%d-%H%M%S")
    return f"{env}-{settings.backend}-seed{settings.seed}-{moment}-{secrets.token_hex(RANDOM_SUFFIX_BYTES)}"
