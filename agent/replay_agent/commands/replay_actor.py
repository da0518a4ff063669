"""The command `replay-actor`."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from replay_proto.child_process import when_parent_dies
from replay_proto.starting import exit_on_sigterm, exits_on_ctrl_c, needs_extras

with exits_on_ctrl_c(), needs_extras("replay-actor", "agent"):
    from replay_agent.settings.actor_settings import load_actor_settings

log = logging.getLogger("replay_agent.actor")

EXIT_FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an actor.

    Returns:
        0 when the run is over or the actor was told to stop; 1 when it failed.

    Raises:
        SystemExit: with 2 if a setting is invalid.
    """
    exit_on_sigterm(0)
    settings = load_actor_settings(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda *_: stop.set())
    if settings.exit_with_parent:
        # At once: the server of a trainer that died is gone with it, so calls would only time out.
        when_parent_dies(lambda: os._exit(EXIT_FAILED))
    # Imported here, because torch takes seconds to load and `--help` does not need it.
    with needs_extras("replay-actor", "agent"):
        import torch

        from replay_agent.distributed.acting_run import FAILURES, run_actor
        from replay_agent.reporting.progress import set_up_logging

    gc.freeze()  # Torch's modules are never garbage, and scanning them takes long.
    set_up_logging(settings.log_level)
    settings.log_remarks(log)
    torch.set_num_threads(settings.threads)
    try:
        run_actor(settings, stop)
    except FAILURES as error:
        log.error("%s", error)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
