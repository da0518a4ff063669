"""Sets up the log of a command."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler


def set_up_logging(level: str, console: Console) -> None:
    """Log above the progress bar in a terminal, and as plain text elsewhere.

    Args:
        level: minimum severity of messages, such as ``info``.
        console: console of the progress bar.
    """
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False)
        logging.basicConfig(level=level.upper(), handlers=[handler], format="%(message)s")
    else:
        logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
