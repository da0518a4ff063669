"""The command line of `replay-server`, read without loading the server, so `--help` and errors are fast."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from replay_proto.access.exposure import ExposedError, check_exposure
from replay_proto.command_line import EXIT_USAGE

from replay_server.process.settings import ServerSettings, load_settings


def read_command_line(arguments: Sequence[str]) -> ServerSettings:
    """Read the settings, and configure logging.

    Exits with 0 after ``--help`` and ``--version``, with 2 if the settings are invalid.

    Args:
        arguments: the command line, without the program's name.
    """
    settings = load_settings(arguments)
    logging.basicConfig(
        level=settings.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s  %(message)s",
    )
    try:
        check_exposure(settings.host, settings.protection, insecure=settings.insecure)
    except ExposedError as error:
        print(f"replay-server: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    return settings
