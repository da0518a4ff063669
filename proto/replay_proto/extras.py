"""What a command says where the libraries of its extra are not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OWN: Final = "replay_"
"""How the names of this project's packages begin."""


@contextmanager
def needs_extras(command: str, extras: str) -> Iterator[None]:
    """Turn a library that is missing into one line that says how to install it, and exit with 1.

    Args:
        command: its name.
        extras: that it needs, as pip takes them: ``server`` or ``server,agent``.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(_OWN):
            raise
        sys.exit(f"{command}: {error.name} is not installed; in a clone, run: pip install '.[{extras}]'")
