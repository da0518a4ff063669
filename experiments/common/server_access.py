"""The replay server of an experiment: a running server, or a new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from replay_agent.processes.own_access import OwnAccess, own_access
from replay_client import LocalServer, ReplayClient, Tls
from replay_client.security import token_from_environment


@dataclass(frozen=True)
class ServerAccess:
    """A server, and how to reach it.

    Attributes:
        address: HOST:PORT.
        own: the token of an embedded server; None: environment variables configure access.
    """

    address: str
    own: OwnAccess | None

    def connect(self) -> ReplayClient:
        """Create a client of the server.

        Raises:
            InvalidArgumentError: the token is malformed, or a certificate file cannot be read.
        """
        if self.own is not None:  # It listens on loopback only, without TLS.
            return ReplayClient(self.address, token=self.own.token)
        return ReplayClient(self.address, token=token_from_environment(), tls=Tls.from_environment())


@contextmanager
def replay_server(address: str | None, folder: Path, *, keeps_tables: bool = False) -> Iterator[ServerAccess]:
    """Provide a server for an experiment.

    Args:
        address: address of a running server; None: start one for the duration of the block.
        folder: directory for the log and token of a started server.
        keeps_tables: whether a started server keeps its tables in the folder, for the next start.

    Raises:
        LocalServerError: the server could not be started.
        OSError: the token cannot be stored in the folder.
    """
    if address is not None:
        yield ServerAccess(address, None)
        return
    with (
        own_access(folder / "access") as own,
        LocalServer(
            folder / "replay" if keeps_tables else None, token=own.token, log_path=folder / "server.log"
        ) as server,
    ):
        yield ServerAccess(server.address, own)
