"""Tells users of a command which optional dependencies to install."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OWN: Final = "replay_"
"""Prefix of this project's packages."""


@contextmanager
def needs_extras(command: str, extras: str) -> Iterator[None]:
    """If a library is missing, print how to install it, and exit with 1.

    Args:
        command: name of the command.
        extras: the extras that it needs, in pip's syntax: ``server`` or ``server,agent``.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(_OWN):
            raise
        sys.exit(f"{command}: {error.name} is not installed; in a clone, run: pip install '.[{extras}]'")
