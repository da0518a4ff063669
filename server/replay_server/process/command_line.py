"""The command line of `replay-server`, read without loading the server: `--help` and refusals answer at once."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import NoReturn

from pydantic import ValidationError
from pydantic_settings import SettingsError
from replay_proto.access.exposure import ExposedError, check_exposure

from replay_server.process.settings import ServerSettings, faults_of, load_settings


def read_command_line(arguments: Sequence[str]) -> ServerSettings:
    """Read the settings, and set up logging by them.

    Exits with 0 after ``--help``, with 2 if the settings cannot be used.

    Args:
        arguments: the command line, without the program's name.
    """
    try:
        settings = load_settings(arguments)
    except ValidationError as error:
        _refuse(*faults_of(error))
    except SettingsError as error:
        _refuse(str(error))
    logging.basicConfig(
        level=settings.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s  %(message)s",
    )
    try:
        check_exposure(settings.host, settings.protection, insecure=settings.insecure)
    except ExposedError as error:
        _refuse(str(error))
    return settings


def _refuse(*faults: str) -> NoReturn:
    for fault in faults:
        print(f"replay-server: {fault}", file=sys.stderr)
    sys.exit(2)
