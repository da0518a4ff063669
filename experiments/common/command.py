"""Runs an experiment's command: reads settings, runs the experiment until done or stopped, and reports failures."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from replay_agent.acting.environments import UnsupportedEnvironmentError
from replay_agent.processes.signals import StopRequest
from replay_agent.reporting.progress import set_up_logging
from replay_client import ReplayError
from replay_proto.access.watched import UnusableFileError
from replay_proto.command_line import Settings, read_settings
from replay_proto.starting import quiet_grpc
from rich.console import Console

from experiments.common.results import ResultsError

log = logging.getLogger("experiments")

EXIT_FAILED, EXIT_SIGNAL_BASE = 1, 128

S = TypeVar("S", bound=Settings)


class RunFailedError(RuntimeError):
    """A run of an experiment failed."""


FAILURES = (
    BrokenProcessPool,
    OSError,
    ReplayError,
    ResultsError,
    RunFailedError,
    UnsupportedEnvironmentError,
    UnusableFileError,
)


def run_command(
    name: str,
    settings_class: type[S],
    experiment: Callable[[S, StopRequest, Console], None],
    arguments: Sequence[str] | None,
) -> int:
    """Run an experiment.

    Args:
        name: name of the experiment.
        settings_class: class of its settings.
        experiment: function that executes missing runs and shows all results.
        arguments: the command line without the program's name; None: that of this process.

    Returns:
        0 when the experiment is done, 1 when it failed, 128 + n when signal n stopped it.

    Raises:
        SystemExit: with 2 if a setting is invalid.
    """
    quiet_grpc()
    settings = read_settings(settings_class, f"python -m experiments.{name}", f"REPLAY_{name.upper()}_", arguments)
    console = set_up_logging("info")
    settings.log_remarks(log)
    try:
        with StopRequest() as stop:
            experiment(settings, stop, console)
    except KeyboardInterrupt:
        log.error("interrupted")
        return EXIT_FAILED
    except FAILURES as error:
        log.error("%s", "\n".join([str(error), *getattr(error, "__notes__", [])]))
        return EXIT_FAILED
    if not stop.is_set():
        return 0
    print("to resume, run the same command again", file=sys.stderr)
    return EXIT_SIGNAL_BASE + stop.signal if stop.signal is not None else 0
