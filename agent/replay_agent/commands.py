"""The commands of the trainer: what is missing is told, and the version without loading torch, which takes seconds."""

from __future__ import annotations

import sys

from replay_proto.extras import needs_extras
from replay_proto.quiet import quiet_grpc

from replay_agent import __version__

_EXTRAS = "server,agent"
"""The trainer and the experiments start a server of their own where none is named."""


def train() -> int:
    """Run `replay-train`."""
    if _asks_for_version():
        return _show_version("replay-train")
    quiet_grpc()
    with needs_extras("replay-train", _EXTRAS):
        from replay_agent.train import main

    return main()


def actor() -> int:
    """Run `replay-actor`."""
    if _asks_for_version():
        return _show_version("replay-actor")
    with needs_extras("replay-actor", "agent"):
        from replay_agent.actor_process import main

    return main()


def experiment() -> int:
    """Run `replay-experiment`."""
    if _asks_for_version():
        return _show_version("replay-experiment")
    with needs_extras("replay-experiment", _EXTRAS):
        from replay_agent.experiments.main import main

    return main()


def _asks_for_version() -> bool:
    return "--version" in sys.argv[1:]


def _show_version(command: str) -> int:
    print(f"{command} {__version__}")
    return 0
