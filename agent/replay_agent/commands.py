"""The commands `replay-train` and `replay-actor`: they say their version without loading torch, which takes seconds."""

from __future__ import annotations

import sys

from replay_agent import __version__


def train() -> int:
    """Run `replay-train`."""
    if _asks_for_version():
        return _show_version("replay-train")
    from replay_agent.train import main

    return main()


def actor() -> int:
    """Run `replay-actor`."""
    if _asks_for_version():
        return _show_version("replay-actor")
    from replay_agent.actor_process import main

    return main()


def _asks_for_version() -> bool:
    return "--version" in sys.argv[1:]


def _show_version(command: str) -> int:
    print(f"{command} {__version__}")
    return 0
