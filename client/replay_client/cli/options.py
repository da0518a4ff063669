"""Shared code of the subcommands: options, client errors, JSON output."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console, RenderableType

from replay_client.errors import InvalidArgumentError, ServerUnavailableError, UnauthenticatedError
from replay_client.security import TOKEN_VARIABLE, Tls, token_from_environment
from replay_client.sync.client import ReplayClient

TIMEOUT_S = 3.0
"""Default time limit in seconds, short because a person is waiting."""
SHORTEST_TIMEOUT_S = 1.0
"""Minimum time limit with `--watch`, in seconds."""
DEFAULT_SERVER = "localhost:50051"

_GIVEN_BY: Final = {
    "address": "--server or REPLAY_SERVER",
    "token": "REPLAY_TOKEN or REPLAY_TOKEN_FILE",
    "tls": "REPLAY_TLS_CERT and REPLAY_TLS_KEY",
    "tls.ca": "REPLAY_TLS_CA",
    "tls.cert": "REPLAY_TLS_CERT",
    "tls.key": "REPLAY_TLS_KEY",
    "tls.cert, tls.key": "REPLAY_TLS_CERT and REPLAY_TLS_KEY",
}
"""What gives each field of a client its value."""

Server = Annotated[
    str,
    Parameter(alias="-s", env_var="REPLAY_SERVER", help="HOST:PORT of the server, or of several, separated by commas."),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]


@contextmanager
def client_of(server: str, *, timeout_s: float = TIMEOUT_S) -> Iterator[ReplayClient]:
    """Open a client. Its errors name the options and variables to check."""
    with _opened(server, timeout_s) as client:
        try:
            yield client
        except ServerUnavailableError as error:
            raise ServerUnavailableError(
                f"{error.message}; to use another server, set --server or REPLAY_SERVER, and REPLAY_TLS_CA "
                "if it uses TLS"
            ) from error
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{error.message}: set {TOKEN_VARIABLE}") from error


def _opened(server: str, timeout_s: float) -> ReplayClient:
    try:
        return ReplayClient(server, token=token_from_environment(), tls=Tls.from_environment(), timeout_s=timeout_s)
    except InvalidArgumentError as error:
        given_by = _GIVEN_BY.get(error.metadata["field"])
        if given_by is not None:
            error.message += f" (from {given_by})"
        raise


def show(view: RenderableType, console: Console) -> None:
    """Print a view; use a pager if it exceeds the terminal's height."""
    if not console.is_terminal or len(console.render_lines(view, pad=False)) <= console.height:
        console.print(view)
        return
    os.environ.setdefault("LESS", "FRX")  # like git: keep colors, and leave the output on the screen
    with console.pager(styles=True):
        console.print(view)


def print_json(value: object, indent: int | None = 2) -> None:
    """Print a value as JSON, and flush."""
    print(json.dumps(value, indent=indent), flush=True)
