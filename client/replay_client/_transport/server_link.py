"""What the handles of one server share: the connection, and the short ways to its tables.

A link travels to other processes and is copied, as options: the connection is opened anew there, by the first call. A
token does not travel. Where the link had one, the receiving process reads its own from the variable REPLAY_TOKEN.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replay_proto.v1 import replay_pb2

from replay_client._transport.connection import Connection
from replay_client._transport.data_path import DataPath
from replay_client._transport.local_calls import LocalCalls
from replay_client.errors import UnauthenticatedError
from replay_client.results.description import TableDescription
from replay_client.security import TOKEN_VARIABLE, Tls, token_from_environment, token_metadata


@dataclass(frozen=True)
class LinkOptions:
    """The options of a client, without its token."""

    address: str
    """Where the server is."""
    timeout_s: float
    """How long a call may take that does not say so itself, in seconds."""
    wait_for_server_s: float
    """How long the first contact may take, in seconds."""
    tls: Tls | None
    """How to encrypt; None: not at all."""
    same_host: bool
    """Whether rows may be copied out of the files of a server on this host."""


class ServerLink:
    """See the module. Threads may share one."""

    def __init__(self, options: LinkOptions, token: str | None = None, *, lacks_token: bool = False) -> None:
        """Nothing is opened yet.

        Args:
            options: what the client was made with.
            token: says who calls, where the server wants to know.
            lacks_token: whether there was a token, which is not known in this process.

        Raises:
            InvalidArgumentError: for a token that cannot be one.
        """
        self.options = options
        self._authorization = dict(token_metadata(token)).get("authorization", "")
        self._token = token
        self._lacks_token = lacks_token
        self._connection: Connection | None = None
        self._opening = threading.Lock()
        self._calls: weakref.WeakSet[LocalCalls] = weakref.WeakSet()

    @property
    def connection(self) -> Connection:
        """The connection, opened by the first who asks.

        Raises:
            InvalidArgumentError: for a file of certificates that cannot be read.
            UnauthenticatedError: the link came from another process, with whose token it was made.
        """
        if self._connection is None:
            with self._opening:
                if self._connection is None:
                    self._connection = self._opened()
        return self._connection

    def described(self, name: str) -> TableDescription:
        """A table as it stands.

        Raises:
            TableNotFoundError: there is none of this name.
            ReplayError: another failure.
        """
        response = self.connection.call_message(
            "DescribeTable",
            replay_pb2.DescribeTableRequest(table=name),
            replay_pb2.DescribeTableResponse,
            repeat=True,
        )
        return TableDescription.from_proto(response.table)

    def data_path(self, table: TableDescription) -> DataPath:
        """The shortest way to a table; nothing is sent."""
        path = DataPath.on_same_host(table, self._authorization) if self.options.same_host else DataPath()
        if path.calls is not None:
            self._calls.add(path.calls)
        return path

    def close(self) -> None:
        """Close all connections; calls raise `ClosedError` from now on. Does nothing in a forked child."""
        connection = self.connection
        if not connection.is_forked:
            for calls in list(self._calls):
                calls.close()
        connection.close()

    def __reduce__(self) -> tuple[Callable[..., ServerLink], tuple[object, ...]]:
        """As options, without the token."""
        return _arrived, (self.options, self._lacks_token or self._token is not None)

    def __deepcopy__(self, memo: dict[int, Any]) -> ServerLink:
        """A copy within a process keeps the token."""
        return ServerLink(self.options, self._token, lacks_token=self._lacks_token)

    def _opened(self) -> Connection:
        if self._lacks_token:
            raise UnauthenticatedError(
                f"this client was created with a token, which is not pickled: set {TOKEN_VARIABLE} in this process"
            )
        options = self.options
        return Connection(
            options.address,
            timeout_s=options.timeout_s,
            wait_for_server_s=options.wait_for_server_s,
            token=self._token,
            tls=options.tls,
        )


def _arrived(options: LinkOptions, has_token: bool) -> ServerLink:
    token = token_from_environment() if has_token else None
    return ServerLink(options, token, lacks_token=has_token and token is None)
