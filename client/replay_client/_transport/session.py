"""State shared by a client and its tables: the connection to the server, and shortcuts to the tables.

A pickled or copied session contains only its options, and opens a new connection at its first call. Tokens are pickled
only for processes that `multiprocessing` spawns. These get the pickle through a pipe, so no token is stored anywhere.
If a session with a token is unpickled by any other process, that process reads a token from its own REPLAY_TOKEN.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any, Self, TypeVar

from replay_client._transport.call import Operation
from replay_client._transport.connection import Connection, SessionOptions
from replay_client._transport.data_path import DataPath
from replay_client._transport.local_calls import LocalCalls
from replay_client._transport.unclosed import FINISH_S
from replay_client.errors import ClosedError, UnauthenticatedError
from replay_client.results.description import TableDescription
from replay_client.security import TOKEN_VARIABLE, Token, token_from_environment

L = TypeVar("L", bound="SessionBase")


class SessionBase:
    """Base class of the sessions of all clients: how sessions are pickled and copied."""

    def __init__(self, options: SessionOptions, token: Token | None = None, *, lacks_token: bool = False) -> None:
        """Do not connect yet. ``lacks_token`` says that the original session had a token, but this process has none."""
        self.options = options
        self._token = token
        self._lacks_token = lacks_token

    def check_token(self) -> None:
        """Check that the session has a token if the original session had one.

        Raises:
            UnauthenticatedError: the session came from another process, where it had a token; this process has none.
        """
        if self._lacks_token:
            raise UnauthenticatedError(
                f"this client was created with a token, which is not pickled: set {TOKEN_VARIABLE} in this process"
            )

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[object, ...]]:
        if get_spawning_popen() is not None:
            return partial(type(self), lacks_token=self._lacks_token), (self.options, self._token)
        return partial(_arrived, type(self)), (self.options, self._lacks_token or self._token is not None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the session with its token, because the copy stays in this process."""
        return type(self)(self.options, self._token, lacks_token=self._lacks_token)


class Session(SessionBase):
    """See the module. Thread-safe."""

    def __init__(self, options: SessionOptions, token: Token | None = None, *, lacks_token: bool = False) -> None:
        """See `SessionBase`."""
        super().__init__(options, token, lacks_token=lacks_token)
        self._connection: Connection | None = None
        self._is_closed = False
        self._opening = threading.Lock()
        self._calls: weakref.WeakSet[LocalCalls] = weakref.WeakSet()

    @property
    def connection(self) -> Connection:
        """The connection, which is opened on first use."""
        if self._connection is None:
            with self._opening:
                if self._connection is None:
                    self._connection = self._opened()
        return self._connection

    def to(self, address: str) -> Session:
        """Return a session with the same options to another server."""
        return Session(replace(self.options, address=address), self._token, lacks_token=self._lacks_token)

    def move(self, address: str) -> None:
        """Connect to another address, where the server has the same tables. Streams move there when they break."""
        with self._opening:
            self.options = replace(self.options, address=address)
            if self._connection is not None:
                self._connection.move(self.options)

    def data_path(self, table: TableDescription, describe: Callable[[], Operation[TableDescription]]) -> DataPath:
        """Prepare the shortcuts to a table, without a call to the server. ``describe`` fetches its description."""
        if not self.options.same_host:
            return DataPath(table)

        def described(within_s: float) -> TableDescription:
            return self.connection.ask(describe(), timeout_s=within_s)

        path = DataPath(table, lambda: self.connection.access.authorization(), describe=described)
        if path.calls is not None:
            self._calls.add(path.calls)
        return path

    def close(self) -> None:
        """Close all connections. Later calls raise `ClosedError`. Does nothing in a forked child.

        Writers and samplers that nobody closed get `FINISH_S` seconds to deliver what they have.
        """
        with self._opening:
            self._is_closed = True
            connection = self._connection
        if connection is None:
            return
        if not connection.is_forked:
            deadline = time.monotonic() + FINISH_S
            for work in list(connection.works):
                work.finish(deadline)
            for calls in list(self._calls):
                calls.close()
        connection.close()

    def _opened(self) -> Connection:
        if self._is_closed:
            raise ClosedError("this client is closed")
        self.check_token()
        return Connection(self.options, self._token)


def _arrived(kind: Callable[..., L], options: SessionOptions, has_token: bool) -> L:
    token = token_from_environment() if has_token else None
    return kind(options, token, lacks_token=has_token and token is None)
