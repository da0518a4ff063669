"""The command `replay-train`."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Sequence

from replay_proto.starting import exit_on_sigterm, exits_on_ctrl_c, needs_extras, quiet_grpc

log = logging.getLogger("replay_agent")

EXIT_FAILED = 1
# By convention, the exit code of a program stopped by a signal is this plus the signal's number.
EXIT_SIGNAL_BASE = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0 when training is done, 1 when it failed, 128 + n when signal n stopped it.

    Raises:
        SystemExit: with 2 if a setting is invalid.
    """
    exit_on_sigterm(EXIT_SIGNAL_BASE + signal.SIGTERM)
    quiet_grpc()
    with exits_on_ctrl_c(), needs_extras("replay-train", "server,agent"):  # it may start a server
        from replay_agent.settings.train_settings import load_train_settings

    settings = load_train_settings(arguments)
    # Imported here, because torch takes seconds to load and `--help` does not need it.
    with exits_on_ctrl_c(), needs_extras("replay-train", "server,agent"):
        from rich.console import Console

        from replay_agent.processes.signals import StopRequest
        from replay_agent.reporting.progress import set_up_logging
        from replay_agent.training.run import FAILURES, train
        from replay_agent.training.training_loop import Ending

    gc.freeze()  # Torch's modules are never garbage, and scanning them takes long.
    console = set_up_logging(settings.log_level)
    settings.log_remarks(log)
    failures: tuple[type[Exception], ...] = FAILURES
    try:
        with StopRequest() as stop:
            if settings.ray is None:
                report = train(settings, stop, console)
            else:
                with needs_extras("replay-train --ray", "server,agent,ray"):
                    from replay_agent.ray.training import RAY_FAILURES, train_on_ray
                failures = RAY_FAILURES
                report = train_on_ray(settings, stop)
    except KeyboardInterrupt:
        log.error("interrupted")
        return EXIT_FAILED
    except failures as error:
        log.error("%s", "\n".join([str(error), *getattr(error, "__notes__", [])]))
        log.debug("because of", exc_info=error)
        return EXIT_FAILED
    report.show(Console())
    if report.ending != Ending.STOPPED:
        return 0
    Console().print(f"to resume: replay-train --resume {report.run_dir}", soft_wrap=True, highlight=False)
    return EXIT_SIGNAL_BASE + stop.signal if stop.signal is not None else 0


if __name__ == "__main__":
    sys.exit(main())
