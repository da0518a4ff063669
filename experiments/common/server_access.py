"""The replay server of an experiment: a running one, or a new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from replay_agent.processes.embedded_server import EmbeddedServer
from replay_agent.processes.own_access import OwnAccess, own_access
from replay_client import ReplayClient, Tls
from replay_client.security import token_from_environment


@dataclass(frozen=True)
class ServerAccess:
    """A server, and how to reach it.

    Attributes:
        address: HOST:PORT.
        own: the token of a server of our own; None: the variables say how to reach it.
    """

    address: str
    own: OwnAccess | None

    def connect(self) -> ReplayClient:
        """A client of the server.

        Raises:
            InvalidArgumentError: for a token that cannot be one, or a file of certificates that cannot be read.
        """
        if self.own is not None:  # It is reached from this machine only, without TLS.
            return ReplayClient(self.address, token=self.own.token)
        return ReplayClient(self.address, token=token_from_environment(), tls=Tls.from_environment())


@contextmanager
def replay_server(address: str | None, folder: Path) -> Iterator[ServerAccess]:
    """A server for an experiment.

    Args:
        address: of one that runs; None: start one, for as long as the block lasts.
        folder: for log and token of one that is started.

    Raises:
        EmbeddedServerError: it could not be started.
        OSError: the token cannot be kept in the folder.
    """
    if address is not None:
        yield ServerAccess(address, None)
        return
    with own_access(folder / "access") as own:
        server = EmbeddedServer(folder / "server.log", own)
        try:
            yield ServerAccess(server.address, own)
        finally:
            server.close()
