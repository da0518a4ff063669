"""One training run of the comparison, in a separate process."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from replay_agent.processes.signals import StopRequest
from replay_agent.settings.train_settings import TrainSettings
from replay_agent.training.checkpoint import checkpoints
from replay_agent.training.run import train
from replay_agent.training.training_loop import Ending
from replay_client.security import TLS_PREFIX, TOKEN_VARIABLE
from rich.console import Console

from experiments.common.command import RunFailedError


class TrainingFailedError(RunFailedError):
    """A training run failed."""


@dataclass(frozen=True)
class Validations:
    """The learning curve of a run."""

    steps: list[int]
    means: list[float]


_stop = StopRequest()
"""Set when the parent tells this process to stop."""


def prepare_process(stopping: Event, token: str | None) -> None:
    """Prepare a process: log only errors, stop when the parent says so, and use the token of an embedded server.

    Args:
        stopping: set when runs are to stop.
        token: token of an embedded server, which has no TLS; None: environment variables configure access.
    """
    logging.basicConfig(level=logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal

    def watch() -> None:
        stopping.wait()
        _stop.set()

    threading.Thread(target=watch, name="stop-watch", daemon=True).start()
    if token is None:
        return
    for name in list(os.environ):
        if name.startswith(TLS_PREFIX):
            del os.environ[name]
    os.environ[TOKEN_VARIABLE] = token


def run_training(values: Mapping[str, Any]) -> Validations | None:
    """Train, and return the learning curve; None if stopped.

    An interrupted run is resumed from its last checkpoint.

    Args:
        values: settings of the trainer, including name and directory of the run.

    Raises:
        TrainingFailedError: training failed; the message says why.
    """
    settings = TrainSettings(**values)
    run = settings.runs_dir / str(settings.name)
    if checkpoints(run / "checkpoints"):
        settings = settings.model_copy(update={"resume": run})
    else:
        shutil.rmtree(run, ignore_errors=True)
    try:
        report = train(settings, _stop, Console(quiet=True))
    except Exception as error:
        # Not all client errors can be pickled, but their text can.
        raise TrainingFailedError(f"{settings.name}: {type(error).__name__}: {error}") from None
    if report.ending == Ending.STOPPED:
        return None
    history = json.loads(Path(report.history).read_text("utf-8"))
    if not history["validation_steps"]:
        raise TrainingFailedError(
            f"{settings.name}: no gradient steps in {settings.steps} environment steps, the first "
            f"{settings.learning_starts} of which only fill the table; increase --steps"
        )
    return Validations(history["validation_steps"], history["validation_means"])
