"""Shared code of the subcommands: options, client errors, JSON output."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, NamedTuple

from cyclopts import Parameter
from rich.console import Console, RenderableType

from replay_client.errors import InvalidArgumentError, ServerUnavailableError, UnauthenticatedError
from replay_client.security import TLS_PREFIX, TOKEN_FILE_SUFFIX, TOKEN_VARIABLE, Tls, token_from_environment
from replay_client.sync.client import ReplayClient

TIMEOUT_S = 3.0
"""Default time limit in seconds, short because a person is waiting."""
COPY_TIMEOUT_S = 30.0
"""Time limit of each request of commands that copy rows."""
SHORTEST_TIMEOUT_S = 1.0
"""Minimum time limit with `--watch`, in seconds."""
DEFAULT_SERVER = "localhost:50051"
FAILURE = 1
"""Exit code of a command that has failed."""


class Side(NamedTuple):
    """Where a client's address, token and TLS settings come from."""

    address: str
    """What gives the address, in messages."""
    token: str = TOKEN_VARIABLE
    """The variable with the token; if it is not set, `TOKEN_VARIABLE` has it."""
    tls: str = TLS_PREFIX
    """Prefix of the variables for TLS; if none is set, those with `TLS_PREFIX` count."""

    def open(self, address: str, timeout_s: float) -> ReplayClient:
        """Open a client. An error names what gave the invalid value."""
        token = token_from_environment(self.token) or token_from_environment()
        prefix = self.tls if any(name.startswith(self.tls) and value for name, value in os.environ.items()) else None
        try:
            tls = Tls.from_environment(prefix or TLS_PREFIX)
            return ReplayClient(address, token=token, tls=tls, timeout_s=timeout_s)
        except InvalidArgumentError as error:
            given_by = self._given_by(error.metadata["field"], prefix or TLS_PREFIX)
            if given_by is not None:
                error.message += f" (from {given_by})"
            raise

    def _given_by(self, field: str, tls: str) -> str | None:
        pair = f"{tls}_CERT and {tls}_KEY"
        return {
            "address": self.address,
            "token": f"{self.token} or {self.token}{TOKEN_FILE_SUFFIX}",
            "tls": pair,
            "tls.ca": f"{tls}_CA",
            "tls.cert": f"{tls}_CERT",
            "tls.key": f"{tls}_KEY",
            "tls.cert, tls.key": pair,
        }.get(field)


SERVER: Final = Side("--server or REPLAY_SERVER")
SOURCE: Final = Side("SOURCE")
ADDRESSES: Final = Side("ADDRESSES")
DESTINATION: Final = Side("DESTINATION", "REPLAY_DESTINATION_TOKEN", "REPLAY_DESTINATION_TLS")
"""The second server of a command that has two."""

Server = Annotated[
    str,
    Parameter(alias="-s", env_var="REPLAY_SERVER", help="HOST:PORT of the server, or of several, separated by commas."),
]
TableName = Annotated[str, Parameter(help="Name of the table.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]


@contextmanager
def client_of(server: str, *, timeout_s: float = TIMEOUT_S, side: Side = SERVER) -> Iterator[ReplayClient]:
    """Open a client. Its errors name the options and variables to check."""
    with side.open(server, timeout_s) as client:
        try:
            yield client
        except ServerUnavailableError as error:
            raise ServerUnavailableError(
                f"{error.message}; to use another server, set {side.address}, and REPLAY_TLS_CA if it uses TLS"
            ) from error
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{error.message}: set {TOKEN_VARIABLE}") from error


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
