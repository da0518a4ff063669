"""The command `replay-experiment`: ``cliffwalk`` and ``compare``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from pydantic import ValidationError
from pydantic_settings import SettingsError
from replay_client import ReplayError
from replay_proto.access.watched import UnusableFileError
from rich.console import Console
from rich.logging import RichHandler

from replay_agent.command_line import explain, load
from replay_agent.embedded_server import EmbeddedServerError
from replay_agent.environments import UnsupportedEnvironmentError
from replay_agent.experiments.cliffwalk_command import cliffwalk
from replay_agent.experiments.cliffwalk_settings import CliffwalkSettings
from replay_agent.experiments.compare_command import compare
from replay_agent.experiments.compare_settings import CompareSettings
from replay_agent.experiments.results import ResultsError
from replay_agent.experiments.training_run import TrainingFailedError
from replay_agent.signals import StopRequest

log = logging.getLogger("replay_agent")

EXIT_FAILED, EXIT_USAGE, EXIT_SIGNAL_BASE = 1, 2, 128
FAILURES = (
    BrokenProcessPool,
    EmbeddedServerError,
    OSError,
    ReplayError,
    ResultsError,
    TrainingFailedError,
    UnsupportedEnvironmentError,
    UnusableFileError,
)
USAGE: Final = """usage: replay-experiment cliffwalk [--flag value ...]
       replay-experiment compare [--flag value ...]

Experiments of the paper on prioritized replay, run through the service; --help after either shows its flags.

  cliffwalk  updates that the Blind Cliffwalk takes, by how transitions are chosen
  compare    learning curves of Double DQN with uniform, proportional and rank-based replay"""

Experiment = Callable[[Sequence[str]], Callable[[StopRequest, Console], None]]


def _cliffwalk(arguments: Sequence[str]) -> Callable[[StopRequest, Console], None]:
    settings = load(CliffwalkSettings, arguments)
    return lambda stop, console: cliffwalk(settings, stop, console)


def _compare(arguments: Sequence[str]) -> Callable[[StopRequest, Console], None]:
    settings = load(CompareSettings, arguments)
    return lambda stop, console: compare(settings, stop, console)


EXPERIMENTS: Final[Mapping[str, Experiment]] = {"cliffwalk": _cliffwalk, "compare": _compare}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an experiment; returns 0, 1 when it failed, 2 for what cannot be used, 128 + n when signal n stopped it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in EXPERIMENTS:
        asked = given[:1] in (["--help"], ["-h"])
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else EXIT_USAGE
    try:
        experiment = EXPERIMENTS[given[0]](given[1:])
    except (ValidationError, SettingsError) as error:
        print(f"replay-experiment {given[0]}: {explain(error)}", file=sys.stderr)
        return EXIT_USAGE
    console = Console(stderr=True)
    _set_up_logging(console)
    try:
        with StopRequest() as stop:
            experiment(stop, console)
    except KeyboardInterrupt:
        log.error("broken off")
        return EXIT_FAILED
    except FAILURES as error:
        log.error("%s", "\n".join([str(error), *getattr(error, "__notes__", [])]))
        return EXIT_FAILED
    if not stop.is_set():
        return 0
    print("go on: the same command again", file=sys.stderr)
    return EXIT_SIGNAL_BASE + stop.signal if stop.signal is not None else 0


def _set_up_logging(console: Console) -> None:
    if console.is_terminal:
        handlers: list[logging.Handler] = [RichHandler(console=console, show_path=False)]
        logging.basicConfig(level=logging.INFO, handlers=handlers, format="%(message)s")
    else:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")


if __name__ == "__main__":
    sys.exit(main())
